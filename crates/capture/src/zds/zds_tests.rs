use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use leno_proto::zds;
use parking_lot::Mutex;
use proptest::prelude::*;
use prost::Message;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::wire::{Channel, accept, hello, listen, request, response};
use super::*;
use crate::netns::{NamespaceId, NetworkNamespace};

const SOON: Duration = Duration::from_secs(10);

fn pod(uid: &str) -> PodInfo {
    PodInfo {
        uid: uid.into(),
        name: format!("{uid}-name"),
        namespace: "default".into(),
        service_account: "reviews".into(),
    }
}

/// Any namespace will do to hand over; this one needs no privileges.
fn namespace() -> NetworkNamespace {
    NetworkNamespace::current().unwrap()
}

#[derive(Debug, PartialEq, Eq)]
enum Event {
    Add(PodInfo, NamespaceId),
    Remove(String),
    Retain(Vec<String>),
}

/// Writes down what it is asked, and refuses the pods that it is told to refuse.
struct Recorder {
    events: mpsc::UnboundedSender<Event>,
    refusals: Mutex<HashMap<String, String>>,
}

impl PodHandler for Recorder {
    async fn add(&self, pod: PodInfo, namespace: NetworkNamespace) -> Result<(), String> {
        let refusal = self.refusals.lock().get(&pod.uid).cloned();
        self.events.send(Event::Add(pod, namespace.id())).unwrap();
        refusal.map_or(Ok(()), Err)
    }

    async fn remove(&self, uid: &str) {
        self.events.send(Event::Remove(uid.into())).unwrap();
    }

    async fn retain(&self, uids: HashSet<String>) {
        let mut uids: Vec<_> = uids.into_iter().collect();
        uids.sort();
        self.events.send(Event::Retain(uids)).unwrap();
    }
}

struct Proxy {
    recorder: Arc<Recorder>,
    events: mpsc::UnboundedReceiver<Event>,
    status: tokio::sync::watch::Receiver<ClientStatus>,
    task: JoinHandle<()>,
}

impl Proxy {
    fn start(path: &Path) -> Self {
        let client = Client::new(path).retry_every(Duration::from_millis(50));
        let status = client.status();
        let (sender, events) = mpsc::unbounded_channel();
        let recorder = Arc::new(Recorder { events: sender, refusals: Mutex::default() });
        let task = tokio::spawn({
            let recorder = Arc::clone(&recorder);
            async move { match client.run(&*recorder).await {} }
        });
        Self { recorder, events, status, task }
    }

    async fn event(&mut self) -> Event {
        tokio::time::timeout(SOON, self.events.recv()).await.expect("nothing happened").unwrap()
    }

    async fn status(&mut self, what: impl FnMut(&ClientStatus) -> bool) -> ClientStatus {
        tokio::time::timeout(SOON, self.status.wait_for(what)).await.expect("it did not come to that").unwrap().clone()
    }

    fn refuse(&self, uid: &str, reason: &str) {
        self.recorder.refusals.lock().insert(uid.into(), reason.into());
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn added(uid: &str) -> Event {
    Event::Add(pod(uid), namespace().id())
}

async fn synced(agent: &Agent, count: usize) {
    let mut proxies = agent.proxies();
    tokio::time::timeout(SOON, proxies.wait_for(|n| *n == count)).await.expect("no proxy").unwrap();
}

// --- bytes -----------------------------------------------------------------------------------------------------------

#[test]
fn the_bytes_are_istios() {
    assert_eq!(hello().encode_to_vec(), [0x08, 1]);
    assert_eq!(response(Ok(())).encode_to_vec(), [0x0a, 0]);
    assert_eq!(request(Request::SnapshotSent).encode_to_vec(), [0x1a, 0]);
    assert_eq!(request(Request::Delete("u".into())).encode_to_vec(), [0x12, 3, 0x12, 1, b'u']);
    assert_eq!(request(Request::Keep("u".into())).encode_to_vec(), [0x2a, 3, 0x0a, 1, b'u']);
    let add =
        Request::Add(PodInfo { uid: "u".into(), name: "p".into(), namespace: "n".into(), service_account: "s".into() });
    let expected = [0x0a, 14, 0x0a, 1, b'u', 0x12, 9, 0x0a, 1, b'p', 0x12, 1, b'n', 0x1a, 1, b's'];
    assert_eq!(request(add).encode_to_vec(), expected);
}

#[test]
fn descriptors_are_counted() {
    let add = request(Request::Add(pod("u"))).encode_to_vec();
    assert_eq!(decode_request(&add, 1).unwrap(), Request::Add(pod("u")));
    for found in [0, 2] {
        let error = decode_request(&add, found).unwrap_err();
        assert_eq!(error, ProtocolError::Descriptors { message: "AddWorkload", expected: 1, found });
    }
    for request in [Request::Keep("u".into()), Request::Delete("u".into()), Request::SnapshotSent] {
        let bytes = wire::request(request.clone()).encode_to_vec();
        assert_eq!(decode_request(&bytes, 0).unwrap(), request);
        assert!(matches!(decode_request(&bytes, 1), Err(ProtocolError::Descriptors { .. })));
    }
}

#[test]
fn incomplete_messages_are_refused() {
    assert_eq!(decode_request(&[], 0), Err(ProtocolError::Empty("WorkloadRequest")));
    // A request of a kind that doesn't exist yet.
    assert_eq!(decode_request(&[0x3a, 0], 0), Err(ProtocolError::Empty("WorkloadRequest")));
    assert_eq!(decode_response(&[]), Err(ProtocolError::Empty("WorkloadResponse")));
    assert!(matches!(decode_request(&[0xff], 0), Err(ProtocolError::Undecodable { .. })));
    let payload = |uid: &str, info| {
        let add = zds::AddWorkload { uid: uid.into(), workload_info: info };
        zds::WorkloadRequest { payload: Some(zds::workload_request::Payload::Add(add)) }.encode_to_vec()
    };
    let missing = |field| Err(ProtocolError::Missing { message: "AddWorkload", field });
    assert_eq!(decode_request(&payload("u", None), 1), missing("workload_info"));
    assert_eq!(decode_request(&payload("", Some(zds::WorkloadInfo::default())), 1), missing("uid"));
    assert_eq!(decode_hello(&[]), Err(ProtocolError::Version(0)));
    assert_eq!(decode_hello(&[0x08, 2]), Err(ProtocolError::Version(2)));
    decode_hello(&[0x08, 1]).unwrap();
}

#[test]
fn a_long_reason_is_cut_between_characters() {
    for filler in ["x", "ü", "漢"] {
        let bytes = response(Err(filler.repeat(2000))).encode_to_vec();
        assert!(bytes.len() <= MESSAGE_MAX && bytes.len() > MESSAGE_MAX - 12, "{}", bytes.len());
        let reason = decode_response(&bytes).unwrap().unwrap_err();
        assert!(filler.repeat(2000).starts_with(&reason));
    }
}

proptest! {
    #[test]
    fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), descriptors in 0usize..3) {
        let _ = decode_request(&bytes, descriptors);
        let _ = decode_response(&bytes);
        let _ = decode_hello(&bytes);
    }

    #[test]
    fn what_is_sent_is_understood(uid in "[a-z0-9-]{1,36}", name in ".{0,40}", namespace in ".{0,20}", service_account in ".{0,20}") {
        let add = Request::Add(PodInfo { uid, name, namespace, service_account });
        prop_assert_eq!(decode_request(&request(add.clone()).encode_to_vec(), 1).unwrap(), add);
    }
}

// --- both ends -------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn pods_come_and_go() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::bind(directory.path().join("zds.sock")).unwrap();
    let nobody = agent.add(pod("a"), namespace(), Duration::ZERO).await.unwrap_err();
    assert!(matches!(nobody, Error::NoProxy { .. }) && nobody.is_retryable(), "{nobody}");
    agent.expect("later");
    agent.expect("a");
    let mut proxy = Proxy::start(agent.path());
    // The snapshot: the failed pod is offered again, the expected one is only kept.
    assert_eq!(proxy.event().await, added("a"));
    assert_eq!(proxy.event().await, Event::Retain(vec!["a".into(), "later".into()]));
    proxy.status(|status| status.synced).await;
    synced(&agent, 1).await;
    // Live.
    agent.add(pod("b"), namespace(), SOON).await.unwrap();
    assert_eq!(proxy.event().await, added("b"));
    agent.add(pod("later"), namespace(), SOON).await.unwrap();
    assert_eq!(proxy.event().await, added("later"));
    agent.remove("a").await;
    assert_eq!(proxy.event().await, Event::Remove("a".into()));
    assert_eq!(agent.pods(), [pod("b"), pod("later")]);
    agent.remove("a").await;
}

/// As it drains, before the next one comes.
#[tokio::test]
async fn a_proxy_that_hangs_up_is_noticed_once_it_is_off_the_list() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::bind(directory.path().join("zds.sock")).unwrap();
    let mut departures = agent.departures();
    for round in 1..=2 {
        let proxy = Proxy::start(agent.path());
        synced(&agent, 1).await;
        assert!(!departures.has_changed().unwrap());
        drop(proxy);
        tokio::time::timeout(SOON, departures.changed()).await.expect("it was not noticed").unwrap();
        assert_eq!((*departures.borrow_and_update(), *agent.proxies().borrow()), (round, 0));
    }
}

#[tokio::test]
async fn an_add_waits_for_a_proxy() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::bind(directory.path().join("zds.sock")).unwrap();
    let adding = tokio::spawn({
        let agent = agent.clone();
        async move { agent.add(pod("a"), namespace(), SOON).await }
    });
    let mut proxy = Proxy::start(agent.path());
    adding.await.unwrap().unwrap();
    assert_eq!(proxy.event().await, added("a"));
}

#[tokio::test]
async fn a_refusal_is_reported_and_retried_and_bothers_nobody_else() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::bind(directory.path().join("zds.sock")).unwrap();
    let mut proxy = Proxy::start(agent.path());
    assert_eq!(proxy.event().await, Event::Retain(vec![]));
    proxy.refuse("bad", "port 15008 is taken");
    let error = agent.add(pod("bad"), namespace(), SOON).await.unwrap_err();
    assert_eq!(error.to_string(), "the node proxy refused pod bad: port 15008 is taken");
    agent.add(pod("good"), namespace(), SOON).await.unwrap();
    let status = proxy.status(|status| !status.pending.is_empty()).await;
    assert!(status.synced, "one pod must not make the proxy unready");
    assert_eq!(status.pending["bad"], "port 15008 is taken");
    proxy.recorder.refusals.lock().clear();
    proxy.status(|status| status.pending.is_empty()).await;
    // At least the first attempt, the good pod, and one retry that succeeded.
    let mut attempts = 0;
    while let Ok(event) = proxy.events.try_recv() {
        attempts += u32::from(event == added("bad"));
    }
    assert!(attempts >= 2, "{attempts}");
    // Deleted while it is pending: never tried again.
    proxy.refuse("bad", "still");
    agent.add(pod("bad"), namespace(), SOON).await.unwrap_err();
    agent.remove("bad").await;
    proxy.status(|status| status.pending.is_empty()).await;
}

#[tokio::test]
async fn the_newest_proxy_gets_new_pods_and_all_hear_of_removals() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::bind(directory.path().join("zds.sock")).unwrap();
    let mut old = Proxy::start(agent.path());
    assert_eq!(old.event().await, Event::Retain(vec![]));
    agent.add(pod("a"), namespace(), SOON).await.unwrap();
    assert_eq!(old.event().await, added("a"));
    let mut new = Proxy::start(agent.path());
    assert_eq!(new.event().await, added("a"));
    assert_eq!(new.event().await, Event::Retain(vec!["a".into()]));
    synced(&agent, 2).await;
    agent.add(pod("b"), namespace(), SOON).await.unwrap();
    assert_eq!(new.event().await, added("b"));
    agent.remove("a").await;
    assert_eq!(new.event().await, Event::Remove("a".into()));
    assert_eq!(old.event().await, Event::Remove("a".into()), "and nothing about b before it");
    // When the new one dies, the old one takes over again.
    drop(new);
    synced(&agent, 1).await;
    agent.add(pod("c"), namespace(), SOON).await.unwrap();
    assert_eq!(old.event().await, added("c"));
}

#[tokio::test]
async fn both_ends_survive_the_others_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("zds.sock");
    let agent = Agent::bind(&path).unwrap();
    let mut proxy = Proxy::start(&path);
    assert_eq!(proxy.event().await, Event::Retain(vec![]));
    drop(agent);
    assert!(!path.exists(), "the socket goes with the agent");
    let status = proxy.status(|status| !status.synced).await;
    assert!(status.error.is_some());
    let agent = Agent::bind(&path).unwrap();
    agent.add(pod("a"), namespace(), SOON).await.unwrap();
    // In the snapshot or after it; which came first, the proxy or the pod, is open.
    while proxy.event().await != added("a") {}
    proxy.status(|status| status.synced && status.error.is_none()).await;
    drop(proxy);
    synced(&agent, 0).await;
    let mut another = Proxy::start(&path);
    assert_eq!(another.event().await, added("a"));
    assert_eq!(another.event().await, Event::Retain(vec!["a".into()]));
}

#[tokio::test]
async fn a_proxy_that_connects_at_once_hears_of_all_pods() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("zds.sock");
    let mut proxy = Proxy::start(&path);
    // "b" is named twice; what is known in full counts.
    let (known, expected) = ([(pod("a"), namespace()), (pod("b"), namespace())], ["b".to_owned(), "c".to_owned()]);
    let agent = Agent::bind_knowing(&path, known, expected).unwrap();
    assert_eq!(proxy.event().await, added("a"));
    assert_eq!(proxy.event().await, added("b"));
    assert_eq!(proxy.event().await, Event::Retain(vec!["a".into(), "b".into(), "c".into()]));
    assert_eq!(agent.pods(), [pod("a"), pod("b")]);
}

#[tokio::test]
async fn one_agent_per_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("zds.sock");
    let first = Agent::bind(&path).unwrap();
    let error = Agent::bind(&path).unwrap_err();
    assert!(matches!(&error, Error::Listen { .. }) && error.to_string().contains("another agent"), "{error}");
    drop(first);
    // What a killed agent leaves behind is taken over.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(listen(&path).unwrap());
    assert!(path.exists());
    let _second = Agent::bind(&path).unwrap();
    let missing = Agent::bind(directory.path().join("no/such/zds.sock")).unwrap_err();
    assert!(missing.to_string().contains("create the directory"), "{missing}");
}

#[tokio::test]
async fn an_overlong_pod_is_refused_without_losing_the_proxy() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::bind(directory.path().join("zds.sock")).unwrap();
    let mut proxy = Proxy::start(agent.path());
    assert_eq!(proxy.event().await, Event::Retain(vec![]));
    let long = PodInfo { name: "x".repeat(MESSAGE_MAX), ..pod("long") };
    let error = agent.add(long, namespace(), SOON).await.unwrap_err();
    assert!(error.to_string().contains("exceeds the protocol's limit"), "{error}");
    agent.add(pod("b"), namespace(), SOON).await.unwrap();
    assert_eq!(proxy.event().await, added("b"));
    // Nor does it keep the next proxy from the others.
    let mut next = Proxy::start(agent.path());
    assert_eq!(next.event().await, added("b"));
}

// --- a misbehaving other end -----------------------------------------------------------------------------------------

/// Plays the agent by hand.
async fn accept_proxy(listener: &tokio::io::unix::AsyncFd<socket2::Socket>) -> Channel {
    let channel = tokio::time::timeout(SOON, accept(listener)).await.expect("nobody connected").unwrap();
    decode_hello(&channel.receive_soon().await.unwrap().bytes).unwrap();
    channel
}

async fn answer(channel: &Channel) -> Result<(), String> {
    decode_response(&channel.receive_soon().await.unwrap().bytes).unwrap()
}

#[tokio::test]
async fn the_client_leaves_an_agent_that_breaks_the_protocol() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("zds.sock");
    let listener = listen(&path).unwrap();
    let _proxy = Proxy::start(&path);
    let own = namespace();
    let nameless = zds::AddWorkload { uid: "a".into(), workload_info: None };
    let nameless = zds::WorkloadRequest { payload: Some(zds::workload_request::Payload::Add(nameless)) };
    for (before, message, descriptor, complaint) in [
        (vec![], request(Request::Add(pod("a"))), false, "AddWorkload came with 0 file descriptors instead of 1"),
        (vec![], request(Request::SnapshotSent), true, "SnapshotSent came with 1 file descriptors instead of 0"),
        (vec![], nameless, true, "AddWorkload without workload_info"),
        (
            vec![Request::SnapshotSent],
            request(Request::SnapshotSent),
            false,
            "a second SnapshotSent is not allowed now",
        ),
        (vec![Request::SnapshotSent], request(Request::Keep("a".into())), false, "KeepWorkload after the snapshot"),
    ] {
        let channel = accept_proxy(&listener).await;
        for request in before {
            channel.send(&wire::request(request), None).await.unwrap();
            answer(&channel).await.unwrap();
        }
        channel.send(&message, descriptor.then_some(own.as_fd())).await.unwrap();
        let reason = answer(&channel).await.unwrap_err();
        assert!(reason.contains(complaint), "{reason}");
        let end = tokio::time::timeout(SOON, channel.receive()).await.unwrap().unwrap();
        assert!(end.is_none(), "it must hang up");
    }
    // And it is back each time.
    accept_proxy(&listener).await;
}

#[tokio::test]
async fn deleting_during_the_snapshot_drops_the_pod_from_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("zds.sock");
    let listener = listen(&path).unwrap();
    let mut proxy = Proxy::start(&path);
    let channel = accept_proxy(&listener).await;
    let own = namespace();
    for uid in ["a", "b"] {
        channel.send(&request(Request::Add(pod(uid))), Some(own.as_fd())).await.unwrap();
        answer(&channel).await.unwrap();
    }
    for last in [Request::Delete("a".into()), Request::SnapshotSent] {
        channel.send(&request(last), None).await.unwrap();
        answer(&channel).await.unwrap();
    }
    assert_eq!(proxy.event().await, added("a"));
    assert_eq!(proxy.event().await, added("b"));
    assert_eq!(proxy.event().await, Event::Remove("a".into()));
    assert_eq!(proxy.event().await, Event::Retain(vec!["b".into()]));
}

#[tokio::test]
async fn the_agent_drops_a_proxy_that_breaks_the_protocol() {
    let directory = tempfile::tempdir().unwrap();
    let agent = Agent::bind(directory.path().join("zds.sock")).unwrap();
    let hang_up = async |channel: Channel| {
        let end = tokio::time::timeout(SOON, channel.receive()).await.unwrap().unwrap();
        assert!(end.is_none());
    };
    // No hello of ours.
    let channel = Channel::connect(agent.path()).unwrap();
    channel.send(&zds::ZdsHello { version: 7 }, None).await.unwrap();
    hang_up(channel).await;
    // Speaks unprompted after the snapshot.
    let channel = Channel::connect(agent.path()).unwrap();
    channel.send(&hello(), None).await.unwrap();
    let snapshot = channel.receive_soon().await.unwrap();
    assert_eq!(decode_request(&snapshot.bytes, 0).unwrap(), Request::SnapshotSent);
    channel.send(&response(Ok(())), None).await.unwrap();
    synced(&agent, 1).await;
    channel.send(&response(Ok(())), None).await.unwrap();
    hang_up(channel).await;
    synced(&agent, 0).await;
    // Dies with a request in its hands: the caller is told, and another proxy is waited for.
    let channel = Channel::connect(agent.path()).unwrap();
    channel.send(&hello(), None).await.unwrap();
    channel.receive_soon().await.unwrap();
    channel.send(&response(Ok(())), None).await.unwrap();
    synced(&agent, 1).await;
    let adding = tokio::spawn({
        let agent = agent.clone();
        async move { agent.add(pod("a"), namespace(), SOON).await }
    });
    let packet = channel.receive_soon().await.unwrap();
    assert_eq!(packet.descriptors.len(), 1);
    drop(channel);
    let mut proxy = Proxy::start(agent.path());
    adding.await.unwrap().unwrap();
    assert_eq!(proxy.event().await, added("a"));
}
