//! What does the mesh decide? Authorisation, routing, endpoint choice and the reasons, as pure functions.
