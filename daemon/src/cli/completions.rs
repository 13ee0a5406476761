//! `weir completions`: what a shell needs to complete a command line of this program.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, output};
use crate::exit::{Exit, Problem};

/// Print what a shell needs to complete commands and options of this program.
///
/// The Debian package has installed it for bash, zsh and fish. Else, for the shell at hand:
/// `source <(weir completions bash)`.
#[derive(Args, Debug)]
pub(super) struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) fn run(arguments: &CompletionsArgs) -> Result<Exit, Problem> {
    output::print(&script(arguments.shell))?;
    Ok(Exit::Ok)
}

fn script(shell: Shell) -> String {
    let mut command = Cli::command();
    let name = command.get_name().to_owned();
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_shell_is_told_every_command() {
        for shell in Shell::value_variants() {
            let script = script(*shell);
            for verb in Cli::command().get_subcommands() {
                assert!(script.contains(verb.get_name()), "{shell}: no {}", verb.get_name());
            }
        }
    }
}
