//! The TLS library, rustls: who names one of its types lies in this folder. It does the handshake and
//! derives every key; what it hands on are types of this crate.

mod establish;
mod provider;
mod sides;
mod verifiers;

pub(crate) use establish::Facts;
pub(crate) use provider::{Credential, Provider};
pub(crate) use sides::{Acceptor, ControlSide, MeshSide, mesh};
