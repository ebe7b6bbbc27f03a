//! Patterns of paths in policies, in the form that requests' paths have.

use leno_model::Name;

use super::conditions::normal;
use super::error::RuleError;
use super::path;

/// A pattern of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PathPattern {
    Any,
    Exact(Name),
    Prefix(Name),
    Suffix(Name),
    /// Pieces that stand at the beginning; with `{**}`, the text that stands at the end.
    Template(Vec<Piece>, Option<Name>),
}

/// A part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// This text.
    Text(Name),
    /// `{*}`: one segment, not empty.
    Segment,
}

/// Stands where a pattern goes on, so that the text before or behind it is read as a part of a path.
const MORE: &str = "-and-more-";

impl PathPattern {
    /// Reads a pattern as Istio writes it: `*`, `x*`, `*x`, a path, or a template with `{*}` and `{**}`.
    pub(super) fn new(text: &Name) -> Result<Self, RuleError> {
        let problem = |problem: &str| RuleError::Path { value: text.clone(), problem: problem.to_owned() };
        if text.contains(['{', '}']) {
            return Self::template(text);
        }
        Ok(match (text.strip_prefix('*'), text.strip_suffix('*')) {
            _ if &**text == "*" => Self::Any,
            (Some(_), Some(_)) => return Err(problem("a * may stand at one end only")),
            (Some(suffix), None) => {
                let whole = normal(&format!("/{MORE}{suffix}").into())?;
                let rest = whole.strip_prefix('/').and_then(|rest| rest.strip_prefix(MORE));
                Self::Suffix(rest.ok_or_else(|| problem("it leads upwards"))?.into())
            }
            (None, Some("")) => Self::Any,
            (None, Some(prefix)) => {
                let whole = normal(&format!("{prefix}{MORE}").into())?;
                Self::Prefix(whole.strip_suffix(MORE).ok_or_else(|| problem("it has no form"))?.into())
            }
            (None, None) => Self::Exact(normal(text)?),
        })
    }

    fn template(text: &Name) -> Result<Self, RuleError> {
        let problem = |problem: &str| RuleError::Path { value: text.clone(), problem: problem.to_owned() };
        let rest = text.strip_prefix('/').ok_or_else(|| problem("a template begins with a slash"))?;
        let (mut pieces, mut goes_on) = (Vec::new(), false);
        let mut literal = String::new();
        for segment in rest.split('/') {
            literal.push('/');
            match segment {
                "{*}" if goes_on => return Err(problem("behind {**} there may be only text")),
                "{**}" if goes_on => return Err(problem("{**} may stand once only")),
                "{*}" => {
                    pieces.push(Piece::Text(std::mem::take(&mut literal).into()));
                    pieces.push(Piece::Segment);
                }
                "{**}" => {
                    pieces.push(Piece::Text(std::mem::take(&mut literal).into()));
                    goes_on = true;
                }
                "" | "." | ".." => return Err(problem("a segment of a template can't be empty, . or ..")),
                other if other.contains(['{', '}', '*']) => {
                    return Err(problem("{*} and {**} stand for whole segments, and no other * goes with them"));
                }
                other => {
                    let whole = format!("/{other}");
                    let normal = path::normalise(whole.as_bytes()).map_err(|error| problem(&error.to_string()))?;
                    literal.push_str(&normal[1..]);
                }
            }
        }
        let literal = Name::from(literal);
        if goes_on {
            return Ok(Self::Template(pieces, Some(literal)));
        }
        pieces.push(Piece::Text(literal));
        Ok(Self::Template(pieces, None))
    }

    /// Whether a path, in its one form, has this pattern.
    pub(super) fn matches(&self, path: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(want) => path == &**want,
            Self::Prefix(want) => path.starts_with(&**want),
            Self::Suffix(want) => path.ends_with(&**want),
            Self::Template(pieces, behind) => {
                let Some(rest) = pieces.iter().try_fold(path, |rest, piece| piece.eat(rest)) else { return false };
                behind.as_ref().map_or(rest.is_empty(), |behind| rest.ends_with(&**behind))
            }
        }
    }
}

impl Piece {
    /// What is left of a path behind this piece; `None` if the path does not begin with it.
    fn eat<'p>(&self, path: &'p str) -> Option<&'p str> {
        match self {
            Self::Text(text) => path.strip_prefix(&**text),
            Self::Segment => {
                let end = path.find('/').unwrap_or(path.len());
                (end > 0).then(|| &path[end..])
            }
        }
    }
}

#[cfg(test)]
#[path = "path_pattern_tests.rs"]
mod tests;
