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
    let started = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("not run here: promtool check metrics (promtool is not installed; package prometheus)");
            return;
        }
        Err(error) => panic!("promtool: {error}"),
    };
    child.stdin.take().expect("an input").write_all(text.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.trim().is_empty(), "promtool: {said}");
}
