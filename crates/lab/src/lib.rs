//! How fast, how safe? Load generation, scenarios, subjects, reports.
//!
//! A *scenario* is a load and a topology; a *subject* is what carries the traffic; a *run* interleaves subjects and reports
//! medians with their spread, next to what others published. Nothing in here is linked into a role of the mesh.

mod child;
mod cluster;
mod envoy;
mod error;
mod floor;
mod hop;
mod many_svc;
mod options;
mod pem;
mod report_file;

pub mod churn;
pub mod cli_args;
pub mod cluster_info;
pub mod identity;
pub mod load;
pub mod measure;
pub mod report;
pub mod results;
pub mod run;
pub mod scenario;
pub mod stats;
pub mod subject;

pub use envoy::envoy_main;
pub use error::Error;
pub use floor::floor_main;

/// The name of the lab's stage.
pub const STAGE: &str = "lab";

/// The function that this process runs if it was started under another name than `leno`. A node's proxy is started by
/// its path alone, without arguments, so `main` calls this before it looks at arguments and environment.
#[must_use]
pub fn main_by_name(program: &std::ffi::OsStr) -> Option<fn() -> std::process::ExitCode> {
    let name = std::path::Path::new(program).file_name()?;
    match name.to_str()? {
        subject::FLOOR_PROGRAM => Some(floor_main),
        subject::ENVOY_PROGRAM => Some(envoy_main),
        _ => None,
    }
}
