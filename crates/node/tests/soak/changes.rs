//! What connections cost while the mesh keeps changing.
//!
//! A change is taken in on the control thread. Workers see it as another snapshot, so what they spend on a connection
//! must not depend on how often there is one.

use std::time::{Duration, Instant};

use leno_model::{Health, Workload};
use leno_testkit::network::may_run;

use crate::configuration::{service, workload};
use crate::process::Process;
use crate::{ALONE, Field, many_short};

/// Changes a second.
const CHANGES: u32 = 50;

/// What a connection may cost a proxy's workers while the mesh changes, by what it costs while it doesn't. An optimised
/// proxy on an idle machine is within its spread; unoptimised ones beside other tests scatter.
const MOST: f64 = 1.25;

/// Workloads that change, one after the other; no connection concerns any of them.
struct Others {
    all: Vec<Workload>,
    next: usize,
}

impl Others {
    fn change(&mut self, field: &Field) {
        let count = self.all.len();
        let other = &mut self.all[self.next % count];
        other.health = if other.health == Health::Healthy { Health::Unhealthy } else { Health::Healthy };
        field.mesh.control.publish_workload(other);
        self.next += 1;
    }

    /// Never returns.
    async fn keep_changing(&mut self, field: &Field) {
        let mut due = tokio::time::interval(Duration::from_secs(1) / CHANGES);
        loop {
            due.tick().await;
            self.change(field);
        }
    }
}

/// Processor time of all workers of both proxies, and of the threads that are none.
fn used(field: &Field) -> [Duration; 2] {
    let of = |proxy: &Process| {
        let (workers, others) = proxy.threads_time().into_iter().partition::<Vec<_>, _>(|t| t.0.starts_with("worker-"));
        [workers, others].map(|threads| threads.into_iter().map(|(_, time)| time).sum::<Duration>())
    };
    field.proxies().iter().map(of).fold([Duration::ZERO; 2], |sum, one| [sum[0] + one[0], sum[1] + one[1]])
}

/// What the workers spent on each of so many connections, seconds; and what the other threads spent in a second.
async fn spent(field: &Field, count: usize) -> [f64; 2] {
    let (before, begun) = (used(field), Instant::now());
    many_short(field, count).await;
    let after = used(field);
    [
        (after[0] - before[0]).as_secs_f64() / count as f64,
        (after[1] - before[1]).as_secs_f64() / begun.elapsed().as_secs_f64(),
    ]
}

/// What they ask of the kernel is counted on every run, by `syscalls.rs`.
#[tokio::test]
#[ignore = "measured: .ci/run measured runs it on a quiet machine"]
async fn connections_cost_as_much_while_the_mesh_changes() {
    if !may_run("connections_cost_as_much_while_the_mesh_changes") {
        return;
    }
    let _alone = ALONE.lock().await;
    let field = Field::new().await;
    let services = [service(0), service(1)];
    services.iter().for_each(|service| field.mesh.control.publish_service(service));
    let all: Vec<_> = (0..field.size.workloads).map(|number| workload(number, &services[number % 2])).collect();
    field.mesh.control.publish_workloads(&all);
    field.mesh.synced().await;
    let mut others = Others { all, next: 0 };
    let count = field.size.short / 4;
    // What is needed only once.
    many_short(&field, count).await;
    let (mut quiet, mut changing) = (Vec::new(), Vec::new());
    for _ in 0..field.size.rounds {
        quiet.push(spent(&field, count).await);
        let (changes, begun) = (others.next, Instant::now());
        changing.push(tokio::select! {
            now = spent(&field, count) => now,
            () = others.keep_changing(&field) => unreachable!("changes do not end"),
        });
        let rate = (others.next - changes) as f64 / begun.elapsed().as_secs_f64();
        println!("{rate:.0} changes a second beside {count} connections");
        field.mesh.synced().await;
    }
    println!(
        "a connection takes the workers {:.0?} us, with changes {:.0?}",
        each(&quiet, 0, 1e6),
        each(&changing, 0, 1e6)
    );
    println!(
        "the other threads take {:.1?} ms a second, with changes {:.1?}",
        each(&quiet, 1, 1e3),
        each(&changing, 1, 1e3)
    );
    // Two that follow each other: what else the machine does changes more slowly.
    let mut ratios: Vec<f64> = quiet.iter().zip(&changing).map(|(quiet, changing)| changing[0] / quiet[0]).collect();
    ratios.sort_by(f64::total_cmp);
    println!("{ratios:.3?} times as much beside {CHANGES} changes a second");
    // Whatever else the machine does adds to some rounds; what changes cost would be in each of them.
    let ratio = ratios[0];
    assert!(ratio <= MOST, "a connection takes {ratio:.2} times as much while the mesh changes");
}

fn each(rounds: &[[f64; 2]], which: usize, scale: f64) -> Vec<f64> {
    rounds.iter().map(|round| round[which] * scale).collect()
}
