//! A CNI configuration list as text: the plugin's entry is put in and taken out again, and nothing else in it changes, not
//! even a blank.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::plugin;

/// What is in a configuration list.
#[derive(Debug, PartialEq, Eq)]
pub struct List<'a> {
    text: &'a str,
    plugins: Vec<Plugin<'a>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Plugin<'a> {
    kind: String,
    /// Where it is in the text.
    start: usize,
    text: &'a str,
}

impl Plugin<'_> {
    fn end(&self) -> usize {
        self.start + self.text.len()
    }

    fn is_ours(&self) -> bool {
        self.kind == plugin::NAME
    }
}

/// Why a text is no configuration list that a plugin can be added to.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// It is no JSON, or of another shape.
    #[error("it can't be read: {0}")]
    Unreadable(String),
    /// It has no list of plugins.
    #[error("it has one plugin and no list of them; write it as a .conflist, with a list of `plugins`")]
    NoList,
    /// The list is empty.
    #[error("its list of plugins is empty")]
    Empty,
}

#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(borrow)]
    plugins: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
struct Kind {
    #[serde(default)]
    r#type: String,
}

impl<'a> List<'a> {
    /// Reads a configuration list.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(text: &'a str) -> Result<Self, Unusable> {
        let unreadable = |error: serde_json::Error| Unusable::Unreadable(error.to_string());
        let raw: Raw<'a> = serde_json::from_str(text).map_err(unreadable)?;
        let mut plugins = Vec::new();
        for plugin in raw.plugins.ok_or(Unusable::NoList)? {
            let Kind { r#type: kind } = serde_json::from_str(plugin.get()).map_err(unreadable)?;
            // It is a part of `text`: serde lends it.
            let start = plugin.get().as_ptr() as usize - text.as_ptr() as usize;
            plugins.push(Plugin { kind, start, text: plugin.get() });
        }
        Ok(Self { text, plugins })
    }

    /// The type of the plugin that comes first, which makes the network.
    #[must_use]
    pub fn first(&self) -> Option<&str> {
        self.plugins.iter().find(|plugin| !plugin.is_ours()).map(|plugin| &*plugin.kind)
    }

    /// The text with `entry` as the last plugin, and no other entry of ours; `None` if it is like that already.
    ///
    /// # Errors
    /// [`Unusable::Empty`] if there is no plugin that makes a network.
    pub fn with(&self, entry: &str) -> Result<Option<String>, Unusable> {
        let ours: Vec<_> = self.plugins.iter().filter(|plugin| plugin.is_ours()).collect();
        if let ([one], Some(last)) = (&ours[..], self.plugins.last())
            && one.text == entry
            && last.is_ours()
            && self.plugins.len() > 1
        {
            return Ok(None);
        }
        let cleaned = self.without();
        let text = cleaned.as_deref().unwrap_or(self.text);
        let list = List::parse(text)?;
        let last = list.plugins.last().ok_or(Unusable::Empty)?;
        let (before, after) = text.split_at(last.end());
        Ok(Some(format!("{before},{}{entry}{after}", list.gap())))
    }

    /// What stands between two plugins beside the comma.
    fn gap(&self) -> &'a str {
        let before = self.plugins.last().map_or("", |last| &self.text[..last.start]);
        let blank = before.len() - before.trim_end_matches([' ', '\t', '\n', '\r']).len();
        &before[before.len() - blank..]
    }

    /// The text without the plugin; `None` if it isn't there.
    #[must_use]
    pub fn without(&self) -> Option<String> {
        let mut kept = String::with_capacity(self.text.len());
        let mut copied = 0;
        let mut previous_end = None;
        let mut removed = false;
        for (index, plugin) in self.plugins.iter().enumerate() {
            if !plugin.is_ours() {
                previous_end = Some(plugin.end());
                continue;
            }
            removed = true;
            // With the comma before it, or, if it comes first, with the one behind it.
            let from = previous_end.unwrap_or(plugin.start).max(copied);
            let to = match (previous_end, self.plugins.get(index + 1)) {
                (None, Some(next)) => next.start,
                _ => plugin.end(),
            };
            kept.push_str(&self.text[copied..from]);
            copied = to;
        }
        kept.push_str(&self.text[copied..]);
        removed.then_some(kept)
    }
}

#[cfg(test)]
#[path = "conflist_tests.rs"]
mod tests;
