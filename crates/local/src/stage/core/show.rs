//! Telling how things are: the control plane in objects, people in a listing.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use leno_model::Name;
use leno_objects::{
    Gateway, GatewayClass, Kind, Node as NodeObject, Object, ObjectKey, Pod, Service, WAYPOINT_FOR, allows_bypass,
    selects,
};

use super::{Core, Entry};
use crate::cluster::objects::node_object;
use crate::cluster::services::declared_ports;
use crate::cluster::waypoints;
use crate::files::{Concerns, PassedOver};
use crate::stage::listing::{NodeListing, PassedOverListing, PodListing, WaypointListing};
use crate::stage::pod::sandbox::Sandbox;

/// What a person may name besides nodes and pods.
#[derive(Default)]
pub(super) struct Names {
    deployments: Vec<String>,
    services: Vec<String>,
    waypoints: Vec<WaypointListing>,
    bypassed: Vec<String>,
}

impl Names {
    pub(super) fn of<'a>(objects: impl Iterator<Item = &'a Object> + Clone) -> Self {
        let mut names = Self::default();
        let classes: Vec<&GatewayClass> = objects.clone().filter_map(GatewayClass::of).collect();
        for object in objects {
            let metadata = object.metadata();
            let name = format!("{}/{}", metadata.namespace, metadata.name);
            match object {
                Object::Deployment(_) | Object::StatefulSet(_) => names.deployments.push(name),
                Object::Gateway(gateway) => {
                    let class = classes.iter().find(|class| *class.metadata.name == *gateway.spec.gateway_class_name);
                    names.waypoints.extend(waypoint_listing(gateway, class.copied()));
                }
                Object::Service(service) => {
                    names.services.extend(service.spec.ports.iter().map(|port| format!("{name}:{}", port.port.0)));
                }
                _ => {}
            }
            let may = matches!(object.kind(), Kind::Namespace | Kind::Service | Kind::Pod | Kind::Gateway);
            if may && allows_bypass(metadata) {
                names.bypassed.push(object.key().to_string());
            }
        }
        names
    }
}

fn waypoint_listing(gateway: &Gateway, class: Option<&GatewayClass>) -> Option<WaypointListing> {
    let Gateway { metadata, spec } = gateway;
    gateway.is_waypoint(class).then(|| WaypointListing {
        namespace: metadata.namespace.to_string(),
        name: metadata.name.to_string(),
        class: spec.gateway_class_name.clone(),
        traffic: metadata.label(WAYPOINT_FOR).unwrap_or("service").to_owned(),
        bypass: allows_bypass(metadata),
    })
}

impl Core {
    /// Hands the controller everything as it is now; it finds the differences.
    pub(super) fn publish(&mut self) {
        if !self.loaded {
            return;
        }
        let pods: Vec<Pod> = self.pods.values().map(Entry::observed).collect();
        let declared = self.wanted.values().map(|object| &**object);
        let ports = declared_ports(declared, &self.ctx.cluster_domain);
        let mut all: BTreeMap<ObjectKey, Object> = self
            .wanted
            .iter()
            .filter(|(key, _)| !matches!(key.kind, Kind::Pod | Kind::Node))
            .map(|(key, object)| (key.clone(), (**object).clone()))
            .collect();
        for node in &self.nodes {
            let declared = self.wanted.get(&ObjectKey::new(Kind::Node, "", node.name.as_str()));
            let declared = declared.and_then(|object| NodeObject::of(object));
            let object = Object::Node(node_object(&node.name, node.addresses, declared));
            all.insert(object.key(), object);
        }
        all.extend(pods.into_iter().map(Object::from).map(|pod| (pod.key(), pod)));
        // Before the proxies are told: rules for what is gone go first.
        self.ports.send_if_modified(|now| {
            let changed = **now != ports;
            if changed {
                *now = Arc::new(ports);
            }
            changed
        });
        self.ctx.plane.publish(all.into_values());
    }

    pub(super) fn show(&mut self) {
        if !self.loaded {
            return;
        }
        let nodes = self
            .nodes
            .iter()
            .map(|node| {
                let proxy = node.proxy.borrow().clone();
                let mut ips = vec![IpAddr::from(node.addresses.fabric_v4())];
                if self.ctx.networks.ipv6 {
                    ips.push(node.addresses.fabric_v6().into());
                }
                NodeListing {
                    name: node.name.clone(),
                    proxy: proxy.program,
                    ready: proxy.ready,
                    ips,
                    netns: node.network.name.clone(),
                    pid: proxy.pid,
                    restarts: proxy.restarts,
                    message: proxy.message,
                }
            })
            .collect();
        let mut pods: Vec<_> = self.pods.values().map(|entry| self.pod_listing(entry)).collect();
        pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        let passed_over: Vec<_> =
            self.passed_over.iter().map(|passed_over| self.passed_over_listing(passed_over)).collect();
        let Names { deployments, services, waypoints, bypassed } = &self.names;
        self.listing.send_if_modified(|listing| {
            let changed = listing.nodes != nodes
                || listing.pods != pods
                || listing.warnings != self.warnings
                || listing.passed_over != passed_over
                || listing.deployments != *deployments
                || listing.services != *services
                || listing.waypoints != *waypoints
                || listing.bypassed != *bypassed;
            listing.passed_over = passed_over;
            listing.deployments.clone_from(deployments);
            listing.services.clone_from(services);
            listing.waypoints.clone_from(waypoints);
            listing.bypassed.clone_from(bypassed);
            listing.warnings.clone_from(&self.warnings);
            listing.nodes = nodes;
            listing.pods = pods;
            changed
        });
    }

    fn passed_over_listing(&self, passed_over: &PassedOver) -> PassedOverListing {
        let pods =
            self.pods.values().filter(|entry| !entry.leaving() && self.is_concerned(&passed_over.concerns, entry));
        let mut pods: Vec<_> = pods.map(|entry| entry.plan.label()).collect();
        pods.sort();
        PassedOverListing {
            place: passed_over.origin.to_string(),
            object: passed_over.object.clone(),
            field: passed_over.field.clone(),
            effect: passed_over.effect.clone(),
            pods,
        }
    }

    fn is_concerned(&self, concerns: &Concerns, entry: &Entry) -> bool {
        let metadata = &entry.pod.metadata;
        match concerns {
            Concerns::Nobody => false,
            Concerns::Of(key) if key.kind == Kind::Pod => {
                entry.owner.is_none() && metadata.namespace == key.namespace && metadata.name == key.name
            }
            Concerns::Of(key) if key.kind == Kind::Service => self.is_behind(entry, &key.namespace, &key.name),
            Concerns::Of(key) => entry.owner.as_ref().is_some_and(|(owner, _)| owner == key),
            Concerns::Selected(namespace, selector) => {
                metadata.namespace == *namespace && selector.matches(&metadata.labels)
            }
            Concerns::Services(services) => {
                services.iter().any(|(namespace, name)| self.is_behind(entry, namespace, name))
            }
        }
    }

    fn is_behind(&self, entry: &Entry, namespace: &Name, service: &Name) -> bool {
        let key = ObjectKey::new(Kind::Service, namespace.clone(), service.clone());
        let selector =
            self.wanted.get(&key).and_then(|object| Service::of(object)).map(|service| &service.spec.selector);
        let metadata = &entry.pod.metadata;
        metadata.namespace == *namespace
            && selector.is_some_and(|selector| !selector.is_empty() && selects(selector, &metadata.labels))
    }

    fn pod_listing(&self, entry: &Entry) -> PodListing {
        let metadata = &entry.pod.metadata;
        PodListing {
            namespace: metadata.namespace.to_string(),
            name: metadata.name.to_string(),
            node: self.nodes[entry.node].name.clone(),
            ips: entry.plan.ips.clone(),
            in_mesh: entry.report.enrolled,
            ready: entry.report.ready,
            status: entry.report.status.clone(),
            restarts: entry.report.restarts,
            message: entry.report.message.clone(),
            wants_mesh: entry.wish.borrow().in_mesh,
            netns: self.ctx.networks.names.pod(&metadata.namespace, &metadata.name),
            waypoint: waypoints::is_pod_of_one(&metadata.labels),
            gateway: waypoints::gateway_of(&metadata.labels).unwrap_or_default().to_owned(),
            pid: entry.report.sandbox.as_ref().map(Sandbox::pid),
        }
    }
}
