//! Whatever comes and goes: the indices say what a look at everything would.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{Action, Rule, Scope, TunnelProtocol, Visibility, WorkloadUid};

/// Everything, in the order in which it last came, looked through for each question.
#[derive(Debug, Clone, Default)]
struct Naive {
    workloads: Vec<Arc<Workload>>,
    services: Vec<Arc<Service>>,
    policies: BTreeMap<PolicyName, Arc<Authorization>>,
    retired: BTreeMap<(WorkloadUid, PolicyName), Arc<Authorization>>,
    /// With the policies that are to be named instead.
    replaced: BTreeMap<PolicyName, (Arc<Authorization>, Vec<PolicyName>)>,
    released: std::collections::BTreeSet<(WorkloadUid, PolicyName)>,
}

#[derive(Debug, Clone)]
enum Step {
    Workload(Workload),
    /// Keeping for a while the policies that it names no more.
    Update(Workload),
    NoWorkload(WorkloadUid),
    Service(Service),
    NoService(ServiceName),
    Policy(Authorization),
    NoPolicy(PolicyName),
    Change(Vec<PolicyName>, Vec<Authorization>),
    EndReplaced(PolicyName),
    EndReleased(PolicyName),
    Publish,
}

fn name(kind: &str, n: u8) -> Name {
    format!("{kind}{n}").into()
}

fn policy_name(n: u8) -> PolicyName {
    PolicyName { namespace: name("ns", n % 2), name: name("p", n) }
}

fn service_name(n: u8) -> ServiceName {
    ServiceName { namespace: name("ns", n % 3), hostname: name("host", n / 3) }
}

fn address(n: u8) -> IpAddr {
    [10, 0, 0, n].into()
}

fn numbers(below: u8) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0..below, 0..3)
}

prop_compose! {
    fn workload()(
        n in 0..40u8, kind in 0..8u8, addresses in numbers(12), services in numbers(9), policies in numbers(6), port in 0..3u16,
    ) -> Workload {
        let uid = if kind & 1 == 0 { format!("c//Pod/ns/w{n}") } else { format!("c/Other/w{n}") };
        // Two of them may be of one name on one node.
        let mut workload = Workload::new(uid, name("ns", n % 3), name("w", n / 2));
        workload.node = name("", kind % 3).as_ref().trim_start_matches('0').into();
        workload.network = name("net", kind % 2);
        workload.tunnel_protocol = if kind & 2 == 0 { TunnelProtocol::Hbone } else { TunnelProtocol::None };
        workload.network_mode = if kind == 7 { NetworkMode::HostNetwork } else { NetworkMode::Standard };
        workload.addresses = addresses.into_iter().map(address).collect();
        let ports = vec![Port::tcp(80, 8080 + port)];
        workload.services = services.into_iter().map(|n| (service_name(n), ports.clone())).collect();
        workload.authorization_policies = policies.into_iter().map(policy_name).collect();
        workload
    }
}

prop_compose! {
    fn service()(n in 0..9u8, addresses in numbers(12), kind in 0..8u8) -> Service {
        let ServiceName { namespace, hostname } = service_name(n);
        let mut service = Service::new(namespace, hostname.clone(), hostname);
        let of = |n| NetworkAddress { network: name("net", kind % 2), address: address(n) };
        service.addresses = addresses.into_iter().map(of).collect();
        service.visibility = if kind & 2 == 0 { Visibility::Public } else { Visibility::Namespace };
        service.canonical = kind & 4 == 0;
        service
    }
}

prop_compose! {
    fn policy()(n in 0..6u8, scope in 0..3usize, dry_run: bool) -> Authorization {
        let scope = [Scope::Global, Scope::Namespace, Scope::WorkloadSelector][scope];
        let rules = vec![Rule::default()];
        Authorization { id: policy_name(n), scope, action: Action::Deny, rules, dry_run, not_understood: None }
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => workload().prop_map(Step::Workload),
        4 => workload().prop_map(Step::Update),
        3 => workload().prop_map(|workload| Step::NoWorkload(workload.uid)),
        3 => service().prop_map(Step::Service),
        1 => (0..9u8).prop_map(|n| Step::NoService(service_name(n))),
        3 => policy().prop_map(Step::Policy),
        1 => (0..6u8).prop_map(|n| Step::NoPolicy(policy_name(n))),
        4 => (numbers(6), prop::collection::vec(policy(), 0..3)).prop_map(|(removed, told)| {
            Step::Change(removed.into_iter().map(policy_name).collect(), told)
        }),
        1 => (0..6u8).prop_map(|n| Step::EndReplaced(policy_name(n))),
        1 => (0..6u8).prop_map(|n| Step::EndReleased(policy_name(n))),
        1 => Just(Step::Publish),
    ]
}

impl Naive {
    fn take(&mut self, step: Step) {
        match step {
            Step::Workload(new) => {
                let names = |id: &PolicyName| new.authorization_policies.contains(id);
                self.retired.retain(|(uid, id), _| *uid != new.uid || names(id));
                self.released.retain(|(uid, id)| *uid != new.uid || !names(id));
                self.workloads.retain(|old| old.uid != new.uid);
                self.workloads.push(Arc::new(new));
            }
            Step::Update(new) => {
                let old = self.workloads.iter().find(|old| old.uid == new.uid).cloned();
                let named = old.iter().flat_map(|old| &old.authorization_policies);
                let dropped: Vec<_> = named.filter(|id| !new.authorization_policies.contains(id)).cloned().collect();
                let uid = new.uid.clone();
                let is_late = dropped.iter().any(|id| self.retired.contains_key(&(uid.clone(), id.clone())));
                self.take(Step::Workload(new));
                for id in dropped.into_iter().filter(|_| !is_late) {
                    if self.policies.get(&id).is_some_and(|policy| policy.scope == Scope::WorkloadSelector) {
                        self.released.insert((uid.clone(), id));
                    }
                }
            }
            Step::NoWorkload(uid) => {
                self.retired.retain(|(of, _), _| *of != uid);
                self.released.retain(|(of, _)| *of != uid);
                self.workloads.retain(|old| old.uid != uid);
            }
            Step::Service(new) => {
                self.services.retain(|old| old.id != new.id);
                self.services.push(Arc::new(new));
            }
            Step::NoService(id) => self.services.retain(|old| old.id != id),
            Step::Policy(new) => {
                self.take(Step::NoPolicy(new.id.clone()));
                self.policies.insert(new.id.clone(), Arc::new(new));
            }
            Step::NoPolicy(id) => {
                self.changes(&id);
                self.replaced.remove(&id);
                self.policies.remove(&id);
            }
            Step::EndReplaced(id) => drop(self.replaced.remove(&id)),
            Step::EndReleased(id) => self.released.retain(|(_, of)| *of != id),
            Step::Change(removed, told) => self.change(&removed, told),
            Step::Publish => {}
        }
    }

    fn changes(&mut self, id: &PolicyName) {
        self.retired.retain(|(_, of), _| of != id);
        let from: Vec<_> = self.released.iter().filter(|(_, of)| of == id).map(|(uid, _)| uid.clone()).collect();
        self.released.retain(|(uid, _)| !from.contains(uid));
    }

    fn change(&mut self, removed: &[PolicyName], told: Vec<Authorization>) {
        let before = self.policies.clone();
        let by_scope = |policy: &Authorization| policy.scope != Scope::WorkloadSelector;
        let (mut ended, mut successors) = (Vec::new(), Vec::new());
        for id in removed {
            let Some(policy) = self.policies.remove(id) else { continue };
            self.changes(id);
            for workload in self.workloads.iter().filter(|w| w.authorization_policies.contains(id)) {
                self.retired.insert((workload.uid.clone(), id.clone()), policy.clone());
            }
            ended.extend(by_scope(&policy).then_some(policy));
        }
        for new in told {
            if self.policies.get(&new.id).is_some_and(|held| **held == new) {
                continue;
            }
            self.changes(&new.id);
            let old = self.policies.insert(new.id.clone(), Arc::new(new.clone()));
            if by_scope(&new) {
                self.replaced.remove(&new.id);
                ended.retain(|old| old.id != new.id);
            } else {
                ended.extend(old.filter(|old| by_scope(old)));
                if before.get(&new.id).is_none_or(|before| by_scope(before)) {
                    successors.push(new.id);
                }
            }
        }
        if successors.is_empty() {
            return self.replaced.retain(|id, _| !removed.contains(id));
        }
        for (id, (_, of)) in &mut self.replaced {
            if removed.iter().any(|gone| gone == id || of.contains(gone)) {
                of.extend(successors.clone());
            }
        }
        self.replaced.extend(ended.into_iter().map(|old| (old.id.clone(), (old, successors.clone()))));
    }

    fn at(&self, network: &Name, address: IpAddr) -> Option<&Arc<Workload>> {
        let owns = |w: &&Arc<Workload>| {
            w.network == *network && w.network_mode == NetworkMode::Standard && w.addresses.contains(&address)
        };
        let mut claimants: Vec<_> = self.workloads.iter().filter(owns).collect();
        claimants.sort_by_key(|w| std::cmp::Reverse(claim(w)));
        claimants.first().copied()
    }

    fn meant(&self, client: &str, is: impl Fn(&Service) -> bool) -> Option<&Arc<Service>> {
        let mut candidates: Vec<_> = self.services.iter().filter(|s| is(s) && s.visible_to(client)).collect();
        let of_another = |s: &Service| &*s.id.namespace != client;
        candidates.sort_by_key(|s| (of_another(s), of_another(s) && !s.canonical));
        candidates.first().copied()
    }

    fn policies_for(&self, workload: &Workload) -> Vec<Result<&Arc<Authorization>, PolicyName>> {
        let wide = |scope: Scope| self.policies.values().filter(move |policy| policy.scope == scope);
        let of_namespace = wide(Scope::Namespace).filter(|policy| policy.id.namespace == workload.namespace);
        let named = workload.authorization_policies.iter().map(|id| {
            let retired = || self.retired.get(&(workload.uid.clone(), id.clone()));
            self.policies.get(id).or_else(retired).ok_or_else(|| id.clone())
        });
        let replaced = self.replaced.values().filter(|(old, successors)| {
            let covers = old.scope == Scope::Global || old.id.namespace == workload.namespace;
            covers && !workload.authorization_policies.iter().any(|id| *id == old.id || successors.contains(id))
        });
        let released = self.released.iter().filter(|(uid, _)| *uid == workload.uid).map(|(_, id)| &self.policies[id]);
        let kept = replaced.map(|(old, _)| old).chain(released);
        wide(Scope::Global).chain(of_namespace).chain(kept).map(Ok).chain(named).collect()
    }
}

/// A mesh, and what is to be ended in it some time.
#[derive(Default)]
struct Real {
    mesh: Mesh,
    kept: Vec<Kept>,
}

impl Real {
    fn take(&mut self, step: Step) {
        let mesh = &mut self.mesh;
        match step {
            Step::Workload(new) => mesh.upsert_workload(Arc::new(new)),
            Step::Update(new) => self.kept.extend(mesh.update_workload(Arc::new(new))),
            Step::NoWorkload(uid) => drop(mesh.remove_workload(&uid)),
            Step::Service(new) => mesh.upsert_service(Arc::new(new)),
            Step::NoService(id) => drop(mesh.remove_service(&id)),
            Step::Policy(new) => mesh.upsert_policy(Arc::new(new)),
            Step::NoPolicy(id) => drop(mesh.remove_policy(&id)),
            Step::Change(removed, told) => {
                self.kept.extend(mesh.change_policies(&removed, told.into_iter().map(Arc::new).collect()).kept);
            }
            Step::EndReplaced(id) => self.end(|kept| matches!(kept, Kept::Replaced(old) if old.id == id)),
            Step::EndReleased(id) => self.end(|kept| matches!(kept, Kept::Released(of) if of.policy == id)),
            Step::Publish => {}
        }
    }

    fn end(&mut self, which: impl Fn(&Kept) -> bool) {
        for kept in self.kept.extract_if(.., |kept| which(kept)) {
            self.mesh.end(&kept);
        }
    }
}

fn sorted<T: Clone, K: Ord>(all: impl Iterator<Item = T>, key: impl Fn(&T) -> K) -> Vec<T> {
    let mut all: Vec<T> = all.collect();
    all.sort_by_key(key);
    all
}

fn compare(mesh: &Mesh, naive: &Naive) -> Result<(), TestCaseError> {
    let uid = |w: &&Arc<Workload>| w.uid.clone();
    prop_assert_eq!(sorted(mesh.workloads(), uid), sorted(naive.workloads.iter(), uid));
    let id = |s: &&Arc<Service>| s.id.clone();
    prop_assert_eq!(sorted(mesh.services(), id), sorted(naive.services.iter(), id));
    let (mut retired, mut released, mut replaced) = (0, 0, BTreeMap::new());
    for (policy, whom) in mesh.kept_policies() {
        match whom {
            KeptFor::Naming(workloads) => retired += workloads.len(),
            KeptFor::NamedBefore(workloads) => released += workloads.len(),
            KeptFor::NotYetNaming(_) => drop(replaced.insert(policy.id.clone(), policy)),
        }
    }
    prop_assert_eq!((retired, released), (naive.retired.len(), naive.released.len()));
    prop_assert_eq!(replaced, naive.replaced.iter().map(|(id, (old, _))| (id.clone(), old)).collect());
    let id = |p: &&Arc<Authorization>| p.id.clone();
    prop_assert_eq!(sorted(mesh.policies(), id), sorted(naive.policies.values(), id));
    for w in &naive.workloads {
        prop_assert_eq!(mesh.workload(&w.uid), Some(w));
        let policies: Vec<_> = mesh.policies_for(w).map(|found| found.map_err(PolicyName::clone)).collect();
        prop_assert_eq!(policies, naive.policies_for(w));
        let found = mesh.workload_on_node(&w.node, &w.namespace, &w.name, &w.service_account);
        let same = |f: &Workload| (f.node == w.node) && (&f.namespace, &f.name) == (&w.namespace, &w.name);
        prop_assert!(found.is_some_and(|found| same(found) && naive.workloads.contains(found)));
    }
    for n in 0..9 {
        let id = service_name(n);
        prop_assert_eq!(mesh.service(&id), naive.services.iter().find(|s| s.id == id));
        let expected = naive.workloads.iter().filter_map(|w| Some((w, &w.services.get(&id)?[..])));
        let found = mesh.endpoints(&id).map(|endpoint| (&endpoint.workload, &*endpoint.ports));
        prop_assert_eq!(sorted(found, |e| e.0.uid.clone()), sorted(expected, |e| e.0.uid.clone()));
    }
    for (network, n) in ["net0", "net1"].into_iter().flat_map(|net| (0..12).map(move |n| (net, n))) {
        let (network, address) = (Name::from(network), address(n));
        prop_assert_eq!(mesh.workload_by_address(&network, address), naive.at(&network, address));
        let has = |s: &Service| s.addresses.iter().any(|a| a.network == network && a.address == address);
        let someones = naive.at(&network, address).is_some() || naive.services.iter().any(|s| has(s));
        prop_assert_eq!(mesh.has_address(&network, address), someones);
        for client in ["ns0", "ns1", "other"] {
            prop_assert_eq!(mesh.service_by_vip(&network, address, client), naive.meant(client, has));
        }
    }
    for (host, client) in (0..3).flat_map(|n| ["ns0", "ns1", "other"].map(|client| (name("host", n), client))) {
        let meant = naive.meant(client, |service| service.id.hostname == host);
        prop_assert_eq!(mesh.service_by_hostname(&host, client), meant);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_indices_say_what_a_look_at_everything_would(steps in prop::collection::vec(step(), 0..250)) {
        let (mut real, mut naive) = (Real::default(), Naive::default());
        let mut published = Vec::new();
        for step in steps {
            if matches!(step, Step::Publish) && published.len() < 4 {
                published.push((real.mesh.clone(), naive.clone()));
            }
            real.take(step.clone());
            naive.take(step);
        }
        published.push((real.mesh, naive));
        for (mesh, naive) in &published {
            compare(mesh, naive)?;
        }
    }

    /// Nothing is kept of what has gone.
    #[test]
    fn what_comes_and_goes_leaves_nothing(steps in prop::collection::vec(step(), 0..200)) {
        let mut real = Real::default();
        steps.into_iter().for_each(|step| real.take(step));
        real.end(|_| true);
        let mut mesh = real.mesh;
        for uid in mesh.workloads().map(|w| w.uid.clone()).collect::<Vec<_>>() {
            mesh.remove_workload(&uid);
        }
        for id in mesh.services().map(|s| s.id.clone()).collect::<Vec<_>>() {
            mesh.remove_service(&id);
        }
        for id in mesh.policies().map(|p| p.id.clone()).collect::<Vec<_>>() {
            mesh.remove_policy(&id);
        }
        let empty = Mesh::default();
        prop_assert_eq!(format!("{mesh:?}"), format!("{empty:?}"));
    }
}
