//! What does a person type?
