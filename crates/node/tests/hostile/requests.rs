//! Authenticated peers that request what they must not have.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use leno_model::{Action, Authorization, Clause, Match, PolicyName, Rule, Scope, StringMatch};
use leno_testkit::certs::Leaf;
use leno_testkit::frames::{Frames, kind};
use leno_testkit::hbone::{self, Peer};
use leno_testkit::network::may_run;
use leno_tls::Clock;
use parking_lot::Mutex;
use tokio::io::AsyncReadExt;

use crate::support::{APP, NEVER, echo, eventually, reset, soon};
use crate::{ALONE, GOOD, STREAM_WINDOW, Target, descriptors};

#[tokio::test]
async fn a_request_leads_to_the_pod_itself_or_nowhere() {
    if !may_run("a_request_leads_to_the_pod_itself_or_nowhere") {
        return;
    }
    let _alone = ALONE.lock().await;
    let mut target = Target::new().await;
    let neighbour = target.mesh.pod("neighbour", "node-1").await;
    target.mesh.synced().await;
    let listener = neighbour.listen();
    let target = target.settled().await;
    let own = target.pod.v4;
    let elsewhere = "is not an address of default/pod";
    let malformed = "malformed authority";
    let own_port = "is the proxy's own and can't be reached through it";
    let cases = [
        (format!("{}:{APP}", neighbour.v4), 400, elsewhere),
        (format!("[{}]:{APP}", neighbour.v6), 400, elsewhere),
        // An address of the pod, but not the one that the peer connected to.
        (format!("[{}]:{APP}", target.pod.v6), 400, elsewhere),
        (format!("127.0.0.1:{APP}"), 400, elsewhere),
        (format!("[::1]:{APP}"), 400, elsewhere),
        (format!("[::ffff:127.0.0.1]:{APP}"), 400, elsewhere),
        (format!("0.0.0.0:{APP}"), 400, elsewhere),
        ("169.254.169.254:80".to_owned(), 400, elsewhere),
        ("255.255.255.255:80".to_owned(), 400, elsewhere),
        (format!("{own}:15001"), 503, own_port),
        (format!("{own}:15006"), 503, own_port),
        (format!("{own}:15008"), 503, own_port),
        // DNS listens on loopback and is for the pod itself.
        (format!("{own}:15053"), 503, own_port),
        (own.to_string(), 400, malformed),
        (format!("{own}:0"), 400, malformed),
        (format!("{own}:0{APP}"), 400, malformed),
        (format!("{own}:65536"), 400, malformed),
        (format!("{own}:99999999999999999999"), 400, malformed),
        ("2130706433:80".to_owned(), 400, malformed),
        ("127.1:80".to_owned(), 400, malformed),
        ("0x7f.1:80".to_owned(), 400, malformed),
        ("localhost:80".to_owned(), 503, "no service is known as localhost"),
        ("kubernetes.default.svc.cluster.local:443".to_owned(), 503, "no service is known as kubernetes"),
        (format!("{own}:9"), 503, "Connection refused"),
    ];
    let peer = target.peer().await;
    for (authority, status, reason) in cases {
        let before = target.log.count(&[reason, "error="]);
        let answer = soon(&authority, peer.connect(&authority)).await.unwrap();
        assert_eq!(answer.status.as_u16(), status, "{authority}");
        eventually(&authority, || target.log.count(&[reason, "error=", "src.identity=\"spiffe"]) > before).await;
        // The connection still works for others that share it.
        let answer = soon("an answer", peer.connect(&target.authority())).await.unwrap();
        assert_eq!(answer.status, StatusCode::OK, "after {authority}");
    }
    for method in [Method::GET, Method::POST, Method::OPTIONS] {
        let uri = format!("https://{}/", target.authority());
        let request = Request::builder().method(method.clone()).uri(uri).body(()).unwrap();
        let answer = soon("an answer", peer.request(request)).await.unwrap();
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{method}");
        target.log.line(&[&format!("expected a CONNECT request, got {method}")]).await;
    }
    // The neighbour saw none of it.
    let silence = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
    assert!(silence.is_err(), "{silence:?}");
    drop(peer);
    target.is_unharmed().await;
}

#[tokio::test]
async fn an_authority_that_is_none_is_refused() {
    if !may_run("an_authority_that_is_none_is_refused") {
        return;
    }
    let _alone = ALONE.lock().await;
    let target = Target::new().await;
    let sound = target.authority();
    let long = vec![b'a'; 10 << 10];
    let authorities: &[&[u8]] = &[
        b"",
        b":",
        b":8080",
        b"[",
        b"[]:80",
        b"[::1",
        b"[::1%lo]:80",
        b"a b:80",
        b"a\0:80",
        b"a\r\nx-evil: 1:80",
        b"user@host:80",
        b"http://host:80/",
        b"host:80/path",
        b"host:80#x",
        b"\xff\xfe:80",
        "h\u{f6}st:80".as_bytes(),
        &long,
    ];
    for authority in authorities {
        let shown = String::from_utf8_lossy(&authority[..authority.len().min(30)]).into_owned();
        let mut frames = target.frames().await;
        frames.queue_connect(1, authority);
        frames.flush().await.unwrap();
        // 0x88 is ":status: 200" (RFC 7541, appendix A).
        let refused = async {
            loop {
                match frames.next().await {
                    None => return true,
                    Some(frame) if frame.kind == kind::GOAWAY || frame.kind == kind::RST_STREAM => return true,
                    Some(frame) if frame.kind == kind::HEADERS => return frame.payload.first() != Some(&0x88),
                    Some(_) => {}
                }
            }
        };
        assert!(soon(&shown, refused).await, "{shown:?} was accepted");
    }
    // Bytes around a sound one make it another.
    for authority in [format!(" {sound}"), format!("{sound} "), format!("{sound},{sound}")] {
        let mut frames = target.frames().await;
        frames.queue_connect(1, authority.as_bytes());
        frames.flush().await.unwrap();
        let frame = soon(&authority, frames.next()).await;
        assert!(frame.is_none_or(|f| f.kind != kind::HEADERS || f.payload.first() != Some(&0x88)), "{authority:?}");
    }
    target.is_unharmed().await;
}

#[tokio::test]
async fn bytes_before_the_answer_wait_and_are_bounded() {
    if !may_run("bytes_before_the_answer_wait_and_are_bounded") {
        return;
    }
    let _alone = ALONE.lock().await;
    let target = Target::without_program().await;
    let pod = target.pod.host();
    let busy = pod.listen_with(pod.v4, APP, 0);
    // The one place in the queue is taken by a connection of the pod's own; what comes next is
    // connected only once the program has accepted that.
    let occupant = soon("connect", pod.connect(target.pod.app(pod.v4))).await.unwrap();
    let peer = target.peer().await;
    let (answer, mut send) = soon("the request", peer.begin(&target.authority())).await.unwrap();
    let mut answer = std::pin::pin!(answer);
    let chunk = Bytes::from(vec![9; 64 << 10]);
    let mut sent = 0;
    while let Ok(room) = tokio::time::timeout(Duration::from_millis(300), hbone::room(&mut send, chunk.len())).await {
        let room = room.expect("the stream lives");
        send.send_data(chunk.slice(..room.min(chunk.len())), false).unwrap();
        sent += room.min(chunk.len());
        assert!(sent <= STREAM_WINDOW, "{sent} bytes taken before the request is accepted");
    }
    // What waits makes the window smaller, in steps.
    assert!(sent >= STREAM_WINDOW / 4 * 3, "{sent} bytes, much less than was promised");
    tokio::select! {
        biased;
        early = &mut answer => panic!("answered before the program has accepted: {early:?}"),
        () = std::future::ready(()) => {}
    }
    // A good peer has the same to wait for; other connections of the pod are not in the way.
    let (_, _) = soon("accept", busy.accept()).await.unwrap();
    drop(occupant);
    let (mut program, _) = soon("accept", busy.accept()).await.unwrap();
    let head = soon("the answer", answer).await.unwrap();
    assert_eq!(head.status(), StatusCode::OK);
    send.send_data(Bytes::new(), true).unwrap();
    let mut received = Vec::new();
    soon("the bytes", program.read_to_end(&mut received)).await.unwrap();
    assert!(received.len() == sent && received.iter().all(|b| *b == 9), "{} of {sent}", received.len());
    drop((program, busy, peer));
    echo(target.pod.listen());
    target.good_peer_is_served().await;
}

#[tokio::test]
async fn a_request_that_is_given_up_costs_nothing() {
    if !may_run("a_request_that_is_given_up_costs_nothing") {
        return;
    }
    let _alone = ALONE.lock().await;
    let target = Target::without_program().await;
    let pod = target.pod.host();
    // A program that accepts nobody: every connect to it hangs.
    let busy = pod.listen_with(pod.v4, APP, 0);
    let occupant = soon("connect", pod.connect(target.pod.app(pod.v4))).await.unwrap();
    let mut frames = target.frames().await;
    let authority = target.authority();
    let open = descriptors();
    // In waves, so that each is taken up before it is given up: no rule of HTTP/2 is broken.
    for wave in 0..20u32 {
        for index in 0..100 {
            frames.queue_connect(2 * (100 * wave + index) + 1, authority.as_bytes());
        }
        frames.flush().await.unwrap();
        eventually("the wave to be taken up", || descriptors() >= open + 100).await;
        for index in 0..100 {
            frames.queue_reset(2 * (100 * wave + index) + 1);
        }
        frames.flush().await.unwrap();
        eventually("the wave to be let go", || descriptors() <= open + 4).await;
    }
    target.log.line(&["gave up before the connection stood"]).await;
    drop((frames, busy, occupant));
    echo(target.pod.listen());
    target.good_peer_is_served().await;
}

#[tokio::test]
async fn what_a_peer_says_of_itself_counts_for_nothing() {
    if !may_run("what_a_peer_says_of_itself_counts_for_nothing") {
        return;
    }
    let _alone = ALONE.lock().await;
    let target = Target::without_program().await;
    let listener = target.pod.listen();
    let peer = target.peer().await;
    let request = Request::builder()
        .method(Method::CONNECT)
        .uri(target.authority())
        .header("forwarded", "for=\"10.77.0.99:1\";host=bank.default.svc.cluster.local")
        .header("baggage", "k8s.namespace.name=kube-system,k8s.deployment.name=admin,service.name=admin")
        .header("x-forwarded-for", "10.77.0.99")
        .header("x-envoy-peer-principal", "spiffe://cluster.local/ns/kube-system/sa/admin")
        .body(())
        .unwrap();
    let (answer, accepted) = tokio::join!(peer.request(request), listener.accept());
    let (answer, (program, caller)) = (answer.unwrap(), accepted.unwrap());
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(caller.ip(), target.mesh.network.outside().v4, "the address it has, not the one it claims");
    drop((program, answer));
    let line = target.log.line(&["connection complete", "src.identity=\"spiffe"]).await;
    assert!(!line.contains("admin") && !line.contains("kube-system") && !line.contains("bank"), "{line}");
    let metrics = target.metrics().await;
    assert!(!metrics.contains("admin") && !metrics.contains("bank"), "{metrics}");
}

#[tokio::test]
async fn a_tunnel_carries_no_request_once_its_certificate_has_ended() {
    if !may_run("a_tunnel_carries_no_request_once_its_certificate_has_ended") {
        return;
    }
    const REFUSED_STREAM: u32 = 7;
    /// By the proxy's clock. Only the GOAWAY comes after most of this time; until then, both peers have to have a stream.
    const LEFT: Duration = Duration::from_secs(5);
    let _alone = ALONE.lock().await;
    // The proxy's clock stands still until the test sets it. By the machine's clock, the certificate does not end.
    let end = SystemTime::now() + NEVER;
    let now = Arc::new(Mutex::new(end - LEFT));
    let clock = now.clone();
    let clock = Clock::new(move || *clock.lock());
    let target = Target::with(move |config| config.proxy.clock = clock.clone()).await;
    let brief = target.mesh.certificate(&Leaf { not_after: end, ..Leaf::uri(GOOD) });
    let tls = async || soon("TLS", hbone::tls(target.tcp().await, Some(&brief))).await.unwrap();

    // One that keeps the rules of HTTP/2, and one that does not care for pings, nor for GOAWAY.
    let peer = soon("HTTP/2", Peer::start(tls().await)).await.unwrap();
    let mut open = soon("an answer", peer.connect(&target.authority())).await.unwrap();
    assert_eq!(open.status, StatusCode::OK);
    let mut rude = soon("HTTP/2", Frames::start_without_pongs(tls().await)).await.unwrap();
    let authority = target.authority();
    rude.queue_connect(1, authority.as_bytes());
    rude.flush().await.unwrap();
    assert_eq!(soon("an answer", rude.next()).await.map(|frame| (frame.kind, frame.stream)), Some((kind::HEADERS, 1)));

    // Both peers are told in time: the certificate has not ended.
    assert_eq!(soon("GOAWAY", rude.next()).await.map(|frame| frame.kind), Some(kind::GOAWAY));
    let refused = async { while peer.connect(&target.authority()).await.is_ok() {} };
    soon("a refusal", refused).await;

    // What relies on the certificate when it has ended is refused, with a reason.
    *now.lock() = end;
    rude.queue_connect(3, authority.as_bytes());
    rude.flush().await.unwrap();
    let answer = soon("a refusal", rude.next()).await.unwrap();
    assert_eq!((answer.kind, answer.stream, answer.error_code()), (kind::RST_STREAM, 3, Some(REFUSED_STREAM)));
    target.log.line(&["direction=\"inbound\"", GOOD, "proves nothing any more: its certificate ended"]).await;
    let metrics = target.metrics().await;
    assert!(metrics.lines().any(|line| line.contains("TLS_FAILURE") && line.contains("sa/good")), "{metrics}");

    // What was open goes on.
    rude.queue_data(1, b"hello", false);
    rude.flush().await.unwrap();
    assert_eq!(soon("the echo", rude.next()).await.map(|frame| frame.payload), Some(b"hello".to_vec()));
    open.send.send_data(Bytes::from_static(b"hello"), true).unwrap();
    assert_eq!(soon("the echo", hbone::read(&mut open.receive, 5)).await, b"hello");
    drop((rude, peer, open));
    target.is_unharmed().await;
}

#[tokio::test]
async fn a_policy_sees_the_proven_identity() {
    if !may_run("a_policy_sees_the_proven_identity") {
        return;
    }
    let _alone = ALONE.lock().await;
    let target = Target::new().await;
    let only =
        Match { principals: vec![StringMatch::Exact("cluster.local/ns/default/sa/admin".into())], ..Match::default() };
    target.mesh.control.publish_policy(&Authorization {
        id: PolicyName { namespace: "default".into(), name: "admins".into() },
        scope: Scope::Namespace,
        action: Action::Allow,
        rules: vec![Rule { clauses: vec![Clause { matches: vec![only] }] }],
        dry_run: false,
        not_understood: None,
    });
    target.mesh.synced().await;
    let names = [("admin", 200), ("good", 401), ("Admin", 401), ("admin2", 401), ("admi", 401)];
    for (name, status) in names {
        let certificate = target.mesh.certificate(&Leaf::uri(&format!("spiffe://cluster.local/ns/default/sa/{name}")));
        let tls = soon("TLS", hbone::tls(target.tcp().await, Some(&certificate))).await.unwrap();
        let peer = soon("HTTP/2", Peer::start(tls)).await.unwrap();
        let answer = soon("an answer", peer.connect(&target.authority())).await.unwrap();
        assert_eq!(answer.status.as_u16(), status, "{name}");
        if status == 401 {
            let identity = format!("src.identity=\"spiffe://cluster.local/ns/default/sa/{name}\"");
            target.log.line(&["no ALLOW policy of default/pod matched (checked default/admins)", &identity]).await;
        }
    }
}

#[tokio::test]
async fn a_caller_in_the_clear_that_gives_up_costs_nothing() {
    if !may_run("a_caller_in_the_clear_that_gives_up_costs_nothing") {
        return;
    }
    let _alone = ALONE.lock().await;
    let target = Target::without_program().await;
    let pod = target.pod.host();
    let busy = pod.listen_with(pod.v4, APP, 0);
    let occupant = soon("connect", pod.connect(target.pod.app(pod.v4))).await.unwrap();
    let outside = target.mesh.network.outside();
    let open = descriptors();
    for _ in 0..5 {
        let mut callers = Vec::new();
        for _ in 0..100 {
            let caller = outside.connect(target.pod.app(pod.v4));
            callers.push(soon("connect", caller).await.unwrap());
        }
        // The caller's end, the proxy's, and the one that waits for the program.
        eventually("the wave to be taken up", || descriptors() >= open + 300).await;
        callers.into_iter().for_each(reset);
        eventually("the wave to be let go", || descriptors() <= open + 4).await;
    }
    target.log.line(&["src.addr=10.77.0.1:", "gave up before the connection stood"]).await;
    drop((busy, occupant));
    echo(target.pod.listen());
    target.good_peer_is_served().await;
}
