//! How is the mesh written down? Protobuf messages and their conversion to the model.
