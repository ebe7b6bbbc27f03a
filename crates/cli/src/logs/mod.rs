//! `leno logs`.

pub(crate) mod cluster;

use std::io::{self, Write};
use std::time::SystemTime;

use leno_local::logs::{Source, Wanted, find_logs, print_logs};
use leno_local::names::StageName;

use crate::args::LogsArgs;
use crate::stage::ask;
use crate::target::Target;

/// `leno logs`.
pub(crate) fn run(args: &LogsArgs) -> anyhow::Result<()> {
    ask(async {
        let target = Target::installed(&args.installed).await?;
        target.announce();
        match &target {
            Target::Stage(name) => of_stage(name, args).await,
            Target::Cluster(nodes) => cluster::print(nodes, args).await,
        }
    })
}

async fn of_stage(name: &StageName, args: &LogsArgs) -> anyhow::Result<()> {
    let source = match (&args.pod, &args.node) {
        (Some(pod), _) => {
            Source::Pod { namespace: pod.namespace.clone(), name: pod.name.clone(), container: args.container.clone() }
        }
        (None, Some(node)) => Source::Node(node.clone()),
        (None, None) => Source::Stage,
    };
    let since = args.since.map(|ago| SystemTime::now().checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH));
    let wanted = Wanted { follow: args.follow, tail: args.tail, since };
    let found = find_logs(name, &source).await?;
    let mut out = Stdout { reader_gone: false };
    match print_logs(name, &found.files, wanted, &mut out).await {
        Err(_) if out.reader_gone => return Ok(()),
        printed => printed?,
    }
    if let Some(note) = &found.note {
        eprintln!("{note}");
    }
    Ok(())
}

/// Stdout that remembers whether anybody still reads: `leno logs -f … | head` ends without a complaint.
struct Stdout {
    reader_gone: bool,
}

impl Stdout {
    fn remember<T>(&mut self, outcome: io::Result<T>) -> io::Result<T> {
        self.reader_gone |= outcome.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
        outcome
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = io::stdout().write(bytes);
        self.remember(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = io::stdout().flush();
        self.remember(flushed)
    }
}
