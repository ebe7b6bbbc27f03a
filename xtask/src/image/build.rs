//! The static program that the image holds.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::{env, io};

use anyhow::{Context as _, Result, bail, ensure};

use crate::command::{self, workspace};
use crate::whole_file;

/// The C library becomes part of the program.
const STATIC: &str = "target-feature=+crt-static";

/// How the program is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// What is shipped. Everything is compiled anew in a directory of its own, because no compiler may learn a path of
    /// this machine.
    Dist,
    /// Compiled as `cargo build --release` does, and only linked otherwise.
    Release,
    /// Compiled as `cargo test --workspace` does, and only linked otherwise.
    Dev,
}

impl FromStr for Profile {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "dist" => Ok(Self::Dist),
            "release" => Ok(Self::Release),
            "dev" => Ok(Self::Dev),
            _ => bail!("there is no profile {name:?}; choose dist, release or dev"),
        }
    }
}

/// Builds it and puts it next to where the archive goes by default, whence the Dockerfile takes it.
pub(crate) fn program(profile: Profile) -> Result<PathBuf> {
    let mut cargo = command::cargo();
    cargo.args(["rustc", "-p", "leno", "--bin", "leno", "--message-format", "json-render-diagnostics"]);
    match profile {
        Profile::Dist => {
            let compiler = Compiler::ask()?;
            let replaced = replaced_paths(&compiler)?;
            // With a target that is named, flags don't reach build scripts and macros, which can't be static.
            cargo.args(["--profile", "dist", "--target", &compiler.host]).arg("--target-dir").arg(directory());
            cargo.env("CARGO_ENCODED_RUSTFLAGS", rust_flags(&replaced)).env("CFLAGS", c_flags(&replaced)?);
        }
        Profile::Release => {
            cargo.args(["--release", "--", "-C", STATIC]);
        }
        Profile::Dev => {
            // Line tables are most of the file.
            cargo.args(["--features", "as-tested", "--", "-C", STATIC, "-C", "strip=debuginfo"]);
        }
    }
    let output = cargo.stdout(Stdio::piped()).spawn().and_then(Child::wait_with_output).context("running cargo")?;
    ensure!(output.status.success(), "the program can't be built: cargo ended with {}", output.status);
    let built = executable(&output.stdout).context("cargo did not say where it put the program")?;
    let kept = directory().join("leno");
    let mut program = File::open(&built).with_context(|| format!("opening {}", built.display()))?;
    // Not over the old one: that may be running.
    whole_file::write_with(&kept, 0o755, |mut file| io::copy(&mut program, &mut file).map(drop))?;
    Ok(kept)
}

fn directory() -> PathBuf {
    workspace().join("target/image")
}

/// The program among cargo's messages.
fn executable(messages: &[u8]) -> Option<PathBuf> {
    let lines = messages.split(|byte| *byte == b'\n');
    let artifacts = lines.filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok());
    artifacts.filter_map(|artifact| artifact["executable"].as_str().map(PathBuf::from)).next_back()
}

/// What rustc says of itself.
struct Compiler {
    host: String,
    commit: String,
    sysroot: String,
}

impl Compiler {
    fn ask() -> Result<Self> {
        let rustc = |arguments: &[&str]| -> Result<String> {
            let program = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
            let output = Command::new(program).current_dir(workspace()).args(arguments).output();
            let output = output.context("running rustc")?;
            ensure!(
                output.status.success(),
                "rustc {}: {}",
                arguments.join(" "),
                String::from_utf8_lossy(&output.stderr)
            );
            Ok(String::from_utf8(output.stdout).context("rustc speaks UTF-8")?.trim().to_owned())
        };
        let version = rustc(&["-vV"])?;
        let field = |name: &str| {
            let value = version.lines().find_map(|line| line.strip_prefix(name));
            value.map(str::to_owned).with_context(|| format!("rustc -vV does not say {name:?}"))
        };
        Ok(Self { host: field("host: ")?, commit: field("commit-hash: ")?, sysroot: rustc(&["--print", "sysroot"])? })
    }
}

/// Directories of this machine, and what the program calls them.
fn replaced_paths(compiler: &Compiler) -> Result<Vec<(PathBuf, String)>> {
    let cargo_home = match env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => Path::new(&env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?).join(".cargo"),
    };
    let library = Path::new(&compiler.sysroot).join("lib/rustlib/src/rust");
    Ok(vec![
        (cargo_home, "/cargo".to_owned()),
        // As rustc calls its own library where the sources are not installed.
        (library, format!("/rustc/{}", compiler.commit)),
        // Last, because the last one that fits is taken.
        (workspace(), "/leno".to_owned()),
    ])
}

/// For rustc, separated as `CARGO_ENCODED_RUSTFLAGS` wants it.
fn rust_flags(replaced: &[(PathBuf, String)]) -> OsString {
    let mut flags = OsString::from(format!("-C{STATIC}"));
    for (path, name) in replaced {
        flags.push("\x1f--remap-path-prefix=");
        flags.push(path);
        flags.push("=");
        flags.push(name);
    }
    flags
}

/// For the C compiler.
fn c_flags(replaced: &[(PathBuf, String)]) -> Result<String> {
    let mut flags = env::var("CFLAGS").unwrap_or_default();
    for (path, name) in replaced {
        let path = path.to_str().filter(|path| !path.contains(char::is_whitespace));
        let path = path.with_context(|| format!("build in a directory without spaces: {name} is in one"))?;
        flags.push_str(&format!(" -ffile-prefix-map={path}={name}"));
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A whole build takes minutes; the flags do the same to one file.
    #[test]
    fn the_program_does_not_know_where_it_was_built() {
        let sources = "fn main() { std::env::args().nth(9).expect(file!()); }";
        let [one, other] = ["one", "other"].map(|_| {
            let directory = tempfile::tempdir().expect("a directory");
            let file = directory.path().join("main.rs");
            fs::write(&file, sources).expect("writing the source");
            let flags = rust_flags(&[(directory.path().to_owned(), "/leno".to_owned())]);
            let flags: Vec<_> = flags.to_str().expect("UTF-8").split('\x1f').map(str::to_owned).collect();
            let built = directory.path().join("main");
            let status = Command::new("rustc").args(flags).arg(&file).arg("-o").arg(&built).status();
            assert!(status.expect("rustc runs").success());
            fs::read(built).expect("a program")
        });
        assert!(crate::elf::architecture(&one).is_ok(), "it is static");
        let contains = |text: &[u8]| one.windows(text.len()).any(|window| window == text);
        assert!(contains(b"/leno/main.rs"));
        assert!(one == other, "two directories give two programs");
    }

    #[test]
    fn the_program_is_found_among_the_messages() {
        let messages = concat!(
            "{\"reason\":\"compiler-artifact\",\"executable\":null}\n",
            "{\"reason\":\"compiler-artifact\",\"executable\":\"/target/leno\"}\n",
            "not JSON\n{\"reason\":\"build-finished\",\"success\":true}\n"
        );
        assert_eq!(executable(messages.as_bytes()), Some(PathBuf::from("/target/leno")));
        assert_eq!(executable(b"{\"reason\":\"build-finished\"}"), None);
    }
}
