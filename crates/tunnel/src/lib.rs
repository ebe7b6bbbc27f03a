//! How do bytes travel? HBONE client, server, pool and copying.
