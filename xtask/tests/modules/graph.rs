//! Which file of a crate imports which, read from its tokens: `use` declarations and paths, also those inside of macros. A name
//! that a file only passes on (`pub use`) leads to where it is defined. What is for tests only does not count.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// How many names may pass a name on to each other.
const DEPTH: usize = 16;

/// A module, a path inside it, and how many names may still pass it on.
type Asked = (usize, Vec<String>, usize);

/// A crate's files and what they say of each other.
pub(crate) struct Crate {
    modules: Vec<Module>,
    /// Where [`Crate::walk`] ended, by what it was asked. `*` imports that lead to each other are gone through over and over
    /// without it.
    known: RefCell<HashMap<Asked, Option<Found>>>,
}

#[derive(Default)]
struct Module {
    /// As the crate's own paths have it, `a/b`.
    name: String,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    imports: Vec<Import>,
    /// Paths in its code, as written.
    paths: BTreeSet<Vec<String>>,
    /// All single names in its code.
    names: BTreeSet<String>,
}

struct Import {
    /// What it is called here; `None` for `*`.
    name: Option<String>,
    target: Vec<String>,
    /// Whether it is passed on.
    exported: bool,
}

/// Where a path leads.
#[derive(Clone, Copy)]
enum Found {
    Module(usize),
    /// Something that this module defines.
    Inside(usize),
}

impl Crate {
    /// Reads a crate from the file it begins with, following `mod`.
    pub(crate) fn read(begin: &Path) -> Self {
        let mut modules = Self { modules: Vec::new(), known: RefCell::default() };
        modules.add(begin, "", None, begin.parent().expect("a directory"));
        modules
    }

    pub(crate) fn len(&self) -> usize {
        self.modules.len()
    }

    /// Reads a file and those below it; `below` is where they are.
    fn add(&mut self, file: &Path, name: &str, parent: Option<usize>, below: &Path) -> usize {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let tokens: TokenStream = text.parse().unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let index = self.modules.len();
        let mut reading = Reading::default();
        reading.module.name = if name.is_empty() { "the crate's root".to_owned() } else { name.to_owned() };
        reading.module.parent = parent;
        reading.read(tokens, true);
        self.modules.push(reading.module);
        for child in reading.files {
            let (file, below) = place(below, &child);
            // Generated code has no rings that anybody could break.
            if child == "generated" {
                continue;
            }
            let name = if name.is_empty() { child.clone() } else { format!("{name}/{child}") };
            let found = self.add(&file, &name, Some(index), &below);
            self.modules[index].children.insert(child, found);
        }
        index
    }

    /// Every ring among the modules of one parent, each taken with all that is below it, as a sentence that names its shortest
    /// way around. What a parent and those below it have of each other is their own business.
    pub(crate) fn rings(&self) -> Vec<String> {
        let mut uses: BTreeMap<usize, BTreeMap<usize, BTreeMap<usize, String>>> = BTreeMap::new();
        for from in 0..self.len() {
            for to in self.edges(from) {
                if let Some((parent, one, other)) = self.siblings(from, to) {
                    let example = format!("{} uses {}", self.modules[from].name, self.modules[to].name);
                    uses.entry(parent).or_default().entry(one).or_default().entry(other).or_insert(example);
                }
            }
        }
        uses.values().flat_map(|edges| self.rings_among(edges)).collect()
    }

    fn rings_among(&self, edges: &BTreeMap<usize, BTreeMap<usize, String>>) -> Vec<String> {
        let reach: BTreeMap<usize, BTreeSet<usize>> =
            edges.keys().map(|module| (*module, reachable(edges, *module))).collect();
        let meets = |one: usize, other: usize| reach.get(&one).is_some_and(|reach| reach.contains(&other));
        let mut seen: BTreeSet<usize> = BTreeSet::new();
        let mut rings = Vec::new();
        for module in edges.keys() {
            if !meets(*module, *module) || seen.contains(module) {
                continue;
            }
            let members: BTreeSet<usize> =
                reach[module].iter().copied().filter(|other| meets(*other, *module)).collect();
            seen.extend(&members);
            let ways = members.iter().filter_map(|begin| way_around(edges, *begin));
            let shortest = ways.min_by_key(Vec::len).unwrap_or_default();
            let name = |module: &usize| self.modules[*module].name.as_str();
            let way: Vec<_> = shortest.iter().map(name).collect();
            let why: Vec<_> = shortest.windows(2).map(|step| edges[&step[0]][&step[1]].as_str()).collect();
            let others: Vec<_> = members.iter().filter(|member| !shortest.contains(member)).map(name).collect();
            let others = if others.is_empty() { String::new() } else { format!("; with {}", others.join(", ")) };
            let count = members.len();
            rings.push(format!("{count} import each other: {}{others} ({})", way.join(" -> "), why.join(", ")));
        }
        rings
    }

    /// The parent that two modules have in common, and its children that they are or belong to; none if one is above the other.
    fn siblings(&self, one: usize, other: usize) -> Option<(usize, usize, usize)> {
        let (one, other) = (self.line(one), self.line(other));
        let common = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
        Some((*one.get(common.checked_sub(1)?)?, *one.get(common)?, *other.get(common)?))
    }

    /// A module and those above it, from the root down.
    fn line(&self, module: usize) -> Vec<usize> {
        let mut line: Vec<_> = std::iter::successors(Some(module), |at| self.modules[*at].parent).collect();
        line.reverse();
        line
    }

    /// The modules of which this one uses something.
    fn edges(&self, from: usize) -> BTreeSet<usize> {
        let module = &self.modules[from];
        let used =
            |import: &&Import| !import.exported || import.name.as_ref().is_some_and(|name| module.names.contains(name));
        let imports = module.imports.iter().filter(used).filter_map(|import| {
            match self.resolve(from, &import.target, DEPTH)? {
                // What is used of it is seen where it is used.
                Found::Module(_) if import.name.is_some() => None,
                Found::Module(target) | Found::Inside(target) => Some(target),
            }
        });
        let paths = module.paths.iter().filter_map(|path| match self.resolve(from, path, DEPTH)? {
            Found::Module(_) => None,
            Found::Inside(target) => Some(target),
        });
        let mut targets: BTreeSet<_> = imports.chain(paths).collect();
        targets.remove(&from);
        targets
    }

    fn resolve(&self, from: usize, path: &[String], depth: usize) -> Option<Found> {
        let depth = depth.checked_sub(1)?;
        let (head, rest) = path.split_first()?;
        let module = &self.modules[from];
        match head.as_str() {
            "crate" => self.walk(0, rest, depth),
            "self" => self.walk(from, rest, depth),
            "super" if rest.first().is_some_and(|next| next == "super") => self.resolve(module.parent?, rest, depth),
            "super" => self.walk(module.parent?, rest, depth),
            head => {
                if let Some(child) = module.children.get(head) {
                    return self.walk(*child, rest, depth);
                }
                let import = module.imports.iter().find(|import| import.name.as_deref() == Some(head))?;
                // `use tokio::sync` in a file that has `sync::Mutex`: from elsewhere.
                let path: Vec<_> = import.target.iter().chain(rest).cloned().collect();
                if path.first().is_some_and(|first| first == head) && !module.children.contains_key(head) {
                    return None;
                }
                self.resolve(from, &path, depth)
            }
        }
    }

    /// Follows the rest of a path from inside a module.
    fn walk(&self, at: usize, rest: &[String], depth: usize) -> Option<Found> {
        let key = (at, rest.to_vec(), depth);
        if let Some(found) = self.known.borrow().get(&key) {
            return *found;
        }
        let found = self.walk_anew(at, rest, depth);
        self.known.borrow_mut().insert(key, found);
        found
    }

    fn walk_anew(&self, at: usize, rest: &[String], depth: usize) -> Option<Found> {
        let depth = depth.checked_sub(1)?;
        let Some((head, further)) = rest.split_first() else { return Some(Found::Module(at)) };
        let module = &self.modules[at];
        if let Some(child) = module.children.get(head) {
            return self.walk(*child, further, depth);
        }
        if module.items.contains(head) {
            return Some(Found::Inside(at));
        }
        if let Some(import) = module.imports.iter().find(|import| import.name.as_deref() == Some(head.as_str())) {
            let path: Vec<_> = import.target.iter().chain(further).cloned().collect();
            // Another crate's: then this module is where it comes from.
            return self.resolve(at, &path, depth).or(Some(Found::Inside(at)));
        }
        for import in module.imports.iter().filter(|import| import.name.is_none()) {
            if let Some(Found::Module(target)) = self.resolve(at, &import.target, depth)
                && let Some(found) = self.defined(target, rest, depth)
            {
                return Some(found);
            }
        }
        Some(Found::Inside(at))
    }

    /// As [`Self::walk`], if the module has such a name at all.
    fn defined(&self, at: usize, rest: &[String], depth: usize) -> Option<Found> {
        let module = &self.modules[at];
        let head = rest.first()?;
        let named = module.imports.iter().any(|import| import.exported && import.name.as_ref() == Some(head));
        (module.items.contains(head) || module.children.contains_key(head) || named)
            .then(|| self.walk(at, rest, depth))
            .flatten()
    }
}

/// The file of a module, and where those below it are.
fn place(directory: &Path, name: &str) -> (PathBuf, PathBuf) {
    let below = directory.join(name);
    let own = directory.join(format!("{name}.rs"));
    (if own.exists() { own } else { below.join("mod.rs") }, below)
}

fn reachable(edges: &BTreeMap<usize, BTreeMap<usize, String>>, from: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        for target in edges.get(&module).into_iter().flat_map(BTreeMap::keys) {
            if found.insert(*target) {
                open.push(*target);
            }
        }
    }
    found
}

/// The shortest way from a module back to itself.
fn way_around(edges: &BTreeMap<usize, BTreeMap<usize, String>>, begin: usize) -> Option<Vec<usize>> {
    let mut ways = vec![vec![begin]];
    let mut seen = BTreeSet::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            for target in edges.get(way.last()?).into_iter().flat_map(BTreeMap::keys) {
                let further = || way.iter().copied().chain([*target]).collect::<Vec<_>>();
                if *target == begin {
                    return Some(further());
                }
                if seen.insert(*target) {
                    longer.push(further());
                }
            }
        }
        ways = longer;
    }
    None
}

/// One file while it is read.
#[derive(Default)]
struct Reading {
    module: Module,
    /// Names of modules in files of their own.
    files: Vec<String>,
}

impl Reading {
    /// `top`: whether these are the file's own items.
    fn read(&mut self, tokens: TokenStream, top: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        let mut exported = false;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Punct(mark) if mark.as_char() == '#' => {
                    let (next, for_tests) = attributes(&tokens, at);
                    at = if for_tests { after_item(&tokens, next) } else { next };
                    continue;
                }
                // A lifetime's name is nobody else's.
                TokenTree::Punct(mark) if mark.as_char() == '\'' => at += 2,
                TokenTree::Punct(_) | TokenTree::Literal(_) => at += 1,
                TokenTree::Group(group) => {
                    self.read(group.stream(), false);
                    at += 1;
                    continue;
                }
                TokenTree::Ident(ident) => match ident.to_string().as_str() {
                    "pub" => {
                        exported = true;
                        at += 1;
                        at += usize::from(group(&tokens, at, Delimiter::Parenthesis).is_some());
                        continue;
                    }
                    "use" if !is_mark(&tokens, at + 1, '<') => {
                        let end = (at..tokens.len()).find(|at| is_mark(&tokens, *at, ';')).unwrap_or(tokens.len());
                        self.import(&tokens[at + 1..end], &[], exported);
                        at = end;
                    }
                    "mod" if top && is_mark(&tokens, at + 2, ';') => {
                        self.files.push(tokens[at + 1].to_string());
                        at += 3;
                    }
                    "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "union" if top => {
                        if let Some(TokenTree::Ident(name)) = tokens.get(at + 1) {
                            self.module.items.insert(name.to_string());
                        }
                        at += 1;
                    }
                    "macro_rules" if top => {
                        if let Some(TokenTree::Ident(name)) = tokens.get(at + 2) {
                            self.module.items.insert(name.to_string());
                        }
                        at += 3;
                    }
                    _ => at = self.path(&tokens, at),
                },
            }
            exported = false;
        }
    }

    /// Reads a path from its first name on; where it ends.
    fn path(&mut self, tokens: &[TokenTree], mut at: usize) -> usize {
        let mut path = Vec::new();
        while let Some(TokenTree::Ident(name)) = tokens.get(at) {
            path.push(name.to_string());
            at += 1;
            let goes_on = is_mark(tokens, at, ':') && is_mark(tokens, at + 1, ':');
            if !goes_on || !matches!(tokens.get(at + 2), Some(TokenTree::Ident(_))) {
                break;
            }
            at += 2;
        }
        self.module.names.insert(path[0].clone());
        if path.len() > 1 {
            self.module.paths.insert(path);
        }
        at
    }

    /// Reads what stands between `use` and `;`.
    fn import(&mut self, tokens: &[TokenTree], prefix: &[String], exported: bool) {
        let mut target = prefix.to_vec();
        let mut name = None;
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => {
                    let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                    for part in inside.split(|token| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ',')) {
                        self.import(part, &target, exported);
                    }
                    return;
                }
                TokenTree::Ident(word) if word == "as" => {
                    name = tokens.get(at + 1).map(ToString::to_string);
                    break;
                }
                // The module itself, under its own name.
                TokenTree::Ident(word) if word == "self" && !target.is_empty() => {}
                TokenTree::Ident(word) => target.push(word.to_string()),
                TokenTree::Punct(mark) if mark.as_char() == '*' => {
                    self.module.imports.push(Import { name: None, target, exported });
                    return;
                }
                _ => {}
            }
            at += 1;
        }
        if let Some(last) = target.last().cloned() {
            self.module.imports.push(Import { name: Some(name.unwrap_or(last)), target, exported });
        }
    }
}

fn is_mark(tokens: &[TokenTree], at: usize, wanted: char) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Punct(mark)) if mark.as_char() == wanted)
}

fn group(tokens: &[TokenTree], at: usize, delimiter: Delimiter) -> Option<&proc_macro2::Group> {
    match tokens.get(at) {
        Some(TokenTree::Group(group)) if group.delimiter() == delimiter => Some(group),
        _ => None,
    }
}

/// Where the attributes end that begin at `at`, and whether one of them is `cfg(test)`.
fn attributes(tokens: &[TokenTree], mut at: usize) -> (usize, bool) {
    let mut for_tests = false;
    while is_mark(tokens, at, '#') {
        at += 1 + usize::from(is_mark(tokens, at + 1, '!'));
        if let Some(group) = group(tokens, at, Delimiter::Bracket) {
            let text: String = group.stream().to_string().split_whitespace().collect();
            for_tests |= text.starts_with("cfg(") && text.contains("test") && !text.contains("not(test");
            at += 1;
        }
    }
    (at, for_tests)
}

/// Where an item ends, or a field, whose attributes end at `at`.
fn after_item(tokens: &[TokenTree], mut at: usize) -> usize {
    const ITEMS: [&str; 16] = [
        "mod",
        "use",
        "fn",
        "struct",
        "enum",
        "impl",
        "const",
        "static",
        "type",
        "trait",
        "unsafe",
        "async",
        "extern",
        "macro_rules",
        "let",
        "pub",
    ];
    let is_item = matches!(tokens.get(at), Some(TokenTree::Ident(word)) if ITEMS.iter().any(|item| word == item));
    while at < tokens.len() {
        let ends = is_mark(tokens, at, ';')
            || (is_item && group(tokens, at, Delimiter::Brace).is_some())
            || (!is_item && is_mark(tokens, at, ','));
        at += 1;
        if ends {
            break;
        }
    }
    at
}
