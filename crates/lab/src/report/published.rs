//! Figures that others have published for conditions like those of a step, and their weaknesses.
//!
//! The figures stand beside the lab's own to show proportions. Single numbers can't be compared: machines, networks and
//! the programs behind the mesh differ.

use serde::{Deserialize, Serialize};

const FIGURES: &str = include_str!("../../data/published.csv");

/// A study.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Study {
    /// Start of the keys of its figures.
    prefix: &'static str,
    /// Authors, title, year.
    pub title: &'static str,
    /// How it was measured.
    pub method: &'static str,
    /// What a reader must know before relying on them.
    pub faults: &'static [&'static str],
}

const STUDIES: [Study; 3] = [
    Study {
        prefix: "iperf-",
        title: "John Howard: Istio: the highest-performance solution for network security, istio.io, March 2025",
        method: "iperf3 with one connection, 10 s, mean of 3 consecutive runs; 16-core x86, Linux 6.13",
        faults: &[
            "no figure without a mesh, so no ratio can be formed",
            "no processor time: what a gigabit per second costs is not told",
            "the network between the nodes is not named; kernel tunnels without offload look worse than on bare metal",
            "one stream only, which does not use the kernel's several cores for WireGuard",
            "the numbers were read from charts; scripts and manifests were not published",
        ],
    },
    Study {
        prefix: "shulyak-",
        title: "Shulyak, Savenko: comparison of service meshes with Emojivoto and wrk2, 2022",
        method: "wrk2, 96 threads, stages of 50, 450 and 3500 requests/s against 10 Emojivoto instances; mean of 5 runs; \
                 Istio 1.11.4, Linkerd 2.11.1, Traefik Mesh 1.4.4",
        faults: &[
            "Traefik Mesh has no mutual TLS: the paper compares encrypted with plain",
            "in three runs of the first stage Istio's maximum is below its p99, which no distribution allows",
            "some control plane figures of Traefik Mesh are identical to the last digit in two stages",
            "numbers in the text differ from those in the tables",
            "every client walks the same list of addresses in lock-step and reconnects every 20 requests: latencies hold \
             queueing and handshakes, and the application's own two calls",
            "at 50 requests/s waking up dominates: p50 is higher there than at 3500 requests/s",
        ],
    },
    Study {
        prefix: "livewyer-",
        title: "LiveWyer: comparison of Istio, Linkerd and Cilium, reports 1 and 2, April to June 2024",
        method: "oha, 32, 64 and 128 connections at a time, a new one for each of 300 000 requests to Bookinfo on EKS, c5.large; \
                 Istio 1.20.3 and 1.22.0, Linkerd 2.14, Cilium 1.15.1",
        faults: &[
            "the application is one Python process that ends at about 157 requests/s: it is the application that was measured, \
             and the processor time that the mesh took from it",
            "closed loop: latency is the number of connections divided by the rate, and nothing else",
            "two baselines under the same conditions differ by 9 %, more than some of the meshes do",
            "ambient ran without a waypoint, so only at layer 4; the sidecars at layer 7",
            "ranges in the text do not agree with the published numbers",
        ],
    },
];

/// One published figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// Condition.
    pub key: String,
    /// The system that was measured.
    pub system: String,
    /// Figure.
    pub metric: String,
    /// Its value as published.
    pub value: f64,
    /// Its unit.
    pub unit: String,
}

/// The figures under a condition, in the order of the file.
#[must_use]
pub(super) fn figures(key: &str) -> Vec<Published> {
    FIGURES
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields = fields(line);
            let [found, system, metric, value, unit] = fields.as_slice() else { return None };
            (found == key).then(|| Published {
                key: found.clone(),
                system: system.clone(),
                metric: metric.clone(),
                value: value.parse().unwrap_or(f64::NAN),
                unit: unit.clone(),
            })
        })
        .collect()
}

/// The study that a condition belongs to.
#[must_use]
pub fn study(key: &str) -> Option<&'static Study> {
    STUDIES.iter().find(|study| key.starts_with(study.prefix))
}

/// Splits a line of RFC 4180's format; no field spans lines here.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    for (index, piece) in line.split('"').enumerate() {
        if index > 0 {
            quoted = !quoted;
        }
        if quoted {
            if let Some(field) = fields.last_mut() {
                field.push_str(piece);
            }
            continue;
        }
        for (number, part) in piece.split(',').enumerate() {
            if number > 0 {
                fields.push(String::new());
            }
            if let Some(field) = fields.last_mut() {
                field.push_str(part);
            }
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Size, all};

    #[test]
    fn every_line_is_whole_and_belongs_to_a_study() {
        for line in FIGURES.lines().skip(1) {
            let fields = fields(line);
            assert_eq!(fields.len(), 5, "{line}");
            assert!(fields[3].parse::<f64>().is_ok_and(|value| value > 0.0), "{line}");
            assert!(study(&fields[0]).is_some(), "{line}");
        }
        assert_eq!(fields(r#"a,"b, c",d"#), ["a", "b, c", "d"]);
    }

    #[test]
    fn steps_refer_to_what_there_is() {
        let keys: Vec<_> =
            all(Size::Full).into_iter().flat_map(|one| one.steps).filter_map(|step| step.published).collect();
        assert_eq!(keys.len(), 6 + 6 + 6);
        for key in keys {
            assert!(figures(key).len() >= 3, "{key}");
        }
        let ambient = figures("iperf-across-nodes").into_iter().find(|one| one.system.contains("ambient")).unwrap();
        assert_eq!((ambient.value, ambient.unit.as_str()), (28.6, "Gbit/s"));
    }
}
