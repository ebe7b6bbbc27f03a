//! A control plane tells of policies and of the workloads that name them in separate messages, in
//! any order. Whatever the order: at no moment may more pass than before or after the change, and no
//! connection is cut that both allow.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use leno_model::{
    Action, Authorization, Clause, Health, Identity, Match, Mesh, PolicyName, Rule, Scope, StringMatch, Workload,
};
use leno_policy::{DenyReason, Verdict, authorize};
use leno_proto::{ADDRESS_TYPE, AUTHORIZATION_TYPE, authorization_to_proto, workload_to_address};
use leno_proxy::mesh::{Feed, MeshState};
use leno_tls::{CertificateManager, IssueError, Issuer, Options};
use leno_xds::client::{Handler, Update};
use prost::Message as _;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use super::connections::{Connections, Cut, InboundConnection, Listed};
use crate::shares::Shares;

/// What the control plane means the mesh to be.
#[derive(Debug, Clone, Default)]
struct Intent {
    policies: BTreeMap<PolicyName, Authorization>,
    workloads: BTreeMap<String, Workload>,
}

/// One resource of one response.
#[derive(Debug, Clone)]
enum Told {
    Policy(Authorization),
    PolicyGone(PolicyName),
    Workload(Box<Workload>),
}

impl Told {
    fn type_url(&self) -> &'static str {
        if matches!(self, Self::Workload(_)) { ADDRESS_TYPE } else { AUTHORIZATION_TYPE }
    }

    fn update(&self) -> Update {
        let upsert = |name: String, body: Vec<u8>| Update::Upsert { name: name.into(), body: body.into() };
        match self {
            Self::Policy(policy) => upsert(policy.id.to_string(), authorization_to_proto(policy).encode_to_vec()),
            Self::PolicyGone(id) => Update::Remove { name: id.to_string().into() },
            Self::Workload(workload) => upsert(workload.uid.to_string(), workload_to_address(workload).encode_to_vec()),
        }
    }
}

/// What is told in one response.
type Response = Vec<Told>;

/// A change of what is meant, and what is told of its policies and of each workload, in order.
#[derive(Debug)]
struct Change {
    before: Intent,
    after: Intent,
    /// Told before anything else.
    first: Option<Told>,
    told: Vec<Vec<Response>>,
}

/// More messages than this have too many orders to try them all.
const MOST: usize = 5;

fn name(text: &str) -> PolicyName {
    PolicyName { namespace: "ns".into(), name: text.into() }
}

const PEERS: [&str; 3] = ["x", "y", "z"];

fn policy(id: &str, scope: Scope, random: &mut StdRng) -> Authorization {
    let principals = PEERS
        .iter()
        .filter(|_| random.random())
        .map(|peer| StringMatch::Exact(format!("cluster.local/ns/ns/sa/{peer}").into()))
        .collect();
    let one = Match { principals, ..Match::default() };
    Authorization {
        id: name(id),
        scope,
        action: if random.random() { Action::Allow } else { Action::Deny },
        rules: vec![Rule { clauses: vec![Clause { matches: vec![one] }] }],
        dry_run: random.random_ratio(1, 8),
        not_understood: None,
    }
}

fn some(of: &BTreeSet<PolicyName>, random: &mut StdRng) -> BTreeSet<PolicyName> {
    of.iter().filter(|_| random.random()).cloned().collect()
}

fn workload(uid: &str, policies: BTreeSet<PolicyName>) -> Workload {
    Workload { authorization_policies: policies.into_iter().collect(), ..Workload::new(uid, "ns", uid) }
}

/// The same with something changed that is no policy's business.
fn touched(of: &Workload) -> Workload {
    Workload { health: Health::Unhealthy, ..of.clone() }
}

/// What is told of a workload that becomes another, now and then after a change of it that is no policy's business.
fn of_workload(old: &Workload, new: &Workload, is_touched: bool) -> Vec<Response> {
    let touched = is_touched.then(|| touched(old));
    let changed = (old != new).then(|| new.clone());
    touched.into_iter().chain(changed).map(|workload| vec![Told::Workload(Box::new(workload))]).collect()
}

/// Policies come, go and are renamed, and workloads name others than before.
fn renamed(random: &mut StdRng) -> Change {
    let pool: BTreeSet<PolicyName> = ["a", "b", "c"].map(name).into();
    let content: BTreeMap<_, _> =
        pool.iter().map(|id| (id.clone(), policy(&id.name, Scope::WorkloadSelector, random))).collect();
    let wide = random.random_ratio(1, 4).then(|| policy("wide", Scope::Namespace, random));
    let mut told = Vec::new();
    let (first, second) = (some(&pool, random), some(&pool, random));
    let intent = |ids: &BTreeSet<PolicyName>| Intent {
        policies: ids.iter().map(|id| content[id].clone()).chain(wide.clone()).map(|p| (p.id.clone(), p)).collect(),
        workloads: BTreeMap::new(),
    };
    let (mut before, mut after) = (intent(&first), intent(&second));
    told.extend(first.difference(&second).map(|id| vec![vec![Told::PolicyGone(id.clone())]]));
    told.extend(second.difference(&first).map(|id| vec![vec![Told::Policy(content[id].clone())]]));
    for uid in ["v", "w"] {
        let (old, new) = (workload(uid, some(&first, random)), workload(uid, some(&second, random)));
        let touched = random.random_ratio(1, 4);
        told.push(of_workload(&old, &new, touched));
        before.workloads.insert(uid.to_owned(), old);
        after.workloads.insert(uid.to_owned(), new);
    }
    Change { before, after, first: None, told }
}

/// One policy is deleted and made anew with other content. A workload names it; another may begin to
/// once it is gone (sooner, it would have begun to name the old one, which is another change).
fn remade(random: &mut StdRng) -> Change {
    let (old, new) = (policy("a", Scope::WorkloadSelector, random), policy("a", Scope::WorkloadSelector, random));
    let named = || BTreeSet::from([name("a")]);
    let joins = random.random();
    let (begun, joined) = (workload("w", BTreeSet::new()), workload("w", named()));
    let workloads = |second: &Workload| {
        BTreeMap::from([("v".to_owned(), workload("v", named())), ("w".to_owned(), second.clone())])
    };
    let v = workload("v", named());
    let touched = of_workload(&v, &v, true);
    let gone = Told::PolicyGone(old.id.clone());
    let (first, told) = if joins {
        (Some(gone), vec![vec![vec![Told::Policy(new.clone())]], touched, of_workload(&begun, &joined, false)])
    } else {
        (None, vec![vec![vec![gone], vec![Told::Policy(new.clone())]], touched])
    };
    Change {
        before: Intent { policies: [(old.id.clone(), old)].into(), workloads: workloads(&begun) },
        after: Intent {
            policies: [(new.id.clone(), new)].into(),
            workloads: workloads(if joins { &joined } else { &begun }),
        },
        first,
        told,
    }
}

/// One or two policies make way for others that may have another scope, or change their own, beside one that stays. All
/// of the policies are told in one response, and who names them before it or after it.
fn rescoped(random: &mut StdRng) -> Change {
    let wide = if random.random() { Scope::Namespace } else { Scope::Global };
    let scopes = [wide, Scope::WorkloadSelector];
    let [from, to] = [scopes[random.random_range(0..2)], scopes[random.random_range(0..2)]];
    let renamed = from == to || random.random();
    let mut response = Vec::new();
    let stays = random.random::<bool>().then(|| policy("stays", Scope::Namespace, random));
    let mut intents = [Intent::default(), Intent::default()];
    for intent in &mut intents {
        intent.policies.extend(stays.iter().map(|policy| (policy.id.clone(), policy.clone())));
    }
    let mut names = [BTreeSet::new(), BTreeSet::new()];
    for n in 0..random.random_range(1..=2) {
        let old = policy(&format!("p{n}"), from, random);
        let new = policy(&if renamed { format!("q{n}") } else { format!("p{n}") }, to, random);
        response.extend(renamed.then(|| Told::PolicyGone(old.id.clone())));
        response.push(Told::Policy(new.clone()));
        for ((intent, names), policy) in intents.iter_mut().zip(&mut names).zip([old, new]) {
            if policy.scope == Scope::WorkloadSelector {
                names.insert(policy.id.clone());
            }
            intent.policies.insert(policy.id.clone(), policy);
        }
    }
    let mut told = vec![vec![response]];
    for uid in ["v", "w"] {
        let [old, new] = [&names[0], &names[1]].map(|names| workload(uid, some(names, random)));
        let touched = random.random_ratio(1, 3);
        told.push(of_workload(&old, &new, touched));
        for (intent, workload) in intents.iter_mut().zip([old, new]) {
            intent.workloads.insert(uid.to_owned(), workload);
        }
    }
    let [before, after] = intents;
    Change { before, after, first: None, told }
}

impl Intent {
    /// Whom of [`peers`] each workload lets in.
    fn admitted(&self) -> BTreeMap<String, Vec<bool>> {
        let mut mesh = Mesh::default();
        self.policies.values().for_each(|policy| mesh.upsert_policy(Arc::new(policy.clone())));
        let admits = |workload: &Workload| {
            peers().iter().map(|peer| authorize(&mesh, workload, &peer.for_policy()).is_allowed()).collect()
        };
        self.workloads.iter().map(|(uid, workload)| (uid.clone(), admits(workload))).collect()
    }
}

/// Whom of [`peers`] each workload is to let in, before and after a change.
struct Meant {
    before: BTreeMap<String, Vec<bool>>,
    after: BTreeMap<String, Vec<bool>>,
}

/// All ways to take one after another from the queues, each in its own order.
fn orders(queues: &[Vec<Response>]) -> Vec<Vec<Response>> {
    if queues.iter().all(Vec::is_empty) {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for index in (0..queues.len()).filter(|index| !queues[*index].is_empty()) {
        let mut rest = queues.to_vec();
        let first = rest[index].remove(0);
        all.extend(orders(&rest).into_iter().map(|order| [vec![first.clone()], order].concat()));
    }
    all
}

/// Puts what may travel together into one response now and then; removals come first in it.
fn responses(order: &[Response], random: &mut StdRng) -> Vec<Response> {
    let mut responses: Vec<Response> = Vec::new();
    for told in order {
        match responses.last_mut() {
            Some(last) if last[0].type_url() == told[0].type_url() && random.random_ratio(1, 3) => {
                last.extend_from_slice(told);
            }
            _ => responses.push(told.clone()),
        }
    }
    for response in &mut responses {
        response.sort_by_key(|told| !matches!(told, Told::PolicyGone(_)));
    }
    responses
}

/// Signs nothing: this is about policies.
struct NoIssuer;

impl Issuer for NoIssuer {
    fn issue(&self, _: &Identity, _: String, _: Duration) -> BoxFuture<'_, Result<Vec<String>, IssueError>> {
        Box::pin(std::future::pending())
    }
}

fn peers() -> Vec<InboundConnection> {
    let identity = |peer: &&str| Some(Identity::new("cluster.local", "ns", *peer).expect("an identity"));
    let connection = |source| InboundConnection {
        source,
        source_ip: Ipv4Addr::LOCALHOST.into(),
        destination: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
    };
    PEERS.iter().map(identity).chain([None]).map(connection).collect()
}

struct Live {
    uid: &'static str,
    /// Its index in [`peers`].
    peer: usize,
    cut: Arc<Cut>,
    _listed: Listed,
}

/// A proxy's view of the mesh, and the live connections of its two pods.
struct Proxy {
    state: Arc<MeshState>,
    feed: Feed,
    connections: BTreeMap<&'static str, Arc<Connections>>,
    live: Vec<Live>,
}

impl Proxy {
    fn new(before: &Intent) -> Self {
        let state = Arc::new(MeshState::default());
        let certificates = Arc::new(CertificateManager::new(Arc::new(NoIssuer), Options::default()));
        let mut proxy = Self {
            feed: Feed::new(state.clone(), certificates, Some("node-1".to_owned())),
            state,
            connections: ["v", "w"]
                .map(|uid| (uid, Connections::new(Shares::of_this_process().join(uid.to_owned(), 0))))
                .into(),
            live: Vec::new(),
        };
        let policies: Vec<_> = before.policies.values().cloned().map(Told::Policy).collect();
        let workloads: Vec<_> = before.workloads.values().cloned().map(Box::new).map(Told::Workload).collect();
        proxy.hear(AUTHORIZATION_TYPE, &policies);
        proxy.hear(ADDRESS_TYPE, &workloads);
        proxy
    }

    fn hear(&mut self, type_url: &str, response: &[Told]) {
        assert!(self.feed.apply(type_url, response.iter().map(Told::update).collect()).is_empty());
        self.reevaluate();
    }

    fn reevaluate(&mut self) {
        let mesh = self.state.load();
        for (uid, connections) in &self.connections {
            if let Some(workload) = mesh.workload(uid) {
                connections.reevaluate(&mesh, workload);
            }
        }
    }

    fn wait_for_what_ends_by_itself(&mut self) {
        self.state.end_overlaps(Instant::now() + Duration::from_secs(60));
        self.reevaluate();
    }

    /// What becomes of a new connection; `None` if it waits.
    fn admits(&self, uid: &str, connection: &InboundConnection) -> Option<bool> {
        let mesh = self.state.load();
        let workload = mesh.workload(uid).expect("known");
        match authorize(&mesh, workload, &connection.for_policy()).verdict {
            Verdict::Allow(_) => Some(true),
            Verdict::Deny(DenyReason::UnknownPolicy { .. }) => None,
            Verdict::Deny(_) => Some(false),
        }
    }

    /// Everybody tries to connect; whoever gets in stays.
    fn visit(&mut self, meant: &Meant, at: &dyn Fn() -> String) {
        for (uid, connections) in self.connections.clone() {
            for (peer, connection) in peers().into_iter().enumerate() {
                if self.admits(uid, &connection) == Some(true) {
                    let either = meant.before[uid][peer] || meant.after[uid][peer];
                    assert!(either, "{uid} lets in {connection:?}, which neither before nor after would, {}", at());
                    let (listed, cut) = connections.list_inbound(connection).expect("a place");
                    self.live.push(Live { uid, peer, cut, _listed: listed });
                }
            }
        }
        for Live { uid, peer, cut, .. } in &self.live {
            if let Some(reason) = cut.reason() {
                let both = meant.before[*uid][*peer] && meant.after[*uid][*peer];
                assert!(!both, "{uid} cuts peer {peer}, which both allow, {}: {reason}", at());
            }
        }
    }

    fn has_settled(&self, meant: &Meant, at: &dyn Fn() -> String) {
        for uid in self.connections.keys() {
            for (peer, connection) in peers().iter().enumerate() {
                assert_eq!(
                    self.admits(uid, connection),
                    Some(meant.after[*uid][peer]),
                    "peer {peer} of {uid}, {}",
                    at()
                );
            }
        }
        for Live { uid, peer, cut, .. } in &self.live {
            assert_eq!(cut.reason().is_none(), meant.after[*uid][*peer], "live peer {peer} of {uid}, {}", at());
        }
        assert_eq!(self.state.load().kept_policies().count(), 0, "{}", at());
    }
}

fn holds_in_every_order(seed: u64, change: &Change, random: &mut StdRng) -> usize {
    let orders = orders(&change.told);
    let meant = Meant { before: change.before.admitted(), after: change.after.admitted() };
    for order in &orders {
        let first = change.first.iter().map(|first| vec![first.clone()]);
        let order: Vec<Response> = first.chain(order.iter().cloned()).collect();
        let responses = responses(&order, random);
        let mut proxy = Proxy::new(&change.before);
        proxy.visit(&meant, &|| format!("at first, seed {seed}"));
        for (index, response) in responses.iter().enumerate() {
            proxy.hear(response[0].type_url(), response);
            proxy.visit(&meant, &|| format!("after response {index} of {responses:?}, seed {seed}"));
        }
        proxy.wait_for_what_ends_by_itself();
        proxy.has_settled(&meant, &|| format!("after {responses:?}, seed {seed}"));
    }
    orders.len()
}

#[tokio::test]
async fn in_every_order_no_more_passes_than_before_or_after_and_nothing_is_cut_that_both_allow() {
    let mut tried = 0;
    for seed in 0..200 {
        let mut random = StdRng::seed_from_u64(seed);
        let change = match seed % 10 {
            0 => remade(&mut random),
            1..=5 => rescoped(&mut random),
            _ => renamed(&mut random),
        };
        if change.told.iter().map(Vec::len).sum::<usize>() <= MOST {
            tried += holds_in_every_order(seed, &change, &mut random);
        }
    }
    assert!(tried > 800, "{tried} orders");
}

/// Told as Istio's control plane tells it: the policies in one response, workloads before or after.
struct Story {
    proxy: Proxy,
}

impl Story {
    fn begin(policy: &Authorization, names: &[&PolicyName]) -> Self {
        let mut intent = Intent::default();
        intent.policies.insert(policy.id.clone(), policy.clone());
        intent.workloads.insert("v".to_owned(), naming(names));
        intent.workloads.insert("w".to_owned(), workload("w", BTreeSet::new()));
        Self { proxy: Proxy::new(&intent) }
    }

    fn policies(&mut self, told: &[Told]) -> Option<bool> {
        self.proxy.hear(AUTHORIZATION_TYPE, told);
        self.admits_x()
    }

    fn v_names(&mut self, names: &[&PolicyName]) -> Option<bool> {
        self.proxy.hear(ADDRESS_TYPE, &[Told::Workload(Box::new(naming(names)))]);
        self.admits_x()
    }

    fn ends_after(&mut self, seconds: f64) -> Option<bool> {
        self.proxy.state.end_overlaps(Instant::now() + Duration::from_secs_f64(seconds));
        self.admits_x()
    }

    fn admits_x(&self) -> Option<bool> {
        self.proxy.admits("v", &peers()[0])
    }
}

fn naming(names: &[&PolicyName]) -> Workload {
    workload("v", names.iter().map(|name| (*name).clone()).collect())
}

fn deny_x(id: &str, scope: Scope) -> Authorization {
    let x = StringMatch::Exact("cluster.local/ns/ns/sa/x".into());
    let rule = Rule { clauses: vec![Clause { matches: vec![Match { principals: vec![x], ..Match::default() }] }] };
    Authorization { id: name(id), scope, action: Action::Deny, rules: vec![rule], dry_run: false, not_understood: None }
}

const NO: Option<bool> = Some(false);

#[tokio::test]
async fn a_policy_of_a_scope_counts_until_those_are_told_that_name_the_one_in_its_place() {
    let (old, new) = (deny_x("old", Scope::Namespace), deny_x("new", Scope::WorkloadSelector));
    let gone = Told::PolicyGone(old.id.clone());
    let mut story = Story::begin(&old, &[]);
    assert_eq!(story.policies(&[gone.clone(), Told::Policy(new.clone())]), NO);
    assert_eq!(story.v_names(&[&new.id]), NO);
    assert_eq!(story.proxy.admits("w", &peers()[0]), NO, "whether it will name it is not known yet");
    story.ends_after(60.0);
    assert_eq!((story.admits_x(), story.proxy.admits("w", &peers()[0])), (NO, Some(true)));

    // Narrowed first, and renamed before workloads were told.
    let mut story = Story::begin(&old, &[]);
    assert_eq!(story.policies(&[Told::Policy(deny_x("old", Scope::WorkloadSelector))]), NO);
    assert_eq!(story.policies(&[gone.clone(), Told::Policy(new.clone())]), NO);
    assert_eq!(story.v_names(&[&new.id]), NO);

    // Renamed twice: it ends for one that names the last.
    let mut story = Story::begin(&old, &[]);
    story.policies(&[gone.clone(), Told::Policy(new.clone())]);
    let open = Authorization { dry_run: true, ..deny_x("open", Scope::WorkloadSelector) };
    assert_eq!(story.policies(&[Told::PolicyGone(new.id.clone()), Told::Policy(open.clone())]), NO);
    assert_eq!(story.v_names(&[&open.id]), Some(true));

    // One that nothing takes the place of ends at once.
    let mut story = Story::begin(&old, &[]);
    assert_eq!(story.policies(&[gone]), Some(true));
}

#[tokio::test]
async fn a_workload_is_released_from_a_policy_once_it_may_have_been_told_of_all() {
    let [named, wide] = [Scope::WorkloadSelector, Scope::Namespace].map(|scope| deny_x("p", scope));
    // Told that it names it no more, before the policy is told to apply by scope.
    let mut story = Story::begin(&named, &[&named.id]);
    assert_eq!(story.v_names(&[]), NO);
    assert_eq!(story.policies(&[Told::Policy(wide)]), NO);
    assert_eq!(story.proxy.state.load().kept_policies().count(), 0);

    // The policy just selects it no more.
    let mut story = Story::begin(&named, &[&named.id]);
    assert_eq!((story.v_names(&[]), story.ends_after(29.0), story.ends_after(31.0)), (NO, NO, Some(true)));

    // It names it again, and no more again.
    let mut story = Story::begin(&named, &[&named.id]);
    assert_eq!((story.v_names(&[]), story.v_names(&[&named.id]), story.ends_after(31.0)), (NO, NO, NO));
    assert_eq!((story.v_names(&[]), story.ends_after(31.0)), (NO, Some(true)));

    // Its policy goes.
    let mut story = Story::begin(&named, &[&named.id]);
    story.v_names(&[]);
    assert_eq!(story.policies(&[Told::PolicyGone(named.id.clone())]), Some(true));
}

#[tokio::test]
async fn an_old_version_counts_for_as_long_as_a_control_plane_may_take_to_tell_of_workloads() {
    let [wide, named] = [Scope::Namespace, Scope::WorkloadSelector].map(|scope| deny_x("p", scope));
    let mut story = Story::begin(&wide, &[]);
    assert_eq!(story.policies(&[Told::Policy(named)]), NO);
    // Istio's control plane gathers changes for ten seconds, and other proxies may come first.
    assert_eq!((story.ends_after(29.0), story.ends_after(31.0)), (NO, Some(true)));
}
