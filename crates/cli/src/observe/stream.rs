//! Reading the proxies' streams of connections, all at once.

use std::time::Duration;

use leno_local::client::NodePort;
use leno_telemetry::observe::{self, Event};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::sync::mpsc;

use crate::proxy_page;
use crate::target::Source;

/// A proxy that follows says something every second; one that is silent for so long is stopped or gone.
const SILENCE: Duration = Duration::from_secs(15);

/// Pause before a proxy that is gone is looked for again.
const AGAIN: Duration = Duration::from_millis(500);

/// What comes from a node.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) node: String,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    Event(Event),
    /// Its proxy has no such stream, and why.
    NoStream(String),
    /// The stream was lost; another one is being looked for.
    Lost(String),
    /// It tells again.
    Again,
    /// All that was asked for is told.
    End,
}

/// Reads the streams of `nodes`. If `follow` is set, it goes on, also when a proxy is followed by another one.
pub(super) fn read<S: Source>(source: &S, nodes: &[String], query: &str, follow: bool) -> mpsc::Receiver<Told> {
    // What is not taken waits in the proxies, which drop and count what is too much.
    let (told, receiver) = mpsc::channel(256);
    for node in nodes {
        let reader = Reader { source: source.clone(), node: node.clone(), told: told.clone() };
        tokio::spawn(reader.read(format!("{}?{query}", observe::PATH), follow));
    }
    receiver
}

struct Reader<S> {
    source: S,
    node: String,
    told: mpsc::Sender<Told>,
}

/// How a stream ended.
enum Ended {
    /// The node proxy ended the stream in good order.
    Well,
    /// The node proxy has no such stream.
    None(String),
    /// Too early.
    Early(String),
    /// Nobody wants to know.
    Unwanted,
}

impl<S: Source> Reader<S> {
    async fn read(self, path: String, follow: bool) {
        let mut was_lost = false;
        loop {
            let ended = match self.once(&path, &mut was_lost).await {
                Ok(ended) => ended,
                Err(error) => Ended::Early(format!("{error:#}")),
            };
            let last = match ended {
                Ended::Unwanted => return,
                Ended::Well if !follow => What::End,
                Ended::None(reason) => What::NoStream(reason),
                Ended::Early(reason) if !follow => What::NoStream(reason),
                Ended::Well | Ended::Early(_) => {
                    let reason = match ended {
                        Ended::Early(reason) => reason,
                        _ => "its stream ended".to_owned(),
                    };
                    if let Some(error) = self.source.gone().await {
                        self.tell(What::NoStream(format!("{error:#}"))).await;
                        return;
                    }
                    if !std::mem::replace(&mut was_lost, true) && !self.tell(What::Lost(reason)).await {
                        return;
                    }
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
            };
            self.tell(last).await;
            return;
        }
    }

    async fn tell(&self, what: What) -> bool {
        self.told.send(Told { node: self.node.clone(), what }).await.is_ok()
    }

    async fn once(&self, path: &str, was_lost: &mut bool) -> anyhow::Result<Ended> {
        let stream = self.source.dial(&self.node, NodePort::Admin).await?;
        let page = tokio::time::timeout(SILENCE, proxy_page::open(stream, path)).await??;
        if page.status != 200 {
            return Ok(Ended::None(format!(
                "its proxy has no stream of connections (HTTP status {}): it is a ztunnel, or an older Leno",
                page.status
            )));
        }
        let mut lines = BufReader::new(page.body).lines();
        loop {
            let next = tokio::time::timeout(SILENCE, lines.next_line()).await;
            let Some(line) = next.map_err(|_| anyhow::anyhow!("its proxy says nothing"))?? else {
                return Ok(Ended::Well);
            };
            if line.is_empty() {
                continue;
            }
            // A newer proxy may tell of what this version does not know.
            let Ok(event) = serde_json::from_str(&line) else { continue };
            if std::mem::replace(was_lost, false) && !self.tell(What::Again).await {
                return Ok(Ended::Unwanted);
            }
            if !self.tell(What::Event(event)).await {
                return Ok(Ended::Unwanted);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;

    /// A cluster whose API server is away for the second and the third attempt, and whose proxies are gone after the fourth.
    #[derive(Clone, Default)]
    struct Away(Arc<AtomicUsize>);

    impl Source for Away {
        type Stream = DuplexStream;

        async fn nodes(&self) -> anyhow::Result<Vec<String>> {
            Ok(vec!["n1".to_owned()])
        }

        async fn waypoints(&self) -> anyhow::Result<Vec<String>> {
            Ok(Vec::new())
        }

        async fn gone(&self) -> Option<anyhow::Error> {
            (self.0.load(Relaxed) >= 4).then(|| anyhow::anyhow!("no node proxies run"))
        }

        async fn dial(&self, _: &str, _: NodePort) -> anyhow::Result<DuplexStream> {
            let attempt = self.0.fetch_add(1, Relaxed) + 1;
            anyhow::ensure!(!(2..=3).contains(&attempt), "the API server does not answer");
            let (ours, mut theirs) = tokio::io::duplex(4096);
            tokio::spawn(async move {
                let mut asked = [0; 16];
                let _ = theirs.read(&mut asked).await;
                let _ = theirs.write_all(b"HTTP/1.0 200 OK\r\n\r\n{\"event\":\"now\"}\n").await;
            });
            Ok(ours)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_follows_goes_on_when_the_api_server_is_back_and_says_so() {
        let mut told = read(&Away::default(), &["n1".to_owned()], "follow=true", true);
        let mut heard = Vec::new();
        while let Some(told) = told.recv().await {
            heard.push(match told.what {
                What::Event(_) => "event".to_owned(),
                What::Lost(reason) => format!("lost: {reason}"),
                What::Again => "again".to_owned(),
                What::NoStream(reason) => format!("gone: {reason}"),
                What::End => "end".to_owned(),
            });
        }
        let expected = ["event", "lost: its stream ended", "again", "event", "gone: no node proxies run"];
        assert_eq!(heard, expected);
    }
}
