//! A wrong command line as one line, in the form of every other problem.

use std::ffi::OsString;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::{Cli, output};
use crate::exit::{Exit, Problem};

/// Prints help and version, which the parser hands over as errors, and makes a problem of everything else.
pub(super) fn handle(error: &clap::Error, arguments: &[OsString]) -> Result<Exit, Problem> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            output::print(&error.render().to_string())?;
            Ok(Exit::Ok)
        }
        _ => Err(problem(error).fix(help_command(arguments))),
    }
}

fn problem(error: &clap::Error) -> Problem {
    let context = |kind| error.get(kind).map(text).unwrap_or_default();
    let argument = context(ContextKind::InvalidArg);
    let value = context(ContextKind::InvalidValue);
    match error.kind() {
        ErrorKind::InvalidValue => Problem::new(Exit::Usage, format!("bad value of {argument}"))
            .found(if value.is_empty() { "nothing".to_owned() } else { format!("{value:?}") })
            .needed(match error.get(ContextKind::ValidValue) {
                Some(valid) => format!("one of {}", text(valid)),
                None => "a value".to_owned(),
            }),
        ErrorKind::ValueValidation => {
            // The parsers of this command line say only what they need.
            let needed = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            Problem::new(Exit::Usage, format!("bad value of {argument}"))
                .found(format!("{value:?}"))
                .needed(needed)
        }
        ErrorKind::UnknownArgument => {
            let problem = Problem::new(Exit::Usage, "unknown argument").found(argument);
            match error.get(ContextKind::SuggestedArg) {
                Some(near) => problem.needed(format!("perhaps {}", text(near))),
                None => problem,
            }
        }
        ErrorKind::InvalidSubcommand => {
            let problem =
                Problem::new(Exit::Usage, "unknown command").found(context(ContextKind::InvalidSubcommand));
            match error.get(ContextKind::SuggestedSubcommand) {
                Some(near) => problem.needed(format!("perhaps {}", text(near))),
                None => problem,
            }
        }
        ErrorKind::MissingRequiredArgument => {
            Problem::new(Exit::Usage, "an argument is missing").needed(argument)
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Problem::new(Exit::Usage, "no command given").needed("a command")
        }
        _ => Problem::new(Exit::Usage, first_line(error)),
    }
}

fn text(value: &ContextValue) -> String {
    match value {
        ContextValue::Strings(texts) => texts.join(", "),
        other => other.to_string(),
    }
}

fn first_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let line = text.lines().next().unwrap_or_default();
    line.trim_start_matches("error: ").to_owned()
}

/// The command whose help explains it, as `weir send --help`: the known commands with which the command line begins.
fn help_command(arguments: &[OsString]) -> String {
    let root = Cli::command();
    let (mut command, mut text) = (&root, root.get_name().to_owned());
    for word in arguments.iter().skip(1) {
        let Some(next) = command.find_subcommand(word) else { break };
        command = next;
        text.push(' ');
        text.push_str(command.get_name());
    }
    text + " --help"
}
