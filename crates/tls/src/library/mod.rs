//! The TLS library, rustls. Only this folder names its types. It does the handshake and derives every key. What it
//! returns are types of this crate.

mod establish;
mod hello;
mod provider;
mod sides;
mod verifiers;

pub(crate) use establish::Facts;
pub use hello::{ClientHello, NotTls};
pub(crate) use provider::{Credential, Provider};
pub(crate) use sides::{Acceptor, ControlSide, MeshSide, mesh};
