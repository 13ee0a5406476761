//! Bad input and dead processes: one line that says what was found, what is needed and how to mend it; the right exit
//! code; and no effect on anybody else.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};

use common::{
    Daemon, DaemonOptions, Guarded, Pair, Source, WEIR, channels, eventually, feed, free_address, lines,
    memory_used, recv, send, signal, weir,
};
use rustix::process::Signal;
use tempfile::TempDir;

/// Runs a command as a user who owns nothing.
const UNPRIVILEGED: &[&str] = &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Records of which a consumer that stands still gets a part only, and a producer's pool holds the rest.
const QUEUED_RECORDS: usize = 40_000;

/// Asserts exit code, and that the last line of standard error holds each of `words`.
fn assert_refused(output: &Output, code: i32, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    let line = text.lines().last().unwrap_or_default();
    for word in words {
        assert!(line.contains(word), "{word:?} is missing in: {text}");
    }
}

fn send_output(daemon: &Daemon, exchange: &str, arguments: &[&str], input: &[u8]) -> Output {
    let mut sender = send(daemon, exchange, arguments);
    feed(&mut sender, input.to_vec()).join().expect("the feeder");
    sender.output()
}

/// A producer that stays attached until the value is dropped: its input stays open.
fn attached_producer(daemon: &Daemon, exchange: &str, arguments: &[&str]) -> Guarded {
    let sender = send(daemon, exchange, arguments);
    eventually("the producer is attached", || (!channels(daemon, exchange, "send").is_empty()).then_some(()));
    sender
}

#[test]
fn an_unknown_strategy_is_a_usage_error_that_names_the_known_ones() {
    let pair = Pair::start();
    let output = send_output(&pair.a, "x", &["--strategy", "shuffle", "--consumers", "2"], b"");
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    for word in ["shuffle", "forward", "rebalance", "hash"] {
        assert!(text.contains(word), "{word} in {text}");
    }
}

#[test]
fn an_index_out_of_range_is_refused() {
    let pair = Pair::start();
    let output = send_output(&pair.a, "x", &["--producer", "4/4", "--consumers", "2"], b"");
    assert_refused(&output, 2, &["4/4"]);
    let output = recv(&pair.b, "x", "2/2").output();
    assert_refused(&output, 2, &["2/2"]);
}

#[test]
fn both_ends_must_state_the_same_parallelism() {
    let pair = Pair::start();
    let _producer = attached_producer(&pair.a, "x", &["--strategy", "rebalance", "--consumers", "2"]);
    let output = recv(&pair.b, "x", "0/3").output();
    assert_refused(&output, 1, &["consumer 0 of exchange x", "consumers is 3, needed: 2"]);
}

#[test]
fn producers_of_an_exchange_must_state_the_same_strategy() {
    let pair = Pair::start();
    let first = ["--producer", "0/2", "--strategy", "rebalance", "--consumers", "2"];
    let _producer = attached_producer(&pair.a, "x", &first);
    eventually("node b knows the exchange", || {
        let arguments = ["--producer", "1/2", "--strategy", "hash", "--key-field", "1", "--consumers", "2"];
        let output = send_output(&pair.b, "x", &arguments, b"");
        (output.status.code() == Some(1))
            .then(|| assert_refused(&output, 1, &["exchange x", "strategy is hash, needed: rebalance"]))
    });
}

#[test]
fn segment_sizes_of_two_nodes_must_agree() {
    let directory = TempDir::new().expect("a directory");
    let (first, second) = (free_address(), free_address());
    std::fs::write(directory.path().join("a.toml"), "[memory]\nsegment_bytes = 65536\n").expect("a file");
    let a = Daemon::start(directory.path(), &DaemonOptions::new("a", &first));
    let b = Daemon::start(
        directory.path(),
        &DaemonOptions { peers: &[("a", &first)], ..DaemonOptions::new("b", &second) },
    );
    eventually("node b says why it cannot reach node a", || {
        let text = b.ask("status").to_string();
        (text.contains("65536") && text.contains("32768")).then_some(())
    });
    drop(a);
}

#[test]
fn a_record_over_the_limit_is_refused_with_both_sizes_and_nothing_of_it_arrives() {
    let pair = Pair::start();
    let mut sender = attached_producer(&pair.a, "x", &["--strategy", "forward", "--consumers", "1"]);
    let receiver = recv(&pair.b, "x", "0/1");
    // A consumer that comes later than the end of the producer waits for another one.
    eventually("the two are connected", || {
        channels(&pair.a, "x", "send").iter().any(|row| row["peer"] == "b").then_some(())
    });
    let mut input = b"first\n".to_vec();
    input.resize(input.len() + (1 << 20) + 1, b'x');
    input.push(b'\n');
    feed(&mut sender, input).join().expect("the feeder");
    let output = sender.output();
    assert_refused(&output, 1, &["1048577", "1048576"]);
    let received = receiver.output();
    assert_refused(&received, 1, &["producer gone"]);
    assert!(b"first\n".starts_with(&received.stdout), "nothing of the record that was refused");
}

#[test]
fn a_second_producer_with_the_same_index_is_refused_on_either_node_and_the_first_goes_on() {
    let pair = Pair::start();
    let arguments = ["--strategy", "forward", "--consumers", "1"];
    let mut first = attached_producer(&pair.a, "x", &arguments);
    let holder = format!("process {}", first.child.id());
    let words = ["duplicate_producer", "producer 0 of exchange x", &holder, "node a"];
    assert_refused(&send_output(&pair.a, "x", &arguments, b"no\n"), 1, &words);
    let receiver = recv(&pair.b, "x", "0/1");
    eventually("the consumer has found the first", || {
        (!channels(&pair.b, "x", "receive").is_empty()).then_some(())
    });
    let words = ["duplicate_producer", "producer 0 of exchange x", "node a"];
    assert_refused(&send_output(&pair.b, "x", &arguments, b"no\n"), 1, &words);
    feed(&mut first, b"yes\n".to_vec()).join().expect("the feeder");
    assert!(first.output().status.success());
    assert_eq!(receiver.output().stdout, b"yes\n");
}

#[test]
fn a_second_consumer_with_the_same_index_is_refused_on_either_node_and_the_first_goes_on() {
    let pair = Pair::start();
    let mut producer = attached_producer(&pair.a, "x", &["--strategy", "forward", "--consumers", "1"]);
    let first = recv(&pair.b, "x", "0/1");
    eventually("the first is connected", || {
        channels(&pair.a, "x", "send").iter().any(|row| row["peer"] == "b").then_some(())
    });
    // Node b knows its holder; for one on node a the producer's node finds it out.
    let holder = format!("process {}", first.child.id());
    for (daemon, words) in [
        (&pair.b, ["duplicate_consumer", "consumer 0 of exchange x", &holder, "node b"]),
        (&pair.a, ["duplicate consumer", "consumer 0 of x", "attached already", "node b"]),
    ] {
        let output = recv(daemon, "x", "0/1").output();
        assert_refused(&output, 1, &words);
        assert!(output.stdout.is_empty(), "no record came to the one that was refused");
    }
    feed(&mut producer, b"yes\n".to_vec()).join().expect("the feeder");
    assert!(producer.output().status.success());
    assert_eq!(first.output().stdout, b"yes\n");
}

#[test]
fn a_killed_producer_gives_its_memory_back_and_its_consumer_gets_the_reason() {
    let pair = Pair::start();
    let receiver = recv(&pair.b, "x", "0/1");
    let mut sender = send(&pair.a, "x", &["--strategy", "forward", "--consumers", "1"]);
    let _source = Source::start(&mut sender);
    eventually("records flow", || {
        channels(&pair.b, "x", "receive")
            .iter()
            .any(|row| row["bytes_total"].as_u64() > Some(1 << 20))
            .then_some(())
    });
    sender.child.kill().expect("it can be killed");
    assert_refused(&receiver.output(), 1, &["producer gone", "has ended"]);
    for daemon in [&pair.a, &pair.b] {
        eventually("its memory is back", || (memory_used(daemon) == 0).then_some(()));
    }
}

#[test]
fn a_killed_consumer_gives_its_memory_back_and_its_producer_gets_the_reason() {
    let pair = Pair::start();
    let mut receiver = recv(&pair.b, "x", "0/1");
    let mut sender = send(&pair.a, "x", &["--strategy", "forward", "--consumers", "1"]);
    let _source = Source::start(&mut sender);
    eventually("records flow", || {
        channels(&pair.b, "x", "receive")
            .iter()
            .any(|row| row["bytes_total"].as_u64() > Some(1 << 20))
            .then_some(())
    });
    receiver.child.kill().expect("it can be killed");
    assert_refused(&sender.output(), 1, &["consumer gone", "node b", "has ended"]);
    for daemon in [&pair.a, &pair.b] {
        eventually("its memory is back", || (memory_used(daemon) == 0).then_some(()));
    }
}

#[test]
fn a_killed_daemon_ends_channels_on_the_other_node_with_the_reason() {
    let mut pair = Pair::start();
    let receiver = recv(&pair.b, "x", "0/1");
    let mut sender = send(&pair.a, "x", &["--strategy", "forward", "--consumers", "1"]);
    let _source = Source::start(&mut sender);
    eventually("records flow", || {
        channels(&pair.b, "x", "receive")
            .iter()
            .any(|row| row["bytes_total"].as_u64() > Some(1 << 20))
            .then_some(())
    });
    pair.a.kill();
    assert_refused(&receiver.output(), 1, &["link lost", "node a"]);
    assert_refused(&sender.output(), 4, &["daemon", "ended"]);
    eventually("memory is back", || (memory_used(&pair.b) == 0).then_some(()));
}

#[test]
fn a_sender_without_input_notices_that_its_daemon_was_killed() {
    let mut pair = Pair::start();
    let mut sender = attached_producer(&pair.a, "x", &["--strategy", "forward", "--consumers", "1"]);
    pair.a.kill();
    // Its input stays open, and nothing is ever written to it.
    let _input = sender.child.stdin.take();
    assert_refused(&sender.output(), 4, &["daemon", "ended", "log"]);
}

#[test]
fn commands_without_a_daemon_say_so_and_exit_4() {
    let directory = TempDir::new().expect("a directory");
    for arguments in [
        &["status"][..],
        &["channels"],
        &["send", "--exchange", "x", "--consumers", "1", "--strategy", "forward"],
        &["recv", "--exchange", "x", "--consumer", "0/1"],
    ] {
        let output = weir(arguments, directory.path()).output().expect("weir runs");
        assert_refused(&output, 4, &[&directory.path().display().to_string()]);
    }
}

#[test]
fn a_second_daemon_on_the_same_run_dir_is_refused_and_the_first_goes_on() {
    let directory = TempDir::new().expect("a directory");
    let first_address = free_address();
    let mut first = Daemon::start(directory.path(), &DaemonOptions::new("a", &first_address));
    let second_address = free_address();
    let mut second = Daemon::spawn(directory.path(), &DaemonOptions::new("a", &second_address));
    assert_eq!(second.exit_code(), Some(1));
    assert!(second.printed().contains(&first.pid().to_string()), "{}", second.printed());
    assert!(first.is_running());
    first.ask("status");
}

#[test]
fn the_sockets_of_a_dead_daemon_are_replaced() {
    let directory = TempDir::new().expect("a directory");
    let address = free_address();
    let mut first = Daemon::start(directory.path(), &DaemonOptions::new("a", &address));
    first.kill();
    assert!(first.run_dir.join("attach.sock").exists());
    let second = Daemon::start(directory.path(), &DaemonOptions::new("a", &address));
    second.ask("status");
}

#[test]
fn a_taken_port_is_named() {
    let directory = TempDir::new().expect("a directory");
    let address = free_address();
    let _first = Daemon::start(directory.path(), &DaemonOptions::new("a", &address));
    let mut second = Daemon::spawn(directory.path(), &DaemonOptions::new("b", &address));
    assert_eq!(second.exit_code(), Some(1));
    assert!(second.printed().contains(&address), "{}", second.printed());
}

#[test]
fn a_run_dir_that_cannot_be_written_is_named() {
    // The second: a directory of root's, for a user who is not.
    for (prefix, has_file) in [(&[][..], true), (UNPRIVILEGED, false)] {
        if !prefix.is_empty() && !rustix::process::geteuid().is_root() {
            println!("not run here: a daemon of another user than the owner of its run dir (needs root)");
            continue;
        }
        let directory = TempDir::new().expect("a directory");
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).expect("its mode");
        if has_file {
            // A file where a directory is needed: refused for root too.
            std::fs::write(directory.path().join("a"), b"").expect("a file");
        }
        let program = directory.path().join("weir").display().to_string();
        std::fs::copy(WEIR, &program).expect("a copy that everybody may run");
        let address = free_address();
        let options = DaemonOptions { prefix, program: &program, ..DaemonOptions::new("a", &address) };
        let mut daemon = Daemon::spawn(directory.path(), &options);
        assert_eq!(daemon.exit_code(), Some(1));
        assert!(daemon.printed().contains(&daemon.run_dir.display().to_string()), "{}", daemon.printed());
    }
}

#[test]
fn a_non_loopback_listener_without_a_key_is_refused() {
    let directory = TempDir::new().expect("a directory");
    let mut daemon = Daemon::spawn(directory.path(), &DaemonOptions::new("a", "0.0.0.0:0"));
    assert_eq!(daemon.exit_code(), Some(78), "before anything listens");
    for word in ["0.0.0.0:0", "key_file"] {
        assert!(daemon.printed().contains(word), "{word} in {}", daemon.printed());
    }
}

#[test]
fn a_peer_with_another_key_is_refused_and_both_say_so() {
    let directory = TempDir::new().expect("a directory");
    let key = |name: &str, byte: u8| {
        let path = directory.path().join(name);
        std::fs::write(&path, [byte; 32]).expect("a key");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("its mode");
        path.display().to_string()
    };
    let (key_a, key_b) = (key("key-a", 1), key("key-b", 2));
    let (first, second) = (free_address(), free_address());
    let a = Daemon::start(
        directory.path(),
        &DaemonOptions { extra: &["--key-file", &key_a], ..DaemonOptions::new("a", &first) },
    );
    let b = Daemon::start(
        directory.path(),
        &DaemonOptions {
            peers: &[("a", &first)],
            extra: &["--key-file", &key_b],
            ..DaemonOptions::new("b", &second)
        },
    );
    eventually("node b says that the keys differ", || {
        b.ask("status").to_string().contains("cluster key differs").then_some(())
    });
    eventually("node a logs it", || a.printed().contains("cluster key differs").then_some(()));
}

#[test]
fn a_pool_over_the_budget_is_refused_with_needed_available_total_key_and_holders() {
    let pair = Pair::start_with(&["--memory", "8388608"]);
    let _holder = attached_producer(&pair.a, "holder", &["--strategy", "rebalance", "--consumers", "64"]);
    let output = send_output(&pair.a, "late", &["--strategy", "rebalance", "--consumers", "64"], b"");
    let used = memory_used(&pair.a);
    let available = 8_388_608 - used;
    let (available_text, holder) =
        (format!("{available} of 8388608 bytes are available"), format!("exchange holder ({used} bytes)"));
    assert_refused(&output, 1, &["memory.total", &available_text, &holder]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let needed = text.split("needed: ").nth(1).and_then(|rest| rest.split(';').next());
    let needed: u64 = needed.and_then(|number| number.parse().ok()).expect("the number needed");
    assert!(needed > available, "{text}");
    assert_eq!(memory_used(&pair.a), used, "the one that was refused holds nothing");
}

#[test]
fn a_misspelt_key_exits_78_with_file_line_and_the_nearest_key() {
    let directory = TempDir::new().expect("a directory");
    std::fs::write(directory.path().join("a.toml"), "# first\n[memory]\nsegment_byte = 32768\n")
        .expect("a file");
    let mut daemon = Daemon::spawn(directory.path(), &DaemonOptions::new("a", "127.0.0.1:0"));
    assert_eq!(daemon.exit_code(), Some(78));
    let text = daemon.printed();
    for word in ["a.toml:3", "segment_byte", "segment_bytes"] {
        assert!(text.contains(word), "{word} in {text}");
    }
}

/// A transfer of which node a has everything, the end included, and cannot send everything: its consumer stands still.
struct Queued {
    pair: Pair,
    sender: Guarded,
    receiver: Guarded,
    input: String,
}

impl Queued {
    fn start() -> Self {
        let pair = Pair::start_on_ordinary_pages();
        let receiver = recv(&pair.b, "x", "0/1");
        // A sender that has more to come when the daemon drains is told so. This one lets go of its last buffer with its
        // end.
        let arguments = ["--strategy", "forward", "--consumers", "1", "--buffer-timeout", "off"];
        let mut sender = send(&pair.a, "x", &arguments);
        eventually("they are connected", || {
            let is_open = |row: &serde_json::Value| row["state"] == "open";
            channels(&pair.b, "x", "receive").iter().any(is_open).then_some(())
        });
        signal(receiver.child.id(), Signal::STOP);
        let input = "a record\n".repeat(QUEUED_RECORDS);
        feed(&mut sender, input.clone().into_bytes()).join().expect("the feeder");
        // A length of four bytes in place of the newline.
        let framed = (input.len() + 3 * QUEUED_RECORDS) as u64;
        eventually("node a has all of it, and cannot send all of it", || {
            let row = channels(&pair.a, "x", "send").pop()?;
            let (sent, queued) = (row["bytes_total"].as_u64()?, row["queued_bytes"].as_u64()?);
            (queued > 0 && sent + queued == framed).then_some(())
        });
        Self { pair, sender, receiver, input }
    }

    /// The consumer goes on and gets everything.
    fn deliver(receiver: Guarded, input: &str) {
        signal(receiver.child.id(), Signal::CONT);
        let received = receiver.output();
        assert!(received.status.success(), "{}", String::from_utf8_lossy(&received.stderr));
        assert!(received.stdout == input.as_bytes(), "all that was queued, and no more");
    }
}

#[test]
fn sigterm_sends_what_is_queued_and_exits_0() {
    let Queued { mut pair, sender, receiver, input } = Queued::start();
    signal(pair.a.pid(), Signal::TERM);
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(pair.a.is_running(), "it does not end before everything is sent");
    Queued::deliver(receiver, &input);
    let sent = sender.output();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    assert_eq!(pair.a.exit_code(), Some(0));
    for socket in ["attach.sock", "control.sock"] {
        assert!(!pair.a.run_dir.join(socket).exists(), "its sockets are gone");
    }
    assert_eq!(pair.b.terminate(), Some(0));
}

/// It looks only when its daemon has gone, and finds that all has arrived.
#[test]
fn a_producer_that_stands_still_while_its_daemon_drains_is_told_that_all_has_arrived() {
    let Queued { mut pair, sender, receiver, input } = Queued::start();
    signal(sender.child.id(), Signal::STOP);
    signal(pair.a.pid(), Signal::TERM);
    Queued::deliver(receiver, &input);
    assert_eq!(pair.a.exit_code(), Some(0));
    signal(sender.child.id(), Signal::CONT);
    let sent = sender.output();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
}

#[test]
fn closing_the_reader_of_recv_ends_it_quietly_and_tells_the_producer() {
    let pair = Pair::start();
    let mut command = weir(["recv", "--exchange", "x", "--consumer", "0/1"], &pair.b.run_dir);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let receiver = Guarded::spawn(command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()));
    drop(command);
    let mut sender = send(&pair.a, "x", &["--strategy", "forward", "--consumers", "1"]);
    let _feeder = feed(&mut sender, lines(64 << 20));
    eventually("records flow", || {
        channels(&pair.b, "x", "receive")
            .iter()
            .any(|row| row["bytes_total"].as_u64() > Some(0))
            .then_some(())
    });
    drop(reader);
    assert_refused(&sender.output(), 1, &["consumer gone"]);
    let output = receiver.output();
    assert!(output.status.success(), "{:?}", output.status);
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
