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
use rand::{Rng, SeedableRng};
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

/// A change of what is meant, and what is told of each policy and each workload, in order.
#[derive(Debug)]
struct Change {
    before: Intent,
    after: Intent,
    /// Told before anything else.
    first: Option<Told>,
    told: Vec<Vec<Told>>,
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
    told.extend(first.difference(&second).map(|id| vec![Told::PolicyGone(id.clone())]));
    told.extend(second.difference(&first).map(|id| vec![Told::Policy(content[id].clone())]));
    for uid in ["v", "w"] {
        let (old, new) = (workload(uid, some(&first, random)), workload(uid, some(&second, random)));
        let mut of_this = Vec::new();
        if random.random_ratio(1, 4) {
            of_this.push(Told::Workload(Box::new(touched(&old))));
        }
        if old != new {
            of_this.push(Told::Workload(Box::new(new.clone())));
        }
        told.push(of_this);
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
    let touched = vec![Told::Workload(Box::new(touched(&workload("v", named()))))];
    let gone = Told::PolicyGone(old.id.clone());
    let (first, told) = if joins {
        (Some(gone), vec![vec![Told::Policy(new.clone())], touched, vec![Told::Workload(Box::new(joined.clone()))]])
    } else {
        (None, vec![vec![gone, Told::Policy(new.clone())], touched])
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

/// How a policy comes to reach others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rescoped {
    /// It applied by scope, and reaches those who name it now. Who is to name it may be told before or after.
    Narrowed,
    /// It reached those who named it, and applies by scope now. Who named it ceases to, and is told so after it: told
    /// before, this could not be told from a policy that no longer selects them.
    Widened,
}

/// A policy changes its scope under its own name, and its content perhaps, beside one that stays.
fn rescoped(how: Rescoped, random: &mut StdRng) -> Change {
    let wide = if random.random() { Scope::Namespace } else { Scope::Global };
    let [first, second] = match how {
        Rescoped::Narrowed => [wide, Scope::WorkloadSelector],
        Rescoped::Widened => [Scope::WorkloadSelector, wide],
    };
    let (old, new) = (policy("p", first, random), policy("p", second, random));
    let stays = policy("stays", Scope::Namespace, random);
    let stays = random.random::<bool>().then_some(stays);
    let intent = |of: &Authorization| Intent {
        policies: stays.iter().chain([of]).map(|p| (p.id.clone(), p.clone())).collect(),
        workloads: BTreeMap::new(),
    };
    let (mut before, mut after) = (intent(&old), intent(&new));
    let mut told = match how {
        Rescoped::Narrowed => vec![vec![Told::Policy(new.clone())]],
        Rescoped::Widened => Vec::new(),
    };
    for uid in ["v", "w"] {
        let names = random.random::<bool>().then(|| old.id.clone());
        let named = |scope| workload(uid, names.iter().filter(|_| scope == Scope::WorkloadSelector).cloned().collect());
        let (old, new) = (named(first), named(second));
        let mut of_this = Vec::new();
        if random.random_ratio(1, 3) {
            of_this.push(Told::Workload(Box::new(touched(&old))));
        }
        if old != new {
            of_this.push(Told::Workload(Box::new(new.clone())));
        }
        told.push(of_this);
        before.workloads.insert(uid.to_owned(), old);
        after.workloads.insert(uid.to_owned(), new);
    }
    let first = (how == Rescoped::Widened).then_some(Told::Policy(new));
    Change { before, after, first, told }
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
fn orders(queues: &[Vec<Told>]) -> Vec<Vec<Told>> {
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
fn responses(order: &[Told], random: &mut StdRng) -> Vec<Vec<Told>> {
    let mut responses: Vec<Vec<Told>> = Vec::new();
    for told in order {
        match responses.last_mut() {
            Some(last) if last[0].type_url() == told.type_url() && random.random_ratio(1, 3) => last.push(told.clone()),
            _ => responses.push(vec![told.clone()]),
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
            feed: Feed::new(state.clone(), certificates, "node-1".to_owned()),
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
        self.state.end_narrowings(Instant::now() + Duration::from_secs(60));
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
        assert_eq!(self.state.load().retired_policies(), 0, "{}", at());
    }
}

fn holds_in_every_order(seed: u64, change: &Change, random: &mut StdRng) -> usize {
    let orders = orders(&change.told);
    let meant = Meant { before: change.before.admitted(), after: change.after.admitted() };
    for order in &orders {
        let order: Vec<Told> = change.first.iter().chain(order).cloned().collect();
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
    for seed in 0..120 {
        let mut random = StdRng::seed_from_u64(seed);
        let change = match seed % 6 {
            0 => remade(&mut random),
            1 => rescoped(Rescoped::Narrowed, &mut random),
            2 => rescoped(Rescoped::Widened, &mut random),
            _ => renamed(&mut random),
        };
        if change.told.iter().map(Vec::len).sum::<usize>() <= MOST {
            tried += holds_in_every_order(seed, &change, &mut random);
        }
    }
    assert!(tried > 800, "{tried} orders");
}
