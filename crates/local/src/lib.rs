//! One machine as feed and stage: manifests from a directory, pods as processes in network namespaces.
