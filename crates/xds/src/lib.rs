//! How does configuration travel? Delta discovery and certificate requests, client and server.
