//! `weir man`: the manual, made of the same descriptions as `--help`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;

use super::{Cli, output};
use crate::exit::{Exit, Problem};

/// What `--help` does not say, at the end of the first page: in the language of manual pages.
const FILES: &str = r".SH FILES
.TP
/etc/weir/weir.toml, /etc/weir/conf.d/*.toml
Configuration of the daemon, checked by \fBweir config check\fR.
.TP
/run/weir
Sockets of the daemon: attach.sock for programs, control.sock for commands and metrics.
.TP
/usr/share/doc/weir/
Operations, every setting, every metric, the protocol.
";

/// Print a page of the manual, or write all of them.
#[derive(Args, Debug)]
pub(super) struct ManArgs {
    /// The command whose page is printed, as `config check`. Not given: the page of weir itself.
    #[arg(value_name = "COMMAND", conflicts_with = "directory")]
    command: Vec<String>,
    /// Write the pages of all commands into this directory instead, which must exist.
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

pub(super) fn run(arguments: &ManArgs) -> Result<Exit, Problem> {
    let root = built();
    match &arguments.directory {
        Some(directory) => write_all(&root, directory)?,
        None => {
            let page =
                page(find(&root, &arguments.command)?).map_err(|error| output::write_problem(&error))?;
            output::print(&page)?;
        }
    }
    Ok(Exit::Ok)
}

/// The commands, with the names of their pages.
fn built() -> Command {
    let mut command = Cli::command();
    command.build();
    command
}

fn find<'a>(root: &'a Command, words: &[String]) -> Result<&'a Command, Problem> {
    let mut command = root;
    for word in words {
        command = command.find_subcommand(word).ok_or_else(|| {
            let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
            Problem::new(Exit::Usage, format!("no page of the manual for `{}`", words.join(" ")))
                .found(format!("{word:?}"))
                .needed(if names.is_empty() {
                    format!("nothing behind `{}`", command.get_name())
                } else {
                    format!("one of {}", names.join(", "))
                })
                .fix("weir --help")
        })?;
    }
    Ok(command)
}

fn page(command: &Command) -> io::Result<String> {
    let is_root = command.get_display_name().is_none_or(|name| name == command.get_name());
    let mut bytes = Vec::new();
    let source = concat!("weir ", env!("CARGO_PKG_VERSION"));
    Man::new(command.clone().disable_help_subcommand(true)).source(source).render(&mut bytes)?;
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    if is_root {
        text.push_str(FILES);
    }
    Ok(text)
}

fn write_all(command: &Command, directory: &Path) -> Result<(), Problem> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let path = directory.join(format!("{name}.1"));
    let written = page(command).and_then(|page| fs::write(&path, page));
    written.map_err(|error| {
        Problem::new(Exit::Failed, format!("cannot write {}", path.display()))
            .found(error.to_string())
            .needed("a directory that can be written")
            .fix("--directory DIR")
    })?;
    command.get_subcommands().try_for_each(|inner| write_all(inner, directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every command, those inside of others too, as its words.
    fn all(command: &Command, words: &[String], found: &mut Vec<Vec<String>>) {
        found.push(words.to_vec());
        for inner in command.get_subcommands() {
            all(inner, &[words, &[inner.get_name().to_owned()]].concat(), found);
        }
    }

    #[test]
    fn every_command_has_a_page_that_is_printed_as_it_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let root = built();
        write_all(&root, directory.path()).unwrap();
        let mut commands = Vec::new();
        all(&root, &[], &mut commands);
        assert!(commands.contains(&vec!["config".to_owned(), "check".to_owned()]));
        for words in &commands {
            let name = std::iter::once("weir").chain(words.iter().map(String::as_str)).collect::<Vec<_>>();
            let written = fs::read_to_string(directory.path().join(format!("{}.1", name.join("-")))).unwrap();
            let title = format!(".TH {} 1 ", name.join("-"));
            assert!(written.contains(&title), "no {title:?} in {written}");
            assert_eq!(page(find(&root, words).unwrap()).unwrap(), written);
            assert_eq!(written.contains(".SH FILES"), words.is_empty(), "{words:?}");
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), commands.len());
    }

    #[test]
    fn a_page_that_there_is_not_names_those_that_there_are() {
        let problem = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            find(&built(), &words).unwrap_err()
        };
        let found = problem(&["config", "chekc"]);
        assert_eq!(found.exit, Exit::Usage);
        assert!(found.to_string().contains("needed one of check, print"), "{found}");
        assert!(problem(&["status", "x"]).to_string().contains("nothing behind `status`"));
    }
}
