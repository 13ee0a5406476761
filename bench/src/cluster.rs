//! Daemons of one machine that talk over loopback, each with a run directory of its own. They end with the cluster.

use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// How long a daemon may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a daemon may take to drain and end.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// A cluster of two nodes, `a` and `b`, that know each other.
pub struct Cluster {
    program: PathBuf,
    nodes: Vec<Node>,
    /// Where they listen.
    addresses: [String; 2],
    /// Where they are dialled.
    dialled: [String; 2],
    directory: TempDir,
}

/// One daemon.
pub struct Node {
    /// Its name.
    pub name: String,
    /// Where its sockets are.
    pub run_dir: PathBuf,
    child: Child,
}

/// What every daemon of a cluster is started with beside its name, addresses and run directory.
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    /// Shards of each daemon.
    pub shards: u32,
    /// Bound on the memory of all regions of one daemon, in bytes.
    pub memory_bytes: u64,
    /// TCP congestion control of the links; the system's if `None`.
    pub congestion: Option<String>,
    /// `link.grace`; the default if `None`.
    pub grace: Option<String>,
    /// `pool.retention`; the default if `None`.
    pub retention: Option<u32>,
    /// `observe.probes`; the default if `None`.
    pub probes: Option<&'static str>,
    /// Only the first daemon has it so; the other has no probes.
    pub probes_at_one: bool,
    /// `memory.hugepages`; the default if `None`.
    pub hugepages: Option<&'static str>,
    /// `memory.segment_bytes`; the default if `None`.
    pub segment_bytes: Option<u32>,
    /// `link.zero_copy`; the default if `None`.
    pub zero_copy: Option<&'static str>,
    /// Network namespaces that the daemons run in, and the address of each there; this one and loopback if `None`.
    pub apart: Option<[(String, String); 2]>,
}

impl ClusterOptions {
    /// The settings of the first daemon, number 0, or the second.
    fn config(&self, own: usize) -> String {
        let probes = if self.probes_at_one && own > 0 { Some("off") } else { self.probes };
        let mut text = String::from("[link]\n");
        for (key, value) in [("congestion", &self.congestion), ("grace", &self.grace)] {
            if let Some(value) = value {
                text.push_str(&format!("{key} = \"{value}\"\n"));
            }
        }
        if let Some(value) = self.zero_copy {
            text.push_str(&format!("zero_copy = \"{value}\"\n"));
        }
        if let Some(segments) = self.retention {
            text.push_str(&format!("[pool]\nretention = {segments}\n"));
        }
        if let Some(value) = probes {
            text.push_str(&format!("[observe]\nprobes = \"{value}\"\n"));
        }
        // Each daemon would bind its shards to the same processors as the other one, which on a node of its own has none beside it.
        text.push_str("[shard]\npin = \"off\"\n[memory]\n");
        if let Some(value) = self.hugepages {
            text.push_str(&format!("hugepages = \"{value}\"\n"));
        }
        if let Some(bytes) = self.segment_bytes {
            text.push_str(&format!("segment_bytes = {bytes}\n"));
        }
        text
    }
}

impl Cluster {
    /// Starts two daemons with the `weir` program that was built beside this one, and waits until both answer.
    ///
    /// # Errors
    /// One line: what did not start and what it printed.
    pub fn start(options: &ClusterOptions) -> Result<Self, String> {
        Self::start_over(options, |addresses| Ok(addresses.clone()))
    }

    /// As [`Self::start`], with nodes that find each other where `paths` says: it is given the addresses at which `a` and `b`
    /// listen, and gives those at which the other one dials them.
    ///
    /// # Errors
    /// As there, and what `paths` says.
    pub fn start_over(
        options: &ClusterOptions,
        paths: impl FnOnce(&[String; 2]) -> Result<[String; 2], String>,
    ) -> Result<Self, String> {
        let program = program_beside_this("weir")?;
        let directory =
            TempDir::new().map_err(|error| format!("cannot make a directory for the daemons: {error}"))?;
        let addresses = match &options.apart {
            None => free_addresses()?,
            // The ports of a namespace are all free.
            Some(apart) => apart.clone().map(|(_, address)| format!("{address}:7070")),
        };
        let dialled = paths(&addresses)?;
        let mut cluster = Self { program, nodes: Vec::new(), addresses, dialled, directory };
        for (own, peer) in [(0, 1), (1, 0)] {
            cluster.start_node(own, peer, options)?;
        }
        for node in &cluster.nodes {
            cluster.wait_until_ready(node)?;
        }
        Ok(cluster)
    }

    fn start_node(&mut self, own: usize, peer: usize, options: &ClusterOptions) -> Result<(), String> {
        let name = ["a", "b"][own];
        let run_dir = self.directory.path().join(name);
        let log = File::create(self.log_path(name))
            .map_err(|error| format!("cannot write the log of {name}: {error}"))?;
        let config_path = self.directory.path().join(format!("{name}.toml"));
        std::fs::write(&config_path, options.config(own))
            .map_err(|error| format!("cannot write {}: {error}", config_path.display()))?;
        let mut command = match &options.apart {
            None => Command::new(&self.program),
            Some(apart) => {
                // It becomes the program, so that the process is the daemon's.
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &apart[own].0]).arg(&self.program);
                command
            }
        };
        command.arg("daemon");
        if options.apart.is_some() {
            command.arg("--key-file").arg(self.key_file()?);
        }
        let child = command
            .arg("--config")
            .arg(&config_path)
            .args(["--node", name, "--listen", &self.addresses[own]])
            .args(["--peer", &format!("{}={}", ["a", "b"][peer], self.dialled[peer])])
            .args(["--shards", &options.shards.to_string(), "--memory", &options.memory_bytes.to_string()])
            .arg("--run-dir")
            .arg(&run_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", self.program.display()))?;
        self.nodes.push(Node { name: name.to_owned(), run_dir, child });
        Ok(())
    }

    /// The key without which a daemon does not listen beyond loopback.
    fn key_file(&self) -> Result<PathBuf, String> {
        let path = self.directory.path().join("cluster.key");
        let problem = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
        std::fs::write(&path, [7; 32]).map_err(problem)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(problem)?;
        Ok(path)
    }

    fn wait_until_ready(&self, node: &Node) -> Result<(), String> {
        let began = Instant::now();
        while began.elapsed() < START_TIMEOUT {
            if self.ask(node, "status").is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let log = self.log(node);
        Err(format!(
            "daemon {} did not answer within {} s; it printed:\n{log}",
            node.name,
            START_TIMEOUT.as_secs()
        ))
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}.log"))
    }

    /// What `weir VERB --output json` prints for this node.
    ///
    /// # Errors
    /// One line, when the daemon does not answer or answers something that is not JSON.
    pub fn ask(&self, node: &Node, verb: &str) -> Result<Value, String> {
        let output = Command::new(&self.program)
            .args([verb, "--output", "json", "--run-dir"])
            .arg(&node.run_dir)
            .output()
            .map_err(|error| format!("cannot start weir {verb}: {error}"))?;
        // 3 says that a subsystem is degraded, which the JSON tells in full.
        if !matches!(output.status.code(), Some(0 | 3)) {
            return Err(format!("weir {verb} failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("weir {verb} printed no JSON: {error}"))
    }

    /// What `weir VERB` shows of this node.
    ///
    /// # Errors
    /// One line, when the daemon does not answer.
    pub fn show(&self, node: &Node, verb: &str) -> Result<String, String> {
        let output = Command::new(&self.program)
            .args([verb, "--run-dir"])
            .arg(&node.run_dir)
            .output()
            .map_err(|error| format!("cannot start weir {verb}: {error}"))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// What the daemon of this node answers to `GET PATH` on its control socket.
    ///
    /// # Errors
    /// One line, when it does not answer or answers something that is not JSON.
    pub fn ask_path(&self, node: &Node, path: &str) -> Result<Value, String> {
        let body = self.get(node, path)?;
        serde_json::from_str(&body).map_err(|error| format!("{path} answers no JSON: {error}"))
    }

    /// As [`Self::ask_path`], as text.
    ///
    /// # Errors
    /// One line, when it does not answer.
    pub fn get(&self, node: &Node, path: &str) -> Result<String, String> {
        let problem = |error: std::io::Error| format!("node {} does not answer {path}: {error}", node.name);
        let mut socket = UnixStream::connect(node.run_dir.join("control.sock")).map_err(problem)?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).map_err(problem)?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).map_err(problem)?;
        let (_, body) = answer.split_once("\r\n\r\n").ok_or_else(|| format!("{path} has no answer"))?;
        Ok(body.to_owned())
    }

    /// What a daemon has logged.
    #[must_use]
    pub fn log(&self, node: &Node) -> String {
        std::fs::read_to_string(self.log_path(&node.name)).unwrap_or_default()
    }

    /// Where the daemons listen, node `a` first.
    #[must_use]
    pub fn addresses(&self) -> &[String; 2] {
        &self.addresses
    }

    /// The `weir` program.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// A directory that is removed with the cluster.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Node `a`, by convention the producers' node.
    #[must_use]
    pub fn a(&self) -> &Node {
        &self.nodes[0]
    }

    /// Node `b`, by convention the consumers' node.
    #[must_use]
    pub fn b(&self) -> &Node {
        &self.nodes[1]
    }
}

impl Node {
    /// The daemon's process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn stop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            // Fails only when it has ended already.
            let _ = kill_process(pid, Signal::TERM);
        }
        let began = Instant::now();
        while began.elapsed() < STOP_TIMEOUT {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        eprintln!("daemon {} did not end within {} s of SIGTERM: killed", self.name, STOP_TIMEOUT.as_secs());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            node.stop();
        }
    }
}

/// The program of this name in the directory of the running one.
///
/// # Errors
/// One line that says how to build it.
pub fn program_beside_this(name: &str) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let program = own.with_file_name(name);
    if program.is_file() {
        return Ok(program);
    }
    Err(format!("{} is not there; build it with `cargo build --release --package {name}`", program.display()))
}

/// Two loopback addresses whose ports were free a moment ago.
fn free_addresses() -> Result<[String; 2], String> {
    let listen =
        || TcpListener::bind("127.0.0.1:0").map_err(|error| format!("no free loopback port: {error}"));
    let (first, second) = (listen()?, listen()?);
    let address = |listener: &TcpListener| {
        listener
            .local_addr()
            .map(|address| address.to_string())
            .map_err(|error| format!("no address: {error}"))
    };
    Ok([address(&first)?, address(&second)?])
}
