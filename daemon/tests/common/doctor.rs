//! `weir doctor`, asked as a program asks it.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{Daemon, prefixed, weir};

/// What `weir doctor` found, and its exit code.
pub(crate) struct Found {
    pub(crate) code: Option<i32>,
    pub(crate) report: Value,
}

impl Found {
    /// Asked about this configuration and run directory, by a program behind these words.
    pub(crate) fn of(prefix: &[&str], program: &str, config: &Path, run_dir: &Path) -> Self {
        let mut command = prefixed(prefix, program);
        command.args(["doctor", "--output", "json", "--config"]).arg(config).arg("--run-dir").arg(run_dir);
        Self::asked(&mut command)
    }

    /// Asked about a daemon that runs, as it is.
    pub(crate) fn of_daemon(daemon: &Daemon) -> Self {
        Self::asked(&mut weir(["doctor", "--output", "json"], &daemon.run_dir))
    }

    fn asked(command: &mut Command) -> Self {
        let output = command.stdin(Stdio::null()).output().expect("weir runs");
        let report = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
        Self { code: output.status.code(), report }
    }

    pub(crate) fn row(&self, name: &str) -> &Value {
        let rows = self.report["rows"].as_array().expect("rows");
        rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name} in {}", self.report))
    }
}
