//! What the namespace tests share.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use leno_testkit::skips::{not_installed, skip};

use crate::error::Error;
use crate::links::{self, Route, VethOptions};
use crate::netns::NetworkNamespace;

/// Whether namespace tests can run here. As root they must; otherwise a line says that they were skipped.
pub(crate) fn may_run(test: &str) -> bool {
    match NetworkNamespace::create().and_then(|namespace| namespace.run(|| ())) {
        Ok(()) => true,
        // Root of a user namespace that has no network namespace of its own.
        Err(error @ Error::NoWayBack { .. }) => {
            skip(test, &error.to_string());
            false
        }
        Err(error) if nix::unistd::geteuid().is_root() => panic!("root must be able to run {test}: {error}"),
        Err(error) => {
            skip(test, &error.to_string());
            false
        }
    }
}

/// Two namespaces joined by a cable. They have no names, so they vanish with the test however it ends.
pub(crate) struct Pair {
    pub(crate) pod: NetworkNamespace,
    pub(crate) peer: NetworkNamespace,
}

pub(crate) const POD: &str = "10.99.0.1";
pub(crate) const PEER: &str = "10.99.0.2";
pub(crate) const POD6: &str = "fd99::1";
pub(crate) const PEER6: &str = "fd99::2";

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn at(text: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip(text), port)
}

impl Pair {
    pub(crate) fn new() -> Self {
        let pod = NetworkNamespace::create().unwrap();
        let peer = NetworkNamespace::create().unwrap();
        for namespace in [&pod, &peer] {
            links::disable_address_detection(namespace).unwrap();
        }
        links::create_veth(&pod, "eth0", &peer, "eth0", &VethOptions::default()).unwrap();
        for (namespace, v4, v6, other, other6) in [(&pod, POD, POD6, PEER, PEER6), (&peer, PEER, PEER6, POD, POD6)] {
            links::add_address(namespace, "eth0", ip(v4), 24).unwrap();
            links::add_address(namespace, "eth0", ip(v6), 64).unwrap();
            links::set_up(namespace, "eth0").unwrap();
            links::add_route(namespace, &Route::default_v4().via(ip(other))).unwrap();
            links::add_route(namespace, &Route::default_v6().via(ip(other6))).unwrap();
        }
        Self { pod, peer }
    }
}

/// Asks another program what it sees, as an independent judge. `None` when it isn't installed.
pub(crate) fn judge(namespace: &NetworkNamespace, program: &str, arguments: &[&str]) -> Option<String> {
    match namespace.run(|| Command::new(program).args(arguments).output()).unwrap() {
        Ok(output) => {
            assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
            Some(String::from_utf8(output.stdout).unwrap())
        }
        Err(error) => {
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            let reason = if missing { not_installed(program) } else { error.to_string() };
            let test = std::thread::current();
            skip(&format!("part of {}", test.name().unwrap_or("a test")), &reason);
            None
        }
    }
}
