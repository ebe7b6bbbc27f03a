//! Every `leno` command that a page or a help text shows is one that this program takes.

use std::path::Path;

use clap::error::{ContextKind, ErrorKind};
use clap::{Args, CommandFactory as _, Parser as _};

use crate::args::Cli;

/// The node proxy's own settings are not known here; lines with them are judged by what stands before.
#[derive(Debug, Args)]
struct NoSettings {}

/// The commands that a page shows outside of `console` blocks, which are run: lines of `sh` blocks, and text in backticks.
fn commands(page: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut block = None;
    for line in page.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            block = if block.is_some() { None } else { Some(language.to_owned()) };
            continue;
        }
        match block.as_deref() {
            Some("sh") => commands.extend(command(line)),
            Some(_) => {}
            None => commands.extend(line.split('`').skip(1).step_by(2).filter_map(command)),
        }
    }
    commands
}

/// The examples of a help text: indented lines.
fn examples(help: &str) -> impl Iterator<Item = String> {
    help.lines().filter(|line| line.starts_with("  ")).filter_map(command)
}

/// What is typed, without what explains it or takes its output; `None` if it is not a command of this program.
fn command(text: &str) -> Option<String> {
    let text = text.trim();
    let text = text.strip_prefix("sudo ").unwrap_or(text);
    let text = text.strip_prefix("target/dist/").unwrap_or(text);
    let end = ["  ", " #", " | ", " > ", " && "].iter().filter_map(|mark| text.find(mark)).min();
    let text = &text[..end.unwrap_or(text.len())];
    // `leno pod` is the title of a process, not a command.
    (text.starts_with("leno ") && !text.starts_with("leno pod ")).then(|| text.to_owned())
}

/// Why the program would not take a command. A command may leave out what it needs: then the text is about it, and nobody
/// types it so.
fn fault(command: &str) -> Option<String> {
    // Placeholders that the text explains.
    let words = command.split_whitespace().map(|word| word.trim_matches(['[', ']'])).filter(|word| *word != "…");
    let words = words.map(|word| match word {
        "SRC" => "NS/SRC",
        "DST:PORT" => "NS/DST:80",
        "NS" | "NS…" | "NAMESPACE" | "NAMESPACE…" => "shop",
        other => other,
    });
    let error = Cli::<NoSettings, NoSettings>::try_parse_from(words).err()?;
    let is_short = matches!(
        error.kind(),
        ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    // A flag that is named without its value.
    let is_named = error.get(ContextKind::InvalidValue).is_some_and(|value| value.to_string().is_empty());
    let is_setting = command.starts_with("leno node ") && error.kind() == ErrorKind::UnknownArgument;
    (!is_short && !is_named && !is_setting).then(|| format!("`{command}`: {error}"))
}

#[test]
fn pages_show_commands_that_there_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md"), root.join("CONTRIBUTING.md"), root.join("ARCHITECTURE.md")];
    let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    pages.extend(docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    let mut seen = 0;
    let mut faults = Vec::new();
    for page in pages {
        for command in commands(&std::fs::read_to_string(&page).unwrap()) {
            seen += 1;
            faults.extend(fault(&command).map(|fault| format!("{}: {fault}", page.display())));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(seen > 50, "only {seen} commands found: this test has gone blind");
}

#[test]
fn help_shows_commands_that_there_are() {
    let mut to_visit = vec![Cli::<NoSettings, NoSettings>::command()];
    let mut faults = Vec::new();
    while let Some(of) = to_visit.pop() {
        let help = of.get_after_help().map(ToString::to_string).unwrap_or_default();
        faults.extend(examples(&help).filter_map(|command| fault(&command)));
        to_visit.extend(of.get_subcommands().cloned());
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn commands_are_found_and_judged() {
    let page = "Type `leno ps -w` or `ls`.\n```sh\nsudo leno down --name x    # then\nleno lab list | less\n```\n\
                ```text\nleno nothing\n```\n";
    assert_eq!(commands(page), ["leno ps -w", "leno down --name x", "leno lab list"]);
    for (wrong, part) in [("leno pss", "pss"), ("leno ps --wide", "--wide"), ("leno observe --verdict odd", "odd")] {
        assert!(fault(wrong).is_some_and(|fault| fault.contains(part)), "{wrong}");
    }
    for right in ["leno explain", "leno lab run", "leno enrol NS…", "leno node --node NODE"] {
        assert_eq!(fault(right), None, "{right}");
    }
}
