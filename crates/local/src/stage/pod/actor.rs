//! The life of one pod: network, enrollment, processes, and the way out.

use std::sync::Arc;
use std::time::Duration;

use leno_capture::enroll::Enrollment;
use leno_capture::pod_rules::PodRules;
use tokio::sync::{mpsc, oneshot, watch};

use crate::Error;
use crate::run_dir::{make_dir, write_file};
use crate::stage::context::Context;
use crate::stage::network::Named;
use crate::stage::pod::containers::Containers;
use crate::stage::pod::init::PodFiles;
use crate::stage::pod::plan::PodPlan;
use crate::stage::pod::report::{PodEvent, Report, Stop, Wish};
use crate::stage::pod::sandbox::Sandbox;
use crate::stage::pod::sequence::Summary;
use crate::stage::pod::volumes;

/// How long to wait before trying again what the node or its proxy refused.
const RETRY: Duration = Duration::from_millis(300);

/// Time for requests through the proxy to end when a pod leaves the mesh.
const DRAIN: Duration = Duration::from_secs(1);

pub(crate) struct PodActor {
    pub plan: Arc<PodPlan>,
    pub ctx: Arc<Context>,
    pub wish: watch::Receiver<Wish>,
    pub events: mpsc::UnboundedSender<PodEvent>,
    pub report: Report,
    pub network: Option<Named>,
    pub enrollment: Option<Enrollment>,
}

/// Why the pod's processes are no longer looked after.
enum Over {
    Asked,
    Died,
}

impl PodActor {
    /// Lives until asked to stop, then leaves nothing behind.
    pub(crate) async fn run(mut self) {
        self.live().await;
        self.leave().await;
        let _ = self.events.send(PodEvent::Gone { uid: self.plan.uid.clone() });
    }

    async fn live(&mut self) {
        if let Some((pause, reason)) = self.plan.start.after.clone() {
            self.say("BackOff", reason);
            if self.rest(pause).await {
                return;
            }
        }
        loop {
            match self.make_network().await {
                Ok(()) => break,
                Err(reason) => self.say("NetworkError", reason.to_string()),
            }
            if self.rest(Duration::from_secs(1)).await {
                return;
            }
        }
        let mut pause = RETRY;
        loop {
            // Before each attempt: it may have been wanted in the mesh since the last one failed.
            let in_mesh = self.wish.borrow().in_mesh;
            if in_mesh && !self.report.enrolled && self.enroll_before_start().await {
                return;
            }
            match self.play().await {
                Ok(Over::Asked) => return,
                Ok(Over::Died) => {
                    self.report.restarts += 1;
                    self.say("Error", "all processes of the pod were killed; it is started again".to_owned());
                }
                Err(reason) => self.say("CreatePodError", reason.to_string()),
            }
            if self.rest(pause).await {
                return;
            }
            pause = (pause * 2).min(Duration::from_secs(10));
        }
    }

    async fn make_network(&mut self) -> Result<(), Error> {
        let plan = self.plan.clone();
        make_dir(&plan.dir.join("work"))?;
        let metadata = &plan.pod.metadata;
        let mut resolv = format!("nameserver {}\n", crate::cluster::addresses::CLUSTER_DNS);
        let domain = &self.ctx.cluster_domain;
        resolv
            .push_str(&format!("search {}.svc.{domain} svc.{domain} {domain}\noptions ndots:5\n", metadata.namespace));
        write_file(&plan.dir.join("resolv.conf"), resolv.as_bytes(), 0o644)?;
        let mut hosts = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n".to_owned();
        for ip in &plan.ips {
            hosts.push_str(&format!("{ip} {}\n", metadata.name));
        }
        write_file(&plan.dir.join("hosts"), hosts.as_bytes(), 0o644)?;

        let networks = self.ctx.networks.clone();
        let work = move || {
            let metadata = &plan.pod.metadata;
            networks.create_pod(&plan.node.network, plan.node.addresses, plan.slot, &metadata.namespace, &metadata.name)
        };
        let made = self.ctx.gate.run(work).await??;
        let rules = PodRules { ipv6: self.ctx.networks.ipv6, ..PodRules::default() };
        let (info, agent) = (self.plan.info(), self.plan.node.agent.clone());
        self.enrollment = Some(Enrollment::new(made.namespace.clone(), info, rules, agent, self.ctx.gate.clone()));
        self.network = Some(made);
        Ok(())
    }

    /// Rules and proxy before the first process, so that no byte leaves in the clear. True if the
    /// pod was asked to stop meanwhile.
    async fn enroll_before_start(&mut self) -> bool {
        let Some(mut enrollment) = self.enrollment.take() else { return false };
        let stopped = loop {
            let mut wish = self.wish.clone();
            if wish.borrow_and_update().stop.is_some() {
                break true;
            }
            if !wish.borrow().in_mesh {
                enrollment.abandon().await;
                break false;
            }
            let reason = tokio::select! {
                done = enrollment.capture_and_announce() => match done {
                    Ok(_) => {
                        self.report.enrolled = true;
                        self.say("ContainerCreating", String::new());
                        // Peers that still take it for a pod outside would talk to it in the clear.
                        self.settled().await;
                        break false;
                    }
                    Err(reason) => self.plan.told(&reason),
                },
                _ = wish.changed() => continue,
            };
            self.say("WaitingForProxy", reason);
            tokio::select! {
                () = enrollment.proxy_changed() => {}
                () = tokio::time::sleep(RETRY) => {}
                _ = wish.changed() => {}
            }
        };
        self.enrollment = Some(enrollment);
        stopped
    }

    /// Starts the pod's processes and looks after them.
    async fn play(&mut self) -> Result<Over, Error> {
        let plan = self.plan.clone();
        let Some(network) = self.network.clone() else { return Ok(Over::Asked) };
        let label = plan.label();
        let netns = network.namespace.try_clone_fd().map_err(Error::network(format!("cannot start pod {label}")))?;
        let file = |name: &str| plan.dir.join(name).display().to_string();
        let mut binds =
            vec![(file("resolv.conf"), "/etc/resolv.conf".to_owned()), (file("hosts"), "/etc/hosts".to_owned())];
        if let Some(nsswitch) = &self.ctx.nsswitch {
            binds.push((nsswitch.display().to_string(), "/etc/nsswitch.conf".to_owned()));
        }
        let hidden = self.ctx.networks.names.hidden().iter().map(|dir| dir.display().to_string()).collect();
        let config = self.ctx.config();
        let (made, run_dir) = (plan.clone(), self.ctx.run_dir.clone());
        let mounts = self.ctx.gate.run(move || volumes::prepare(&made, &run_dir, &config)).await?;
        let mounts = mounts.map_err(|why| Error::Refused(format!("cannot make the volumes of pod {label}: {why}")))?;
        let root = make_dir(&plan.dir.join("root"))?.display().to_string();
        let files = PodFiles { binds, own_pids: true, hidden, own: vec![file("work")], mounts, root };
        let sandbox = Sandbox::start(&self.ctx.executable, &label, &plan.pod.metadata.name, netns, &files).await?;
        if let Some(warning) = &sandbox.warning {
            tracing::warn!(pod = label, "{warning}");
        }
        self.report.sandbox = Some(sandbox.clone());

        let mut containers = Containers::new(plan, self.ctx.clone(), sandbox.clone());
        let earlier = self.report.restarts;
        let mut wish = self.wish.clone();
        containers.start_next();
        self.summarise(&containers.summary());
        loop {
            let wanted = *wish.borrow_and_update();
            if let Some(stop) = wanted.stop {
                self.stop(stop, &mut containers).await;
                return Ok(Over::Asked);
            }
            containers.start_next();
            containers.end_sidecars_if_over().await;
            let behind = wanted.in_mesh != self.report.enrolled;
            if behind {
                self.follow(wanted.in_mesh).await;
            }
            let behind = wanted.in_mesh != self.report.enrolled;
            tokio::select! {
                _ = wish.changed() => {}
                () = containers.changed() => {
                    self.report.restarts = earlier + containers.restarts();
                    self.summarise(&containers.summary());
                }
                () = sandbox.gone() => {
                    self.report.sandbox = None;
                    return Ok(Over::Died);
                }
                () = tokio::time::sleep(RETRY), if behind => {}
            }
        }
    }

    /// Moves a running pod into the mesh or out of it without touching its processes.
    async fn follow(&mut self, in_mesh: bool) {
        let Some(mut enrollment) = self.enrollment.take() else { return };
        if in_mesh {
            // The proxy listens before the rules send it anything: nothing is refused meanwhile.
            match enrollment.announce_and_capture().await {
                Ok(_) => {
                    self.report.enrolled = true;
                    self.report.message.clear();
                }
                Err(reason) => self.report.message = format!("not in the mesh yet: {}", self.plan.told(&reason)),
            }
            self.tell();
        } else {
            // Others must have stopped sending HBONE before nobody takes it any more.
            self.report.enrolled = false;
            self.tell();
            self.settled().await;
            match enrollment.release().await {
                Ok(_) => {
                    // Requests through the proxy may end. New ones don't come.
                    let mut wish = self.wish.clone();
                    let other = wish.wait_for(|wish| wish.in_mesh || wish.stop.is_some());
                    let _ = tokio::time::timeout(DRAIN, other).await;
                    enrollment.withdraw().await;
                }
                Err(reason) => {
                    // It still is in the mesh, so this is tried again.
                    self.report.enrolled = true;
                    self.report.message = format!("not out of the mesh yet: {reason}");
                    self.tell();
                }
            }
        }
        self.enrollment = Some(enrollment);
    }

    async fn stop(&mut self, stop: Stop, containers: &mut Containers) {
        self.report.ready = false;
        self.say("Terminating", String::new());
        if stop.drain {
            self.settled().await;
        }
        let begun = tokio::time::Instant::now();
        let mut wish = self.wish.clone();
        let mut ended = std::pin::pin!(containers.end());
        loop {
            // A caller in a hurry may shorten it.
            let grace = wish.borrow_and_update().stop.map_or(stop.grace, |stop| stop.grace);
            tokio::select! {
                () = &mut ended => break,
                () = tokio::time::sleep_until(begun + grace) => break,
                Ok(()) = wish.changed() => {}
            }
        }
        if let Some(sandbox) = self.report.sandbox.take() {
            sandbox.kill();
            sandbox.gone().await;
        }
    }

    async fn leave(&mut self) {
        if let Some(sandbox) = self.report.sandbox.take() {
            sandbox.kill();
            sandbox.gone().await;
        }
        if let Some(mut enrollment) = self.enrollment.take() {
            enrollment.withdraw().await;
        }
        if let Some(network) = self.network.take() {
            let (networks, plan) = (self.ctx.networks.clone(), self.plan.clone());
            let work = move || {
                networks.disconnect_pod(&plan.node.network, plan.slot);
                networks.remove(&network);
            };
            let _ = self.ctx.gate.run(work).await;
        }
        let _ = std::fs::remove_dir_all(&self.plan.dir);
    }

    fn summarise(&mut self, summary: &Summary) {
        self.report.phase = summary.phase.unwrap_or(self.report.phase);
        self.report.ready = summary.ready;
        self.say(&summary.status, summary.message.clone());
    }

    /// Waits; true if asked to stop meanwhile.
    async fn rest(&mut self, time: Duration) -> bool {
        let mut wish = self.wish.clone();
        let stopped = wish.wait_for(|wish| wish.stop.is_some());
        tokio::time::timeout(time, stopped).await.is_ok()
    }

    /// Waits until what was told has reached the proxies and the nodes' rules.
    async fn settled(&self) {
        let (reached, reaching) = oneshot::channel();
        if self.events.send(PodEvent::Barrier { reached }).is_ok() && reaching.await.is_ok() {
            self.ctx.settled().await;
        }
    }

    fn say(&mut self, status: &str, message: String) {
        status.clone_into(&mut self.report.status);
        self.report.message = message;
        self.tell();
    }

    fn tell(&self) {
        let event = PodEvent::Changed { uid: self.plan.uid.clone(), report: Box::new(self.report.clone()) };
        let _ = self.events.send(event);
    }
}
