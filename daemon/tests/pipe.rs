//! `weir pipe`: records through a command, and every way in which the command or one of the exchanges can end.

mod common;

use std::io::Write;
use std::process::{Output, Stdio};

use common::{
    Daemon, Guarded, Pair, channels, eventually, feed, lines, number, recv, send, signal, sorted, weir,
};
use rustix::process::Signal;

/// `weir pipe` from exchange `in` to exchange `out` with one consumer, running a shell script.
fn pipe(daemon: &Daemon, arguments: &[&str], script: &str) -> Guarded {
    let mut command = weir(["pipe", "--from", "in", "--to", "out"], &daemon.run_dir);
    command.args(arguments).args(["--", "sh", "-c", script]);
    Guarded::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()))
}

/// A sender of `in` on node a, a pipe on node b, a receiver of `out` on node a.
struct Chain {
    pair: Pair,
    sender: Guarded,
    pipe: Guarded,
    receiver: Guarded,
}

impl Chain {
    fn start(script: &str) -> Self {
        let pair = Pair::start();
        let sender = send(&pair.a, "in", &["--consumers", "1", "--buffer-timeout", "0"]);
        let pipe = pipe(&pair.b, &["--consumers", "1"], script);
        let receiver = recv(&pair.a, "out", "0/1");
        Self { pair, sender, pipe, receiver }
    }

    /// Waits until a consumer has come to both exchanges.
    fn is_connected(&self) {
        eventually("both channels are there", || {
            let is_there = |daemon, exchange| !channels(daemon, exchange, "receive").is_empty();
            (is_there(&self.pair.b, "in") && is_there(&self.pair.a, "out")).then_some(())
        });
    }

    /// Sends these bytes and keeps the input open; how sender, pipe and receiver end.
    fn ends_by_itself(mut self, input: &[u8]) -> [Output; 3] {
        self.is_connected();
        let mut stdin = self.sender.child.stdin.take().expect("an input");
        stdin.write_all(input).expect("a reader");
        let piped = self.pipe.output();
        let received = self.receiver.output();
        let sent = self.sender.output();
        drop(stdin);
        [sent, piped, received]
    }
}

/// Exit code and standard error.
fn ending(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn what_parallel_pipes_send_is_what_the_command_makes_of_the_whole_input() {
    let pair = Pair::start();
    let mut sender = send(&pair.a, "in", &["--consumers", "2"]);
    let pipes: Vec<Guarded> = ["0/2", "1/2"]
        .into_iter()
        .map(|which| {
            let arguments = ["--consumer", which, "--producer", which, "--consumers", "1"];
            pipe(&pair.b, &arguments, "tr a-z A-Z")
        })
        .collect();
    let receiver = recv(&pair.a, "out", "0/1");
    let input = lines(4 << 20);
    feed(&mut sender, input.clone()).join().expect("the feeder");
    assert_eq!(ending(&sender.output()), (Some(0), String::new()));
    for pipe in pipes {
        assert_eq!(ending(&pipe.output()), (Some(0), String::new()));
    }
    let received = receiver.output();
    assert_eq!(received.status.code(), Some(0));
    assert!(sorted(&[&received.stdout]) == sorted(&[&input.to_ascii_uppercase()]), "the same records");
}

#[test]
fn a_last_line_without_newline_is_a_record_and_a_command_may_write_without_reading() {
    for (script, expected) in [
        ("cat; printf 'last'", &b"one\ntwo\nlast\n"[..]),
        ("cat > /dev/null", b""),
        ("cat | sed 's/$/\\n/'", b"one\n\ntwo\n\n"),
    ] {
        let mut chain = Chain::start(script);
        feed(&mut chain.sender, b"one\ntwo".to_vec()).join().expect("the feeder");
        assert_eq!(ending(&chain.sender.output()), (Some(0), String::new()), "{script}");
        assert_eq!(ending(&chain.pipe.output()), (Some(0), String::new()), "{script}");
        assert_eq!(chain.receiver.output().stdout, expected, "{script}");
    }
}

#[test]
fn a_sink_that_stops_holds_command_and_source_back_and_nothing_grows() {
    let mut chain = Chain::start("cat");
    signal(chain.receiver.child.id(), Signal::STOP);
    let feeder = feed(&mut chain.sender, lines(64 << 20));
    let (a, b) = (&chain.pair.a, &chain.pair.b);
    eventually("both exchanges wait for their consumers", || {
        let is_stalled = |daemon, exchange| {
            let rows = channels(daemon, exchange, "send");
            rows.first().is_some_and(|row| row["credit"] == 0 && number(row, "backlog") > 0)
        };
        (is_stalled(a, "in") && is_stalled(b, "out")).then_some(())
    });
    signal(chain.receiver.child.id(), Signal::CONT);
    feeder.join().expect("the feeder");
    assert_eq!(ending(&chain.sender.output()), (Some(0), String::new()));
    assert_eq!(ending(&chain.pipe.output()), (Some(0), String::new()));
    assert!(chain.receiver.output().stdout == lines(64 << 20), "every record in order");
}

#[test]
fn a_command_that_fails_is_reported_with_its_code_and_its_last_words_and_both_ends_are_told() {
    for (script, expected) in [
        ("head -n 1; echo 'first' >&2; echo 'no more memory' >&2; exit 3", "exit status: 3"),
        ("head -n 1; echo 'no more memory' >&2; kill -9 $$", "signal: 9"),
    ] {
        let [sent, piped, received] = Chain::start(script).ends_by_itself(b"one\ntwo\n");
        let (code, text) = ending(&piped);
        assert_eq!(code, Some(1), "{text}");
        let line = text.lines().last().expect("a message");
        assert!(line.starts_with("weir: error: the command sh failed; found "), "{text}");
        assert!(line.contains(expected) && line.contains(": no more memory;"), "{text}");
        let (code, text) = ending(&received);
        assert!(code == Some(1) && text.contains("producer gone"), "{text}");
        let (code, text) = ending(&sent);
        assert!(code == Some(1) && text.contains("consumer gone"), "{text}");
    }
}

#[test]
fn a_command_that_closes_its_input_early_may_end_its_output_in_order() {
    // More than any pipe holds, so that it is noticed while the command still writes.
    let mut chain = Chain::start("head -n 2; exec <&-; sleep 1; echo end");
    let feeder = feed(&mut chain.sender, lines(16 << 20));
    assert_eq!(ending(&chain.pipe.output()), (Some(0), String::new()));
    let received = chain.receiver.output();
    assert_eq!(received.status.code(), Some(0));
    let text = String::from_utf8_lossy(&received.stdout).into_owned();
    assert!(text.starts_with("k0 0 ") && text.ends_with("\nend\n"), "{}", text.len());
    let (code, text) = ending(&chain.sender.output());
    assert!(code == Some(1) && text.contains("consumer gone"), "{text}");
    feeder.join().expect("the feeder");
}

#[test]
fn an_input_that_fails_ends_the_command_and_its_output_is_not_taken_for_whole() {
    for script in ["cat", "trap '' TERM; cat; sleep 60; echo end"] {
        let mut chain = Chain::start(script);
        let mut stdin = chain.sender.child.stdin.take().expect("an input");
        stdin.write_all(b"one\n").expect("a reader");
        eventually("the record has gone through", || {
            let rows = channels(&chain.pair.a, "in", "send");
            rows.first().filter(|row| number(row, "records_total") == 1).map(drop)
        });
        chain.sender.child.kill().expect("it can be killed");
        let (code, text) = ending(&chain.pipe.output());
        assert!(code == Some(1) && text.contains("producer gone"), "{script}: {text}");
        let (code, text) = ending(&chain.receiver.output());
        assert!(code == Some(1) && text.contains("producer gone"), "{script}: {text}");
    }
}

#[test]
fn an_output_that_fails_ends_the_command_whether_it_writes_or_not() {
    for script in ["cat", "cat > /dev/null"] {
        let mut chain = Chain::start(script);
        chain.is_connected();
        chain.receiver.child.kill().expect("it can be killed");
        let (code, text) = ending(&chain.pipe.output());
        assert!(code == Some(1) && text.contains("consumer gone"), "{script}: {text}");
        let (code, text) = ending(&chain.sender.output());
        assert!(code == Some(1) && text.contains("consumer gone"), "{script}: {text}");
    }
}

#[test]
fn a_command_that_cannot_be_run_or_a_line_that_cannot_be_meant_is_refused() {
    let pair = Pair::start();
    let run = |words: &[&str]| {
        let mut command = weir(["pipe", "--from", "in", "--to", "out"], &pair.b.run_dir);
        ending(&Guarded::spawn(command.args(words).stderr(Stdio::piped()).stdout(Stdio::null())).output())
    };
    let sender = send(&pair.a, "in", &["--consumers", "1"]);
    let (code, text) = run(&["--consumers", "1", "--", "/nowhere/program"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("cannot run /nowhere/program; found No such file"), "{text}");
    drop(sender);
    for (words, expected) in [
        (&["--consumers", "1"][..], "an argument is missing"),
        (&["--", "cat"], "an argument is missing; needed --consumers <C>; fix: weir pipe --help"),
        (&["--consumers", "2", "--strategy", "forward", "--", "cat"], "forward connects each producer"),
        (&["--consumers", "1", "--key-field", "1", "--", "cat"], "--key-field without a key"),
        (&["--consumers", "1", "--consumer", "1/1", "--", "cat"], "bad value of --consumer"),
    ] {
        let (code, text) = run(words);
        assert_eq!(code, Some(2), "{words:?}: {text}");
        assert!(text.contains(expected), "{words:?}: {text}");
    }
}
