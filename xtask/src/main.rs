//! Developer commands, run as `cargo xtask <command>`.

use anyhow::{Result, bail};

mod codegen;

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("codegen") => codegen::run(),
        other => bail!("unknown command {:?}; there is: codegen", other.unwrap_or_default()),
    }
}
