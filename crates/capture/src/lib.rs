//! How is traffic brought in? Network namespaces, nf_tables rules, pod sockets, the CNI-to-proxy protocol.
