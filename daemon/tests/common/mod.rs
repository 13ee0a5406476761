//! Real daemons and real commands for the end-to-end tests. Everything started here is ended with its value.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Longest wait for anything that should come at once. Only a hang takes this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The program under test.
pub(crate) const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// The configuration of daemons that are not told otherwise. Loading kernel probes takes a quarter of a second of CPU time
/// without optimisation, and most tests start many daemons: what is tested of probes says that it wants them.
const WITHOUT_PROBES: &str = "[observe]\nprobes = \"off\"\n";

/// A daemon in a process of its own.
pub(crate) struct Daemon {
    pub(crate) run_dir: PathBuf,
    pub(crate) log: PathBuf,
    child: Child,
}

/// What a daemon is started with.
pub(crate) struct DaemonOptions<'a> {
    pub(crate) name: &'a str,
    pub(crate) listen: &'a str,
    pub(crate) peers: &'a [(&'a str, &'a str)],
    pub(crate) extra: &'a [&'a str],
    /// Words before the program, such as `ip netns exec NAME`.
    pub(crate) prefix: &'a [&'a str],
    /// The program: the one under test, or a copy of it where another user may run it.
    pub(crate) program: &'a str,
}

impl<'a> DaemonOptions<'a> {
    pub(crate) fn new(name: &'a str, listen: &'a str) -> Self {
        Self { name, listen, peers: &[], extra: &[], prefix: &[], program: WEIR }
    }
}

impl Daemon {
    /// Starts a daemon without waiting for it.
    pub(crate) fn spawn(directory: &Path, options: &DaemonOptions<'_>) -> Self {
        let run_dir = directory.join(options.name);
        let log = directory.join(format!("{}.log", options.name));
        let config = directory.join(format!("{}.toml", options.name));
        if !config.exists() {
            std::fs::write(&config, WITHOUT_PROBES).expect("a configuration file");
        }
        let mut command = prefixed(options.prefix, options.program);
        command.arg("daemon").arg("--config").arg(config).args([
            "--node",
            options.name,
            "--listen",
            options.listen,
        ]);
        for (peer, address) in options.peers {
            command.args(["--peer", &format!("{peer}={address}")]);
        }
        if !options.extra.contains(&"--shards") {
            command.args(["--shards", "2"]);
        }
        command.arg("--run-dir").arg(&run_dir).args(options.extra);
        let output = File::create(&log).expect("a log file");
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .spawn()
            .expect("the daemon starts");
        Self { run_dir, log, child }
    }

    /// Starts a daemon and waits until it answers.
    pub(crate) fn start(directory: &Path, options: &DaemonOptions<'_>) -> Self {
        let mut daemon = Self::spawn(directory, options);
        eventually("the daemon answers", || {
            if let Some(status) = daemon.child.try_wait().expect("its state") {
                panic!("the daemon ended ({status}); it printed:\n{}", daemon.printed());
            }
            daemon.try_ask("status")
        });
        daemon
    }

    /// What `weir VERB --output json` says.
    pub(crate) fn ask(&self, verb: &str) -> Value {
        self.try_ask(verb)
            .unwrap_or_else(|| panic!("weir {verb} failed; the daemon printed:\n{}", self.printed()))
    }

    fn try_ask(&self, verb: &str) -> Option<Value> {
        let output = weir([verb, "--output", "json"], &self.run_dir).output().expect("weir runs");
        matches!(output.status.code(), Some(0 | 3))
            .then(|| serde_json::from_slice(&output.stdout).expect("JSON"))
    }

    pub(crate) fn printed(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until it ends by itself; its exit code.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        wait(&mut self.child).code()
    }

    /// SIGTERM, then its exit code.
    pub(crate) fn terminate(&mut self) -> Option<i32> {
        signal(self.child.id(), Signal::TERM);
        self.exit_code()
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two daemons on loopback that know each other.
pub(crate) struct Pair {
    pub(crate) a: Daemon,
    pub(crate) b: Daemon,
    pub(crate) directory: TempDir,
}

impl Pair {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(extra: &[&str]) -> Self {
        Self::start_both(extra, "")
    }

    /// With regions of ordinary pages, which have just the segments that were asked for.
    pub(crate) fn start_on_ordinary_pages() -> Self {
        Self::start_both(&[], "[memory]\nhugepages = \"off\"\n")
    }

    /// With more than the defaults in the configuration of both.
    pub(crate) fn start_configured(config: &str) -> Self {
        Self::start_both(&[], config)
    }

    fn start_both(extra: &[&str], config: &str) -> Self {
        let directory = TempDir::new().expect("a directory");
        for name in ["a.toml", "b.toml"] {
            let config = format!("{WITHOUT_PROBES}{config}");
            std::fs::write(directory.path().join(name), config).expect("a configuration file");
        }
        let (first, second) = (free_address(), free_address());
        let a = Daemon::start(
            directory.path(),
            &DaemonOptions { peers: &[("b", &second)], extra, ..DaemonOptions::new("a", &first) },
        );
        let b = Daemon::start(
            directory.path(),
            &DaemonOptions { peers: &[("a", &first)], extra, ..DaemonOptions::new("b", &second) },
        );
        Self { a, b, directory }
    }
}

/// A loopback address for a daemon of this test: an IP address of its own, so that nobody takes its port until the daemon has
/// it, nor while the daemon is away.
pub(crate) fn free_address() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let [_, _, c, d] = std::process::id().to_be_bytes();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    // 2 to 254: 127.0.0.1 and its neighbours are left to those who name them, and the last one is no address.
    free_port_at(Ipv4Addr::new(127, (2 + number % 253) as u8, c, d))
}

/// An address of this IP address whose port was free a moment ago.
pub(crate) fn free_port_at(address: Ipv4Addr) -> String {
    let listener = TcpListener::bind((address, 0)).expect("a free port");
    listener.local_addr().expect("its address").to_string()
}

/// A `weir` command for this run directory.
pub(crate) fn weir<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>, run_dir: &Path) -> Command {
    let mut command = Command::new(WEIR);
    command.args(arguments).arg("--run-dir").arg(run_dir);
    command
}

/// A command behind a prefix such as `ip netns exec NAME`.
pub(crate) fn prefixed(prefix: &[&str], program: &str) -> Command {
    let mut words = prefix.iter().copied().chain([program]);
    let mut command = Command::new(words.next().unwrap_or(program));
    command.args(words);
    command
}

/// A child that is killed if the test ends before it does. What it prints is read from the start, so that a full pipe
/// never holds it.
pub(crate) struct Guarded {
    pub(crate) child: Child,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

impl Guarded {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.spawn().expect("the command starts");
        let stdout = child.stdout.take().map(drain);
        let stderr = child.stderr.take().map(drain);
        Self { child, stdout, stderr }
    }

    /// Waits for its end; status, standard output and standard error.
    pub(crate) fn output(mut self) -> Output {
        let status = wait(&mut self.child);
        let join = |reader: Option<JoinHandle<Vec<u8>>>| {
            reader.map_or_else(Vec::new, |reader| reader.join().expect("read"))
        };
        Output { status, stdout: join(self.stdout.take()), stderr: join(self.stderr.take()) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn drain(mut source: impl std::io::Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        source.read_to_end(&mut bytes).expect("readable");
        bytes
    })
}

/// `weir recv` with its output in a pipe.
pub(crate) fn recv(daemon: &Daemon, exchange: &str, consumer: &str) -> Guarded {
    let mut command = weir(["recv", "--exchange", exchange, "--consumer", consumer], &daemon.run_dir);
    Guarded::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))
}

/// `weir send` with its input in a pipe.
pub(crate) fn send(daemon: &Daemon, exchange: &str, arguments: &[&str]) -> Guarded {
    let mut command = weir(["send", "--exchange", exchange], &daemon.run_dir);
    command.args(arguments);
    Guarded::spawn(command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()))
}

/// Writes all of `input` to a sender in a thread and closes its input.
pub(crate) fn feed(sender: &mut Guarded, input: Vec<u8>) -> JoinHandle<()> {
    let mut stdin = sender.child.stdin.take().expect("an input");
    std::thread::spawn(move || {
        // A sender that failed closes its end; its status is what the test looks at.
        let _ = stdin.write_all(&input);
    })
}

/// Lines for a sender until a test has seen what it looks for, however long that takes: with an input of some length the
/// sender may have ended before. Dropped, it goes on until its sender ends.
pub(crate) struct Source {
    is_enough: Arc<AtomicBool>,
    feeder: JoinHandle<Vec<u8>>,
}

impl Source {
    /// Bytes written at a time, and the pause behind them: some 30 MB/s, for all of it is kept.
    const ROUND: (usize, Duration) = (64 << 10, Duration::from_millis(2));

    pub(crate) fn start(sender: &mut Guarded) -> Self {
        let mut stdin = sender.child.stdin.take().expect("an input");
        let is_enough = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&is_enough);
        let feeder = std::thread::spawn(move || {
            let (mut all, mut number) = (Vec::new(), 0);
            while !is_over.load(Ordering::Relaxed) {
                let begin = all.len();
                push_lines(&mut all, begin + Self::ROUND.0, &mut number);
                // A sender that failed closes its end; its status is what the test looks at.
                if stdin.write_all(&all[begin..]).is_err() {
                    break;
                }
                std::thread::sleep(Self::ROUND.1);
            }
            all
        });
        Self { is_enough, feeder }
    }

    /// Closes the input behind a whole line; all that was written. Waits until its sender has taken it.
    pub(crate) fn end(self) -> Vec<u8> {
        self.is_enough.store(true, Ordering::Relaxed);
        eventually("the sender takes its input", || self.feeder.is_finished().then_some(()));
        self.feeder.join().expect("the feeder")
    }
}

/// Deterministic lines, `bytes` long in sum or a little more: a key, a number, filler of varying length.
pub(crate) fn lines(bytes: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes + 4096);
    push_lines(&mut text, bytes, &mut 0);
    text
}

/// Appends lines from this number on, until the text has so many bytes.
fn push_lines(text: &mut Vec<u8>, bytes: usize, number: &mut u64) {
    while text.len() < bytes {
        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
        write!(text, "k{key} {number} ").expect("memory");
        let filler = if number.is_multiple_of(1009) { 100_000 } else { 20 + (*number % 97) as usize };
        text.resize(text.len() + filler, b'a' + (*number % 26) as u8);
        text.push(b'\n');
        *number += 1;
    }
}

/// Lines in sorted order: what remains of text when order between consumers does not count.
pub(crate) fn sorted(parts: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = parts
        .iter()
        .flat_map(|part| part.split_inclusive(|byte| *byte == b'\n'))
        .map(<[u8]>::to_vec)
        .collect();
    all.sort_unstable();
    all
}

/// Waits until `probe` gives something.
pub(crate) fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "did not happen within {} s: {what}", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn wait(child: &mut Child) -> std::process::ExitStatus {
    eventually("the process ends", || child.try_wait().expect("its state"))
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).expect("a process id");
    kill_process(pid, signal).expect("it can be signalled");
}

/// The channels of one side at a daemon, of one exchange.
pub(crate) fn channels(daemon: &Daemon, exchange: &str, side: &str) -> Vec<Value> {
    let rows = daemon.ask("channels")["channels"].as_array().cloned().expect("a list of channels");
    rows.into_iter().filter(|row| row["exchange"] == exchange && row["side"] == side).collect()
}

/// A number of such a row.
pub(crate) fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("{key} in {row}"))
}

/// A subsystem of a daemon as it shows it, if it is there.
pub(crate) fn subsystem(daemon: &Daemon, name: &str) -> Option<Value> {
    let status = daemon.ask("status");
    status["subsystems"].as_array()?.iter().find(|entry| entry["name"] == name).cloned()
}

/// What a daemon's process holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Bytes of memory.
    pub(crate) resident_bytes: u64,
    pub(crate) descriptors: usize,
}

impl Usage {
    pub(crate) fn of(daemon: &Daemon) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("a process");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("a process").count();
        Self { resident_bytes: kib << 10, descriptors }
    }
}

/// Bytes of regions in use at a daemon.
pub(crate) fn memory_used(daemon: &Daemon) -> u64 {
    daemon.ask("status")["memory"]["used_bytes"].as_u64().expect("a number of bytes")
}
