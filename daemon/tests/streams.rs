//! Standard streams that take nothing: neither the daemon nor a command may end by them, or wait for them.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use common::{
    DaemonOptions, Guarded, Pair, Source, WEIR, eventually, feed, free_address, lines, recv, send, sorted,
    subsystem, weir,
};
use rustix::pipe::pipe;
use rustix::process::Signal;
use tempfile::TempDir;

/// Standard error that takes nothing.
enum Silent {
    /// A file on a disk that is full.
    Full,
    /// A pipe that nobody reads any more.
    Broken,
}

impl Silent {
    fn stdio(&self) -> Stdio {
        match self {
            Self::Full => File::options().write(true).open("/dev/full").expect("a full device").into(),
            Self::Broken => {
                let (reader, writer) = pipe().expect("a pipe");
                drop(reader);
                writer.into()
            }
        }
    }
}

/// Starts a daemon whose log goes to `log`, and waits until it answers.
fn daemon(directory: &TempDir, log: Stdio) -> Guarded {
    let run_dir = directory.path().join("run");
    let mut command = Command::new(WEIR);
    command.args(["daemon", "--node", "a", "--shards", "1", "--listen", &free_address()]);
    let config = directory.path().join("weir.toml");
    File::create(&config).expect("a configuration file");
    command.arg("--config").arg(config).arg("--run-dir").arg(&run_dir);
    let daemon = Guarded::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log));
    eventually("the daemon answers", || answers(directory).then_some(()));
    daemon
}

fn answers(directory: &TempDir) -> bool {
    let output = weir(["status"], &directory.path().join("run")).output().expect("weir runs");
    matches!(output.status.code(), Some(0 | 3))
}

/// Sends this text through the daemon and compares what arrives.
fn transfers(directory: &TempDir, exchange: &str, input: &[u8]) {
    let run_dir = directory.path().join("run");
    let mut receiver = weir(["recv", "--exchange", exchange], &run_dir);
    let receiver =
        Guarded::spawn(receiver.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut sender = weir(["send", "--consumers", "1", "--exchange", exchange], &run_dir);
    let mut sender =
        Guarded::spawn(sender.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()));
    feed(&mut sender, input.to_vec()).join().expect("the feeder");
    assert_eq!(sender.output().status.code(), Some(0));
    assert!(receiver.output().stdout == input, "every record, in order");
}

#[test]
fn a_daemon_whose_log_cannot_be_written_carries_records_and_ends_in_order() {
    for silent in [Silent::Full, Silent::Broken] {
        let directory = TempDir::new().expect("a directory");
        let daemon = daemon(&directory, silent.stdio());
        transfers(&directory, "x", &lines(1 << 20));
        common::signal(daemon.child.id(), Signal::TERM);
        assert_eq!(daemon.output().status.code(), Some(0));
    }
}

#[test]
fn a_reader_of_the_log_that_stands_still_holds_nobody_up_and_is_told_what_it_missed() {
    let directory = TempDir::new().expect("a directory");
    let (reader, writer) = pipe().expect("a pipe");
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).expect("a small pipe");
    let daemon = daemon(&directory, writer.into());
    let run_dir = directory.path().join("run");
    // One line for each client that goes: far more than this pipe and the queue hold.
    let flood = || {
        for _ in 0..1_500 {
            drop(weir_client::Client::connect(&run_dir).expect("the daemon takes clients"));
        }
    };
    flood();
    assert!(answers(&directory));
    transfers(&directory, "x", &lines(1 << 20));
    // It reads on, and finds what it has missed.
    let reading = std::thread::spawn(move || {
        let mut reader = BufReader::new(File::from(reader));
        let mut line = String::new();
        while !line.contains("lines of the log are missing here") {
            line.clear();
            assert_ne!(
                reader.read_line(&mut line).expect("a line"),
                0,
                "it has ended without a word of that"
            );
        }
        reader
    });
    eventually("it is told what it has missed", || reading.is_finished().then_some(()));
    let mut reader = reading.join().expect("a reader");
    // Once more; and the daemon ends although nobody takes its last lines.
    flood();
    common::signal(daemon.child.id(), Signal::TERM);
    assert_eq!(daemon.output().status.code(), Some(0));
    let mut log = Vec::new();
    reader.read_to_end(&mut log).expect("readable");
    assert!(log.len() >= 2048, "the pipe is full: {} bytes", log.len());
}

#[test]
fn streams_that_are_set_not_to_block_are_waited_for() {
    let pair = Pair::start();
    let input = lines(4 << 20);
    let mut sender = send(&pair.a, "x", &["--consumers", "1"]);
    let (reader, writer) = pipe().expect("a pipe");
    rustix::io::ioctl_fionbio(&writer, true).expect("it does not block");
    let receiver = {
        // The command keeps the pipe open, so that it must go before the reader can see the end.
        let mut command = weir(["recv", "--exchange", "x"], &pair.b.run_dir);
        Guarded::spawn(command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()))
    };
    let feeder = feed(&mut sender, input.clone());
    // Nobody reads until the pipe is full and the channel waits.
    eventually("the channel waits for its consumer", || {
        let rows = common::channels(&pair.a, "x", "send");
        rows.first().filter(|row| row["credit"] == 0 && row["backlog"] != 0).map(drop)
    });
    let reading = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        File::from(reader).read_to_end(&mut bytes).expect("readable");
        bytes
    });
    feeder.join().expect("the feeder");
    assert_eq!(sender.output().status.code(), Some(0));
    let received = receiver.output();
    assert_eq!(received.status.code(), Some(0), "{}", String::from_utf8_lossy(&received.stderr));
    assert!(reading.join().expect("a reader") == input, "every record, in order");
}

#[test]
fn a_hangup_ends_nobody() {
    let mut pair = Pair::start();
    common::signal(pair.a.pid(), Signal::HUP);
    let receiver = recv(&pair.b, "x", "0/1");
    let mut sender = send(&pair.a, "x", &["--consumers", "1"]);
    feed(&mut sender, b"one\n".to_vec()).join().expect("the feeder");
    assert_eq!(sender.output().status.code(), Some(0));
    assert_eq!(receiver.output().stdout, b"one\n");
    assert!(pair.a.is_running());
    eventually("it is taken for the order to reload", || {
        pair.a.printed().contains("configuration reloaded").then_some(())
    });
}

#[test]
fn nothing_is_logged_for_each_buffer() {
    let pair = Pair::start_configured("[log]\nlevel = \"debug\"\nformat = \"json\"\n");
    let receiver = recv(&pair.b, "x", "0/1");
    let mut sender = send(&pair.a, "x", &["--strategy", "forward", "--consumers", "1"]);
    let source = Source::start(&mut sender);
    let sent = eventually("much is sent", || {
        let rows = common::channels(&pair.a, "x", "send");
        Some(common::number(rows.first()?, "buffers_total")).filter(|sent| *sent > 500)
    });
    let text = source.end();
    assert!(sender.output().status.success() && receiver.output().stdout == text);
    for daemon in [&pair.a, &pair.b] {
        // A turn that took long is the machine's, and as many as those may be.
        let log = daemon.printed();
        let count = log.lines().filter(|line| !line.contains("a long turn")).count() as u64;
        assert!(count < 100 && count < sent, "{count} lines for {sent} buffers: {log}");
    }
}

#[test]
fn a_command_that_cannot_say_why_it_failed_keeps_its_exit_code() {
    let directory = TempDir::new().expect("a directory");
    let config = directory.path().join("bad.toml");
    std::fs::write(&config, "nonsense = 1\n").expect("a configuration file");
    let nowhere = directory.path().join("nowhere");
    for silent in [Silent::Full, Silent::Broken] {
        for (words, code) in [
            (&["status"][..], 4),
            (&["channels", "--output", "json"], 4),
            (&["send", "--exchange", "x", "--consumers", "1"], 4),
            (&["recv", "--exchange", "x"], 4),
            (&["send", "--exchange", "x"], 2),
        ] {
            let mut command = weir(words, &nowhere);
            let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(silent.stdio()).status();
            assert_eq!(status.expect("weir runs").code(), Some(code), "{words:?}");
        }
        for verb in [&["config", "check"][..], &["daemon"]] {
            let mut command = Command::new(WEIR);
            command.args(verb).arg("--config").arg(&config);
            let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(silent.stdio()).status();
            assert_eq!(status.expect("weir runs").code(), Some(78), "{verb:?}");
        }
    }
}

#[test]
fn a_limit_on_the_size_of_files_refuses_a_region_and_ends_nobody() {
    let pair = Pair::start();
    let directory = &pair.directory;
    // A third daemon whose files, and memory counts as such, may have 2 MiB.
    let limited = common::Daemon::start(
        directory.path(),
        &DaemonOptions {
            prefix: &["prlimit", "--fsize=2097152"],
            extra: &["--shards", "1"],
            ..DaemonOptions::new("c", &free_address())
        },
    );
    let sender = send(&limited, "wide", &["--consumers", "1000"]);
    let sent = sender.output();
    let text = String::from_utf8_lossy(&sent.stderr).into_owned();
    assert_eq!(sent.status.code(), Some(1), "{text}");
    assert!(text.contains("as too large for a file") && text.contains("LimitFSIZE"), "{text}");
    assert!(subsystem(&limited, "memory").is_some());
    let receiver = recv(&limited, "narrow", "0/1");
    let mut sender = send(&limited, "narrow", &["--consumers", "1"]);
    feed(&mut sender, b"one\ntwo\n".to_vec()).join().expect("the feeder");
    assert_eq!(sender.output().status.code(), Some(0));
    assert_eq!(sorted(&[&receiver.output().stdout]), sorted(&[b"one\ntwo\n"]));
}
