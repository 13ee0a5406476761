//! `weir config`: the configuration without starting anything.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::output;
use crate::config::{self, ConfigErrors, DEFAULT_FILE};
use crate::control::client;
use crate::control::configuration::ConfigurationReport;
use crate::exit::{Exit, Problem};

/// Check or print a configuration.
#[derive(Args, Debug)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    verb: ConfigVerb,
}

#[derive(Debug, Subcommand)]
enum ConfigVerb {
    /// Read a configuration and say everything that is wrong with it, with file and line. Exit code 78 if something is.
    Check {
        #[command(flatten)]
        source: SourceArgs,
    },
    /// Print the values that a daemon would start with, as a file that would give the same configuration, with where each
    /// comes from.
    Print {
        #[command(flatten)]
        source: SourceArgs,
        /// Print the reference page of every setting instead.
        #[arg(long, conflicts_with_all = ["default_file", "config"])]
        markdown: bool,
        /// Print what is in effect in the daemon on this run directory instead, and what waits for a restart there. Exit code
        /// 3 if something does, or if what was read last was not taken.
        #[arg(long, value_name = "DIR", conflicts_with_all = ["default_file", "markdown", "config"])]
        run_dir: Option<PathBuf>,
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

/// All that is wrong: each but the last is said here, the last is left to the caller.
pub(super) fn say_all(errors: &ConfigErrors) -> Problem {
    let mut all: Vec<Problem> = errors.iter().cloned().map(Problem::from).collect();
    let last = all.pop();
    for problem in &all {
        output::say(&format!("error: {problem}"));
    }
    last.unwrap_or_else(|| (*errors.first).clone().into())
}

pub(super) fn run(arguments: &ConfigArgs) -> Result<Exit, Problem> {
    match &arguments.verb {
        ConfigVerb::Check { source } => {
            config::load_all(source.config.as_deref(), &[]).map_err(|errors| say_all(&errors))?;
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
        ConfigVerb::Print { run_dir: Some(run_dir), .. } => {
            let report: ConfigurationReport = client::get(run_dir, "/v1/configuration")?;
            output::print(&running(&report))?;
            if !report.waiting.is_empty() || !report.errors.is_empty() {
                return Ok(Exit::Degraded);
            }
        }
        ConfigVerb::Print { source, .. } => {
            let loaded =
                config::load_all(source.config.as_deref(), &[]).map_err(|errors| say_all(&errors))?;
            output::print(&config::sourced_file(&loaded.config, &loaded.places))?;
        }
    }
    Ok(Exit::Ok)
}

/// What is in effect in a daemon, behind comments on what is not.
fn running(report: &ConfigurationReport) -> String {
    let mut text = format!("# In effect in the daemon, which reads {}\n", report.file);
    for error in &report.errors {
        text.push_str(&format!("# not taken: {error}\n"));
    }
    for setting in &report.waiting {
        text.push_str(&format!("# waits for a restart: {}\n", setting.text()));
    }
    text.push_str(&report.effective);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::configuration::WaitingSetting;

    #[test]
    fn what_is_not_in_effect_stands_in_front_and_the_rest_is_a_file() {
        let report = ConfigurationReport {
            file: "/f".to_owned(),
            effective: "shards = 2\n".to_owned(),
            waiting: vec![WaitingSetting {
                key: "shards".to_owned(),
                effective: Some("2".to_owned()),
                wanted: Some("3".to_owned()),
                place: Some("/f:1".to_owned()),
            }],
            errors: vec!["/f:2: wrong".to_owned()],
            ..ConfigurationReport::default()
        };
        assert_eq!(
            running(&report),
            "# In effect in the daemon, which reads /f\n# not taken: /f:2: wrong\n\
             # waits for a restart: shards is 2 and would be 3 (/f:1)\nshards = 2\n"
        );
    }
}
