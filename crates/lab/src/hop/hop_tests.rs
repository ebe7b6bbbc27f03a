use std::process::Command;

use super::*;

const ADDRESS: &str = "127.0.0.1";

fn each(mut check: impl FnMut(&Setting<'_>, &str)) {
    let scratch = tempfile::tempdir().unwrap();
    let certificates = certificates(scratch.path()).unwrap();
    let address = |port: u16| SocketAddr::new(ADDRESS.parse().unwrap(), port);
    for (hop, sides) in [
        (Hop::default(), vec![Side::Only]),
        (Hop { rule: true, ..Hop::default() }, vec![Side::Only]),
        (Hop { routes: 100, ..Hop::default() }, vec![Side::Only]),
        (Hop { pair: true, ..Hop::default() }, vec![Side::First, Side::Second]),
    ] {
        for side in sides {
            for protocol in [Protocol::Http1, Protocol::Grpc] {
                let directory = scratch.path().to_owned();
                let (listen, next) = (address(19080), address(19090));
                let setting = Setting { hop, side, protocol, listen, next, certificates: &certificates, directory };
                check(&setting, &format!("{hop:?} {side:?} {protocol:?}"));
            }
        }
    }
}

/// Every configuration is one that the program itself accepts, if it is there.
#[test]
fn programs_accept_their_configurations() {
    let envoy = std::env::var("LENO_ENVOY").ok().map(PathBuf::from);
    let haproxy = Some(PathBuf::from("/usr/sbin/haproxy")).filter(|path| path.exists());
    each(|setting, what| {
        let programs = [
            (haproxy.as_deref().map(Peer::Haproxy), &["-c"][..]),
            (envoy.as_deref().map(Peer::Envoy), &["--mode", "validate"]),
        ];
        for (peer, arguments) in programs.into_iter().filter_map(|(peer, arguments)| Some((peer?, arguments))) {
            let start = peer.start(setting);
            for (name, content) in &start.files {
                std::fs::write(setting.directory.join(name), content).unwrap();
            }
            let output = Command::new(peer.program()).args(arguments).args(&start.arguments).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{peer:?} {what}: {said}\n{:?}", start.files);
            assert!(!said.contains("[WARNING]"), "{peer:?} {what}: {said}");
        }
    });
}

/// All are told the same: the rule, the header, the routes, the threads, and TLS where it belongs.
#[test]
fn all_are_told_the_same() {
    let path = Path::new("/peer");
    each(|setting, what| {
        for peer in [Peer::Envoy(path), Peer::Haproxy(path), Peer::Traefik(path)] {
            if setting.hop.pair && matches!(peer, Peer::Traefik(_)) {
                continue;
            }
            let start = peer.start(setting);
            let text = format!("{start:?}");
            let has = |words: &[&str]| words.iter().all(|word| text.contains(word));
            assert!(
                has(&["127.0.0.1", "19080", "19090"]) && text.contains(&setting::WORKERS.to_string()),
                "{what}: {text}"
            );
            assert_eq!(has(&["/bytes/", "GET", "x-team"]), setting.hop.rule, "{peer:?} {what}");
            assert_eq!(has(&["/r/0/", "/r/99/"]), setting.hop.routes == 100, "{peer:?} {what}");
            assert_eq!(
                has(&["root.pem"]),
                setting.hop.pair || matches!(peer, Peer::Haproxy(_)) && has(&["ca-file"]),
                "{what}"
            );
        }
    });
}
