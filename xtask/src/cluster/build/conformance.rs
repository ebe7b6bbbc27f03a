//! What the Gateway API's conformance suite consists of: the suite itself as a program, the definitions of the version that it is
//! about, and the image of the pods that it makes.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use rcgen::{CertificateParams, KeyPair};

use super::{OUT, Part};
use crate::archive::{Beside, Content, Image};

/// As the suite's manifests name it.
const ECHO: &str = "registry.k8s.io/gateway-api/echo-advanced:v1.5.1";
const SUITE: &str = "conformance/suite";

/// The suite's program `conformance.test`, and in `crds` the definitions.
pub(super) fn suite() -> Part {
    Part {
        name: "conformance",
        what: "the Gateway API's conformance suite",
        commands: vec![["test", "-c", "-ldflags", "-s -w", "-o", OUT, "."].map(str::to_owned).to_vec()],
        module: SUITE,
        sources: &["."],
        finish: definitions,
    }
}

/// Copies the definitions from the module that the suite was built with.
fn definitions(place: &Path) -> Result<()> {
    let mut list = Command::new("go");
    list.args(["list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api"]);
    let output = list.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(SUITE)).output().context("starting go")?;
    ensure!(output.status.success(), "finding the definitions: {}", String::from_utf8_lossy(&output.stderr).trim());
    let module = String::from_utf8(output.stdout).context("reading where the module is")?;
    let from = Path::new(module.trim()).join("config/crd/standard");
    fs::create_dir(place.join("crds")).context("creating the definitions' directory")?;
    for entry in fs::read_dir(&from).with_context(|| format!("listing {}", from.display()))?.flatten() {
        let text = fs::read(entry.path()).with_context(|| format!("reading {}", entry.path().display()))?;
        fs::write(place.join("crds").join(entry.file_name()), text).context("copying a definition")?;
    }
    Ok(())
}

/// The image of the suite's pods, `echo.tar`: a server, and the client that the suite runs in them.
pub(super) fn echo() -> Part {
    let programs = ["server", "client"].map(|program| format!("istio.io/istio/pkg/test/echo/cmd/{program}"));
    let install = ["install", "-ldflags", "-s -w"].map(str::to_owned);
    Part {
        name: "echo",
        what: "the pods of the conformance suite",
        commands: vec![install.into_iter().chain(programs).collect()],
        module: "conformance/echo",
        sources: &["."],
        finish: |place| {
            let read = |name: &str| fs::read(place.join(name)).with_context(|| format!("reading {name}"));
            let (server, client) = (read("server")?, read("client")?);
            let key = KeyPair::generate().context("making a key")?;
            let parameters = CertificateParams::new(["echo".to_owned()]).context("describing a certificate")?;
            let certificate = parameters.self_signed(&key).context("signing a certificate")?.pem();
            let key = key.serialize_pem();
            let beside = [
                Beside { file: "client", bytes: &client, mode: 0o755 },
                Beside { file: "cert.crt", bytes: certificate.as_bytes(), mode: 0o644 },
                Beside { file: "cert.key", bytes: key.as_bytes(), mode: 0o644 },
            ];
            let content =
                Content { image: ECHO, file: "server", program: &server, beside: &beside, user: None, labels: &[] };
            Image::new(&content)?.write(&place.join("echo.tar"))?;
            for program in ["server", "client"] {
                fs::remove_file(place.join(program)).context("removing what is packed")?;
            }
            Ok(())
        },
    }
}
