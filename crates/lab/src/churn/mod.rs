//! What does a control plane cost? A generated mesh that changes, and proxies that follow it.
//!
//! The control plane is a process of its own ([`plane`]), fed with Kubernetes objects as JSON ([`mesh`]). The proxies are
//! real delta clients over TLS ([`proxy`]), all in the lab's process, each with a connection and a token of its own; they
//! read what is sent to them only as far as they must ([`wire`], [`state`]). Every change bears a number that comes back in
//! the workloads it touched, which is how it is known when a proxy has seen it. After every phase each proxy must hold what
//! the mesh is ([`audit`]).

mod audit;
mod control;
mod crowd;
mod figures;
mod mesh;
mod phase;
mod plane;
mod proxy;
mod state;
mod turn;
mod wire;

pub use control::control_main;
pub(crate) use figures::{headline, pooled_curve, remarks, values};
pub use phase::{Kind, Phase, Shape};
pub use plane::PlaneMemory;
pub use turn::PhaseResult;
pub(crate) use turn::{News, Turn};
