//! A program that opens many connections at once and keeps them.

use crate::dialogue::Dialogue;
use crate::stage::{Stage, eventually};

/// Opens so many connections, says something on each, and keeps those on which it is said back. What has become of them is
/// printed for each line on standard input.
const PROGRAM: &str = r#"
import asyncio, json, sys, threading
host, port, count, word = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].encode()
state = ["waiting"] * count
async def one(i):
    try:
        r, w = await asyncio.open_connection(host, port)
        w.write(word); await r.readexactly(len(word))
        state[i] = "served"
        await r.read()
    except (OSError, asyncio.IncompleteReadError): pass
    state[i] = "ended" if state[i] == "served" else "refused"
def orders():
    for _ in sys.stdin: print(json.dumps({how: state.count(how) for how in ("waiting", "served", "ended", "refused")}), flush=True)
async def main():
    threading.Thread(target=orders, daemon=True).start()
    await asyncio.gather(*(one(i) for i in range(count)))
    await asyncio.Event().wait()
asyncio.run(main())"#;

/// The program. Its connections end when this is dropped.
pub(crate) struct Crowd(Dialogue);

/// What has become of its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub(crate) struct State {
    /// Nothing yet.
    pub(crate) waiting: usize,
    pub(crate) served: usize,
    /// Cut after they had been served.
    pub(crate) ended: usize,
    pub(crate) refused: usize,
}

impl Crowd {
    /// `count` connections of a pod to a server that listens on port 7000 and says back what it is told, which is `word`.
    pub(crate) fn come(stage: &Stage, pod: &str, host: &str, count: usize, word: &str) -> Self {
        let count = count.to_string();
        Self(Dialogue::of_python(stage, pod, PROGRAM, &[host, "7000", &count, word]))
    }

    /// What has become of them by now.
    pub(crate) fn state(&mut self) -> State {
        self.0.told()
    }

    /// Waits until it is as wanted.
    #[track_caller]
    pub(crate) fn wait(&mut self, what: &str, wanted: impl Fn(State) -> bool) -> State {
        eventually(what, || {
            let state = self.state();
            if wanted(state) { Ok(state) } else { Err(format!("{state:?}")) }
        })
    }
}
