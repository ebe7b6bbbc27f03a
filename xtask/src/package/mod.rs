//! `cargo xtask package`: the static program in the forms in which people install programs, a Python wheel and a Debian
//! package. Equal programs give equal packages: no times, no owners, nothing of the machine.

mod deb;
mod wheel;

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Parser;

use crate::command::workspace;
use crate::image::{self, Profile};
use crate::{elf, whole_file};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const LICENSE: &str = env!("CARGO_PKG_LICENSE");
/// One line, for people who look through a list of packages.
const SUMMARY: &str = "An ambient service mesh in one program";
const DESCRIPTION: &str = "Encrypts, authorises and shows the traffic between programs, without sidecars and without a change to the programs, in \
     Kubernetes or on one machine. `leno demo` shows it.";

#[derive(Parser)]
#[command(name = "cargo xtask package", about = "The program as a Python wheel and as a Debian package")]
struct Arguments {
    /// How to build the program; `dist` is what is shipped and slow to build
    #[arg(long, default_value = "dist")]
    profile: Profile,
    /// Take this static program instead of building one
    #[arg(long, value_name = "FILE", conflicts_with = "profile")]
    binary: Option<PathBuf>,
    /// Where the packages are written [default: target/package]
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
}

/// What goes into a package.
struct Content<'a> {
    program: &'a [u8],
    license: &'a [u8],
    /// Of the program, in the words of a container image: `amd64`, `arm64`.
    architecture: &'a str,
}

/// Builds the program, writes the packages and says where they are.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> Result<()> {
    let arguments = Arguments::parse_from(std::iter::once("cargo xtask package".to_owned()).chain(arguments));
    let binary = match arguments.binary {
        Some(binary) => binary,
        None => image::program(arguments.profile)?,
    };
    let program = fs::read(&binary).with_context(|| format!("reading {}", binary.display()))?;
    let license = fs::read(workspace().join("LICENSE")).context("reading LICENSE")?;
    let architecture = elf::architecture(&program).with_context(|| format!("{} can't be packed", binary.display()))?;
    let content = Content { program: &program, license: &license, architecture };

    let directory = arguments.output.unwrap_or_else(|| workspace().join("target/package"));
    for (name, bytes) in [wheel::pack(&content)?, deb::pack(&content)?] {
        let path = directory.join(name);
        whole_file::write(&path, &bytes, 0o644)?;
        writeln!(std::io::stdout(), "{} {:.1} MiB", path.display(), bytes.len() as f64 / f64::from(1 << 20))?;
    }
    Ok(())
}

/// What one of the two formats calls an architecture.
fn called<'a>(architecture: &str, names: &[(&str, &'a str)]) -> Result<&'a str> {
    let found = names.iter().find(|(name, _)| *name == architecture);
    match found {
        Some((_, called)) => Ok(called),
        None => bail!("there are no packages for {architecture}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_programs_give_equal_packages_of_the_names_that_installers_expect() {
        let program = elf::tests::program(62, 1);
        let content = Content { program: &program, license: b"text", architecture: "amd64" };
        let [wheel, again] = [(); 2].map(|()| wheel::pack(&content).expect("a wheel"));
        assert_eq!(wheel.0, format!("leno-{VERSION}-py3-none-manylinux2014_x86_64.musllinux_1_1_x86_64.whl"));
        assert!(wheel == again);
        let [deb, again] = [(); 2].map(|()| deb::pack(&content).expect("a package"));
        assert_eq!(deb.0, format!("leno_{VERSION}_amd64.deb"));
        assert!(deb == again);
        assert!(wheel::pack(&Content { architecture: "riscv64", ..content }).is_err());
    }
}
