//! Which results does a change of one object affect?
//!
//! Marking too many costs time. Marking too few leaves the mesh out of date, so a property test compares every sequence
//! of changes with a translation from scratch.

use std::collections::BTreeSet;

use leno_model::{Locality, Name};

use super::index::{Known, Named, target_pods};
use super::policy_refs::Attachable;
use super::rule_host::Host;
use super::waypoint::{Addressed, default_of, required};
use super::{authorization, route_refs, service, virtual_host, workload};
use leno_objects::{
    AuthorizationPolicy, DestinationRule, EndpointSlice, FromNamespaces, Gateway, Kind, Labels, Namespace, Node,
    Object, ObjectKey, ObjectMeta, PeerAuthentication, Pod, Service, VirtualService,
};

/// The parts that must be translated again.
#[derive(Debug, Default)]
pub(super) struct Dirt {
    pub(super) pods: BTreeSet<Named>,
    pub(super) services: BTreeSet<Named>,
    pub(super) slices: BTreeSet<Named>,
    pub(super) policies: BTreeSet<Named>,
    /// Policies about requests, each with its kind.
    pub(super) attached: BTreeSet<(Kind, Named)>,
    pub(super) peers: BTreeSet<Named>,
    pub(super) routes: BTreeSet<ObjectKey>,
    pub(super) virtuals: BTreeSet<Named>,
    pub(super) rules: BTreeSet<Named>,
    /// Whether the mesh's own configuration changed.
    pub(super) mesh_config: bool,
}

impl Dirt {
    /// Marks what is affected by the change of the object `key` from `old` to `new`. `known` already includes the
    /// change.
    pub(super) fn mark(&mut self, known: Known<'_>, key: &ObjectKey, old: Option<&Object>, new: Option<&Object>) {
        let Known { options, store, index, .. } = known;
        let me: Named = (key.namespace.clone(), key.name.clone());
        let both = || [old, new].into_iter().flatten();
        match key.kind {
            // Accounts and what makes pods mean something only through their pods; configuration is the programs' own.
            Kind::ServiceAccount | Kind::Deployment | Kind::StatefulSet | Kind::Job | Kind::Secret => {}
            // Others are left out before.
            Kind::ConfigMap => self.mesh_config = true,
            Kind::HTTPRoute | Kind::GRPCRoute | Kind::TLSRoute | Kind::TCPRoute => {
                self.routes.insert(key.clone());
                // A GRPCRoute goes before HTTPRoutes of the same service, and a TLSRoute before TCPRoutes.
                if matches!(key.kind, Kind::GRPCRoute | Kind::TLSRoute) {
                    for (namespace, service) in both().flat_map(route_refs::referred) {
                        self.routes.extend(index.routes_of(namespace, service).cloned());
                    }
                }
            }
            Kind::VirtualService => {
                // The oldest of those for a host counts, so each speaks of the others.
                for object in both().filter_map(VirtualService::of) {
                    for host in virtual_host::hosts(options, object) {
                        self.virtuals.extend(index.virtuals_for(&key.namespace, &host).cloned());
                    }
                }
                self.virtuals.insert(me);
            }
            Kind::DestinationRule => {
                for rule in both().filter_map(DestinationRule::of) {
                    match Host::of(options, rule) {
                        Host::Exact(host) => self.rules.extend(index.rules_covering(&host)),
                        // A rule gives way to those of its own namespace, and in the root namespace to all.
                        Host::Ending(_) => {
                            for namespace in [&key.namespace, &options.root_namespace] {
                                let rules = DestinationRule::list(store, namespace);
                                self.rules.extend(rules.map(|rule| name(&rule.metadata)));
                            }
                        }
                    }
                }
                self.rules.insert(me);
            }
            Kind::ReferenceGrant => self.routes.extend(index.routes_into(&key.namespace).cloned()),
            Kind::Gateway => {
                self.mark_users(known, &me);
                self.attached.extend(index.attached_to(Kind::Gateway, me).cloned());
                for gateway in both().filter_map(Gateway::of) {
                    let class = ("".into(), (*gateway.spec.gateway_class_name).into());
                    self.attached.extend(index.attached_to(Kind::GatewayClass, class).cloned());
                }
            }
            Kind::GatewayClass => {
                let of_class = store.gateways().filter(|it| *it.spec.gateway_class_name == *key.name);
                for gateway in of_class {
                    self.mark_users(known, &name(&gateway.metadata));
                    self.attached.extend(index.attached_to(Kind::Gateway, name(&gateway.metadata)).cloned());
                }
                self.attached.extend(index.attached_to(Kind::GatewayClass, me).cloned());
            }
            Kind::Pod => {
                self.pods.insert(me);
            }
            Kind::Node => {
                let place =
                    |node: Option<&Object>| -> Option<Locality> { node.and_then(Node::of).map(workload::locality) };
                if place(old) != place(new) {
                    self.pods.extend(index.pods_on(&key.name).cloned());
                }
            }
            Kind::Namespace => {
                let metadata =
                    |object: Option<&'_ Object>| object.and_then(Namespace::of).map(|it| it.metadata.clone());
                let (old, new) = (metadata(old), metadata(new));
                let labels = |namespace: &Option<ObjectMeta>| namespace.as_ref().map(|it| it.labels.clone());
                let waypoint_stays = default_of(old.as_ref()) == default_of(new.as_ref())
                    && (labels(&old) == labels(&new) || !store.gateways().any(selects_namespaces));
                if !waypoint_stays {
                    self.mark_pods(Pod::list(store, &key.name));
                }
                if !waypoint_stays || !service::same_distribution(old.as_ref(), new.as_ref()) {
                    self.services.extend(Service::list(store, &key.name).map(|service| name(&service.metadata)));
                }
            }
            Kind::Service => {
                self.routes.extend(index.routes_of(&key.namespace, &key.name).cloned());
                self.attached.extend(index.attached_to(Kind::Service, me.clone()).cloned());
                self.mark_service(known, &me, both().filter_map(Service::of));
            }
            Kind::EndpointSlice => {
                // A slice has no effect if its service has a selector or is missing.
                let means_something = |slice: &&EndpointSlice| {
                    let service = slice.service().and_then(|name| Service::get(store, &key.namespace, name));
                    service.is_some_and(service::has_manual_endpoints)
                };
                for slice in both().filter_map(EndpointSlice::of).filter(means_something) {
                    self.mark_slice(slice);
                }
            }
            Kind::AuthorizationPolicy => {
                let members = |object: Option<&Object>| -> Option<Labels> {
                    let policy = object.and_then(AuthorizationPolicy::of)?;
                    policy.selected().filter(|_| authorization::is_enforced(policy)).cloned()
                };
                let (before, after) = (members(old), members(new));
                if before != after {
                    let everywhere = *key.namespace == *options.root_namespace;
                    for labels in [before, after].iter().flatten() {
                        if everywhere {
                            for namespace in index.namespaces() {
                                self.mark_selected(known, namespace, labels);
                            }
                        } else {
                            self.mark_selected(known, &key.namespace, labels);
                        }
                    }
                }
                for policy in both().filter_map(Attachable::of) {
                    for (_, service) in policy.targets().filter(|(kind, _)| *kind == Kind::Service) {
                        self.mark_stand_ins(known, &service);
                    }
                }
                self.attached.insert((key.kind, me.clone()));
                self.policies.insert(me);
            }
            Kind::RequestAuthentication => drop(self.attached.insert((key.kind, me))),
            Kind::PeerAuthentication => {
                for peer in both().filter_map(PeerAuthentication::of) {
                    match peer.selected() {
                        Some(labels) => self.mark_selected(known, &key.namespace, labels),
                        None if *key.namespace == *options.root_namespace => {
                            self.mark_pods(store.pods());
                            self.peers.extend(store.peer_authentications().map(|peer| name(&peer.metadata)));
                        }
                        None => {
                            self.mark_pods(Pod::list(store, &key.namespace));
                            let all = PeerAuthentication::list(store, &key.namespace);
                            self.peers.extend(all.map(|peer| name(&peer.metadata)));
                        }
                    }
                }
                self.peers.insert(me);
            }
        }
    }

    /// Marks a service, of which these are the versions, and the endpoints whose workloads it is part of.
    fn mark_service<'a>(&mut self, known: Known<'_>, me: &Named, versions: impl Iterator<Item = &'a Service>) {
        let (mut manual, namespace) = (false, &me.0);
        for service in versions {
            if service::has_manual_endpoints(service) {
                manual = true;
            } else {
                self.mark_selected(known, namespace, &service.spec.selector);
            }
        }
        if manual {
            let slices = known.index.slices_of_service(namespace, &me.1);
            for slice in slices.filter_map(|name| EndpointSlice::get(known.store, namespace, name)) {
                self.mark_slice(slice);
            }
        }
        self.services.insert(me.clone());
    }

    /// Marks the pods at which something stands in for the policies of a service.
    fn mark_stand_ins(&mut self, known: Known<'_>, me: &Named) {
        let Some(service) = Service::get(known.store, &me.0, &me.1) else { return };
        if required(known.options, known.store, &service.metadata, Addressed::Service).is_none() {
            self.mark_service(known, me, std::iter::once(service));
        }
    }

    /// Marks what names a Gateway as its waypoint.
    fn mark_users(&mut self, known: Known<'_>, gateway: &Named) {
        for (kind, user) in known.index.waypoint_users(gateway) {
            match kind {
                Kind::Service => {
                    self.mark_service(known, user, Service::get(known.store, &user.0, &user.1).into_iter());
                }
                Kind::Pod => drop(self.pods.insert(user.clone())),
                _ => {
                    self.mark_pods(Pod::list(known.store, &user.1));
                    self.services.extend(Service::list(known.store, &user.1).map(|service| name(&service.metadata)));
                }
            }
        }
    }

    /// Marks the pods of a namespace that have these labels.
    fn mark_selected(&mut self, known: Known<'_>, namespace: &Name, labels: &Labels) {
        let selected = known.index.pods_with(known.store, namespace, labels);
        self.pods.extend(selected.into_iter().map(|name| (namespace.clone(), name)));
    }

    fn mark_pods<'a>(&mut self, pods: impl Iterator<Item = &'a Pod>) {
        self.pods.extend(pods.map(|pod| name(&pod.metadata)));
    }

    fn mark_slice(&mut self, slice: &EndpointSlice) {
        let namespace = &slice.metadata.namespace;
        self.pods.extend(target_pods(slice).map(|pod| (namespace.clone(), pod.into())));
        self.slices.insert(name(&slice.metadata));
    }
}

/// Whether labels of Namespaces decide who may use a Gateway.
fn selects_namespaces(gateway: &Gateway) -> bool {
    gateway.spec.listeners.iter().any(|it| it.allowed_routes.namespaces.from == FromNamespaces::Selector)
}

fn name(metadata: &ObjectMeta) -> Named {
    (metadata.namespace.clone(), metadata.name.clone())
}
