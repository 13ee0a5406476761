//! `weir config`: the configuration without starting anything.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::output;
use crate::config::{self, DEFAULT_FILE};
use crate::exit::{Exit, Problem};

/// Check or print a configuration.
#[derive(Args, Debug)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    verb: ConfigVerb,
}

#[derive(Debug, Subcommand)]
enum ConfigVerb {
    /// Read a configuration and say what is wrong with it, with file and line. Exit code 78 if something is.
    Check {
        #[command(flatten)]
        source: SourceArgs,
    },
    /// Print the values in force, as a file that would give the same configuration.
    Print {
        #[command(flatten)]
        source: SourceArgs,
        /// Print the reference page of every setting instead.
        #[arg(long, conflicts_with_all = ["default_file", "config"])]
        markdown: bool,
        /// Print the commented default file instead.
        #[arg(long, conflicts_with = "config")]
        default_file: bool,
    },
}

#[derive(Args, Debug)]
struct SourceArgs {
    /// Configuration file; `conf.d/*.toml` beside it is read too. Not given: /etc/weir/weir.toml if it exists.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(super) fn run(arguments: &ConfigArgs) -> Result<Exit, Problem> {
    match &arguments.verb {
        ConfigVerb::Check { source } => {
            let config = config::load(source.config.as_deref(), &[])?;
            if let Some(path) = &config.key_file {
                config::read_cluster_key(path)?;
            }
            let file = source.config.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_FILE));
            let exists = file.exists();
            let file = file.display();
            output::print(&if exists {
                format!("{file}: ok\n")
            } else {
                format!("no {file}: defaults, ok\n")
            })?;
        }
        ConfigVerb::Print { markdown: true, .. } => output::print(&config::markdown())?,
        ConfigVerb::Print { default_file: true, .. } => output::print(&config::default_file())?,
        ConfigVerb::Print { source, .. } => {
            output::print(&config::effective_file(&config::load(source.config.as_deref(), &[])?))?;
        }
    }
    Ok(Exit::Ok)
}
