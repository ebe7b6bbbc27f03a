//! An explanation as text for a terminal.

use std::fmt;

use crate::explain::Explanation;
use crate::explain_endpoint::{EndpointExplanation, NOT_UNDERSTOOD, Outcome, Party, Path, PolicyCheck, UNKNOWN};
use crate::explain_groups;
use crate::explain_request::{AtWaypoint, Backend, Line, PolicyAsked, Refused, RuleFollowed};

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.workload)?;
        if !self.node.is_empty() {
            write!(f, " on {}", self.node)?;
        }
        match &self.identity {
            Some(identity) => write!(f, " ({identity})"),
            None => f.write_str(" (not in the mesh)"),
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hbone { tunnel, authority, expected, via_waypoint } => {
                let peer = if *via_waypoint { "the waypoint" } else { "the peer" };
                let expected = expected.join(" or ");
                write!(f, "HBONE (mTLS) to {tunnel}, asking for {authority}; {peer} must prove to be {expected}")
            }
            Self::Plaintext { reason } => write!(f, "plaintext, because {reason}"),
        }
    }
}

impl fmt::Display for PolicyCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, action, .. } = self;
        let matched = if self.matched { "matches" } else { "does not match" };
        let trial = if self.dry_run { ", dry run" } else { "" };
        match *action {
            UNKNOWN => write!(f, "{policy}: not arrived"),
            NOT_UNDERSTOOD => write!(f, "{policy}: not understood{trial}"),
            action => write!(f, "{action} {policy}: {matched}{trial}"),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Mixed => "depends on the endpoint",
            Self::Refused => "refused",
            Self::Undecided => "passes in the clear, out of the mesh; no policy is asked",
            Self::AtWaypoint => {
                "its waypoint decides about each request, and it is encrypted up to there and from there on"
            }
            Self::AnsweredByRoute => "answered by a route, without an endpoint",
            Self::PassesBy => "passes by, unencrypted; no policy is asked",
            Self::Answered => "answered by the source's own proxy",
        })
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = if self.transport == "udp" { "/udp" } else { "" };
        writeln!(f, "{} to {}{transport}: {}", self.source, self.destination, self.outcome)?;
        for step in &self.steps {
            writeln!(f, "  {step}")?;
        }
        if let Some(reason) = &self.refused {
            writeln!(f, "  refused: {reason}")?;
        }
        f.write_str(&explain_groups::endpoints(&self.endpoints))?;
        match &self.at_waypoint {
            Some(at_waypoint) => at_waypoint.fmt(f),
            None => Ok(()),
        }
    }
}

impl fmt::Display for AtWaypoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.request {
            Some(Line { method, host, path }) => writeln!(f, "at the waypoint, {method} {path} of host {host}")?,
            None => writeln!(f, "at the waypoint")?,
        }
        if let Some(refused) = &self.refused {
            writeln!(f, "  {refused}")?;
        }
        if let Some(verdict) = &self.verdict {
            writeln!(f, "  policies: {verdict}")?;
        }
        for policy in &self.policies {
            writeln!(f, "    {policy}")?;
        }
        for logged in &self.logged {
            writeln!(f, "    only logged: {logged}")?;
        }
        if let Some(RuleFollowed { rule, matched, .. }) = &self.rule {
            writeln!(f, "  route: {rule}, match {matched}")?;
        }
        if let Some(answer) = &self.answer {
            writeln!(f, "  the route answers with status {}", answer.status)?;
            for (name, value) in &answer.headers {
                writeln!(f, "    {name}: {value}")?;
            }
        }
        for note in &self.notes {
            writeln!(f, "  note: {note}")?;
        }
        for backend in &self.backends {
            backend.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(f, "refused with status {status}: {}", self.reason),
            None => write!(f, "refused: {}", self.reason),
        }
    }
}

impl fmt::Display for PolicyAsked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, action, rule, dry_run } = self;
        match rule {
            Some(rule) => write!(f, "{action} {policy}: rule {rule} matches")?,
            None => write!(f, "{action} {policy}: does not match")?,
        }
        if *dry_run { f.write_str(", dry run") } else { Ok(()) }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from the waypoint to {}", self.to)?;
        let (weight, total) = self.share;
        if weight < total {
            write!(f, ", weight {weight} of {total}")?;
        }
        writeln!(f)?;
        for policy in &self.policies {
            writeln!(f, "  policy of the Service: {policy}")?;
        }
        if let Some(path) = &self.path {
            writeln!(f, "  with the path {path}")?;
        }
        if let Some(host) = &self.host {
            writeln!(f, "  with the host {host}")?;
        }
        if let Some(refused) = &self.refused {
            writeln!(f, "  {refused}")?;
        }
        f.write_str(&explain_groups::endpoints(&self.endpoints))
    }
}

impl fmt::Display for EndpointExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.workload {
            Some(workload) => writeln!(f, "endpoint {} at {workload}", self.address)?,
            None => writeln!(f, "endpoint {}", self.address)?,
        }
        writeln!(f, "  path: {}", self.path)?;
        if let Some(reason) = &self.refused {
            writeln!(f, "  refused: {reason}")?;
        }
        if let Some(arrival) = &self.arrival {
            writeln!(f, "  on arrival: {}", arrival.verdict)?;
            for check in &arrival.policies {
                writeln!(f, "    {check}")?;
                for note in &check.notes {
                    writeln!(f, "      {note}")?;
                }
            }
            for note in &arrival.dry_run {
                writeln!(f, "    {note}")?;
            }
        }
        for note in &self.notes {
            writeln!(f, "  note: {note}")?;
        }
        Ok(())
    }
}
