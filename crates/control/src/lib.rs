//! The control plane: objects in, discovery and certificates out.
