//! Metrics over HTTP, from daemons that carry records.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use common::{Daemon, DaemonOptions, eventually, free_address, recv, send};
use tempfile::TempDir;

/// What is answered to a request: its head and its body.
fn ask(mut stream: impl Read + Write, head: &str) -> (String, String) {
    write!(stream, "{head}\r\nHost: weir\r\nConnection: close\r\n\r\n").expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

fn scrape(daemon: &Daemon, accept: &str) -> (String, String) {
    let stream = UnixStream::connect(daemon.run_dir.join("control.sock")).expect("the control socket");
    ask(stream, &format!("GET /metrics HTTP/1.1\r\nAccept: {accept}"))
}

/// The value of a series that begins like this.
fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(series))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

/// The sum of all series of a metric.
fn total(text: &str, metric: &str) -> f64 {
    let series = text.lines().filter(|line| line.split(['{', ' ']).next() == Some(metric));
    series.map(|line| line.rsplit_once(' ').expect("a value").1.parse::<f64>().expect("a number")).sum()
}

/// Two daemons, the first of which gives its metrics on an address as well.
fn daemons(directory: &TempDir) -> (Daemon, Daemon, String) {
    let (first, second, metrics) = (free_address(), free_address(), free_address());
    let config = format!("[metrics]\nlisten = \"{metrics}\"\nmax_channels = 2\n");
    std::fs::write(directory.path().join("a.toml"), config).expect("a configuration");
    let of_a = DaemonOptions { peers: &[("b", &second)], ..DaemonOptions::new("a", &first) };
    let of_b = DaemonOptions { peers: &[("a", &first)], ..DaemonOptions::new("b", &second) };
    (Daemon::start(directory.path(), &of_a), Daemon::start(directory.path(), &of_b), metrics)
}

#[test]
fn records_that_go_through_are_counted_and_series_end_with_their_channel() {
    let directory = TempDir::new().expect("a directory");
    let (a, b, address) = daemons(&directory);
    let mut sender = send(&a, "words", &["--consumers", "3"]);
    let receivers = ["0/3", "1/3", "2/3"].map(|consumer| recv(&b, "words", consumer));
    let mut input = sender.child.stdin.take().expect("an input");
    for number in 0..3000 {
        writeln!(input, "{number}").expect("a reader");
    }
    input.flush().expect("a reader");

    let text = eventually("all records are counted", || {
        let (_, text) = scrape(&a, "text/plain");
        let counted: f64 = text
            .lines()
            .filter(|line| line.starts_with("weir_channel_records_total{exchange=\""))
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum();
        (counted == 3000.0).then_some(text)
    });
    assert_eq!(value(&text, "weir_channels{side=\"send\"}"), Some(3.0));
    assert_eq!(value(&text, "weir_channels_unnamed"), Some(1.0), "{text}");
    assert_eq!(text.matches("weir_channel_records_total{exchange=\"words\"").count(), 2, "{text}");
    assert_eq!(text.matches("weir_channel_records_total{exchange=\"other\"").count(), 1, "{text}");
    assert!(
        value(&text, "weir_link_sent_bytes_total{peer=\"b\"").is_some_and(|bytes| bytes > 3000.0),
        "{text}"
    );
    assert!(value(&text, "weir_memory_used_bytes").is_some_and(|bytes| bytes > 0.0));

    let tcp = || TcpStream::connect(&address).expect("the address for metrics");
    let (head, body) =
        ask(tcp(), "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text; version=1.0.0");
    assert!(head.contains("200 OK") && head.contains("application/openmetrics-text"), "{head}");
    assert!(body.ends_with("# EOF\n"));
    for (request, status) in [
        ("GET / HTTP/1.1", "404"),
        ("GET /v1/status HTTP/1.1", "404"),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 0", "405"),
    ] {
        assert!(ask(tcp(), request).0.contains(status), "{request}");
    }
    check_with_promtool(&text);
    drop(input);
    assert!(sender.output().status.success());
    receivers.into_iter().for_each(|receiver| assert!(receiver.output().status.success()));
    eventually("the channels have ended", || {
        (value(&scrape(&a, "").1, "weir_channels{side=\"send\"}") == Some(0.0)).then_some(())
    });
    let (_, text) = scrape(&a, "");
    assert!(!text.contains("exchange=\"words\""), "{text}");
}

/// The sums of both histograms are those of the counters that each channel and each partition has.
fn assert_sums(text: &str) {
    for (histogram, counters) in [
        ("weir_send_stall_seconds", &["weir_channel_send_stall_seconds_total"][..]),
        (
            "weir_emit_stall_seconds",
            &["weir_channel_emit_stall_seconds_total", "weir_partition_emit_stall_seconds_total"],
        ),
    ] {
        let needed: f64 = counters.iter().map(|counter| total(text, counter)).sum();
        let found = total(text, &format!("{histogram}_sum"));
        // Of one moment, and to the nanosecond, which is as much as a sum of seconds can tell.
        assert!((found - needed).abs() < 1e-6, "{histogram}: {found} s of {needed}: {text}");
        let beyond = text.lines().filter(|line| line.starts_with(histogram) && line.contains("le=\"+Inf\""));
        let beyond = beyond.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum::<f64>();
        assert_eq!(beyond, total(text, &format!("{histogram}_count")), "{text}");
    }
}

#[test]
fn waits_have_lengths_by_cause_that_add_up_to_the_counters_and_are_kept() {
    let directory = TempDir::new().expect("a directory");
    let (a, b, _) = daemons(&directory);
    let mut sender = send(&a, "late", &["--consumers", "1"]);
    let mut input = sender.child.stdin.take().expect("an input");
    // More than its pool holds: its channel waits for a consumer, and it for its channel.
    let line = vec![b'x'; 4095];
    let writer = std::thread::spawn(move || {
        (0..2048).for_each(|_| input.write_all(&[&line[..], b"\n"].concat()).expect("a reader"));
    });
    // The sender waits for whichever comes first: its pool, or its channel.
    let [send_sum, send_count, emit_sum, emit_count] = [
        "send_stall_seconds_sum",
        "send_stall_seconds_count",
        "emit_stall_seconds_sum",
        "emit_stall_seconds_count",
    ]
    .map(|name| move |text: &str| total(text, &format!("weir_{name}")));
    let text = eventually("both wait", || {
        let (_, text) = scrape(&a, "");
        let both_wait = send_sum(&text) > 0.05 && emit_sum(&text) > 0.05;
        both_wait.then_some(text)
    });
    assert_sums(&text);
    let for_consumer = |text: &str| value(text, "weir_send_stall_seconds_count{cause=\"consumer\"}");
    assert_eq!(for_consumer(&text), Some(0.0), "no wait for the consumer has ended: {text}");
    let waited = send_sum(&text);

    let receiver = recv(&b, "late", "0/1");
    writer.join().expect("all is written");
    let text = eventually("the waits for the consumer have ended", || {
        let (_, text) = scrape(&a, "");
        let have_ended = for_consumer(&text) >= Some(1.0) && emit_count(&text) >= 1.0;
        have_ended.then_some(text)
    });
    assert!(send_sum(&text) >= waited, "{text}");
    assert!(sender.output().status.success() && receiver.output().status.success());
    let text = eventually("the channel has ended", || {
        let (_, text) = scrape(&a, "");
        (value(&text, "weir_channels{side=\"send\"}") == Some(0.0)).then_some(text)
    });
    assert!(!text.contains("weir_channel_send_stall_seconds_total{"), "{text}");
    assert!(send_sum(&text) >= waited && send_count(&text) >= 1.0, "{text}");
    check_with_promtool(&text);
}

#[test]
fn who_asks_for_metrics_and_does_not_ask_or_read_holds_nobody_up() {
    let directory = TempDir::new().expect("a directory");
    let (a, _b, address) = daemons(&directory);
    let mut silent: Vec<TcpStream> =
        (0..16).map(|_| TcpStream::connect(&address).expect("a connection")).collect();
    for stream in silent.iter_mut().step_by(2) {
        stream.write_all(b"\x16\x03\x01 no HTTP at all\r\n\r\n").expect("it is taken");
    }
    // The places are free again when those that say nothing have been given up.
    let (head, _) = ask(TcpStream::connect(&address).expect("a connection"), "GET /metrics HTTP/1.1");
    assert!(head.contains("200 OK"), "{head}");
    assert!(scrape(&a, "").0.contains("200 OK"));
}

#[test]
fn an_address_for_metrics_that_is_taken_is_an_error_that_names_its_key() {
    let directory = TempDir::new().expect("a directory");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let config = format!("[metrics]\nlisten = \"{}\"\n", taken.local_addr().expect("its address"));
    std::fs::write(directory.path().join("a.toml"), config).expect("a configuration");
    let mut daemon = Daemon::spawn(directory.path(), &DaemonOptions::new("a", &free_address()));
    assert_eq!(daemon.exit_code(), Some(1));
    let printed = daemon.printed();
    assert!(printed.contains("for metrics") && printed.contains("fix: metrics.listen"), "{printed}");
}

/// What Prometheus' own checker says of the text, where it is installed.
fn check_with_promtool(text: &str) {
    if let Some((is_good, said)) = promtool(&["check", "metrics"], text) {
        assert!(is_good && said.trim().is_empty(), "promtool: {said}");
    }
}

/// How `promtool` ends with this input, and what it says; none if it is not installed.
fn promtool(arguments: &[&str], input: &str) -> Option<(bool, String)> {
    let started = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let what = arguments.get(..2).unwrap_or(arguments).join(" ");
            println!("not run here: promtool {what} (promtool is not installed; package prometheus)");
            return None;
        }
        Err(error) => panic!("promtool: {error}"),
    };
    child.stdin.take().expect("an input").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Some((output.status.success(), said))
}

#[test]
fn the_alert_rules_are_rules_for_prometheus() {
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../systemd/prometheus/weir.rules.yml");
    if let Some((is_good, said)) = promtool(&["check", "rules", rules], "") {
        assert!(is_good && said.contains("SUCCESS"), "promtool: {said}");
    }
}
