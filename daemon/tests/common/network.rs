//! Two network namespaces with a cable between them, which can be cut. Nothing leaves them.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Addresses of the two ends.
pub(crate) const ADDRESSES: [&str; 2] = ["10.77.0.1", "10.77.0.2"];

/// Two namespaces with a veth pair between them; removed with the value.
pub(crate) struct Network {
    pub(crate) names: [String; 2],
}

impl Network {
    /// `None`, with the reason printed, where `what` cannot be tested: namespaces, or one of these programs, are missing.
    pub(crate) fn new(what: &str, programs: &[&str]) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let not_run = |why: &str| {
            println!("not run here: {what} ({why})");
            None
        };
        if !rustix::process::geteuid().is_root() {
            return not_run("needs root");
        }
        for program in programs {
            if run(program, &["--version"], "").is_err() {
                return not_run(&format!("needs `{program}`; `cargo xtask setup` installs it"));
            }
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let names = ["a", "b"].map(|side| format!("weir-outage-{}-{number}{side}", std::process::id()));
        let network = Self { names };
        let [a, b] = &network.names;
        let setup = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("-n {a} link add veth0 type veth peer name veth0 netns {b}"),
            format!("-n {a} address add {}/24 dev veth0", ADDRESSES[0]),
            format!("-n {b} address add {}/24 dev veth0", ADDRESSES[1]),
            format!("-n {a} link set veth0 up"),
            format!("-n {b} link set veth0 up"),
            format!("-n {a} link set lo up"),
            format!("-n {b} link set lo up"),
        ];
        for line in setup {
            if let Err(problem) = ip(&line) {
                return not_run(&problem);
            }
        }
        Some(network)
    }

    /// From now on nothing arrives at this side (0 or 1); what it sends is not concerned.
    pub(crate) fn deafen(&self, side: usize) {
        let rules = "table inet outage {\n chain in {\n type filter hook input priority 0\n iifname veth0 drop\n }\n}\n";
        self.inside(side, "nft", &["-f", "-"], rules);
    }

    /// Everything arrives again.
    pub(crate) fn heal(&self) {
        for side in 0..2 {
            self.inside(side, "nft", &["flush", "ruleset"], "");
        }
    }

    /// Kills every connection between the two sides, as root of this side can.
    pub(crate) fn kill_connections(&self, side: usize) {
        self.inside(side, "ss", &["-K", "-t", "-H", "dst", ADDRESSES[1 - side]], "");
    }

    /// Takes the cable out, or puts it back.
    pub(crate) fn set_link(&self, side: usize, state: &str) {
        ip(&format!("-n {} link set veth0 {state}", self.names[side])).expect("a cable");
    }

    /// Runs a program in the namespace of this side.
    fn inside(&self, side: usize, program: &str, arguments: &[&str], input: &str) {
        let words = [&["netns", "exec", &self.names[side], program], arguments].concat();
        run("ip", &words, input).expect("it runs");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns delete {name}"));
        }
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    run("ip", &arguments.split(' ').collect::<Vec<_>>(), "")
}

fn run(program: &str, arguments: &[&str], input: &str) -> Result<(), String> {
    let problem = |what: &str| format!("{program} {}: {what}", arguments.join(" "));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| problem(&error.to_string()))?;
    // One that reads nothing closes its end.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    let output = child.wait_with_output().map_err(|error| problem(&error.to_string()))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(problem(String::from_utf8_lossy(&output.stderr).trim()))
    }
}
