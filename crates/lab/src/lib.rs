//! How fast, how safe? Load generation, scenarios, subjects, reports.
