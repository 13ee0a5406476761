//! Data links that lose their connection: what goes on without a byte lost or repeated, and what fails, and why.

mod common;
#[path = "common/proxy.rs"]
mod proxy;

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;

use common::{
    Daemon, DaemonOptions, Guarded, PATIENCE, Source, channels, eventually, feed, free_address, lines,
    memory_used, recv, send,
};
use proxy::{Cut, Fault, Kind, Plan, Proxy, Way};
use tempfile::TempDir;

/// What a daemon logs when both ends go on over another socket.
const RESUMED: &str = "link goes on over another socket";

/// Two daemons with one shard each. `b` reaches `a` by way of a proxy, and every data link is dialled by `b`.
struct Apart {
    a: Daemon,
    b: Daemon,
    proxy: Proxy,
    _directory: TempDir,
}

impl Apart {
    fn start(config: &str) -> Self {
        Self::start_each(config, config)
    }

    fn start_each(config_a: &str, config_b: &str) -> Self {
        let directory = TempDir::new().expect("a directory");
        for (file, config) in [("a.toml", config_a), ("b.toml", config_b)] {
            std::fs::write(directory.path().join(file), config).expect("a configuration file");
        }
        let (first, second) = (free_address(), free_address());
        let extra = &["--shards", "1"];
        let a = Daemon::start(directory.path(), &DaemonOptions { extra, ..DaemonOptions::new("a", &first) });
        let proxy = Proxy::start(&first);
        let between = proxy.address();
        let peers = [("a", between.as_str())];
        let options = DaemonOptions { peers: &peers, extra, ..DaemonOptions::new("b", &second) };
        let b = Daemon::start(directory.path(), &options);
        Self { a, b, proxy, _directory: directory }
    }

    /// Both nodes have forgotten everything.
    fn assert_clean(&self) {
        for daemon in [&self.a, &self.b] {
            eventually("all memory is given back", || (memory_used(daemon) == 0).then_some(()));
        }
    }
}

/// Silence is noticed soon, so that a test of it is short; and late enough that a daemon which stands still for a moment is
/// not taken for lost.
fn config(grace: &str) -> String {
    format!("[link]\nheartbeat_interval = \"200ms\"\nheartbeat_timeout = \"4s\"\ngrace = \"{grace}\"\n")
}

/// Silence is not noticed: for cuts that both ends see at once.
fn unhurried(grace: &str) -> String {
    format!("[link]\nheartbeat_timeout = \"5min\"\ngrace = \"{grace}\"\n")
}

/// A grace that a test can wait for.
const SHORT_GRACE: &str = "5s";

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A stream of records from one node to another, and what was fed to it.
struct Stream {
    sender: Guarded,
    receiver: Guarded,
    input: Vec<u8>,
    feeder: JoinHandle<()>,
}

impl Stream {
    fn start(from: &Daemon, to: &Daemon, exchange: &str, bytes: usize) -> Self {
        Self::feed(Self::connect(from, to, exchange), bytes)
    }

    /// Both ends, connected, with nothing to send yet.
    fn connect(from: &Daemon, to: &Daemon, exchange: &str) -> (Guarded, Guarded) {
        let receiver = recv(to, exchange, "0/1");
        let sender = send(from, exchange, &["--strategy", "forward", "--consumers", "1"]);
        eventually("the channel is there", || {
            let rows = channels(from, exchange, "send");
            rows.iter().any(|row| row["peer"].as_str().is_some_and(|peer| !peer.is_empty())).then_some(())
        });
        (sender, receiver)
    }

    fn feed((mut sender, receiver): (Guarded, Guarded), bytes: usize) -> Self {
        let input = lines(bytes);
        let feeder = feed(&mut sender, input.clone());
        Self { sender, receiver, input, feeder }
    }

    /// Both ends succeed, and what came is what was sent.
    fn finish(self) {
        assert_arrived(self.sender, self.receiver, &self.input);
        self.feeder.join().expect("the feeder");
    }

    /// Records without end, the same again and again, until the sender fails.
    fn endless(from: &Daemon, to: &Daemon, exchange: &str) -> Self {
        let (mut sender, receiver) = Self::connect(from, to, exchange);
        let input = lines(1 << 20);
        let mut stdin = sender.child.stdin.take().expect("an input");
        let block = input.clone();
        let feeder = std::thread::spawn(move || while stdin.write_all(&block).is_ok() {});
        until_flowing(to, exchange);
        Self { sender, receiver, input, feeder }
    }

    /// Both ends fail; what they print, the sender's first. What came is a part of what was sent, from its start.
    fn fail(self) -> [String; 2] {
        let [received, sent] = [self.receiver.output(), self.sender.output()];
        for part in received.stdout.chunks(self.input.len()) {
            assert!(self.input.starts_with(part), "{} bytes", received.stdout.len());
        }
        assert_eq!(sent.status.code(), Some(1), "send: {}", text(&sent));
        assert_eq!(received.status.code(), Some(1), "recv: {}", text(&received));
        self.feeder.join().expect("the feeder");
        [text(&sent), text(&received)]
    }
}

/// Both ends succeed, and what came is what was sent.
fn assert_arrived(sender: Guarded, receiver: Guarded, input: &[u8]) {
    let received = receiver.output();
    assert!(received.status.success(), "recv: {}", text(&received));
    assert!(received.stdout == input, "{} of {} bytes", received.stdout.len(), input.len());
    let sent = sender.output();
    assert!(sent.status.success(), "send: {}", text(&sent));
}

/// Waits until records of this exchange arrive at a daemon.
fn until_flowing(daemon: &Daemon, exchange: &str) {
    eventually("records flow", || {
        channels(daemon, exchange, "receive")
            .iter()
            .any(|row| row["bytes_total"].as_u64() > Some(1 << 20))
            .then_some(())
    });
}

#[test]
fn records_in_both_directions_survive_every_kind_of_cut_many_times_in_a_row() {
    let apart = Apart::start(&config("20s"));
    // Inside handshakes, headers and payloads, when so much was passed on in either direction. All of them together
    // are less than one of the streams.
    let cuts = [
        (1_500_000, Cut::Reset),
        (700_001, Cut::Finish),
        (300, Cut::Reset),
        (900_017, Cut::ResetDialler),
        (1_200_000, Cut::Reset),
        (170, Cut::Finish),
        (650_123, Cut::ResetTarget),
        (800_000, Cut::ResetDialler),
        (400_000, Cut::Silence),
        (1_000_000, Cut::Reset),
        (230, Cut::Reset),
        (500_000, Cut::Finish),
    ];
    for (bytes, cut) in cuts {
        let faults = vec![(bytes, Fault::Cut(cut))];
        let plan = Plan { to_dialler: faults.clone(), to_target: faults, ..Plan::default() };
        apart.proxy.plan(Kind::Data, plan);
    }
    // The first lasts until records flow. The second finds the link of the first, and uses it the other way round.
    let forth = Stream::connect(&apart.a, &apart.b, "x");
    let back = Stream::connect(&apart.b, &apart.a, "y");
    let streams = [forth, back].map(|ends| Stream::feed(ends, 24 << 20));
    streams.into_iter().for_each(Stream::finish);
    let made = apart.proxy.count(Kind::Data);
    assert!(made > cuts.len(), "{made} connections");
    for daemon in [&apart.a, &apart.b] {
        let printed = daemon.printed();
        let resumed = printed.matches(RESUMED).count();
        // Some cuts are in the handshake of the next connection, which is then no other socket.
        assert!(resumed >= 8, "{resumed} times:\n{printed}");
    }
    apart.assert_clean();
}

#[test]
fn connections_that_are_cut_from_outside_at_any_moment_lose_nothing() {
    let apart = Apart::start(&config("20s"));
    let (mut sender, receiver) = Stream::connect(&apart.a, &apart.b, "x");
    let source = Source::start(&mut sender);
    let kinds = [Cut::Reset, Cut::Finish, Cut::ResetDialler];
    for (number, cut) in kinds.into_iter().cycle().take(9).enumerate() {
        let made = apart.proxy.count(Kind::Data);
        eventually("a connection to be cut", || (apart.proxy.cut(Kind::Data, cut) > 0).then_some(()));
        // Every third time the control link, and with it the catalog, goes too.
        if number % 3 == 0 {
            apart.proxy.cut(Kind::Control, Cut::Reset);
        }
        eventually("the next connection", || (apart.proxy.count(Kind::Data) > made).then_some(()));
    }
    assert_arrived(sender, receiver, &source.end());
    apart.assert_clean();
}

/// All consumers read the same segments, two of them over a connection that is cut again and again: a segment stays until
/// each of them has it, and one that has it gets none of it twice.
#[test]
fn a_broadcast_over_connections_that_are_cut_gives_every_consumer_every_record_once() {
    let apart = Apart::start(&config("20s"));
    let nodes = [&apart.b, &apart.a, &apart.b];
    let receivers: Vec<_> = (0..3).map(|j| recv(nodes[j], "all", &format!("{j}/3"))).collect();
    let mut sender = send(&apart.a, "all", &["--strategy", "broadcast", "--consumers", "3"]);
    let source = Source::start(&mut sender);
    let kinds = [Cut::Reset, Cut::Finish, Cut::ResetDialler];
    for cut in kinds.into_iter().cycle().take(9) {
        let made = apart.proxy.count(Kind::Data);
        eventually("a connection to be cut", || (apart.proxy.cut(Kind::Data, cut) > 0).then_some(()));
        eventually("the next connection", || (apart.proxy.count(Kind::Data) > made).then_some(()));
    }
    let input = source.end();
    for (consumer, receiver) in receivers.into_iter().enumerate() {
        let output = receiver.output();
        assert!(output.status.success(), "recv {consumer}: {}", text(&output));
        assert!(output.stdout == input, "consumer {consumer}: {} of {}", output.stdout.len(), input.len());
    }
    let sent = sender.output();
    assert!(sent.status.success(), "send: {}", text(&sent));
    apart.assert_clean();
}

#[test]
fn an_outage_that_is_longer_than_the_grace_fails_both_ends_and_the_next_exchange_gets_a_new_link() {
    let apart = Apart::start(&config(SHORT_GRACE));
    let stream = Stream::endless(&apart.a, &apart.b, "x");
    apart.proxy.refuse(true);
    apart.proxy.cut(Kind::Data, Cut::Reset);
    for (text, peer) in stream.fail().iter().zip(["node b", "node a"]) {
        for word in ["link lost", peer, "link.grace"] {
            assert!(text.contains(word), "{word:?} is missing in: {text}");
        }
    }
    assert!(apart.proxy.refused() > 1, "it was dialled again and again");
    apart.assert_clean();
    apart.proxy.refuse(false);
    Stream::start(&apart.a, &apart.b, "y", 1 << 20).finish();
}

/// A grace at one end only is none.
#[test]
fn without_a_grace_a_link_that_breaks_fails_both_ends_at_once() {
    for [at_a, at_b] in [["0", "0"], ["0", "10min"], ["10min", "0"]] {
        let apart = Apart::start_each(&unhurried(at_a), &unhurried(at_b));
        let stream = Stream::endless(&apart.a, &apart.b, "x");
        apart.proxy.cut(Kind::Data, Cut::Reset);
        for text in stream.fail() {
            assert!(text.contains("link lost"), "{text}");
            assert!(!text.contains("link.grace"), "nothing was waited for: {text}");
        }
        apart.assert_clean();
        assert_eq!(apart.proxy.count(Kind::Data), 1, "it was not dialled again");
        for daemon in [&apart.a, &apart.b] {
            let printed = daemon.printed();
            for word in ["data link has lost its socket", RESUMED] {
                assert!(!printed.contains(word), "{word:?} in:\n{printed}");
            }
        }
    }
}

/// Whichever end it is, and whether both are told of the cut or have to find out.
#[test]
fn of_two_nodes_the_one_with_the_smaller_grace_decides_for_both() {
    let decides = |cut, at_a, at_b| {
        let apart = Apart::start_each(&config(at_a), &config(at_b));
        let stream = Stream::endless(&apart.a, &apart.b, "x");
        apart.proxy.refuse(true);
        apart.proxy.cut(Kind::Data, cut);
        for (text, peer) in stream.fail().iter().zip(["node b", "node a"]) {
            for word in ["link lost", peer, "within 5 s (link.grace"] {
                assert!(text.contains(word), "{word:?} is missing in: {text}");
            }
        }
        apart.assert_clean();
    };
    std::thread::scope(|scope| {
        for cut in [Cut::Reset, Cut::Silence] {
            for [at_a, at_b] in [[SHORT_GRACE, "10min"], ["10min", SHORT_GRACE]] {
                scope.spawn(move || decides(cut, at_a, at_b));
            }
        }
    });
}

/// `a` hears nothing any more, which it finds out after its timeout and counts from the beginning; `b` heard `a` until
/// then, and so waits longer.
#[test]
fn a_dialler_that_comes_back_after_its_peers_grace_hears_why_it_is_over() {
    let config = "[link]\nheartbeat_interval = \"200ms\"\nheartbeat_timeout = \"8s\"\ngrace = \"8500ms\"\n";
    let apart = Apart::start(config);
    let faults = vec![(60_000, Fault::Stall(PATIENCE))];
    apart.proxy.plan(Kind::Data, Plan { to_target: faults, ..Plan::default() });
    let stream = Stream::endless(&apart.a, &apart.b, "x");
    apart.proxy.refuse(true);
    eventually("node a gives the link up", || apart.a.printed().contains("data link closed").then_some(()));
    apart.proxy.refuse(false);
    let [sent, received] = stream.fail();
    assert!(sent.contains("link.grace"), "{sent}");
    for word in ["link lost", "node a said: the link is over", "link.grace"] {
        assert!(received.contains(word), "{word:?} is missing in: {received}");
    }
    apart.assert_clean();
}

/// The end that closes it tells the other, whichever of them dialled; neither waits for its grace.
#[test]
fn a_link_that_is_closed_for_what_came_on_it_fails_both_ends_at_once_with_the_reason() {
    for (way, closer) in [(Way::ToDialler, "b"), (Way::ToTarget, "a")] {
        let apart = Apart::start(&unhurried("10min"));
        let (sender, receiver) = Stream::connect(&apart.a, &apart.b, "x");
        assert_eq!(apart.proxy.say(Kind::Data, way, &[0xa5; 64]), 1);
        for (output, end) in [(receiver.output(), "b"), (sender.output(), "a")] {
            let text = text(&output);
            assert_eq!(output.status.code(), Some(1), "{text}");
            let told = match (end == closer, closer) {
                (true, _) => "the link to node",
                (false, "b") => "node b has closed the link",
                (false, _) => "node a said: the link is over",
            };
            for word in ["link lost", told, "header checksum"] {
                assert!(text.contains(word), "{word:?} is missing in: {text}");
            }
        }
        assert_eq!(apart.proxy.count(Kind::Data), 2, "the second only to tell or to ask");
        apart.assert_clean();
        Stream::start(&apart.a, &apart.b, "y", 1 << 20).finish();
    }
}

/// A network namespace of its own, so that `ss` sees no other socket. Removed with the value.
struct Namespace(String);

impl Namespace {
    fn new() -> Result<Self, String> {
        let namespace = Self(format!("weir-test-{}-resume", std::process::id()));
        run(&format!("ip netns add {}", namespace.0))?;
        run(&format!("ip -n {} link set lo up", namespace.0))?;
        // Kills nothing, and says whether it could.
        run(&format!("ip netns exec {} ss -K dst 192.0.2.1", namespace.0))?;
        Ok(namespace)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = run(&format!("ip netns delete {}", self.0));
    }
}

fn run(line: &str) -> Result<String, String> {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    let output = command.args(words).stdin(Stdio::null()).output().map_err(|e| format!("{line}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{line}: {}", text(&output).trim())),
    }
}

#[test]
fn a_link_of_a_node_to_itself_goes_on_after_the_kernel_has_destroyed_it() {
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(problem) => return println!("not run here: sockets destroyed by the kernel ({problem})"),
    };
    let directory = TempDir::new().expect("a directory");
    let prefix = ["ip", "netns", "exec", &namespace.0];
    let options = DaemonOptions {
        prefix: &prefix,
        extra: &["--shards", "1"],
        ..DaemonOptions::new("a", "127.0.0.1:7070")
    };
    let daemon = Daemon::start(directory.path(), &options);
    let destroy = || {
        let before = daemon.printed().matches(RESUMED).count();
        let kill = format!("ip netns exec {} ss -K -t state established", namespace.0);
        let destroyed = run(&kill).expect("it could a moment ago").lines().count() > 1;
        if destroyed {
            eventually("both ends go on", || {
                (daemon.printed().matches(RESUMED).count() >= before + 2).then_some(())
            });
        } else {
            println!("not run here: sockets destroyed by the kernel (this one does not)");
        }
    };
    // Before anything is sent, and while records flow.
    let (mut sender, receiver) = Stream::connect(&daemon, &daemon, "x");
    destroy();
    let source = Source::start(&mut sender);
    for _ in 0..4 {
        destroy();
    }
    assert_arrived(sender, receiver, &source.end());
    eventually("all memory is given back", || (memory_used(&daemon) == 0).then_some(()));
}
