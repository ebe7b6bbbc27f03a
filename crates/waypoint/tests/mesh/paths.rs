//! No origin serves a path that a policy would have refused, however the path is written: nginx, a file server in Go and one in
//! Python, each of which reads paths in its own way, behind a policy that keeps `/private` closed.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use leno_model::http::{Attribute, AttributeTest, Policy, PolicyAction, PolicyClause, PolicyRule, PolicyTarget};
use leno_model::{AppProtocol, PolicyName};
use leno_policy::http::path::normalise;
use leno_testkit::skips::{not_installed, skip};

use crate::http1::mirror;
use crate::support::{Mesh, raw, soon};

/// What stands in the file that nobody may read.
const SECRET: &str = "the secret itself";

/// Request targets. Most of them lead to `/private/secret.html` for some program.
const TARGETS: [&str; 64] = [
    "/private/secret.html",
    "//private/secret.html",
    "///private///secret.html",
    "/./private/secret.html",
    "/private/./secret.html",
    "/public/../private/secret.html",
    "/public/../../private/secret.html",
    "/../private/secret.html",
    "/public/..//private/secret.html",
    "/public/./../private/secret.html",
    "/private/x/../secret.html",
    "/private/../private/secret.html",
    "/%70rivate/secret.html",
    "/priv%61te/secret.html",
    "/%70%72%69%76%61%74%65/secret.html",
    "/private/%73ecret.html",
    "/%2e/private/secret.html",
    "/%2E/private/secret.html",
    "/public/%2e%2e/private/secret.html",
    "/public/%2E%2E/private/secret.html",
    "/public/.%2e/private/secret.html",
    "/public/%2e./private/secret.html",
    "/%2e%2e/private/secret.html",
    "/public%2f..%2fprivate%2fsecret.html",
    "/public/..%2fprivate/secret.html",
    "/public/%2e%2e%2fprivate/secret.html",
    "/%2fprivate/secret.html",
    "/%2Fprivate/secret.html",
    "/private%2fsecret.html",
    "/private%2Fsecret.html",
    "/private%5csecret.html",
    "/private\\secret.html",
    "\\private\\secret.html",
    "/public\\..\\private\\secret.html",
    "/public/..\\private/secret.html",
    "/public/%5c../private/secret.html",
    "/private;x=1/secret.html",
    "/;x/private/secret.html",
    "/public/..;/private/secret.html",
    "/public/..;x=1/private/secret.html",
    "/private/secret.html;x=1",
    "/private%3bx/secret.html",
    "/private/secret.html%00",
    "/private/secret.html%00.txt",
    "/%00/private/secret.html",
    "/private/secret.html%0a",
    "/private/secret.html%20",
    "/private/secret.html.",
    "/private/secret.html/",
    "/private/secret.html/.",
    "/private/secret.html#x",
    "/private/secret.html%23x",
    "/public#/../private/secret.html",
    "/private/secret.html?x",
    "/private%3fx/../secret.html",
    "/public?/../private/secret.html",
    "/%c0%ae%c0%ae/private/secret.html",
    "/public/%c0%af../private/secret.html",
    "/%252e%252e/private/secret.html",
    "/public/%252e%252e/private/secret.html",
    "/%2570rivate/secret.html",
    "http://web/private/secret.html",
    "http://web/public/../private/secret.html",
    "http://web//private/secret.html",
];

/// What stays open, and must be served: a rule that refused everything would be no proof.
const OPEN: [&str; 6] = [
    "/public/index.txt",
    "//public/index.txt",
    "/public/./index.txt",
    "/%70ublic/index.txt",
    "/public/x/../index.txt",
    "/public/index.txt?private",
];

/// A program that ends with the test.
struct Origin(Child);

impl Drop for Origin {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap()
}

fn has(program: &str) -> bool {
    let mut asked = Command::new(program);
    asked.arg(if program == "go" {
        "version"
    } else if program == "nginx" {
        "-v"
    } else {
        "--version"
    });
    asked.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
}

fn started(command: &mut Command) -> Origin {
    Origin(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

fn nginx(directory: &Path, at: SocketAddr) -> Origin {
    let own = directory.join("nginx");
    // A worker would outlive a master that is killed.
    let config = format!(
        "daemon off; master_process off; pid {0}/pid; error_log {0}/error.log;\nevents {{}}\nhttp {{ access_log off;\n\
         client_body_temp_path {0}/a; proxy_temp_path {0}/b; fastcgi_temp_path {0}/c; uwsgi_temp_path {0}/d; scgi_temp_path {0}/e;\n\
         server {{ listen {at}; root {1}; }} }}\n",
        own.display(),
        directory.join("files").display(),
    );
    write(&own.join("nginx.conf"), &config);
    started(Command::new("nginx").args(["-c", own.join("nginx.conf").to_str().unwrap(), "-p", own.to_str().unwrap()]))
}

fn go(directory: &Path, at: SocketAddr) -> Origin {
    let own = directory.join("go");
    let program = format!(
        "package main\n\nimport \"net/http\"\n\nfunc main() {{\n\thttp.ListenAndServe(\"{at}\", http.FileServer(http.Dir(\"{}\")))\n}}\n",
        directory.join("files").display()
    );
    write(&own.join("main.go"), &program);
    let mut build = Command::new("go");
    build
        .args(["build", "-o", "server", "main.go"])
        .current_dir(&own)
        .env("GOFLAGS", "-mod=mod")
        .env("GO111MODULE", "off");
    if std::env::var_os("HOME").is_none() {
        build.env("GOCACHE", own.join("cache"));
    }
    assert!(build.status().unwrap().success(), "a Go program that should build");
    started(&mut Command::new(own.join("server")))
}

fn python(directory: &Path, at: SocketAddr) -> Origin {
    let files = directory.join("files");
    let (address, port) = (at.ip().to_string(), at.port().to_string());
    started(Command::new("python3").args(["-m", "http.server", "--bind", &address, &port]).current_dir(files))
}

async fn listening(at: SocketAddr) {
    soon("an origin that listens", async {
        while tokio::net::TcpStream::connect(at).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// A mesh whose service has this endpoint, and closes `/private`.
async fn closed(endpoint: SocketAddr) -> Mesh {
    let mesh = Mesh::new().await;
    let web = mesh.service(AppProtocol::Http11, &[endpoint]).await;
    let test = AttributeTest {
        attribute: Attribute::Path,
        values: vec!["/private".into(), "/private/*".into()],
        not_values: Vec::new(),
    };
    mesh.control.publish_request_policy(&Policy {
        targets: vec![PolicyTarget::Service(web.id.clone())],
        rules: vec![PolicyRule { clauses: vec![PolicyClause { alternatives: vec![vec![test]] }] }],
        ..Policy::new(PolicyName { namespace: "default".into(), name: "closed".into() }, PolicyAction::Deny)
    });
    mesh.control.synced(1).await;
    mesh
}

async fn ask(mesh: &Mesh, target: &str) -> String {
    let request = format!("GET {target} HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n");
    raw(mesh.bridged().await, request.as_bytes()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_origin_serves_a_path_that_policy_closes() {
    let directory = std::env::temp_dir().join(format!("leno-paths-{}", std::process::id()));
    let files = directory.join("files");
    write(&files.join("private/secret.html"), SECRET);
    write(&files.join("public/index.txt"), "open");
    type Start = fn(&Path, SocketAddr) -> Origin;
    let origins: [(&str, Start); 3] = [("nginx", nginx), ("go", go), ("python3", python)];
    for (name, start) in origins {
        if !has(name) {
            skip("no_origin_serves_a_path_that_policy_closes", &not_installed(name));
            continue;
        }
        let at = free();
        let _origin = start(&directory, at);
        listening(at).await;
        let unguarded = raw(at, b"GET /private/secret.html HTTP/1.0\r\n\r\n").await;
        assert!(unguarded.contains(SECRET), "{name} would serve it: {unguarded}");
        let mesh = closed(at).await;
        for target in TARGETS {
            let answer = ask(&mesh, target).await;
            assert!(!answer.contains(SECRET), "{name} serves {target}: {answer}");
        }
        assert!(ask(&mesh, TARGETS[0]).await.starts_with("HTTP/1.1 403 "), "{name}");
        for target in OPEN {
            let answer = ask(&mesh, target).await;
            assert!(answer.ends_with("\r\n\r\nopen"), "{name}, {target}: {answer}");
        }
    }
    let _ = std::fs::remove_dir_all(&directory);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_is_sent_the_path_that_policy_judged() {
    let mesh = closed(mirror().await).await;
    for target in TARGETS.iter().chain(&OPEN) {
        let answer = ask(&mesh, target).await;
        let Some(sent) = answer.lines().find_map(|line| line.strip_prefix("GET ")?.strip_suffix(" HTTP/1.1")) else {
            assert!(answer.starts_with("HTTP/1.1 4"), "{target}: {answer}");
            continue;
        };
        let path = sent.split('?').next().unwrap();
        assert_eq!(normalise(path.as_bytes()).unwrap(), path, "{target} is sent in its one form");
        assert!(path != "/private" && !path.starts_with("/private/"), "{target}: {sent}");
    }
}
