//! Idle connections: opened, checked with one byte there and back, held until told, checked again.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::Order;
use super::spec::{Event, IdleLoad, IdleOutcome};
use crate::Error;

/// How many connections are opened or checked at the same time.
const PARALLEL: usize = 128;
/// The limit for one of them.
const PATIENCE: Duration = Duration::from_secs(15);

/// Opens the connections, reports that, and waits for the order to stop.
///
/// # Errors
/// If there is no connection at all.
pub(super) fn run(
    load: &IdleLoad,
    orders: mpsc::Receiver<Order>,
    events: &mut dyn FnMut(Event),
) -> Result<IdleOutcome, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::io("cannot start a runtime"))?;
    let begun = Instant::now();
    let mut errors = BTreeMap::new();
    let target = load.target;
    let mut open = runtime.block_on(all(0..load.connections, &mut errors, move |_| open(target), |_| true));
    let mut outcome = IdleOutcome {
        opened: open.len() as u64,
        open_seconds: begun.elapsed().as_secs_f64(),
        ..IdleOutcome::default()
    };
    if open.is_empty() && load.connections > 0 {
        let why = errors.keys().next().cloned().unwrap_or_default();
        return Err(Error::Io {
            what: format!("no connection to {target} could be opened"),
            source: io::Error::other(why),
        });
    }
    events(Event::Started);
    // A closed channel means that the lab is gone. That counts as an order.
    let _ = orders.recv();
    events(Event::Ended);
    open = runtime.block_on(all(open.into_iter(), &mut errors, prove, hangs));
    outcome.alive = open.len() as u64;
    outcome.errors = errors;
    // Closing needs the runtime that the connections are registered with.
    let _entered = runtime.enter();
    drop(open);
    Ok(outcome)
}

/// Runs an action for each item, a limited number at a time, and counts failures. Ends early if all of the first
/// attempts fail in a `hopeless` way: ten thousand connections to a server that hangs would take twenty minutes and
/// show nothing more.
async fn all<I, F>(
    items: impl Iterator<Item = I>,
    errors: &mut BTreeMap<String, u64>,
    act: impl Fn(I) -> F,
    hopeless: fn(&io::Error) -> bool,
) -> Vec<TcpStream>
where
    F: Future<Output = io::Result<TcpStream>> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(PARALLEL));
    let mut acting = JoinSet::new();
    for item in items {
        let (permits, act) = (permits.clone(), act(item));
        acting.spawn(async move {
            let _permit = permits.acquire_owned().await;
            tokio::time::timeout(PATIENCE, act).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        });
    }
    let (mut good, mut bad) = (Vec::new(), 0);
    while let Some(done) = acting.join_next().await {
        bad += usize::from(done.as_ref().is_ok_and(|done| done.as_ref().is_err_and(hopeless)));
        match done {
            Ok(Ok(stream)) => good.push(stream),
            Ok(Err(error)) => *errors.entry(words(&error)).or_default() += 1,
            Err(error) => *errors.entry(error.to_string()).or_default() += 1,
        }
        if good.is_empty() && bad >= PARALLEL {
            break;
        }
    }
    good
}

/// Connections through a closed tunnel fail at once. That tells nothing about other connections.
fn hangs(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut
}

/// There are few kinds of errors, and their text is the same everywhere. A limit on open files has no kind.
fn words(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => format!("{error}: raise the limit on open files (ulimit -n)"),
        _ => error.kind().to_string(),
    }
}

async fn open(target: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(target).await?;
    stream.set_nodelay(true)?;
    prove(stream).await
}

async fn prove(mut stream: TcpStream) -> io::Result<TcpStream> {
    let mut byte = [0x5a];
    stream.write_all(&byte).await?;
    stream.read_exact(&mut byte).await?;
    if byte == [0x5a] { Ok(stream) } else { Err(io::ErrorKind::InvalidData.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn hopeless_failures_end_it_early() {
        let mut errors = BTreeMap::new();
        let given = |item: Option<TcpStream>| async { item.ok_or_else(|| io::ErrorKind::ConnectionRefused.into()) };
        let refused = || std::iter::repeat_with(|| None);
        assert!(all(refused().take(1000), &mut errors, given, |_| true).await.is_empty());
        assert_eq!(errors.values().sum::<u64>(), PARALLEL as u64);
        errors.clear();
        assert!(all(refused().take(1000), &mut errors, given, hangs).await.is_empty());
        assert_eq!(errors.values().sum::<u64>(), 1000, "they are gone, and do not hang");
        errors.clear();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let items = std::iter::once(Some(stream)).chain(refused().take(999));
        assert_eq!(all(items, &mut errors, given, |_| true).await.len(), 1);
        assert_eq!(errors.values().sum::<u64>(), 999, "one that was opened is hope");
    }
}
