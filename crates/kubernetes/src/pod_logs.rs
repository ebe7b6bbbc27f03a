//! What a container wrote, line by line.

use bytes::BytesMut;
use http_body_util::BodyExt as _;
use kube_client::client::Body;

use crate::lines::Lines;
use crate::{Client, Error};

/// Longest line that is kept whole, bytes; the container runtime cuts at 16 KiB by itself.
const MAX_LINE: usize = 1 << 20;

/// Which lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Go on with what is written from now on.
    pub follow: bool,
    /// Only so many at the end of what there is.
    pub tail: Option<usize>,
    /// Only what was written within so many seconds.
    pub since_seconds: Option<u64>,
    /// Those of the container's last run instead, which ended.
    pub previous: bool,
}

impl LogQuery {
    fn path(&self, namespace: &str, pod: &str, container: &str) -> String {
        let mut path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/log?container={container}&timestamps=true");
        if self.follow {
            path.push_str("&follow=true");
        }
        if self.previous {
            path.push_str("&previous=true");
        }
        if let Some(lines) = self.tail {
            path.push_str(&format!("&tailLines={lines}"));
        }
        if let Some(seconds) = self.since_seconds {
            // The API server takes no zero.
            path.push_str(&format!("&sinceSeconds={}", seconds.max(1)));
        }
        path
    }
}

/// Lines of a container's log, each with the time at which it was written before it: `2026-11-25T04:50:00.123456789Z TEXT`.
pub struct PodLog {
    client: Client,
    body: Body,
    lines: Lines,
    ended: bool,
}

impl std::fmt::Debug for PodLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PodLog").finish_non_exhaustive()
    }
}

impl Client {
    /// Begins to read a container's log.
    ///
    /// # Errors
    /// As all requests: if the API server can't be reached or refuses, or there is no such container.
    pub async fn log(&self, namespace: &str, pod: &str, container: &str, query: &LogQuery) -> Result<PodLog, Error> {
        let body = self.stream(&query.path(namespace, pod, container)).await?;
        Ok(PodLog { client: self.clone(), body, lines: Lines::default(), ended: false })
    }
}

impl PodLog {
    /// The next line, without its end; `None` after the last one.
    ///
    /// # Errors
    /// If the connection breaks.
    pub async fn next(&mut self) -> Result<Option<String>, Error> {
        loop {
            if let Some(line) = self.lines.next() {
                return Ok(Some(text(&line)));
            }
            // A line without an end: the last one, or one that is far too long.
            if self.ended || self.lines.len() > MAX_LINE {
                return Ok(self.lines.rest().map(|line| text(&line)));
            }
            match self.body.frame().await {
                Some(frame) => {
                    let frame = frame.map_err(|error| self.client.unreachable(error))?;
                    self.lines.push(&frame.into_data().unwrap_or_default());
                }
                None => self.ended = true,
            }
        }
    }
}

fn text(line: &BytesMut) -> String {
    String::from_utf8_lossy(line).trim_end_matches(['\n', '\r']).to_owned()
}
