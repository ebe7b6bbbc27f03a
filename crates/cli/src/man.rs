//! `leno man`: manual pages, from the definition that help comes from.

use std::path::Path;

use anyhow::Context as _;
use clap::Command;
use clap_mangen::Man;

use crate::args::ManArgs;
use crate::output;

/// Prints one page, or writes all of them into a directory.
pub(crate) fn run(program: Command, args: &ManArgs) -> anyhow::Result<()> {
    if let Some(dir) = &args.dir {
        return write_all(program, dir);
    }
    let mut wanted = program;
    let mut path = wanted.get_name().to_owned();
    for word in &args.command {
        let known: Vec<_> = shown(&wanted).map(|command| command.get_name().to_owned()).collect();
        let found = wanted.find_subcommand(word).cloned();
        wanted = found.with_context(|| format!("`{path}` has no command {word}; it has: {}", known.join(", ")))?;
        path = format!("{path} {word}");
    }
    output::bytes(&page(wanted, &path)?)
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set())
}

fn write_all(program: Command, dir: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let name = program.get_name().to_owned();
    let mut pages = vec![(name.clone(), program)];
    let mut count = 0_usize;
    while let Some((path, command)) = pages.pop() {
        pages.extend(shown(&command).map(|inner| (format!("{path} {}", inner.get_name()), inner.clone())));
        let file = dir.join(format!("{}.1", path.replace(' ', "-")));
        std::fs::write(&file, page(command, &path)?).with_context(|| format!("cannot write {}", file.display()))?;
        count += 1;
    }
    output::line(&format!("{count} pages in {}; read one with `man {}/{name}.1`", dir.display(), dir.display()))
}

fn page(command: Command, path: &str) -> anyhow::Result<Vec<u8>> {
    // Kept until the program ends, and that it does when the page is printed.
    let name: &'static str = Box::leak(path.replace(' ', "-").into_boxed_str());
    let mut text = Vec::new();
    let command = command.name(name).bin_name(path).disable_help_subcommand(true);
    Man::new(command).section("1").manual("Leno").render(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::args::Cli;

    #[derive(Debug, clap::Args)]
    struct NoSettings {}

    #[test]
    fn every_command_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        write_all(Cli::<NoSettings, NoSettings>::command(), dir.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert!(read("leno.1").contains(".TH leno 1"));
        let up = read("leno-up.1");
        for words in ["leno up", "on\\-timeout", "Ctrl\\-C"] {
            assert!(up.contains(words), "no {words} in {up}");
        }
        assert!(read("leno-lab-run.1").contains("leno lab run"));
        assert!(!dir.path().join("leno-sample.1").exists());
    }
}
