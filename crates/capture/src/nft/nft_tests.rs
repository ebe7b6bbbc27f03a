use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use super::*;
use crate::test_support::{PEER, PEER6, POD, Pair, at, ip, judge, may_run};

fn table() -> Table {
    Table::new(Family::Inet, "leno-test")
}

/// Commits the rules in a chain and returns what `nft` makes of each.
fn as_nft_lists(base: Chain, rules: &[Rule]) -> Option<Vec<String>> {
    let namespace = NetworkNamespace::create().unwrap();
    let mut batch = Batch::new();
    batch.add_table(&table()).add_set(&table(), "some", SetType::Ipv4Address);
    batch.add_chain(&table(), Chain::regular("other")).add_chain(&table(), base);
    for rule in rules {
        batch.add_rule(&table(), "c", rule.clone());
    }
    batch.commit(&namespace).unwrap();
    let listed = list_rules(&namespace, &table()).unwrap();
    assert_eq!(listed.len(), rules.len());
    for (i, (wanted, found)) in rules.iter().zip(&listed).enumerate() {
        for (j, candidate) in rules.iter().enumerate() {
            assert_eq!(found.is(candidate), i == j, "`{wanted}` read back, compared with `{candidate}`");
        }
        assert_eq!(found.comment.as_deref(), wanted.comment.as_deref());
    }
    let text = judge(&namespace, "nft", &["list", "chain", "inet", "leno-test", "c"])?;
    let lines = text.lines().map(str::trim).filter(|l| !l.starts_with("type ") && !l.ends_with('{') && *l != "}");
    Some(lines.map(str::to_owned).collect())
}

#[test]
fn nft_reads_matches_as_meant() {
    if !may_run("nft_reads_matches_as_meant") {
        return;
    }
    let v4: ipnet::IpNet = "10.0.0.0/8".parse().unwrap();
    let v6: ipnet::IpNet = "fd00::/9".parse().unwrap();
    let host: ipnet::IpNet = "127.0.0.1/32".parse().unwrap();
    let tcp = || Rule::new().l4proto(Protocol::Tcp);
    let cases = [
        (tcp().accept(), "meta l4proto tcp accept"),
        (Rule::new().saddr(v4).drop(), "ip saddr 10.0.0.0/8 drop"),
        (Rule::new().daddr(v6).drop(), "ip6 daddr fd00::/9 drop"),
        (Rule::new().daddr_not(host).return_(), "ip daddr != 127.0.0.1 return"),
        (tcp().to("10.96.0.10:80".parse().unwrap()).accept(), "ip daddr 10.96.0.10 tcp dport 80 accept"),
        (tcp().sport(53).accept(), "tcp sport 53 accept"),
        (tcp().dport_not(15008).accept(), "tcp dport != 15008 accept"),
        (Rule::new().l4proto(Protocol::Udp).dport(53).accept(), "udp dport 53 accept"),
        (Rule::new().input_interface("eth0").jump("other"), "iifname \"eth0\" jump other"),
        (Rule::new().input_interface_not("eth0").accept(), "iifname != \"eth0\" accept"),
        (Rule::new().output_interface("lo").goto("other"), "oifname \"lo\" goto other"),
        (Rule::new().output_interface_not("lo").accept(), "oifname != \"lo\" accept"),
        (Rule::new().mark(0x111, 0xfff).accept(), "meta mark & 0x00000fff == 0x00000111 accept"),
        (Rule::new().mark_not(0x539, 0xfff).accept(), "meta mark & 0x00000fff != 0x00000539 accept"),
        (Rule::new().connection_mark(0x111, 0xfff).accept(), "ct mark & 0x00000fff == 0x00000111 accept"),
        (Rule::new().socket_owner(1337).accept(), "meta skuid 1337 accept"),
        (Rule::new().daddr_in("some", SetType::Ipv4Address).accept(), "ip daddr @some accept"),
        (Rule::new().random(3).accept(), "numgen random mod 3 0 accept"),
        (Rule::new().ipv6().counter().accept(), "meta nfproto ipv6 counter packets 0 bytes 0 accept"),
        (Rule::new().set_mark(7), "meta mark set 0x00000007"),
        (Rule::new().set_mark_from_connection(), "meta mark set ct mark"),
        (Rule::new().set_connection_mark(0x111, 0xfff), "ct mark set ct mark & 0xfffff111 | 0x00000111"),
        (Rule::new().set_connection_zone(1), "ct zone set 1"),
        (tcp().reject(), "meta l4proto tcp reject with tcp reset"),
        (Rule::new().reject(), "reject"),
        (Rule::new().accept().comment("why"), "accept comment \"why\""),
    ];
    let rules: Vec<_> = cases.iter().map(|(rule, _)| rule.clone()).collect();
    let base = Chain::base("c", ChainType::Filter, Hook::Output, -300);
    if let Some(lines) = as_nft_lists(base, &rules) {
        let expected: Vec<_> = cases.iter().map(|(_, text)| *text).collect();
        pretty_compare(&lines, &expected);
    }
}

fn pretty_compare(lines: &[String], expected: &[&str]) {
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    let wrong: Vec<_> = lines.iter().zip(expected).filter(|(line, expected)| line != *expected).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn nft_reads_translations_as_meant() {
    if !may_run("nft_reads_translations_as_meant") {
        return;
    }
    let tcp = || Rule::new().l4proto(Protocol::Tcp);
    let v4 = at("10.0.0.7", 8080);
    let v6 = at("fd00::7", 8080);
    let output = [
        (tcp().to(at("10.96.0.10", 80)).dnat(v4), "ip daddr 10.96.0.10 tcp dport 80 dnat ip to 10.0.0.7:8080"),
        (tcp().to(at("fd00::a", 80)).dnat(v6), "ip6 daddr fd00::a tcp dport 80 dnat ip6 to [fd00::7]:8080"),
        (tcp().dnat(at("10.0.0.7", 0)), "meta l4proto tcp meta nfproto ipv4 dnat ip to 10.0.0.7"),
        (tcp().redirect(15001), "meta l4proto tcp redirect to :15001"),
    ];
    let rules: Vec<_> = output.iter().map(|(rule, _)| rule.clone()).collect();
    if let Some(lines) = as_nft_lists(Chain::base("c", ChainType::Nat, Hook::Output, -100), &rules) {
        let expected: Vec<_> = output.iter().map(|(_, text)| *text).collect();
        pretty_compare(&lines, &expected);
    }
    let postrouting = [
        (Rule::new().output_interface("eth0").masquerade(), "oifname \"eth0\" masquerade"),
        (
            tcp().daddr_in("some", SetType::Ipv4Address).socket_owner(0).snat(at("169.254.7.127", 0)),
            "meta l4proto tcp ip daddr @some meta skuid 0 snat ip to 169.254.7.127",
        ),
    ];
    let rules: Vec<_> = postrouting.iter().map(|(rule, _)| rule.clone()).collect();
    if let Some(lines) = as_nft_lists(Chain::base("c", ChainType::Nat, Hook::Postrouting, 100), &rules) {
        let expected: Vec<_> = postrouting.iter().map(|(_, text)| *text).collect();
        pretty_compare(&lines, &expected);
    }
}

#[test]
fn rules_that_could_never_match_are_refused() {
    let namespace = NetworkNamespace::current().unwrap();
    let v4: ipnet::IpNet = "10.0.0.0/8".parse().unwrap();
    let v6: ipnet::IpNet = "fd00::/8".parse().unwrap();
    let long = "x".repeat(128);
    for rule in [
        Rule::new().dport(80),
        Rule::new().sport(80),
        Rule::new().redirect(80),
        Rule::new().dnat(at("10.0.0.1", 80)),
        Rule::new().saddr(v4).daddr(v6),
        Rule::new().l4proto(Protocol::Tcp).l4proto(Protocol::Udp),
        Rule::new().random(0),
        Rule::new().input_interface(""),
        Rule::new().input_interface("sixteen-bytes-xx"),
        Rule::new().accept().comment(long),
    ] {
        let mut batch = Batch::new();
        batch.add_rule(&table(), "c", rule.clone());
        // Refused before anything is sent: this is the host's own namespace.
        assert!(matches!(batch.commit(&namespace), Err(Error::InvalidRule { .. })), "{rule}");
    }
}

#[test]
fn a_refused_entry_is_named_and_nothing_is_applied() {
    if !may_run("a_refused_entry_is_named_and_nothing_is_applied") {
        return;
    }
    let namespace = NetworkNamespace::create().unwrap();
    let mut batch = Batch::new();
    batch.add_table(&table()).add_chain(&table(), Chain::regular("c"));
    batch.add_rule(&table(), "c", Rule::new().accept());
    batch.add_rule(&table(), "absent", Rule::new().drop());
    batch.add_rule(&table(), "c", Rule::new().accept());
    let error = batch.commit(&namespace).unwrap_err();
    let Error::Nft { entry, .. } = &error else { panic!("{error:?}") };
    assert_eq!(entry, "add rule inet leno-test absent drop");
    assert_eq!(error.errno(), Some(libc::ENOENT));
    assert!(error.to_string().contains("nothing was applied"), "{error}");
    assert!(list_tables(&namespace).unwrap().is_empty());
}

#[test]
fn tables_are_replaced_flushed_and_removed() {
    if !may_run("tables_are_replaced_flushed_and_removed") {
        return;
    }
    let namespace = NetworkNamespace::create().unwrap();
    let fill = |batch: &mut Batch, rules: usize| {
        batch
            .replace_table(&table())
            .add_chain(&table(), Chain::base("in", ChainType::Filter, Hook::Input, 5).drop_by_default());
        for _ in 0..rules {
            batch.add_rule(&table(), "in", Rule::new().accept());
        }
    };
    for rules in [3, 1] {
        let mut batch = Batch::new();
        fill(&mut batch, rules);
        batch.commit(&namespace).unwrap();
        assert_eq!(list_rules(&namespace, &table()).unwrap().len(), rules);
    }
    let chains = list_chains(&namespace, &table()).unwrap();
    assert_eq!(chains.len(), 1);
    assert_eq!(chains[0].chain, Chain::base("in", ChainType::Filter, Hook::Input, 5).drop_by_default());
    let mut batch = Batch::new();
    batch.flush(&table(), Some("in"));
    batch.commit(&namespace).unwrap();
    assert!(list_rules(&namespace, &table()).unwrap().is_empty());
    assert_eq!(list_tables(&namespace).unwrap(), [TableInfo { table: table(), objects: 1 }]);
    for _ in 0..2 {
        let mut batch = Batch::new();
        batch.remove_table(&table());
        batch.commit(&namespace).unwrap();
        assert!(list_tables(&namespace).unwrap().is_empty());
    }
    Batch::new().commit(&namespace).unwrap();
}

/// As many rules as a cluster with two thousand services has: several times the default send buffer.
#[test]
fn big_transactions_fit() {
    if !may_run("big_transactions_fit") {
        return;
    }
    let namespace = NetworkNamespace::create().unwrap();
    let mut batch = Batch::new();
    batch.add_table(&table()).add_chain(&table(), Chain::base("c", ChainType::Nat, Hook::Output, -100));
    batch.add_set(&table(), "some", SetType::Ipv6Address);
    let addresses: Vec<IpAddr> = (0..3000u16).map(|i| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, i])).collect();
    batch.add_elements(&table(), "some", &addresses);
    for i in 0..2000u16 {
        let [high, low] = i.to_be_bytes();
        let service = SocketAddr::from(([10, 96, high, low], 80));
        for rule in balance(Protocol::Tcp, service, &[at("10.0.0.1", 80), at("10.0.0.2", 80), at("fd00::1", 80)]) {
            batch.add_rule(&table(), "c", rule);
        }
    }
    batch.commit(&namespace).unwrap();
    assert_eq!(list_rules(&namespace, &table()).unwrap().len(), 4000);
}

#[test]
fn connections_are_spread_over_endpoints() {
    if !may_run("connections_are_spread_over_endpoints") {
        return;
    }
    let pair = Pair::new();
    for (service, backend) in [("10.96.0.1", PEER), ("fd96::1", PEER6)] {
        let service = at(service, 80);
        let listeners: Vec<_> =
            (0..3).map(|_| pair.peer.run(|| TcpListener::bind((ip(backend), 0)).unwrap()).unwrap()).collect();
        let endpoints: Vec<_> = listeners.iter().map(|l| l.local_addr().unwrap()).collect();
        let mut batch = Batch::new();
        batch.replace_table(&table());
        batch.add_chain(&table(), Chain::base("output", ChainType::Nat, Hook::Output, -100));
        for rule in balance(Protocol::Tcp, service, &endpoints) {
            batch.add_rule(&table(), "output", rule);
        }
        batch.commit(&pair.pod).unwrap();
        for (i, listener) in listeners.into_iter().enumerate() {
            std::thread::spawn(move || {
                while let Ok((mut stream, _)) = listener.accept() {
                    let _ = stream.write_all(&[u8::try_from(i).unwrap()]);
                }
            });
        }
        let mut counts = [0; 3];
        for _ in 0..120 {
            let mut answer = [0];
            pair.pod.run(|| TcpStream::connect(service).unwrap()).unwrap().read_exact(&mut answer).unwrap();
            counts[usize::from(answer[0])] += 1;
        }
        // 40 each, standard deviation 5.2; a wrong order of probabilities would give 13 or 80.
        assert!(counts.iter().all(|count| (15..=65).contains(count)), "{counts:?}");
    }
}

#[test]
fn masquerade_hides_the_source() {
    if !may_run("masquerade_hides_the_source") {
        return;
    }
    let pair = Pair::new();
    crate::links::add_address(&pair.pod, "lo", ip("10.55.0.1"), 32).unwrap();
    let mut batch = Batch::new();
    batch.replace_table(&table());
    batch.add_chain(&table(), Chain::base("postrouting", ChainType::Nat, Hook::Postrouting, 100));
    batch.add_rule(&table(), "postrouting", Rule::new().output_interface("eth0").masquerade());
    batch.commit(&pair.pod).unwrap();
    let listener = pair.peer.run(|| TcpListener::bind((ip(PEER), 0)).unwrap()).unwrap();
    let to = listener.local_addr().unwrap();
    let client =
        pair.pod.run(|| socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap()).unwrap();
    client.bind(&at("10.55.0.1", 0).into()).unwrap();
    client.connect(&to.into()).unwrap();
    assert_eq!(listener.accept().unwrap().1.ip(), ip(POD));
}

#[test]
fn refusals_are_explained() {
    let refusal =
        |sequence, errno| Refusal { sequence, message: None, source: std::io::Error::from_raw_os_error(errno) };
    let labels = ["add table inet t".to_owned(), "add rule inet t c accept".to_owned()];
    let absent = explain(refusal(1, libc::EOPNOTSUPP), &labels);
    assert!(matches!(absent, Error::NoNftables { .. }) && absent.to_string().contains("modprobe"), "{absent}");
    let module = explain(refusal(3, libc::ENOENT), &labels).to_string();
    assert!(module.contains("`add rule inet t c accept`") && module.contains("nft_redir"), "{module}");
    let permission = explain(refusal(2, libc::EPERM), &labels).to_string();
    assert!(permission.contains("`add table inet t`") && permission.contains("CAP_NET_ADMIN"), "{permission}");
    assert!(matches!(explain(refusal(1, libc::EPERM), &labels), Error::Netlink { .. }));
    assert!(matches!(explain(refusal(9, libc::ENOMEM), &labels), Error::Netlink { .. }));
}
