//! `weir bottleneck`: a chain of four tasks over two daemons, of which the third is slow; and one where nobody is.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{Daemon, Guarded, PATIENCE, Pair, eventually, send, weir};
use serde_json::{Value, json};

/// Bytes of a line.
const LINE_BYTES: usize = 4096;

/// What the daemon answers to `GET PATH`.
fn get(daemon: &Daemon, path: &str) -> Value {
    let mut socket = UnixStream::connect(daemon.run_dir.join("control.sock")).expect("a control socket");
    let request = format!("GET {path} HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).expect("it is read");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{path}: {error}: {answer}"))
}

/// A line of lines after another, with so much time between them, until it is dropped.
struct Feeder {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Feeder {
    fn start(sender: &mut Guarded, rest: Duration) -> Self {
        let mut input = sender.child.stdin.take().expect("an input");
        let is_over = Arc::new(AtomicBool::new(false));
        let ending = Arc::clone(&is_over);
        let mut line = vec![b'x'; LINE_BYTES];
        line.push(b'\n');
        let thread = std::thread::spawn(move || {
            while !ending.load(Ordering::Relaxed) && input.write_all(&line).is_ok() {
                if !rest.is_zero() {
                    std::thread::sleep(rest);
                }
            }
        });
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It may wait in a write until its sender is ended, which comes behind this.
            drop(thread);
        }
    }
}

/// `weir pipe` of this task, from one exchange to another, through this command.
fn pipe(daemon: &Daemon, task: &str, (from, to): (&str, &str), command: &[&str]) -> Guarded {
    let mut pipe = weir(["pipe", "--from", from, "--to", to, "--task", task], &daemon.run_dir);
    pipe.args(["--strategy", "forward", "--"]).args(command);
    Guarded::spawn(pipe.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()))
}

/// A on a, B on a, C on b with this command, D on b.
struct Chain {
    pair: Pair,
    _tasks: [Guarded; 4],
    _feeder: Feeder,
}

impl Chain {
    fn start(third: &[&str], rest: Duration) -> Self {
        let pair = Pair::start();
        let mut sink =
            weir(["recv", "--exchange", "cd", "--consumer", "0/1", "--task", "D"], &pair.b.run_dir);
        let sink = Guarded::spawn(sink.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()));
        let third = pipe(&pair.b, "C", ("bc", "cd"), third);
        let second = pipe(&pair.a, "B", ("ab", "bc"), &["cat"]);
        let mut source = send(&pair.a, "ab", &["--strategy", "forward", "--task", "A"]);
        let feeder = Feeder::start(&mut source, rest);
        Self { pair, _tasks: [source, second, third, sink], _feeder: feeder }
    }

    fn nodes(&self) -> [&Daemon; 2] {
        [&self.pair.a, &self.pair.b]
    }
}

/// Waits until this daemon's answer is as wanted.
fn until(what: &str, daemon: &Daemon, path: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let last = get(daemon, path);
        if is_wanted(&last) {
            return last;
        }
        assert!(began.elapsed() < PATIENCE, "did not happen: {what}; the last answer: {last:#}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn tasks(report: &Value) -> Vec<&str> {
    let rows = report["tasks"].as_array().expect("a list of tasks");
    rows.iter().map(|row| row["task"].as_str().expect("a name")).collect()
}

/// Waits until `weir bottleneck` says so, in lines that a terminal has room for.
fn shows(daemon: &Daemon, beginning: &str) {
    eventually(&format!("it shows: {beginning}"), || {
        let shown = weir(["bottleneck"], &daemon.run_dir).output().expect("weir runs");
        let text = String::from_utf8(shown.stdout).expect("text");
        assert_eq!(shown.status.code(), Some(0), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        text.starts_with(beginning).then_some(())
    });
}

/// How many full windows the instances have. Each adds up to a second.
fn full_windows(report: &Value) -> usize {
    let mut full = 0;
    for row in report["tasks"].as_array().expect("a list of tasks") {
        for instance in row["instances"].as_array().expect("a list of instances") {
            for window in ["last_1_s", "last_10_s", "last_60_s"] {
                let Some(times) = instance[window].as_object() else { continue };
                let sum: u64 = times.values().map(|ms| ms.as_u64().expect("a number")).sum();
                assert!((980..=1020).contains(&sum), "{window} of {instance}");
                assert_eq!(times.len(), 4);
                full += 1;
            }
        }
    }
    full
}

/// Any node tells what the socket does that carries `bc`, also the one at which it ends. These daemons have no probes.
fn assert_sockets(daemon: &Daemon) {
    let is_told = |report: &Value| {
        let channels = report["channels"].as_array().expect("a list of channels");
        channels.iter().any(|channel| {
            let states = channel["socket"]["states_ms_per_second"].as_object();
            channel["exchange"] == "bc" && states.is_some_and(|states| states.len() == 6)
        })
    };
    let report = until("the socket is told of", daemon, "/v1/tasks", is_told);
    let channels = report["channels"].as_array().expect("a list of channels");
    let channel = channels.iter().find(|channel| channel["exchange"] == "bc").expect("that channel");
    let socket = &channel["socket"];
    let states = socket["states_ms_per_second"].as_object().expect("states");
    let sum: u64 = states.values().map(|ms| ms.as_u64().expect("a number")).sum();
    assert!((990..=1010).contains(&sum), "{channel:#}");
    assert_eq!((&channel["node"], &socket["approximate"]), (&"a".into(), &true.into()), "{channel:#}");
    assert!(socket["send_queue_bytes"].is_u64(), "{channel:#}");
}

#[test]
fn the_third_of_four_is_named_by_both_nodes_the_others_are_victims_or_starved() {
    // It reads a line, rests, and writes a short one: slow, and without any use of a processor.
    let slow = ["sh", "-c", "while read -r line; do sleep 0.05; echo done; done"];
    let chain = Chain::start(&slow, Duration::ZERO);
    for daemon in chain.nodes() {
        // Each answer is about the last seconds: one in which the machine was away is another one.
        let is_named = |verdict: &Value| {
            let found = verdict["bottlenecks"].as_array().expect("a list");
            found.len() == 1
                && found[0]["task"] == "C"
                && found[0]["cause"] == "outside"
                && found[0]["nodes"] == json!(["b"])
                && found[0]["holds_up"] == json!(["B"])
                && verdict["victims"] == json!(["A", "B"])
                && verdict["starved"] == json!(["D"])
        };
        let verdict = until("C is named, and who waits for it", daemon, "/v1/bottleneck", is_named);
        assert_eq!(verdict["schema_version"], 1);
        assert_eq!(verdict["verdict"], "bottleneck");

        let have_roles = |report: &Value| {
            let rows = report["tasks"].as_array().expect("a list of tasks");
            let roles = rows.iter().map(|row| &row["role"]);
            tasks(report) == ["A", "B", "C", "D"]
                && roles.eq(["victim", "victim", "bottleneck", "starved"])
                && rows[1]["backpressure_level"] == "HIGH"
                && rows[3]["backpressure_level"] == "OK"
                && full_windows(report) >= 4
        };
        until("each has its role, and B and D their levels", daemon, "/v1/tasks", have_roles);

        assert_sockets(daemon);
        shows(daemon, "C is the bottleneck");
    }
}

#[test]
fn where_nobody_is_slow_there_is_no_bottleneck() {
    let chain = Chain::start(&["cat"], Duration::from_millis(50));
    for daemon in chain.nodes() {
        let is_seen = |report: &Value| {
            let rows = report["tasks"].as_array().expect("a list");
            rows.len() == 4 && rows.iter().all(|row| row["instances"][0]["last_1_s"].is_object())
        };
        until("all are seen", daemon, "/v1/tasks", |report| is_seen(report) && full_windows(report) >= 4);
        let is_none = |verdict: &Value| verdict["verdict"] == "no_bottleneck";
        let verdict = until("nobody is one", daemon, "/v1/bottleneck", is_none);
        assert_eq!(verdict["bottlenecks"], json!([]));
        shows(daemon, "No bottleneck: ");
    }
}

#[test]
fn what_is_missing_is_said_and_ends_with_3() {
    let mut pair = Pair::start();
    let verdict = get(&pair.a, "/v1/bottleneck");
    assert_eq!(verdict["verdict"], "not_enough_data", "{verdict:#}");
    pair.b.kill();
    let missing =
        until("b is missing", &pair.a, "/v1/bottleneck", |verdict| verdict["missing"][0]["node"] == "b");
    assert!(
        missing["lacks"][0].as_str().is_some_and(|lack| lack.starts_with("node b is not linked")),
        "{missing:#}"
    );
    let shown = weir(["bottleneck", "--output", "json"], &pair.a.run_dir).output().expect("weir runs");
    assert_eq!(shown.status.code(), Some(3));
    let json: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert_eq!(json["missing"][0]["node"], "b");
    pair.a.kill();
    let shown = weir(["bottleneck", "--output", "json"], &pair.a.run_dir).output().expect("weir runs");
    assert_eq!(shown.status.code(), Some(4));
}
