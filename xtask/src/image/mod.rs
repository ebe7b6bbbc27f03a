//! `cargo xtask image`: the program as a container image.

mod build;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::archive::{Content, Image};
use crate::command::workspace;
pub(crate) use build::{Profile, program};

const USAGE: &str = "usage: cargo xtask image [--profile dist|release|dev] [--output FILE] [--binary FILE] [--same-as ARCHIVE]\n\n  \
    --profile   how to build the program; `dist`, the default, is what is shipped: slow to build, and the same bytes from\n              \
                any directory. `release` and `dev` share what other builds have compiled\n  \
    --output    the archive [default: target/image/leno.tar]\n  \
    --binary    take this static program instead of building one\n  \
    --same-as   fail unless the archive is, byte for byte, this one: a build of the same commit in another directory";

/// The file in the image, and what it starts.
const PROGRAM: &str = "leno";

/// Nobody in particular, by number, so that Kubernetes can see that it is not root. A part that needs more says so in its
/// pod's security context.
const USER: &str = "65532:65532";

/// As manifests name it. All crates have the workspace's version.
const NAME: &str = concat!("localhost/leno:", env!("CARGO_PKG_VERSION"));

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    profile: Profile,
    output: PathBuf,
    binary: Option<PathBuf>,
    same_as: Option<PathBuf>,
}

/// Builds the program, writes the archive and says what is in it.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> Result<()> {
    let Some(request) = parse(arguments)? else {
        writeln!(std::io::stdout(), "{USAGE}")?;
        return Ok(());
    };
    let binary = match request.binary {
        Some(binary) => binary,
        None => program(request.profile)?,
    };
    let bytes = fs::read(&binary).with_context(|| format!("reading {}", binary.display()))?;
    let labels = &[
        ("org.opencontainers.image.title", "leno"),
        ("org.opencontainers.image.version", env!("CARGO_PKG_VERSION")),
        ("org.opencontainers.image.licenses", env!("CARGO_PKG_LICENSE")),
    ];
    let content = Content { image: NAME, file: PROGRAM, program: &bytes, beside: &[], user: Some(USER), labels };
    let image = Image::new(&content).with_context(|| format!("{} can't be the image's program", binary.display()))?;
    let size = image.write(&request.output)?;
    writeln!(
        std::io::stdout(),
        "{}\nimage {NAME}\ndigest {}\nsize {:.1} MiB",
        request.output.display(),
        image.digest(),
        size as f64 / f64::from(1 << 20),
    )?;
    match request.same_as {
        Some(other) => same(&request.output, &other),
        None => Ok(()),
    }
}

/// Two builds of one commit, with one compiler and the profile `dist`, give the same archive.
fn same(built: &Path, other: &Path) -> Result<()> {
    let [ours, theirs] =
        [built, other].map(|path| fs::read(path).with_context(|| format!("reading {}", path.display())));
    let (ours, theirs) = (ours?, theirs?);
    if ours == theirs {
        writeln!(std::io::stdout(), "the same as {}", other.display())?;
        return Ok(());
    }
    let at = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs).unwrap_or(ours.len().min(theirs.len()));
    bail!(
        "{} ({} bytes) differs from {} ({} bytes), first at byte {at}: are both of the same commit, compiler and C library, and of \
         the profile dist?",
        built.display(),
        ours.len(),
        other.display(),
        theirs.len(),
    )
}

/// `None` asks for help.
fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Request>> {
    let mut request = Request {
        profile: Profile::Dist,
        output: workspace().join("target/image/leno.tar"),
        binary: None,
        same_as: None,
    };
    while let Some(argument) = arguments.next() {
        let (flag, attached) = match argument.split_once('=') {
            Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
            None => (argument, None),
        };
        if flag == "--help" || flag == "-h" {
            return Ok(None);
        }
        let mut value = || {
            let value = attached.clone().or_else(|| arguments.next());
            value.filter(|value| !value.is_empty()).with_context(|| format!("{flag} wants a value\n\n{USAGE}"))
        };
        match flag.as_str() {
            "--profile" => request.profile = value()?.parse()?,
            "--output" => request.output = value()?.into(),
            "--binary" => request.binary = Some(value()?.into()),
            "--same-as" => request.same_as = Some(value()?.into()),
            _ => bail!("unknown argument {flag:?}\n\n{USAGE}"),
        }
    }
    Ok(Some(request))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Option<Request>> {
        parse(arguments.iter().map(|argument| (*argument).to_owned()))
    }

    #[test]
    fn arguments_are_understood_or_refused() {
        let request = parsed(&[]).expect("no arguments are fine").expect("no help was asked for");
        assert_eq!(request.profile, Profile::Dist);
        assert!(request.output.ends_with("target/image/leno.tar"));
        let request = parsed(&["--profile=dev", "--output", "x.tar"]).expect("fine").expect("no help");
        assert_eq!((request.profile, request.output), (Profile::Dev, PathBuf::from("x.tar")));
        assert_eq!(parsed(&["--help"]).expect("help is fine"), None);
        for bad in [&["--profile"][..], &["--profile", "fast"], &["--output="], &["leno.tar"]] {
            assert!(parsed(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_archive_is_compared_with_another_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name).display().to_string();
        let build = |machine: u8, name: &str, more: &[&str]| {
            fs::write(at("program"), crate::elf::tests::program(machine, 1)).expect("writing the program");
            let arguments = ["--binary".to_owned(), at("program"), "--output".to_owned(), at(name)];
            run(arguments.into_iter().chain(more.iter().map(|word| (*word).to_owned())))
        };
        let first = at("first.tar");
        build(62, "first.tar", &[]).expect("an image");
        build(62, "second.tar", &["--same-as", &first]).expect("the same program gives the same archive");
        let error = build(183, "third.tar", &["--same-as", &first]).expect_err("another program").to_string();
        assert!(error.contains("third.tar") && error.contains("the same commit"), "{error}");
        assert!(build(62, "fourth.tar", &["--same-as", &at("nowhere")]).is_err());
    }

    /// Who builds the image with a Dockerfile gets the same one.
    #[test]
    fn the_dockerfile_says_the_same() {
        let text = fs::read_to_string(workspace().join("Dockerfile")).expect("a Dockerfile");
        let line = |word: &str| text.lines().rfind(|line| line.starts_with(word)).expect("a line");
        assert_eq!(line("FROM"), "FROM scratch");
        assert_eq!(line("USER"), format!("USER {}", USER));
        assert_eq!(line("ENTRYPOINT"), format!("ENTRYPOINT [\"/{}\"]", PROGRAM));
        assert!(line("COPY").ends_with(&format!(" /{}", PROGRAM)));
    }
}
