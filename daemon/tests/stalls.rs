//! `weir stalls`: who waits, for how long, and why, between two daemons and their clients.

mod common;
#[path = "common/proxy.rs"]
mod proxy;

use std::io::Read;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use common::{Daemon, DaemonOptions, Pair, eventually, free_address, weir};
use proxy::{Cut, Kind, Proxy};
use serde_json::Value;
use tempfile::TempDir;
use weir_client::{Client, Gate, GateOptions, Item, PartitionOptions, Strategy};

/// A record of one segment, with its prefix.
const RECORD_BYTES: usize = (32 << 10) - 4;

/// Parts of a wait may add up to its whole within what a JSON number holds.
const ROUNDING_SECONDS: f64 = 1e-6;

/// A producer that emits until it is stopped or fails.
struct Endless {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Endless {
    fn start(daemon: &Daemon, exchange: &'static str, options: PartitionOptions) -> Self {
        let (run_dir, stop) = (daemon.run_dir.clone(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let client = Client::connect(&run_dir).expect("a daemon");
            let task = client.task("producer").expect("a task");
            let mut partition =
                task.partition(exchange, 0, 1, 1, Strategy::Forward, options).expect("a partition");
            let record = vec![7; RECORD_BYTES];
            while !stopped.load(Ordering::Relaxed) && partition.emit(&record).is_ok() {}
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Endless {
    /// Its consumer is gone, so that it waits for nothing any more; unless the test has failed, which is not to wait for it.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if std::thread::panicking() {
            return;
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A consumer that does not read.
fn gate(daemon: &Daemon, exchange: &str) -> (Client, Gate) {
    let client = Client::connect(&daemon.run_dir).expect("a daemon");
    let task = client.task("consumer").expect("a task");
    // Everything is said, so that it need not wait for the producer to learn it.
    let (producers, strategy, checksum) = (Some(1), Some(Strategy::Forward), Some(false));
    let options = GateOptions { producers, strategy, checksum, ..GateOptions::default() };
    let gate = task.gate(exchange, 0, 1, options).expect("a gate");
    (client, gate)
}

fn stalls(daemon: &Daemon) -> Value {
    daemon.ask("stalls")
}

/// Seconds of one cause of a kind of wait.
fn seconds(waits: &Value, cause: &str) -> f64 {
    waits["by_cause"][cause]["seconds_total"].as_f64().unwrap_or(0.0)
}

/// The causes of each wait of a report add up to it.
fn check_sums(report: &Value) {
    let channels = report["channels"].as_array().expect("channels").iter();
    let waits = channels.flat_map(|row| [&row["send"], &row["emit"]]);
    let partitions = report["partitions"].as_array().expect("partitions").iter().map(|row| &row["emit"]);
    let totals = [&report["node_total"]["send"], &report["node_total"]["emit"]];
    for wait in waits.chain(partitions).chain(totals) {
        let causes = wait["by_cause"].as_object().map(|causes| causes.values().collect::<Vec<_>>());
        let causes = causes.unwrap_or_default();
        let sum: f64 = causes.iter().map(|cause| cause["seconds_total"].as_f64().expect("a number")).sum();
        let whole = wait["seconds_total"].as_f64().expect("a number");
        assert!((sum - whole).abs() < ROUNDING_SECONDS, "{sum} of {whole}: {wait}");
        let count: u64 = causes.iter().map(|cause| cause["count_total"].as_u64().expect("a count")).sum();
        assert_eq!(Some(count), wait["count_total"].as_u64(), "{wait}");
        let lengths = wait["length_buckets"]
            .as_array()
            .map_or(0, |counts| counts.iter().filter_map(Value::as_u64).sum());
        assert_eq!(count, lengths, "{wait}");
    }
}

/// The waits of the one channel go on, both of them, and for a while all of what is added goes to this cause: before that
/// it may still change, and with it the cause.
fn assert_all_goes_to(daemon: &Daemon, cause: &str) {
    let mut first = Value::Null;
    eventually(&format!("both kinds of wait grow by {cause} alone"), || {
        let report = stalls(daemon);
        check_sums(&report);
        let row = report["channels"].as_array()?.first()?.clone();
        let added = |kind: &str| {
            let of_cause = seconds(&row[kind], cause) - seconds(&first[kind], cause);
            let whole = row[kind]["seconds_total"].as_f64()? - first[kind]["seconds_total"].as_f64()?;
            let is_alone = row[kind]["open"]["cause"] == cause && (of_cause - whole).abs() < ROUNDING_SECONDS;
            is_alone.then_some(of_cause)
        };
        match (added("send"), added("emit")) {
            (Some(send), Some(emit)) => (send > 0.2 && emit > 0.2).then_some(()),
            _ => {
                first = row;
                None
            }
        }
    });
}

#[test]
fn a_consumer_that_does_not_read_is_the_cause_at_the_channel_and_in_the_producer() {
    let pair = Pair::start_on_ordinary_pages();
    let gate = gate(&pair.b, "stuck");
    let producer = Endless::start(&pair.a, "stuck", PartitionOptions::default());
    assert_all_goes_to(&pair.a, "consumer");
    let report = stalls(&pair.a);
    let partition = &report["partitions"][0];
    assert_eq!(partition["emit"]["seconds_total"], 0.0, "its quota is what it lacks: {partition}");
    assert_eq!(partition["quota_usage"], 1.0, "{partition}");
    assert_eq!(report["links"][0]["channels"], 1, "{report}");
    assert!(seconds(&report["links"][0]["send"], "consumer") > 0.2, "{report}");

    // For people.
    let text = |arguments: &[&str]| {
        let mut command = weir([&["stalls"], arguments].concat(), &pair.a.run_dir);
        let output = command.env("LC_ALL", "C.UTF-8").env("TERM", "xterm").output().expect("weir runs");
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    // What came before it weighs less and less.
    let table = eventually("the table says so", || {
        let table = text(&[]);
        ["consumer 99%", "consumer 100%"].iter().any(|share| table.contains(share)).then_some(table)
    });
    assert!(table.starts_with("EXCHANGE  PRODUCER  CONSUMER  PEER  KIND  "), "{table}");
    assert!(text(&["--by", "cause"]).contains("consumer  "), "{table}");
    assert!(text(&["--by", "link"]).starts_with("PEER  SHARDS  "), "{table}");
    drop(gate);
    drop(producer);
}

#[test]
fn a_link_that_is_lost_is_the_cause_until_it_comes_back() {
    let directory = TempDir::new().expect("a directory");
    for file in ["a.toml", "b.toml"] {
        let config = "[link]\ngrace = '2min'\n[memory]\nhugepages = 'off'\n";
        std::fs::write(directory.path().join(file), config).expect("a file");
    }
    let (first, second) = (free_address(), free_address());
    let extra = &["--shards", "1"];
    let a = Daemon::start(directory.path(), &DaemonOptions { extra, ..DaemonOptions::new("a", &first) });
    let proxy = Proxy::start(&first);
    let between = proxy.address();
    let peers = [("a", between.as_str())];
    let options = DaemonOptions { peers: &peers, extra, ..DaemonOptions::new("b", &second) };
    let b = Daemon::start(directory.path(), &options);
    let gate = gate(&b, "cut");
    let producer = Endless::start(&a, "cut", PartitionOptions::default());
    assert_all_goes_to(&a, "consumer");
    proxy.refuse(true);
    assert!(proxy.cut(Kind::Data, Cut::Reset) > 0);
    assert_all_goes_to(&a, "network");
    proxy.refuse(false);
    assert_all_goes_to(&a, "consumer");
    drop(gate);
    drop(producer);
}

#[test]
fn a_pool_that_is_too_small_is_the_cause_although_the_consumer_is_idle() {
    let pair = Pair::start_on_ordinary_pages();
    let (client, mut gate) = gate(&pair.b, "narrow");
    // One segment to write, and one on its way.
    let small = PartitionOptions {
        exclusive: Some(1),
        floating: Some(0),
        retention: Some(0),
        overdraft: Some(0),
        quota: Some(8),
        ..PartitionOptions::default()
    };
    let producer = Endless::start(&pair.a, "narrow", small);
    let done = Arc::new(AtomicBool::new(false));
    let is_done = Arc::clone(&done);
    let reader = std::thread::spawn(move || {
        while !is_done.load(Ordering::Relaxed) && matches!(gate.next(), Ok(Some(Item::Record(_)))) {}
    });
    eventually("the producer waits for its pool, and for nothing else", || {
        let report = stalls(&pair.a);
        check_sums(&report);
        let emit = &report["node_total"]["emit"];
        let (pool, whole) = (seconds(emit, "pool"), emit["seconds_total"].as_f64()?);
        assert_eq!(pool, whole, "{emit}");
        (pool > 0.1 && emit["count_total"].as_u64()? > 100).then_some(())
    });
    let partition = stalls(&pair.a)["partitions"][0].clone();
    assert!(partition["quota_usage"].as_f64() <= Some(0.25), "{partition}");
    done.store(true, Ordering::Relaxed);
    reader.join().expect("the reader");
    drop(client);
    drop(producer);
}

#[test]
fn watching_goes_on_until_nobody_reads() {
    let pair = Pair::start();
    for output in ["table", "json"] {
        let arguments = ["stalls", "--watch", "--output", output];
        let mut command = weir(arguments, &pair.a.run_dir);
        let mut watching = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weir runs");
        let mut stdout = watching.stdout.take().expect("an output");
        let (mut text, mut byte) = (String::new(), [0]);
        // Two looks at least: each ends with a line.
        while text.matches('\n').count() < 3 {
            stdout.read_exact(&mut byte).expect("it goes on");
            text.push(char::from(byte[0]));
        }
        drop(stdout);
        let ended = watching.wait_with_output().expect("it ends");
        assert_eq!(
            (ended.status.code(), ended.stderr.as_slice()),
            (Some(0), &b""[..]),
            "a closed pipe ends it quietly"
        );
        if output == "json" {
            for line in text.lines() {
                let report: Value = serde_json::from_str(line).expect("one object per line");
                assert_eq!(
                    (&report["schema_version"], &report["node"]),
                    (&Value::from(1), &Value::from("a"))
                );
                let ends = report["length_bucket_ends_seconds"].as_array().expect("bounds");
                assert_eq!((ends.len(), &ends[27]), (28, &Value::Null));
            }
        } else {
            assert!(text.starts_with("no stalls\n"), "{text}");
        }
    }
}

/// The kernel's type information.
const TYPES: &str = "/sys/kernel/btf/vmlinux";

/// A configuration that requires probes, with whatever else.
fn requiring(directory: &TempDir, name: &str) {
    let config = "[observe]\nprobes = 'require'\n";
    std::fs::write(directory.path().join(format!("{name}.toml")), config).expect("a file");
}

/// A file with the type information of this kernel, as if it had no such tracepoint.
fn types_without(directory: &TempDir, tracepoint: &str) -> String {
    let mut types = std::fs::read(TYPES).expect("type information");
    let name = format!("\0btf_trace_{tracepoint}\0").into_bytes();
    let places: Vec<usize> =
        types.windows(name.len()).enumerate().filter(|(_, at)| *at == name).map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "this kernel has no {tracepoint}");
    places.into_iter().for_each(|at| types[at + 1] = b'#');
    let path = directory.path().join(format!("{tracepoint}.btf"));
    std::fs::write(&path, types).expect("a file");
    path.display().to_string()
}

#[test]
fn probes_that_are_required_may_lack_the_hooks_of_ends_and_of_what_is_sent_again_but_no_other() {
    let directory = TempDir::new().expect("a directory");
    let what = "a daemon that requires probes";
    let tried = std::process::Command::new(common::WEIR).arg("probes").output().expect("weir runs");
    if tried.status.code() != Some(0) {
        let expected = std::env::var_os("WEIR_PROBES_EXPECTED").is_some();
        let text = String::from_utf8_lossy(&tried.stderr).into_owned();
        assert!(!expected, "the probes do not run although they should: {text}");
        return println!("not run here: {what} ({})", text.lines().next().unwrap_or_default());
    }
    for (tracepoint, is_wanted) in
        [("inet_sock_set_state", false), ("tcp_retransmit_skb", false), ("tcp_rcv_space_adjust", true)]
    {
        let types = types_without(&directory, tracepoint);
        // In a mount namespace of its own the daemon finds these instead of the kernel's.
        let command = format!("mount --bind \"$0\" {TYPES} && exec \"$@\"");
        let prefix = ["unshare", "--mount", "sh", "-c", &command, &types];
        let mounted = common::prefixed(&prefix, "true").output();
        if !mounted.as_ref().is_ok_and(|output| output.status.success()) {
            return println!("not run here: {what} (other type information cannot be mounted: {mounted:?})");
        }
        requiring(&directory, tracepoint);
        let address = free_address();
        let options = DaemonOptions { prefix: &prefix, ..DaemonOptions::new(tracepoint, &address) };
        if is_wanted {
            let mut daemon = Daemon::spawn(directory.path(), &options);
            assert_eq!(daemon.exit_code(), Some(1), "{}", daemon.printed());
            let printed = daemon.printed();
            for part in ["observe.probes = \"require\"", tracepoint, "lost: how long what arrived waited"] {
                assert!(printed.contains(part), "no {part} in: {printed}");
            }
            continue;
        }
        let daemon = Daemon::start(directory.path(), &options);
        let status = daemon.ask("status");
        let lines = status["subsystems"].as_array().expect("lines");
        let line = lines.iter().find(|line| line["name"] == "probes").expect("a line");
        let reason = line["reason"].as_str().unwrap_or_default();
        assert!(reason.starts_with("hook missing: ") && reason.contains(tracepoint), "{line}");
    }
}

#[test]
fn without_probes_how_long_bytes_lie_unread_is_known_from_looks_and_marked_so() {
    let pair = Pair::start();
    let gate = gate(&pair.b, "looks");
    let producer = Endless::start(&pair.a, "looks", PartitionOptions::default());
    assert_all_goes_to(&pair.a, "consumer");
    for daemon in [&pair.a, &pair.b] {
        let status = daemon.ask("status");
        let links = status["links"].as_array().expect("links");
        assert!(!links.is_empty(), "{status}");
        for link in links {
            let socket = &link["socket"];
            assert_eq!(socket["approximate"], true, "{socket}");
            for known in ["residence_max_seconds", "receive_queue_bytes", "idle_seconds_total"] {
                assert!(socket[known].is_number(), "{known}: {socket}");
            }
            assert!(socket["residence_nanoseconds_total"].is_array(), "{socket}");
            for unknown in [
                "arrivals_read_total",
                "residence_seconds_total",
                "unwritable_seconds_total",
                "zero_windows_total",
                "stalls_total",
            ] {
                assert!(socket[unknown].is_null(), "{unknown}: {socket}");
            }
        }
    }
    drop(gate);
    drop(producer);
}
