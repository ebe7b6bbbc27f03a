//! The usual slips in how YAML is laid out on its lines. Each search returns the first one it finds, with its fix.

/// A slip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// Line of the file, from 1.
    pub line: usize,
    /// Column, from 1; 0 for the whole line.
    pub column: usize,
    /// The problem and what to do.
    pub text: String,
}

/// Fields that an object begins with: a second one of them at the left edge begins a second object.
const BEGINNINGS: [&str; 2] = ["apiVersion", "kind"];

/// A template's braces: on line `only`, or on the first line that has them outside of quotes and comments.
pub(super) fn template(lines: &[&str], only: Option<usize>) -> Option<Found> {
    let candidates = lines.iter().enumerate().filter(|(index, line)| match only {
        Some(only) => index + 1 == only && line.contains("}}"),
        None => !line.trim_start().starts_with('#'),
    });
    for (index, line) in candidates {
        let Some(at) = line.find("{{") else { continue };
        // A flow mapping in a flow mapping begins with the same two letters, and means something else.
        let inside = line[at + 2..].split_once("}}").map_or(&line[at + 2..], |(inside, _)| inside);
        let quoted = line[..at].matches(['"', '\'']).count() % 2 == 1;
        let template = inside.trim_start_matches('-').trim_start();
        let is_one = template.starts_with(['.', '$', '/'])
            || [
                "if ",
                "else",
                "end",
                "range ",
                "with ",
                "include ",
                "template ",
                "define ",
                "toYaml ",
                "tpl ",
                "printf ",
            ]
            .iter()
            .any(|word| template.starts_with(word));
        if !is_one || (quoted && only.is_none()) {
            continue;
        }
        let shown = inside.trim_matches(['-', ' ']);
        return Some(Found {
            line: index + 1,
            column: column(line, at),
            text: format!(
                "`{{{{ {shown} }}}}` is a template and this file part of a Helm chart: Leno reads finished manifests; write \
                 them with `helm template CHART > manifests.yaml` and give Leno that file"
            ),
        });
    }
    None
}

/// The key on `line` has stood in the same group of fields before.
pub(super) fn duplicate(lines: &[&str], key: &str, line: usize, column: usize) -> Found {
    let names = |text: &str| {
        let indent = text.len() - text.trim_start_matches([' ', '-']).len();
        let name = text[indent..].split(':').next().unwrap_or_default().trim_matches(['"', '\'', ' ']);
        (indent + 1, name == key)
    };
    let before = lines.iter().take(line.saturating_sub(1)).enumerate().rev();
    let first = before.filter(|(_, text)| names(text) == (column, true)).map(|(index, _)| index + 1).next();
    let first = first.map_or_else(String::new, |first| format!("; the first one is on line {first}"));
    let text = if column == 1 && BEGINNINGS.contains(&key) {
        format!("{key} stands here a second time{first}: where the next object begins, put a line `---` before it")
    } else {
        format!("{key} stands here a second time in the same group of fields{first}: remove one of the two")
    };
    Found { line, column, text }
}

/// A tab in the indentation of the first line that has one, up to the one after `line`: an error may be noticed a line earlier.
pub(super) fn tab(lines: &[&str], start: usize, line: usize) -> Option<Found> {
    let range = lines.iter().enumerate().skip(start.saturating_sub(1)).take_while(|(index, _)| *index <= line);
    for (index, text) in range {
        let indent = text.len() - text.trim_start().len();
        if let Some(at) = text[..indent].find('\t').filter(|_| !text.trim().is_empty()) {
            return Some(Found {
                line: index + 1,
                column: at + 1,
                text: "the line is indented with a tab, which YAML does not take: use spaces".to_owned(),
            });
        }
    }
    None
}

/// A `*` that is meant as text, but begins an alias in YAML.
pub(super) fn bare_star(lines: &[&str], line: usize) -> Option<Found> {
    let text = lines.get(line.checked_sub(1)?)?;
    let at = text.match_indices('*').map(|(at, _)| at).find(|at| {
        let before = text[..*at].trim_end();
        before.is_empty() || before.ends_with(['[', ',', '-', ':'])
    })?;
    let word: String = text[at..].chars().take_while(|c| !c.is_whitespace() && !matches!(c, ',' | ']' | '}')).collect();
    Some(Found {
        line,
        column: column(text, at),
        text: format!("a value that begins with `*` has to be in quotes: \"{word}\""),
    })
}

/// A bracket or a quote that is opened and never closed.
pub(super) fn unclosed(lines: &[&str], start: usize, line: usize) -> Option<Found> {
    let mut open: Vec<(char, usize, usize)> = Vec::new();
    for (index, text) in lines.iter().enumerate().skip(start.saturating_sub(1)) {
        let mut before = ' ';
        let mut quote: Option<(char, usize)> = None;
        for (at, letter) in text.char_indices() {
            match quote {
                Some((closing, _)) if letter == closing && !(closing == '"' && before == '\\') => quote = None,
                Some(_) => {}
                None if letter == '#' && before.is_whitespace() => break,
                None if matches!(letter, '"' | '\'') && matches!(before, ' ' | '[' | '{' | ',' | ':' | '-' | '\t') => {
                    quote = Some((letter, at));
                }
                None if matches!(letter, '[' | '{') && (!open.is_empty() || matches!(before, ' ' | '[' | '{')) => {
                    open.push((letter, index + 1, column(text, at)));
                }
                None if letter == ']' && open.last().is_some_and(|(open, ..)| *open == '[') => drop(open.pop()),
                None if letter == '}' && open.last().is_some_and(|(open, ..)| *open == '{') => drop(open.pop()),
                None => {}
            }
            before = letter;
        }
        if let Some((mark, at)) = quote
            && index < line
        {
            let text = format!("the quote that opens here is not closed on its line: add a `{mark}`");
            return Some(Found { line: index + 1, column: column(lines[index], at), text });
        }
    }
    // The first line that leaves one open, and the last one there.
    let first = open.first().map(|(_, opened, _)| *opened).filter(|opened| *opened <= line)?;
    let (bracket, line, column) = open.into_iter().take_while(|(_, opened, _)| *opened == first).last()?;
    let (what, closing) = if bracket == '[' { ("list", ']') } else { ("group of fields", '}') };
    Some(Found {
        line,
        column,
        text: format!("the {what} that opens here with `{bracket}` is never closed: add a `{closing}`"),
    })
}

/// A line whose indentation fits none of the lines above it.
pub(super) fn indentation(lines: &[&str], start: usize, line: usize) -> Option<Found> {
    let mut open: Vec<Level> = Vec::new();
    let mut block: Option<usize> = None;
    for (index, text) in lines.iter().enumerate().skip(start.saturating_sub(1)) {
        let trimmed = text.trim_start();
        let indent = text.len() - trimmed.len();
        if trimmed.trim().is_empty() || trimmed.starts_with('#') {
            continue;
        }
        // Text after `|` or `>` ends with the first line that is not indented below its key.
        if block.is_some_and(|of| indent > of) {
            continue;
        }
        block = None;
        let above = open.last().cloned();
        while open.last().is_some_and(|level| level.indent > indent) {
            open.pop();
        }
        let fits = open.last().is_none_or(|level| level.indent == indent);
        let deeper = above.as_ref().is_some_and(|above| indent > above.indent);
        if let Some(above) = above.filter(|_| index < line + 1) {
            if deeper && above.has_value && is_field(trimmed) {
                return Some(too_deep(index, indent, trimmed, &above));
            }
            if !deeper && !fits {
                let known: Vec<usize> = levels_before(lines, start, index);
                return Some(fits_nothing(index, indent, &known));
            }
        }
        let mut at = indent;
        let mut rest = trimmed;
        while let Some(item) = rest.strip_prefix("- ") {
            push(&mut open, Level { indent: at, name: "-".to_owned(), line: index + 1, has_value: false });
            let inner = item.trim_start();
            at += rest.len() - inner.len();
            rest = inner;
        }
        let (name, value) = rest.split_once(':').unwrap_or((rest, " "));
        let value = value.split(" #").next().unwrap_or_default().trim();
        let is_block = value.starts_with(['|', '>']);
        if is_block {
            block = Some(at);
        }
        let has_value = !value.is_empty() && !is_block && !value.starts_with(['&', '!', '[', '{', '"', '\'']);
        push(&mut open, Level { indent: at, name: name.to_owned(), line: index + 1, has_value });
        if index >= line {
            break;
        }
    }
    None
}

#[derive(Clone)]
struct Level {
    indent: usize,
    name: String,
    line: usize,
    /// Whether a plain value stands on the line already, so that nothing can stand below it.
    has_value: bool,
}

fn push(open: &mut Vec<Level>, level: Level) {
    open.retain(|known| known.indent < level.indent);
    open.push(level);
}

fn is_field(text: &str) -> bool {
    text.contains(": ") || text.trim_end().ends_with(':')
}

fn too_deep(index: usize, indent: usize, text: &str, above: &Level) -> Found {
    let name = text.split(':').next().unwrap_or_default().trim_start_matches("- ");
    Found {
        line: index + 1,
        column: indent + 1,
        text: format!(
            "{name} is indented deeper than {} on line {}, which has a value already: begin both in the same column",
            above.name, above.line
        ),
    }
}

fn fits_nothing(index: usize, indent: usize, known: &[usize]) -> Found {
    let spaces = |count: &usize| count.to_string();
    let known = known.iter().map(spaces).collect::<Vec<_>>().join(" or ");
    let plural = if indent == 1 { "space" } else { "spaces" };
    Found {
        line: index + 1,
        column: indent + 1,
        text: format!("the line is indented by {indent} {plural}, which fits none above it: they begin after {known}"),
    }
}

/// The indentations that are open before a line.
fn levels_before(lines: &[&str], start: usize, line: usize) -> Vec<usize> {
    let mut open: Vec<usize> = Vec::new();
    for text in lines.iter().take(line).skip(start.saturating_sub(1)) {
        let trimmed = text.trim_start();
        if trimmed.trim().is_empty() || trimmed.starts_with('#') {
            continue;
        }
        let mut indent = text.len() - trimmed.len();
        let mut rest = trimmed;
        loop {
            open.retain(|known| *known < indent);
            open.push(indent);
            let Some(item) = rest.strip_prefix("- ") else { break };
            let inner = item.trim_start();
            indent += rest.len() - inner.len();
            rest = inner;
        }
    }
    open
}

/// A line whose value has to be in quotes, or that has no colon.
pub(super) fn value(lines: &[&str], line: usize) -> Option<Found> {
    let text = lines.get(line.checked_sub(1)?)?;
    let content = text.trim_start().trim_start_matches("- ");
    let at = text.len() - content.len();
    if let Some((key, rest)) = content.split_once(": ") {
        let rest = rest.trim();
        let bare = !rest.starts_with(['"', '\'', '[', '{', '|', '>']);
        if bare && rest.contains(": ") {
            return Some(Found {
                line,
                column: column(text, at + key.len() + 2),
                text: format!("the value of {key} holds a colon and a space, so it has to be in quotes"),
            });
        }
        if let Some(letter) = rest.chars().next().filter(|letter| matches!(letter, '@' | '`' | '%')) {
            return Some(Found {
                line,
                column: column(text, at + key.len() + 2),
                text: format!("a value that begins with `{letter}` has to be in quotes"),
            });
        }
        return None;
    }
    let lone = content.trim_end();
    if lone.is_empty() || lone.ends_with(':') || lone.starts_with(['#', '[', '{', ']', '}', '"', '\'']) {
        return None;
    }
    let text_of = match lone.split_once(':') {
        Some((key, _)) => format!("a space is missing after the colon of `{key}:`"),
        None => format!("`{lone}` is no field: a colon and a value are missing, as in `name: value`"),
    };
    Some(Found { line, column: column(text, at), text: text_of })
}

/// Column of a byte, from 1.
fn column(line: &str, at: usize) -> usize {
    line.get(..at).map_or(at, |before| before.chars().count()) + 1
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
