//! Where `.ci/run` keeps things from one run to the next.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

pub(super) use crate::command::workspace;
use crate::kept;

/// The directory for what later runs can use.
#[derive(Debug, Clone)]
pub(super) struct Places {
    cache: PathBuf,
}

impl Places {
    /// `LENO_CI_CACHE`, else a directory among the user's caches.
    pub(super) fn find() -> Result<Self> {
        let cache = kept::directory("LENO_CI_CACHE", "leno-ci");
        Ok(Self::at(cache.context("HOME is not set; name a directory for what is kept between runs by LENO_CI_CACHE")?))
    }

    pub(super) fn at(cache: PathBuf) -> Self {
        Self { cache }
    }

    /// Programs that were built or unpacked for the checks.
    pub(super) fn programs(&self) -> PathBuf {
        self.cache.join("bin")
    }

    /// What the fuzz targets are compiled to, and the inputs that they found.
    pub(super) fn fuzz(&self) -> PathBuf {
        self.cache.join("fuzz")
    }

    /// Says that something passed whose outcome depends on nothing but what its name contains.
    pub(super) fn passed(&self, name: &str) -> PathBuf {
        self.cache.join("passed").join(name)
    }
}
