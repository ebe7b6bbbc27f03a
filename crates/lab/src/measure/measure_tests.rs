use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::process::seconds_per_tick;
use super::*;

fn own() -> i32 {
    i32::try_from(std::process::id()).unwrap()
}

fn burn(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::black_box(begun.elapsed());
    }
}

#[test]
fn own_work_is_counted() {
    // The machine's interval encloses the process's: other tests of this process work between the two readings.
    let machine = MachineCpu::now().unwrap();
    let before = cpu(own()).unwrap();
    // On a busy machine a second's work may take longer, so wait for the work.
    let begun = Instant::now();
    while cpu(own()).unwrap().since(&before).seconds() < 0.3 {
        burn(Duration::from_millis(50));
        assert!(begun.elapsed() < Duration::from_secs(60), "work is not counted");
    }
    let used = cpu(own()).unwrap().since(&before);
    assert!(used.user_seconds > 0.0 && used.seconds() >= 0.3, "{used:?}");
    let whole = MachineCpu::now().unwrap().since(&machine);
    // The value is unknown while a hypervisor takes much of the time.
    if let Some(busy) = whole.busy_seconds() {
        assert!(busy >= 0.2 && busy >= used.seconds() - 0.2, "{whole:?} {used:?}");
    }
}

#[test]
fn descendants_are_counted_living_and_reaped() {
    // The shell's child works and is reaped by the shell. Then the shell works until its input ends.
    let script = "sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; echo done; read line";
    let mut shell =
        Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = [0; 5];
    shell.stdout.take().unwrap().read_exact(&mut said).unwrap();
    let pid = i32::try_from(shell.id()).unwrap();
    let used = cpu(pid).unwrap();
    assert!(used.seconds() > 0.02, "the reaped child's work is missing: {used:?}");
    assert!(process_tree(own()).unwrap().contains(&pid));
    assert!(cpu(own()).unwrap().seconds() >= used.seconds());
    shell.stdin.take().unwrap().write_all(b"\n").unwrap();
    shell.wait().unwrap();
    assert!(cpu(pid).is_err(), "a process that is gone is an error, not zero");
    assert!(memory(pid).is_err());
}

/// A proxy with few requests works for less than a tick of 10 ms. Its time is not zero and varies.
#[test]
fn less_than_a_tick_is_counted() {
    let script = "echo done; read line";
    let mut shell =
        Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    shell.stdout.take().unwrap().read_exact(&mut [0; 5]).unwrap();
    let used = cpu(i32::try_from(shell.id()).unwrap()).unwrap().seconds();
    let ticks = used / seconds_per_tick();
    assert!(used > 0.0 && (ticks - ticks.round()).abs() > 1e-9, "{used}");
    drop(shell.stdin.take());
    shell.wait().unwrap();
}

/// A child's work counts for its parent, and as other work for a sibling.
#[test]
fn work_of_other_programs_is_separate() {
    let shell = || Command::new("sh").arg("-c").arg("read line").stdin(Stdio::piped()).spawn().unwrap();
    let mut stranger = shell();
    let stranger_pid = i32::try_from(stranger.id()).unwrap();
    let seen_by_stranger = others(stranger_pid).unwrap();
    let before = cpu(own()).unwrap();
    let begun = Instant::now();
    while cpu(own()).unwrap().since(&before).seconds() < 0.3 {
        burn(Duration::from_millis(50));
        assert!(begun.elapsed() < Duration::from_secs(60), "work is not counted");
    }
    // Other programs can only add to it.
    assert!(others(stranger_pid).unwrap() - seen_by_stranger >= 0.28);
    let all = others(i32::MAX);
    assert!(all.is_err(), "a process that is gone is an error");
    let outside = others(own()).unwrap();
    assert!(
        outside + cpu(own()).unwrap().seconds() <= others(stranger_pid).unwrap() + 0.05,
        "own work is not of others"
    );
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

/// Of a process of its own: other tests of this one take and free what they need meanwhile.
#[test]
fn memory_and_descriptors() {
    let held_by = |script: &str| {
        let script = format!("{script}; echo done; read line");
        let mut shell =
            Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        shell.stdout.take().unwrap().read_exact(&mut [0; 5]).unwrap();
        let held = memory(i32::try_from(shell.id()).unwrap()).unwrap();
        drop(shell.stdin.take());
        shell.wait().unwrap();
        held
    };
    let little = held_by(":");
    assert!(little.rss_bytes > little.anonymous_bytes && little.anonymous_bytes > 0, "{little:?}");

    let much = held_by("text=$(head -c 16777216 /dev/zero | tr '\\0' x)");
    assert!(much.anonymous_bytes >= little.anonymous_bytes + (16 << 20), "{little:?} {much:?}");

    let open = held_by("exec 3</dev/null 4</dev/null 5</dev/null 6</dev/null 7</dev/null");
    assert_eq!(open.descriptors, little.descriptors + 5, "{little:?} {open:?}");
}

#[test]
fn softirqs_are_separate() {
    let stat = "cpu  100 10 200 5000 50 7 30 20 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
    let cpu = MachineCpu::parse(stat, Duration::from_millis(54_170)).unwrap();
    assert_eq!((cpu.user_seconds, cpu.system_seconds, cpu.idle_seconds), (1.1, 2.0, 50.5));
    assert!((cpu.softirq_seconds - 0.3).abs() < 1e-9 && cpu.busy_seconds().is_none());
    assert_eq!(MachineCpu::parse("cpu0 1 2 3 4\n", Duration::ZERO), None);
}

/// Clock ticks see all of a load in step with them, or none of it.
#[test]
fn busy_time_is_what_was_not_idle() {
    let at = |seconds, user, idle, softirq| {
        let stat = format!("cpu  {user} 0 0 {idle} 0 0 {softirq} 50\ncpu0 1\ncpu1 1\nintr 7\n");
        MachineCpu::parse(&stat, Duration::from_secs(seconds)).unwrap()
    };
    let before = at(100, 1000, 15_000, 200);
    // Two cores for four seconds: half a second was stolen before, 5.5 seconds were idle.
    let missed = at(104, 1005, 15_550, 201).since(&before);
    let is_near =
        |seconds: Option<f64>, expected: f64| seconds.is_some_and(|seconds| (seconds - expected).abs() < 1e-9);
    assert!(is_near(missed.busy_seconds(), 2.5), "{missed:?}");
    assert_eq!(missed.believed_softirq_seconds(), None);
    let seen = at(104, 1200, 15_550, 250).since(&before);
    assert!(is_near(seen.busy_seconds(), 2.5) && is_near(seen.believed_softirq_seconds(), 0.5), "{seen:?}");
}

/// A core that a hypervisor keeps from waking is counted as idle and as taken, so the difference may be negative.
#[test]
fn partly_taken_time_is_unknown() {
    let guest = |idle_seconds, steal_seconds| MachineCpu {
        all_seconds: 8.0,
        idle_seconds,
        steal_seconds,
        ..MachineCpu::default()
    };
    assert_eq!(guest(7.0, 1.5).busy_seconds(), None);
    assert_eq!(guest(4.0, 1.0).busy_seconds(), None);
    assert_eq!(guest(4.0, 0.125).busy_seconds(), Some(3.875));
    assert_eq!(guest(8.1, 0.0).busy_seconds(), Some(0.0));
}

#[test]
fn this_machine() {
    let machine = Machine::describe();
    assert!(machine.cores >= 1 && machine.memory_bytes > 1 << 26, "{machine:?}");
    assert!(!machine.processor.is_empty() && machine.kernel.contains('.'), "{machine:?}");
}
