//! The logs of a cluster's installation: what its parts wrote, merged by time, each line with the part's name.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, bail};
use leno_kubernetes::LogQuery;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::args::LogsArgs;
use crate::output;
use crate::target::{ClusterNodes, Part};

/// How long a line waits for earlier ones of other parts. The node's runtime tells a line within a few milliseconds.
const ORDER: Duration = Duration::from_millis(400);
/// How often it is looked for parts that are new, or were started again.
const LOOK: Duration = Duration::from_secs(2);

/// Where lines come from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Origin {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) container: String,
    /// What it is called in front of each line.
    pub(crate) label: String,
    /// How often it was started again: each start is a log of its own.
    pub(crate) restarts: u64,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    /// When it was written, RFC 3339 in UTC with nine digits after the point.
    time: String,
    /// So that lines of one moment stay in their order.
    number: u64,
    label: String,
    text: String,
}

/// Prints the logs of the parts that were asked for.
pub(super) async fn print(nodes: &ClusterNodes, args: &LogsArgs) -> anyhow::Result<()> {
    if args.follow {
        return follow(nodes, args).await;
    }
    let query = query(args);
    let mut lines = Vec::new();
    for origin in origins(nodes, args).await? {
        match read(nodes, &origin, &query).await {
            Ok(read) => lines.extend(read),
            // One that waits for its image has no log, and must not hide those of the others.
            Err(error) => eprintln!("{}: {error:#}", origin.label),
        }
    }
    lines.sort();
    let skipped = args.tail.map_or(0, |tail| lines.len().saturating_sub(tail));
    let text: String = lines.iter().skip(skipped).map(printed).collect();
    output::bytes(text.as_bytes())
}

fn query(args: &LogsArgs) -> LogQuery {
    let since_seconds = args.since.map(|since| since.as_secs());
    LogQuery { follow: args.follow, tail: args.tail, since_seconds, previous: false }
}

/// The containers whose logs are wanted.
async fn origins(nodes: &ClusterNodes, args: &LogsArgs) -> anyhow::Result<Vec<Origin>> {
    if let Some(pod) = &args.pod {
        return of_pod(nodes, &pod.namespace, &pod.name, args.container.as_deref()).await;
    }
    let parts = nodes.parts().await?;
    let wanted: Vec<_> = parts.iter().filter(|part| args.node.as_ref().is_none_or(|node| part.node == *node)).collect();
    match &args.node {
        Some(node) if wanted.is_empty() => {
            let known: BTreeSet<_> = parts.iter().map(|part| part.node.as_str()).collect();
            bail!("nothing of Leno runs on {node}; it does on {}", known.into_iter().collect::<Vec<_>>().join(", "))
        }
        None if wanted.is_empty() => bail!("nothing of Leno runs in namespace {}", nodes.namespace()),
        _ => {}
    }
    Ok(wanted.into_iter().flat_map(|part| origins_of(nodes, part)).collect())
}

/// Those of one part.
pub(crate) fn origins_of(nodes: &ClusterNodes, part: &Part) -> Vec<Origin> {
    let origins = part.containers.iter().map(|(container, restarts)| Origin {
        namespace: nodes.namespace().to_owned(),
        pod: part.pod.clone(),
        container: container.clone(),
        label: part.label(),
        restarts: *restarts,
    });
    origins.collect()
}

/// Those of any pod, for who is used to `leno logs NS/POD`.
async fn of_pod(nodes: &ClusterNodes, namespace: &str, pod: &str, wanted: Option<&str>) -> anyhow::Result<Vec<Origin>> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
    let object = nodes.client().find::<serde_json::Value>(&path).await?;
    let object =
        object.with_context(|| format!("there is no pod {namespace}/{pod}; `kubectl logs` also takes deployments"))?;
    let names = object["spec"]["containers"].as_array().into_iter().flatten().filter_map(|one| one["name"].as_str());
    let names: Vec<_> = names.collect();
    if let Some(wanted) = wanted.filter(|wanted| !names.contains(wanted)) {
        bail!("{namespace}/{pod} has no container {wanted}; it has {}", names.join(", "));
    }
    let several = names.len() > 1;
    let chosen = names.iter().filter(|name| wanted.is_none_or(|wanted| wanted == **name));
    let origins = chosen.map(|container| Origin {
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
        container: (*container).to_owned(),
        label: if several { format!("{namespace}/{pod} {container}") } else { format!("{namespace}/{pod}") },
        restarts: 0,
    });
    Ok(origins.collect())
}

async fn read(nodes: &ClusterNodes, origin: &Origin, query: &LogQuery) -> anyhow::Result<Vec<Line>> {
    let log = nodes.client().log(&origin.namespace, &origin.pod, &origin.container, query).await;
    let mut log = log.with_context(|| format!("reading the log of {}", origin.label))?;
    let mut lines = Vec::new();
    while let Some(line) = log.next().await? {
        lines.push(parsed(&line, &origin.label, lines.len() as u64));
    }
    Ok(lines)
}

/// The log of one container as text, for a file.
pub(crate) async fn whole(nodes: &ClusterNodes, origin: &Origin, query: &LogQuery) -> anyhow::Result<String> {
    Ok(read(nodes, origin, query).await?.iter().map(|line| format!("{} {}\n", line.time, line.text)).collect())
}

fn parsed(line: &str, label: &str, number: u64) -> Line {
    let (time, text) = line.split_once(' ').unwrap_or(("", line));
    // Times that end in zeros are written shorter, and would sort wrongly.
    let time = match time.strip_suffix('Z').and_then(|time| time.split_once('.')) {
        Some((seconds, fraction)) => format!("{seconds}.{fraction:0<9}Z"),
        None => time.to_owned(),
    };
    // Leno's own lines begin with a time, too.
    let own = text
        .split_once([' ', '\t'])
        .filter(|(first, _)| first.len() >= 20 && first.ends_with('Z') && first.contains('T'));
    let text = own.map_or(text, |(_, rest)| rest.trim_start());
    Line { time, number, label: label.to_owned(), text: text.to_owned() }
}

fn printed(line: &Line) -> String {
    // Milliseconds are enough for a person.
    let time = line.time.get(..23).map_or_else(|| line.time.clone(), |time| format!("{time}Z"));
    format!("{time} {} {}\n", line.label, line.text)
}

/// Goes on, also with parts that come later.
async fn follow(nodes: &ClusterNodes, args: &LogsArgs) -> anyhow::Result<()> {
    let (sender, mut receiver) = mpsc::channel(1024);
    let mut known = BTreeSet::new();
    let mut streams = JoinSet::new();
    let mut complained = BTreeSet::new();
    let mut waiting: BTreeMap<Line, Instant> = BTreeMap::new();
    let mut number = 0;
    let mut look = tokio::time::interval(LOOK);
    let mut query = query(args);
    let mut first = true;
    loop {
        let due = waiting.values().min().copied();
        tokio::select! {
            _ = look.tick() => {
                let origins = match origins(nodes, args).await {
                    Err(error) if first => return Err(error),
                    // The API server may be away for a moment.
                    Err(_) => Vec::new(),
                    Ok(origins) => origins,
                };
                for origin in origins.into_iter().filter(|origin| known.insert(origin.clone())) {
                    streams.spawn(stream(nodes.clone(), origin, query.clone(), sender.clone()));
                }
                // Of what starts later, all is new.
                first = false;
                query.tail = None;
                query.since_seconds = None;
            }
            Some(Ok((origin, failed))) = streams.join_next() => {
                // One that waits for its image, or whose stream broke, is asked again at the next look.
                let Some(error) = failed else { continue };
                if complained.insert(origin.clone()) {
                    eprintln!("{}: its log can't be read now: {error}", origin.label);
                }
                known.remove(&origin);
            }
            line = receiver.recv() => {
                let Some((label, text)) = line else { return Ok(()) };
                number += 1;
                waiting.insert(parsed(&text, &label, number), Instant::now() + ORDER);
            }
            () = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            } => {
                let now = Instant::now();
                let last = waiting.iter().filter(|(_, due)| **due <= now).map(|(line, _)| line.clone()).next_back();
                // Earlier lines go with it, however late they came.
                let Some(last) = last else { continue };
                let later: BTreeMap<_, _> = waiting.split_off(&last);
                let mut text: String = waiting.keys().map(printed).collect();
                text.push_str(&printed(&last));
                waiting = later.into_iter().filter(|(line, _)| *line != last).collect();
                output::bytes(text.as_bytes())?;
            }
        }
    }
}

/// Passes on the lines of a log until it ends. Returns why it can't be read, if so.
async fn stream(
    nodes: ClusterNodes,
    origin: Origin,
    query: LogQuery,
    lines: mpsc::Sender<(String, String)>,
) -> (Origin, Option<leno_kubernetes::Error>) {
    let read = async {
        let mut log = nodes.client().log(&origin.namespace, &origin.pod, &origin.container, &query).await?;
        while let Some(line) = log.next().await? {
            if lines.send((origin.label.clone(), line)).await.is_err() {
                break;
            }
        }
        Ok::<_, leno_kubernetes::Error>(())
    };
    let failed = read.await.err();
    (origin, failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_several_parts_are_ordered_by_their_times() {
        let mut lines = [
            parsed("2026-11-25T04:50:00.2Z 2026-11-25T04:50:00.199000Z  INFO ready", "node/n1", 1),
            parsed("2026-11-25T04:50:00.123456789Z plain words", "agent/n1", 0),
            parsed("2026-11-25T04:50:00.2Z 2026-11-25T04:50:00.199999Z\tinfo\tnext", "node/n1", 2),
        ];
        lines.sort();
        let text: String = lines.iter().map(printed).collect();
        assert_eq!(
            text,
            "2026-11-25T04:50:00.123Z agent/n1 plain words\n2026-11-25T04:50:00.200Z node/n1 INFO ready\n\
             2026-11-25T04:50:00.200Z node/n1 info\tnext\n"
        );
    }
}
