//! The containers of a pod for as long as its first process lives: started in their order, heard of, and ended.

use std::net::IpAddr;
use std::sync::Arc;

use leno_objects::{Container, RestartPolicy};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::stage::context::Context;
use crate::stage::pod::container::{News, Runner, Running, State};
use crate::stage::pod::environment::command_line;
use crate::stage::pod::plan::PodPlan;
use crate::stage::pod::probes::Surroundings;
use crate::stage::pod::sandbox::Sandbox;
use crate::stage::pod::sequence::{STARTING, Sequence, Summary};

/// The containers of one pod. Dropped, they are looked after no longer.
pub(crate) struct Containers {
    plan: Arc<PodPlan>,
    ctx: Arc<Context>,
    sandbox: Sandbox,
    sequence: Sequence,
    states: Vec<State>,
    restarts: Vec<u32>,
    running: Arc<Running>,
    news: mpsc::UnboundedSender<News>,
    heard: mpsc::UnboundedReceiver<News>,
    tasks: JoinSet<()>,
    over: bool,
}

impl Containers {
    pub(crate) fn new(plan: Arc<PodPlan>, ctx: Arc<Context>, sandbox: Sandbox) -> Self {
        let sequence = Sequence::new(&plan.pod.spec);
        let (news, heard) = mpsc::unbounded_channel();
        Self {
            plan,
            ctx,
            sandbox,
            states: vec![State::Waiting { reason: STARTING, message: String::new() }; sequence.len()],
            restarts: vec![0; sequence.len()],
            sequence,
            running: Arc::default(),
            news,
            heard,
            tasks: JoinSet::new(),
            over: false,
        }
    }

    /// Starts those whose turn it is.
    pub(crate) fn start_next(&mut self) {
        let plan = self.plan.clone();
        for index in self.sequence.next(&self.states) {
            if let Some(container) = plan.pod.spec.all_containers().nth(index) {
                self.start(index, container);
            }
        }
    }

    fn start(&mut self, index: usize, container: &Container) {
        let plan = &self.plan;
        let env = plan.environment(container, &self.ctx);
        let argv = env.clone().and_then(|env| command_line(container, &env));
        let env = env.unwrap_or_default();
        let cwd = plan.directory(container, &self.ctx);
        let pod_ip = plan.ips.first().copied().unwrap_or(IpAddr::from([0, 0, 0, 0]));
        let policy = match plan.pod.spec.restart_policy {
            _ if self.sequence.is_sidecar(index) => RestartPolicy::Always,
            // It has to end well before the next one begins.
            RestartPolicy::Always if self.sequence.is_step(index) => RestartPolicy::OnFailure,
            policy => policy,
        };
        let runner = Runner {
            index,
            container: container.clone(),
            policy,
            argv,
            env: env.clone(),
            cwd: cwd.clone(),
            log: plan.log(&container.name),
            sandbox: self.sandbox.clone(),
            around: Surroundings {
                node: plan.node.network.namespace.clone(),
                pod_ip,
                sandbox: self.sandbox.clone(),
                env,
                cwd: cwd.display().to_string(),
            },
            news: self.news.clone(),
            running: self.running.clone(),
            restarts: 0,
            most_restarts: plan.start.most_restarts.filter(|_| !self.sequence.is_sidecar(index)),
        };
        self.tasks.spawn(runner.run());
    }

    /// Waits until something happened to one of them. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        match self.heard.recv().await {
            Some(news) => self.take(news),
            // Not while a sender is kept here.
            None => std::future::pending().await,
        }
    }

    fn take(&mut self, News { index, restarts, state }: News) {
        self.states[index] = state;
        self.restarts[index] = restarts;
    }

    /// Ends what runs beside containers that have all ended.
    pub(crate) async fn end_sidecars_if_over(&mut self) {
        if !self.over && self.sequence.is_over(&self.states) {
            self.over = true;
            self.running.start_none();
            self.running.terminate(|_| true).await;
        }
    }

    /// How often they were started again.
    pub(crate) fn restarts(&self) -> u32 {
        self.restarts.iter().sum()
    }

    /// What all of them together are.
    pub(crate) fn summary(&self) -> Summary {
        self.sequence.summary(&self.states)
    }

    /// Asks them to end, and waits until they have: sidecars after the others, which may need them to the last.
    pub(crate) async fn end(&mut self) {
        self.running.start_none();
        let sidecars: Vec<bool> = (0..self.states.len()).map(|index| self.sequence.is_sidecar(index)).collect();
        for turn in [false, true] {
            let chosen = |index: usize| sidecars.get(index) == Some(&turn);
            self.running.terminate(chosen).await;
            let alive = |states: &[State]| {
                states.iter().enumerate().any(|(index, state)| chosen(index) && matches!(state, State::Running { .. }))
            };
            while alive(&self.states) {
                self.changed().await;
            }
        }
    }
}
