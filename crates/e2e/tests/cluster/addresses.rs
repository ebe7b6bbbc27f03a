//! An address goes from one pod to the next within milliseconds, as on a busy node whose addresses run short.
//!
//! Two of the kernel's habits are no part of the mesh, and cost the same without one. A node remembers for seconds whose link had an
//! address (its neighbour table), unless the next owner tells it: the network plugin's gratuitous ARP does, but the kernel ignores it if
//! the entry changed within the last second (`neigh/*/locktime`). And a connect that was sent to the last owner is repeated after one
//! second, so who asks just in between waits for that long. What is printed contains both.

use std::time::{Duration, Instant};

use leno_e2e::{Answer, Hands, Hosts, Namespace, Pod, TOOLBOX_IMAGE};
use leno_testkit::skips::skip;

use crate::clear::{Watch, secret};
use crate::matrix::Server;
use crate::mesh::{AMBIENT, SYSTEM, Stand};
use crate::policies;
use crate::stand::{self, comes_true};

/// Where the node notes what became of the address.
const NOTES: &str = "/run/e2e-addresses";

/// In the network plugin's place: it keeps the heir waiting until the owner's address is free, and notes both moments.
const PLUGIN: &str = r#"#!/bin/sh
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
notes=/run/e2e-addresses
now() { date -u +%Y-%m-%dT%H:%M:%S.%6NZ; }
case "$CNI_COMMAND $CNI_ARGS" in
"ADD "*K8S_POD_NAME=heir*)
    touch $notes/waits
    while [ -e $notes/hold ]; do sleep 0.002; done
    cat $notes/before >/var/lib/cni/networks/pods/last_reserved_ip.0 ;;
esac
/opt/cni/bin/bridge.e2e
status=$?
case "$CNI_COMMAND $CNI_ARGS" in
"DEL "*K8S_POD_NAME=owner*)
    [ -e $notes/freed ] || now >$notes/freed
    rm -f $notes/hold ;;
"ADD "*K8S_POD_NAME=heir*) now >$notes/given ;;
esac
exit $status
"#;

/// The plugin in its place, as long as this lives.
struct Waiting<'a> {
    hosts: &'a Hosts,
    node: &'a str,
}

impl<'a> Waiting<'a> {
    fn begin(hosts: &'a Hosts, node: &'a str, address: &str) -> Self {
        let this = Self { hosts, node };
        let (start, last) = address.rsplit_once('.').unwrap();
        let before = format!("{start}.{}", last.parse::<u8>().unwrap() - 1);
        this.shell(&format!(
            "set -e; rm -rf {NOTES}; mkdir {NOTES}; touch {NOTES}/hold; printf %s {before} >{NOTES}/before
             cd /opt/cni/bin; mv bridge bridge.e2e; cat >bridge.new <<'END'\n{PLUGIN}END\nchmod 755 bridge.new; mv bridge.new bridge"
        ));
        this
    }

    fn shell(&self, script: &str) -> String {
        self.hosts.shell(self.node, script).unwrap()
    }

    /// When it was, in RFC 3339 and in seconds.
    fn noted(&self, what: &str) -> (String, f64) {
        let text = self.shell(&format!("cat {NOTES}/{what}; date -u +%s.%N -d \"$(cat {NOTES}/{what})\""));
        let (time, seconds) = text.trim().split_once('\n').unwrap();
        (time.to_owned(), seconds.parse().unwrap())
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let back = format!("cd /opt/cni/bin && mv bridge.e2e bridge; rm -rf {NOTES}");
        if let Err(error) = self.hosts.shell(self.node, &back) {
            eprintln!("the network plugin is not back in its place on {}: {error}", self.node);
        }
    }
}

/// Its manifest: it serves, and from its first moment it asks the server that does not let it in.
fn heir(node: &str, url: &str) -> String {
    let asks = format!(
        "  - name: asker
    image: {TOOLBOX_IMAGE}
    imagePullPolicy: IfNotPresent
    command: [/toolbox, ask, -n, \"100000\", -timeout, 10s, -every, 20ms, \"{url}\"]
"
    );
    Pod::new("heir", node).manifest() + &asks
}

/// Who had the address before is nobody any more: what the next owner does is done in its own name and under its own policies from
/// its first moment on, and nobody who asks for the one before reaches the next.
pub(crate) fn an_address_that_is_given_away(stand: &Stand) {
    if Hands::find(&stand.cluster).is_none() {
        skip(
            "an address is given away at once",
            "this cluster is not this machine's, and its network plugin can't be made to wait",
        );
        return;
    }
    let (here, there) = stand::two_nodes(&stand.cluster);
    let [guarded, friends, strangers] = ["e2e-guarded", "e2e-friends", "e2e-strangers"]
        .map(|name| Namespace::new(&stand.cluster, name, &[AMBIENT]).unwrap());
    let (server, owner) = (Server::new(Pod::new("server", &there)), Server::new(Pod::new("owner", &here)));
    guarded.apply(&server.services()).unwrap();
    friends.apply(&owner.services()).unwrap();
    guarded.start(&[server.pod.clone(), Pod::new("watcher", &there)]).unwrap();
    friends.start(std::slice::from_ref(&owner.pod)).unwrap();
    guarded.apply(&policies::only_from(friends.name())).unwrap();
    let guarded_url = format!("http://server.{}:8080/", guarded.name());
    server.await_known(&friends, "owner", std::slice::from_ref(&guarded_url));
    let address = friends.addresses("owner").unwrap().into_iter().find(|address| address.contains('.')).unwrap();
    let (by_name, by_address) = (secret(&format!("owner.{}", friends.name())), secret(&address));
    let watch = Watch::begin(stand);
    owner.await_known(&guarded, "watcher", &[by_name.clone(), by_address.clone()]);
    let ask = |url: &str| guarded.load("watcher", Duration::from_millis(5), &[url]).unwrap();
    let (mut to_owner, mut to_address) = (ask(&by_name), ask(&by_address));
    to_owner.await_more(20).unwrap();
    to_address.await_more(20).unwrap();

    let waiting = Waiting::begin(&stand.hosts, &here, &address);
    strangers.apply(&heir(&here, &guarded_url)).unwrap();
    comes_true("the heir waits for an address", || {
        stand.hosts.shell(&here, &format!("ls {NOTES}")).unwrap().contains("waits")
    });
    friends.kubectl().run(&["delete", "pod", "owner", "--namespace", friends.name(), "--grace-period=1"]).unwrap();
    strangers.wait("condition=Ready", &["pod/heir"]).unwrap();
    assert!(strangers.addresses("heir").unwrap().contains(&address), "the address was not given away");
    let ready = Instant::now();
    Server::new(Pod::new("heir", &here)).await_known(&guarded, "watcher", std::slice::from_ref(&by_address));
    let reached = ready.elapsed();
    let ((_, freed), (given, then)) = (waiting.noted("freed"), waiting.noted("given"));
    eprintln!(
        "an address was given away {:.0} ms after it was free, and its next owner reached {} ms after it was ready",
        (then - freed) * 1e3,
        reached.as_millis()
    );
    drop(waiting);

    // The heir's own connections, from its first on.
    let mut asked = Vec::new();
    comes_true("the heir asks", || {
        let said = ["logs", "heir", "-c", "asker", "--namespace", strangers.name()];
        asked = leno_e2e::read(&strangers.kubectl().run(&said).unwrap());
        asked.len() >= 20
    });
    let let_in: Vec<_> = asked.iter().filter(|answer| answer.outcome.is_ok()).collect();
    assert!(let_in.is_empty(), "the heir was let in as the owner: {let_in:?}");
    // Those who asked for the owner.
    to_owner.await_more(1).unwrap();
    to_address.await_more(20).unwrap();
    let said = |answers: &[Answer], word: &str| {
        answers.iter().filter(|answer| answer.outcome.as_ref().is_ok_and(|said| said.contains(word))).count()
    };
    let (to_owner, to_address) = (to_owner.stop().unwrap(), to_address.stop().unwrap());
    assert!(said(&to_owner, "owner") >= 20);
    assert_eq!(said(&to_owner, "heir"), 0, "who asked for the owner reached the heir");
    assert!(said(&to_address, "heir") > 0);
    watch.end();
    // What a proxy says of a connection is whose certificate it has seen.
    let logs = ["logs", "-n", SYSTEM, "-l", "app.kubernetes.io/name=leno-node", "--tail=-1", "--max-log-requests=20"];
    let logs = stand.cluster.kubectl().run(&logs).unwrap();
    let late = logs.lines().filter(|line| {
        let of_owner = format!("dst.identity=\"spiffe://cluster.local/ns/{}/", friends.name());
        *line > &*given && line.contains("info\taccess") && line.contains(&address) && line.contains(&of_owner)
    });
    assert_eq!(late.count(), 0, "a connection was carried in the name of the owner, who was gone");
}
