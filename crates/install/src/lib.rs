//! What a cluster needs to run the mesh: the objects of the Helm chart, rendered without Helm.
//!
//! The chart in `charts/leno` is the only source of these objects. It is part of the program, and [`Release::render`] makes of
//! it what `helm template` makes of it; a test compares the two for every profile. For that the templates keep to a few of
//! Helm's functions (`template`).
//!
//! [`cluster`] puts the objects into a cluster, waits for them and takes them away; [`check`] looks for what keeps the mesh
//! from working there.

mod chart;
pub mod check;
pub mod cluster;
mod error;
mod profile;
mod release;
mod schema;
mod template;
mod values;
mod yaml;

pub use error::Error;
pub use profile::Profile;
pub use release::{Manifest, NAMESPACE, Release};
pub use values::Values;

/// The chart's values with their defaults and what each is for, as YAML.
pub fn values_text() -> &'static str {
    chart::LENO.values
}
