//! A program in the mesh that does the same all the time, while something is done to those who carry it: it opens connections at
//! a steady rate, asks for a name, and uses one connection that it keeps.

use crate::clear::CANARY;
use crate::dialogue::Dialogue;
use crate::stage::{PATIENCE, Stage};
use crate::topology::{Readiness, Server};

/// Answers each connection with what it says.
pub(crate) const ECHO: Server<'static> = Server {
    name: "echo",
    node: "node-2",
    port: 7000,
    readiness: Readiness::Accepts,
    command: r#"exec /usr/bin/python3 -c '
import asyncio
async def serve(r, w):
    try:
        while data := await r.read(65536): w.write(data); await w.drain()
    except OSError: pass
    w.close()
async def main():
    async with await asyncio.start_server(serve, port=7000, backlog=1024) as s: await s.serve_forever()
asyncio.run(main())'"#,
};

/// Opens connections at a steady rate, each for one exchange, resolves a name all the time, and keeps one connection open.
/// Each line on standard input is answered with what it has seen since the last one. All that it says is one word.
const CLIENT: &str = r#"
import asyncio, json, socket, sys, threading, time
name, rate, word = sys.argv[1], float(sys.argv[2]), sys.argv[3].encode()
address = socket.gethostbyname(name)
none = lambda: dict(begun=0, opened=0, failed=[], slowest=0.0, asked=0, unanswered=[], slowest_answer=0.0, kept=0, lost=[])
seen, running = none(), set()
async def one():
    begun = time.monotonic()
    try:
        async with asyncio.timeout(30):
            r, w = await asyncio.open_connection(address, 7000)
            w.write(word); assert await r.readexactly(len(word)) == word
            w.close()
        seen["opened"] += 1
    except Exception as e: seen["failed"].append(repr(e))
    seen["slowest"] = max(seen["slowest"], time.monotonic() - begun)
async def kept():
    try:
        r, w = await asyncio.open_connection(address, 7000)
        while True:
            w.write(word); assert await r.readexactly(len(word)) == word
            seen["kept"] += 1; await asyncio.sleep(0.02)
    except Exception as e: seen["lost"].append(repr(e))
def names():
    while True:
        begun = time.monotonic()
        try: socket.getaddrinfo(name, 7000, socket.AF_INET); seen["asked"] += 1
        except OSError as e: seen["unanswered"].append(repr(e))
        seen["slowest_answer"] = max(seen["slowest_answer"], time.monotonic() - begun)
        time.sleep(0.01)
def orders():
    for _ in sys.stdin:
        told = json.dumps(seen | dict(at_once=len(running)))
        seen.update(none())
        print(told, flush=True)
async def main():
    for work in names, orders: threading.Thread(target=work, daemon=True).start()
    keeping = asyncio.create_task(kept())
    due = time.monotonic()
    while True:
        due += 1 / rate
        await asyncio.sleep(max(0, due - time.monotonic()))
        seen["begun"] += 1
        task = asyncio.create_task(one()); running.add(task); task.add_done_callback(running.discard)
asyncio.run(main())"#;

/// The program, in `mesh/far`.
pub(crate) struct Client(Dialogue);

/// What it has seen.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct Seen {
    pub(crate) begun: usize,
    pub(crate) opened: u32,
    pub(crate) failed: Vec<String>,
    pub(crate) slowest: f64,
    pub(crate) asked: u32,
    pub(crate) unanswered: Vec<String>,
    pub(crate) slowest_answer: f64,
    pub(crate) kept: u32,
    pub(crate) lost: Vec<String>,
    /// Connections that are open or being opened now, without the kept one.
    pub(crate) at_once: usize,
}

impl Client {
    /// A hundred connections a second; five hundred where the machine is reserved for the test.
    pub(crate) fn start(stage: &Stage) -> Self {
        let is_soak = std::env::var_os("LENO_SOAK").is_some();
        Self::at(stage, if is_soak { 500 } else { 100 })
    }

    /// So many connections a second.
    pub(crate) fn at(stage: &Stage, rate: u32) -> Self {
        let rate = rate.to_string();
        Self(Dialogue::of_python(stage, "mesh/far", CLIENT, &["echo.mesh", &rate, CANARY]))
    }

    /// What the client has seen since the last question.
    pub(crate) fn seen(&mut self) -> Seen {
        self.0.told()
    }

    /// What the client sees until it has opened this many more connections, got DNS answers, and used the kept connection.
    #[track_caller]
    pub(crate) fn watch(&mut self, connections: u32) -> Seen {
        let all = self.seen();
        self.watch_on(all, connections)
    }

    /// The same, with what it has seen already.
    #[track_caller]
    pub(crate) fn watch_on(&mut self, mut all: Seen, connections: u32) -> Seen {
        let begun = std::time::Instant::now();
        while all.opened < connections || all.asked < 10 || (all.kept < 10 && all.lost.is_empty()) {
            assert!(begun.elapsed() < PATIENCE, "{all:?}");
            std::thread::sleep(std::time::Duration::from_millis(50));
            all.add(self.seen());
        }
        all
    }
}

impl Seen {
    pub(crate) fn add(&mut self, more: Self) {
        self.begun += more.begun;
        self.opened += more.opened;
        self.asked += more.asked;
        self.kept += more.kept;
        self.slowest = self.slowest.max(more.slowest);
        self.slowest_answer = self.slowest_answer.max(more.slowest_answer);
        self.failed.extend(more.failed);
        self.unanswered.extend(more.unanswered);
        self.lost.extend(more.lost);
        self.at_once = more.at_once;
    }
}
