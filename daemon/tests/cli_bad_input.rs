//! Bad input to commands that need no second daemon: each is one line with what was found, what is needed and the fix,
//! and the right exit code.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Runs `weir` with nothing to read.
fn weir<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("weir starts")
}

/// Asserts that the command fails with this exit code and one line that holds all these parts.
#[track_caller]
fn assert_fails<S: AsRef<std::ffi::OsStr>>(arguments: &[S], exit: i32, parts: &[&str]) -> Output {
    let output = weir(arguments);
    let text = String::from_utf8(output.stderr.clone()).expect("UTF-8");
    assert_eq!(output.status.code(), Some(exit), "{text}");
    assert_eq!(text.lines().count(), 1, "one line, not: {text}");
    assert!(text.starts_with("weir: error: "), "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
    output
}

/// A configuration file in a directory of its own.
fn config(text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("weir.toml");
    fs::write(&file, text).expect("a file");
    let path = file.to_str().expect("UTF-8").to_owned();
    (dir, path)
}

#[test]
fn a_misspelt_key_stops_the_daemon_with_file_line_and_nearest_key() {
    let (_dir, file) = config("# comment\n[memory]\nsegment_byte = 4096\n");
    for arguments in [["daemon", "--config", &file].as_slice(), &["config", "check", "--config", &file]] {
        assert_fails(
            arguments,
            78,
            &[
                &format!("{file}:3: unknown key"),
                "found \"memory.segment_byte\"",
                "needed a key",
                "fix: the nearest known key is \"memory.segment_bytes\"",
            ],
        );
    }
}

#[test]
fn a_value_out_of_bounds_stops_the_daemon_with_file_and_line() {
    let (_dir, file) = config("[memory]\nsegment_bytes = 5000\n");
    assert_fails(
        &["daemon", "--config", &file],
        78,
        &[
            &format!("{file}:2: bad value of memory.segment_bytes"),
            "found 5000",
            "needed a power of two from 4096 to 1048576",
        ],
    );
    let (_dir, file) = config("shards = \"many\"\n");
    assert_fails(
        &["config", "print", "--config", &file],
        78,
        &[":1: bad value of shards", "found \"many\"", "needed a whole number"],
    );
    let (_dir, file) = config("shards = = 1\n");
    assert_fails(&["config", "print", "--config", &file], 78, &[":1: not valid TOML"]);
}

#[test]
fn a_named_file_that_is_missing_is_a_bad_configuration() {
    assert_fails(
        &["daemon", "--config", "/nonexistent/weir.toml"],
        78,
        &["/nonexistent/weir.toml", "No such file", "--config"],
    );
}

#[test]
fn links_from_elsewhere_need_a_cluster_key_that_only_its_owner_can_read() {
    let (dir, file) = config("");
    assert_fails(
        &["daemon", "--config", &file, "--listen", "0.0.0.0:0"],
        78,
        &[
            "--listen: links from other machines need a cluster key",
            "found listen = \"0.0.0.0:0\" and no key_file",
            "fix: key_file",
        ],
    );
    let key = dir.path().join("key");
    fs::write(&key, [7; 32]).expect("a file");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("its owner");
    let key = key.to_str().expect("UTF-8");
    let daemon = ["daemon", "--config", &file, "--listen", "0.0.0.0:0", "--key-file", key];
    assert_fails(
        &daemon,
        78,
        &["cluster key can be read by others", "found mode 644", "needed mode 600", "fix: chmod 600"],
    );
    fs::set_permissions(key, fs::Permissions::from_mode(0o600)).expect("its owner");
    fs::write(key, [7; 16]).expect("a file");
    assert_fails(&daemon, 78, &["cluster key has the wrong length", "found 16 bytes", "needed exactly 32"]);
}

#[test]
fn a_wrong_flag_names_the_flag_and_what_it_needs() {
    let send = ["send", "--exchange", "x", "--consumers", "2"];
    let with = |extra: &[&'static str]| [&send[..], extra].concat();
    assert_fails(
        &with(&["--strategy", "broadcst"]),
        2,
        &[
            "--strategy",
            "found \"broadcst\"",
            "needed forward, rebalance, hash, broadcast or rescale",
            "fix: weir send --help",
        ],
    );
    assert_fails(&with(&["--producer", "4/4"]), 2, &["--producer", "found \"4/4\"", "0 <= INDEX < COUNT"]);
    assert_fails(&with(&["--producer", "0/0"]), 2, &["--producer"]);
    assert_fails(&with(&["--buffer-timeout", "5"]), 2, &["--buffer-timeout", "found \"5\"", "off"]);
    assert_fails(
        &with(&["--framing", "csv"]),
        2,
        &["--framing", "found \"csv\"", "needed one of lines, u32"],
    );
    assert_fails(&with(&["--key-field", "0"]), 2, &["--key-field", "at least 1"]);
    assert_fails(&with(&["--key-field", "1"]), 2, &["--key-field without a key", "needed --strategy hash"]);
    assert_fails(
        &with(&["--strategy", "custom"]),
        2,
        &["--strategy", "found \"custom\"", "broadcast or rescale"],
    );
    assert_fails(&with(&["--salt", "2"]), 2, &["--salt without a key", "needed --strategy hash"]);
    assert_fails(
        &with(&["--strategy", "hash", "--salt", "3"]),
        2,
        &["found --salt 3 and --consumers 2", "fix: --salt 2"],
    );
    assert_fails(
        &with(&["--strategy", "forward", "--producer", "0/3"]),
        2,
        &["found 3 producers and 2 consumers", "--consumers 3"],
    );
    assert_fails(&with(&["--consumer", "1"]), 2, &["unknown argument", "perhaps --consumers"]);
    assert_fails(&["send", "--exchange", "x"], 2, &["an argument is missing", "--consumers"]);
    assert_fails(&["send", "--exchange", "a b", "--consumers", "1"], 2, &["--exchange", "' '"]);
    assert_fails(&["recv", "--exchange", "x", "--consumer", "2/2"], 2, &["--consumer", "found \"2/2\""]);
    assert_fails(&["recv", "--exchange", "x", "--rate", "0"], 2, &["--rate", "from 1 to"]);
    assert_fails(&["recv"], 2, &["an argument is missing", "--exchange"]);
    assert_fails(&["status", "--output", "xml"], 2, &["--output", "found \"xml\"", "table, json"]);
    assert_fails(&["stauts"], 2, &["unknown command", "found stauts", "perhaps stalls, status"]);
    assert_fails::<&str>(&[], 2, &["no command given", "weir --help"]);
}

#[test]
fn a_wrong_flag_of_the_daemon_is_a_usage_error() {
    let (_dir, file) = config("");
    for (flag, value, needed) in [
        ("--listen", "nowhere", "an IP address with a port"),
        ("--peer", "b", "NAME=ADDR"),
        ("--peer", "b=host", "NAME=ADDR"),
        ("--node", "a b", "' '"),
        ("--shards", "65", "from 0 to 64"),
        ("--memory", "200%", "at least 4 MiB"),
    ] {
        assert_fails(
            &["daemon", "--config", &file, flag, value],
            2,
            &[flag, &format!("found {value:?}"), needed],
        );
    }
    let long = format!("/tmp/{}", "x".repeat(100));
    assert_fails(
        &["daemon", "--config", &file, "--run-dir", &long],
        78,
        &["--run-dir", "needed a path of 1 to 90 bytes"],
    );
}

#[test]
fn a_daemon_that_does_not_run_is_told_with_its_socket_and_the_fix() {
    let dir = tempfile::tempdir().expect("a directory");
    let run_dir = dir.path().to_str().expect("UTF-8");
    let fix = format!("fix: weir daemon --run-dir {run_dir}");
    for (verb, socket) in [
        (&["status"][..], "control.sock"),
        (&["channels"], "control.sock"),
        (&["send", "--exchange", "x", "--consumers", "1"], "attach.sock"),
        (&["recv", "--exchange", "x"], "attach.sock"),
    ] {
        let arguments = [verb, &["--run-dir", run_dir]].concat();
        assert_fails(
            &arguments,
            4,
            &[&format!("no daemon answers at {run_dir}/{socket}"), "needed a running daemon", &fix],
        );
    }
    // The socket that a dead daemon left.
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("control.sock")).expect("a socket"));
    assert_fails(&["status", "--run-dir", run_dir], 4, &["found Connection refused"]);
}

#[test]
fn json_stays_json_on_failure() {
    let dir = tempfile::tempdir().expect("a directory");
    let run_dir = dir.path().to_str().expect("UTF-8");
    for (arguments, exit) in [
        (&["status", "--output", "json", "--run-dir", run_dir][..], 4),
        (&["channels", "--output=json", "--run-dir", run_dir], 4),
        (&["channels", "--output=json", "--no-such-flag"], 2),
    ] {
        let output = assert_fails(arguments, exit, &[]);
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(text.starts_with("{\"schema_version\":1,\"error\":{\"what\":"), "{text}");
        let json: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(json["error"]["exit_code"], exit);
    }
}

#[test]
fn a_run_dir_that_cannot_be_made_is_named() {
    let (dir, file) = config("[log]\nlevel = 'error'\n");
    let inside_a_file = Path::new(&file).join("run");
    let run_dir = inside_a_file.to_str().expect("UTF-8");
    assert_fails(
        &["daemon", "--config", &file, "--listen", "127.0.0.1:0", "--run-dir", run_dir],
        1,
        &[run_dir, "Not a directory", "--run-dir"],
    );
    drop(dir);
}

#[test]
fn help_and_version_are_output_and_no_error() {
    for arguments in [
        &["--help"][..],
        &["send", "--help"],
        &["daemon", "--help"],
        &["--version"],
        &["config", "print", "--help"],
    ] {
        let output = weir(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn the_printed_configuration_is_taken_again() {
    let (dir, file) = config("node = 'a'\n[peers]\nb = '10.0.0.2:7070'\n");
    let printed = weir(&["config", "print", "--config", &file]);
    assert_eq!(printed.status.code(), Some(0));
    let again = dir.path().join("again.toml");
    fs::write(&again, &printed.stdout).expect("a file");
    let checked = weir(&["config", "check", "--config", again.to_str().expect("UTF-8")]);
    assert_eq!(checked.status.code(), Some(0), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn a_closed_pipe_ends_a_command_quietly() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["config", "print", "--markdown"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("weir starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
