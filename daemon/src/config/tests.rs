//! The configuration as a user meets it: files in, values or one precise message out.

use std::path::Path;

use toml::Value;
use weir_flow::debloat::DebloatSpec;
use weir_flow::limits::{Limits, RECORD_ROOM_BYTES};

use super::*;
use crate::attach::debloat::DebloatDefaults;

/// Loads a configuration from one file with this text, and `conf.d` files beside it.
fn load_text(text: &str, extra: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weir.toml");
    std::fs::write(&file, text).unwrap();
    std::fs::create_dir(dir.path().join("conf.d")).unwrap();
    for (name, text) in extra {
        std::fs::write(dir.path().join("conf.d").join(name), text).unwrap();
    }
    load(Some(&file), &[])
}

/// The message about this text: line and rest, with the directory left out.
fn message(text: &str) -> (u32, String) {
    let error = load_text(text, &[]).expect_err(text);
    let Place::Line(_, line) = error.place else { panic!("no line in {error}") };
    let text = error.to_string();
    (line, text.split_once(": ").unwrap().1.to_owned())
}

#[test]
fn an_empty_file_is_the_default() {
    assert_eq!(load_text("", &[]).unwrap(), Config::default());
    let config = Config::default();
    assert_eq!((config.memory.segment_bytes, config.pool.exclusive, config.pool.floating), (32_768, 2, 8));
    assert_eq!(
        (config.pool.max_buffers_per_channel, config.pool.overdraft, config.pool.retention),
        (10, 5, 32)
    );
    assert_eq!(config.run_dir, Path::new("/run/weir"));
    assert!(config.listen.ip().is_loopback());
}

#[test]
fn every_section_and_form_of_value_is_read() {
    let config = load_text(
        "node = 'a'\nlisten = '127.0.0.1:0'\nshards = 2\ndrain_timeout = '500ms'\n\
         [peers]\nb = '10.0.0.2:7070'\n\"c.d\" = 'host:1'\n\
         [memory]\ntotal = '64 MiB'\nhugepages = 'require'\nsegment_bytes = 4096\n\
         [shard]\npin = 'on'\nspin_us = 50\n[link]\ncongestion = 'cubic'\n",
        &[],
    )
    .unwrap();
    assert_eq!(config.node_name().as_str(), "a");
    assert_eq!(config.shard_count(), 2);
    assert_eq!(config.drain_timeout, Span::from_ms(500));
    assert_eq!(
        config.peers.iter().map(|(n, a)| format!("{n}={a}")).collect::<Vec<_>>(),
        ["b=10.0.0.2:7070", "c.d=host:1"]
    );
    assert_eq!(config.memory_total_bytes(), 64 << 20);
    assert_eq!((config.memory.hugepages, config.shard.pin), (HugepageMode::Require, PinMode::On));
    assert_eq!(config.congestion(), Some("cubic"));
    assert_eq!(Config::default().congestion(), None);
}

#[test]
fn the_budget_for_spanning_records_reaches_the_limits_and_holds_at_least_one_record() {
    let limits = |text: &str| load_text(text, &[]).unwrap().limits().unwrap().spanning_bytes_max;
    assert_eq!(limits(""), 64 << 20);
    assert_eq!(limits("[record]\nspanning_bytes_max = 8388608\n"), 8 << 20);
    assert_eq!(limits("[record]\nspanning_bytes_max = 1\n"), 1 << 20);
    assert_eq!(limits("[record]\nbytes_max = 134217728\n"), 128 << 20);
}

#[test]
fn debloating_is_off_and_what_is_set_reaches_gates_and_shards() {
    let defaults = Config::default();
    assert_eq!(defaults.debloat(), DebloatDefaults::default());
    assert_eq!(defaults.limits().unwrap().debloat_period_ns, Limits::default().debloat_period_ns);
    let config = load_text(
        "[debloat]\nmode = 'on'\ntarget = '300ms'\nperiod = '50ms'\nbytes_min = 4096\nbytes_max = 1048576\n",
        &[],
    )
    .unwrap();
    let spec = DebloatSpec { target_ns: 300_000_000, bytes_min: 4_096, bytes_max: 1 << 20 };
    assert_eq!(config.debloat(), DebloatDefaults { is_on: true, spec });
    assert_eq!(config.limits().unwrap().debloat_period_ns, 50_000_000);
    let (line, text) = message("[debloat]\nbytes_min = 10\nbytes_max = 9\n");
    assert_eq!(line, 3, "{text}");
    assert!(text.contains("found 9; needed 0, which is no bound, or at least 10"), "{text}");
    for (text, needed) in [
        ("mode = 'auto'", "needed one of \"on\", \"off\""),
        ("target = '0ms'", "needed a duration from \"1ms\" to \"1min\""),
        ("target = '61s'", "needed a duration from \"1ms\" to \"1min\""),
        ("period = '1ms'", "needed a duration from \"10ms\" to \"10s\""),
        ("bytes_min = -1", "needed a whole number from 0 to 1099511627776"),
    ] {
        let (_, told) = message(&format!("[debloat]\n{text}\n"));
        assert!(told.contains(needed), "{text}: {told}");
    }
}

#[test]
fn an_unknown_key_names_its_line_and_the_nearest_key() {
    for (text, line, found, nearest) in [
        ("\n[memory]\ntotl = 5\n", 3, "memory.totl", "memory.total"),
        ("segment_bytes = 4096\n", 1, "segment_bytes", "memory.segment_bytes"),
        ("[memroy]\ntotal = '5%'\n", 1, "memroy", "memory"),
        ("[memory]\nexclusive = 3\n", 2, "memory.exclusive", "pool.exclusive"),
        ("a = 1\n", 1, "a", ""),
        ("memory.total = '5%'\nmemory.hugepage = 'off'\n", 2, "memory.hugepage", "memory.hugepages"),
        ("[pool]\nexclusive = 3\n[pool.floating]\nx = 1\n", 0, "", ""),
    ] {
        let (found_line, text) = message(text);
        if line > 0 {
            assert_eq!(found_line, line, "{text}");
            assert!(text.starts_with(&format!("unknown key; found {found:?}")), "{text}");
            assert!(text.contains(&format!("nearest known key is \"{nearest}")), "{text}");
        }
    }
}

#[test]
fn a_wrong_value_names_its_line_what_was_found_and_what_is_needed() {
    for (text, line, expected) in [
        (
            "[memory]\nsegment_bytes = 1000",
            2,
            "bad value of memory.segment_bytes; found 1000; needed a power of two from 4096 to 1048576",
        ),
        ("[memory]\nsegment_bytes = '32k'", 2, "found \"32k\"; needed a power of two"),
        ("[memory]\nsegment_bytes = 2097152", 2, "found 2097152; needed a power of two from 4096 to 1048576"),
        ("shards = -1", 1, "found -1; needed a whole number from 0 to 64"),
        ("shards = 65", 1, "found 65; needed a whole number from 0 to 64"),
        ("shards = 1.5", 1, "found 1.5; needed a whole number"),
        ("# c\n\n[memory]\ntotal = '95%'", 4, "found \"95%\"; needed at least 4 MiB"),
        ("[memory]\ntotal = 1", 2, "found 1; needed at least 4 MiB"),
        ("[memory]\nhugepages = 'yes'", 2, "found \"yes\"; needed one of \"auto\", \"require\", \"off\""),
        ("listen = 'localhost:7070'", 1, "needed an IP address with a port"),
        ("listen = 7070", 1, "found 7070; needed an IP address with a port"),
        ("node = 'a b'", 1, "found \"a b\"; needed 1 to 64 of"),
        ("drain_timeout = '11min'", 1, "found \"11min\"; needed a duration from \"0s\" to \"10min\""),
        ("[peers]\nb = '10.0.0.2'", 2, "bad value of peers.b; found \"10.0.0.2\"; needed a host with a port"),
        (
            "[peers]\n\"b c\" = '10.0.0.2:1'",
            2,
            "a peer needs the name of its node; found \"b c\", which holds ' '",
        ),
        ("[pool]\nexclusive = 0", 2, "found 0; needed a whole number from 1 to 1024"),
        ("[shard]\nspin_us = 51", 2, "found 51; needed a whole number from 0 to 50"),
        ("memory = 5", 1, "memory is a section; found a value"),
        ("shards = 2\nshards = 3", 2, "not valid TOML"),
        ("shards = ", 1, "not valid TOML"),
        ("shards = 99999999999999999999", 1, "99999999999999999999"),
        ("[io]\nreceive_buffers = [1]", 2, "found an array; needed a power of two"),
    ] {
        let (found_line, message) = message(text);
        assert_eq!(found_line, line, "{message}");
        assert!(message.contains(expected), "{text}: {message}");
        assert!(!message.contains('\n'), "{message}");
    }
    let long = format!("run_dir = '/{}'", "x".repeat(90));
    assert!(message(&long).1.contains("needed a path of 1 to 90 bytes"));
}

#[test]
fn the_core_takes_what_the_bounds_allow() {
    let room = Limits::new(Limits::default().segment_bytes + RECORD_ROOM_BYTES).unwrap();
    assert_eq!(
        Config::default().limits().unwrap(),
        room,
        "the defaults of the core, with room for the length of a record"
    );
    for (segment, count) in [("4096", 1), ("1048576", 1024)] {
        let text = format!(
            "[memory]\nsegment_bytes = {segment}\n[pool]\nexclusive = {count}\nfloating = {}\nretention = {}\n\
             overdraft = {count}\nmax_buffers_per_channel = {}\n[link]\nheartbeat_interval = '100ms'\n",
            count * 64,
            count * 64,
            count * 64,
        );
        load_text(&text, &[]).unwrap().limits().unwrap();
    }
}

#[test]
fn relations_between_settings_are_checked() {
    for (text, line, expected) in [
        (
            "shards = 1\nlisten = '0.0.0.0:7070'",
            2,
            "links from other machines need a cluster key; found listen = \"0.0.0.0:7070\"",
        ),
        (
            "[link]\nheartbeat_interval = '4s'\nheartbeat_timeout = '5s'",
            3,
            "at least twice the interval of 4s",
        ),
        (
            "[link]\ngrace = '5s'",
            2,
            "link.grace is too short for link.heartbeat_timeout; found 5s; needed 0, or more than the timeout of 5s",
        ),
        ("[link]\ngrace = '1ms'", 2, "0, or more than the timeout of 5s"),
        ("node = 'a'\n[peers]\na = 'x:1'", 3, "this node is its own peer"),
    ] {
        let (found_line, message) = message(text);
        assert_eq!(found_line, line, "{message}");
        assert!(message.contains(expected), "{text}: {message}");
    }
    for grace in ["0", "0s", "5001ms"] {
        load_text(&format!("[link]\ngrace = '{grace}'"), &[]).unwrap().limits().unwrap();
    }
    // With a key the address may be any.
    load_text("listen = '0.0.0.0:7070'\nkey_file = '/etc/weir/key'", &[]).unwrap();
}

#[test]
fn conf_d_wins_over_the_file_and_flags_win_over_both() {
    let extra = [
        ("20-b.toml", "shards = 3"),
        ("10-a.toml", "shards = 2\n[pool]\nfloating = 9"),
        ("x.conf", "nonsense"),
    ];
    let config = load_text("shards = 1\n[pool]\nexclusive = 4", &extra).unwrap();
    assert_eq!((config.shards, config.pool.exclusive, config.pool.floating), (3, 4, 9));

    let error = load_text("", &[("10-a.toml", "\nshard = 2")]).unwrap_err();
    assert!(matches!(&error.place, Place::Line(path, _) if path.ends_with("conf.d/10-a.toml")), "{error}");

    let flag = |value: Value| Override { flag: "--shards", key: "shards".into(), value };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weir.toml");
    std::fs::write(&file, "shards = 1").unwrap();
    assert_eq!(load(Some(&file), &[flag(Value::Integer(5))]).unwrap().shards, 5);
    let error = load(Some(&file), &[flag(Value::Integer(500))]).unwrap_err();
    assert_eq!(error.place, Place::Flag("--shards"));
}

#[test]
fn a_named_file_must_be_there_and_be_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let missing = load(Some(&dir.path().join("no.toml")), &[]).unwrap_err().to_string();
    assert!(missing.contains("no.toml: configuration cannot be read; found No such file"), "{missing}");
    assert!(load(Some(dir.path()), &[]).unwrap_err().to_string().contains("needed a regular file"));
    let binary = dir.path().join("binary.toml");
    std::fs::write(&binary, [0xff, 0xfe]).unwrap();
    load(Some(&binary), &[]).unwrap_err();
}

#[test]
fn everything_that_is_wrong_is_told_in_the_order_of_a_reader() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weir.toml");
    std::fs::create_dir(dir.path().join("conf.d")).unwrap();
    let text = "shards = 65\nlisten = '0.0.0.0:1'\nkey_file = ''\n[pool]\nfloatin = 2\nexclusive = 0\n[log]\nlevel = 'loud'\n\
                [link]\ngrace = '1s'\n[debloat]\nbytes_min = 2\nbytes_max = 1\n";
    std::fs::write(&file, text).unwrap();
    std::fs::write(dir.path().join("conf.d/10.toml"), "shards = \n").unwrap();
    std::fs::write(dir.path().join("conf.d/20.toml"), "node = 'a b'\n").unwrap();
    let errors = load_all(Some(&file), &[]).unwrap_err();
    let told: Vec<String> = errors
        .iter()
        .map(|error| {
            let text = format!("{}: {}", error.place, error.what);
            text.strip_prefix(&format!("{}/", dir.path().display())).unwrap().to_owned()
        })
        .collect();
    assert_eq!(
        told,
        [
            "weir.toml:1: bad value of shards",
            "weir.toml:3: bad value of key_file",
            "weir.toml:5: unknown key",
            "weir.toml:6: bad value of pool.exclusive",
            "weir.toml:8: bad value of log.level",
            "conf.d/10.toml:1: not valid TOML",
            "conf.d/20.toml:1: bad value of node",
            // Nothing of listen: whether there is a key is not known.
            "weir.toml:10: link.grace is too short for link.heartbeat_timeout",
            "weir.toml:13: debloat.bytes_max is less than debloat.bytes_min",
        ]
    );
    // One problem is told as before, the key's among them.
    std::fs::write(&file, "key_file = '/nowhere/key'\n").unwrap();
    std::fs::remove_dir_all(dir.path().join("conf.d")).unwrap();
    let errors = load_all(Some(&file), &[]).unwrap_err();
    assert_eq!((errors.first.place.to_string().as_str(), errors.rest.len()), ("/nowhere/key", 0));
    load(Some(&file), &[]).unwrap();
}

#[test]
fn what_is_in_force_says_where_it_comes_from() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weir.toml");
    std::fs::write(&file, "\nshards = 3\n[peers]\n\"b.c\" = 'h:1'\n").unwrap();
    let flag = Override { flag: "--memory", key: "memory.total".into(), value: Value::String("5%".into()) };
    let Loaded { config, places, .. } = load_all(Some(&file), &[flag]).unwrap();
    let text = sourced_file(&config, &places);
    let shown = file.display();
    for line in [
        format!("shards = 3  # {shown}:2"),
        format!("\"b.c\" = \"h:1\"  # {shown}:4"),
        "total = \"5%\"  # --memory".to_owned(),
        "segment_bytes = 32768".to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
    }
}

#[test]
fn what_is_written_is_read_back() {
    let text = "node = 'a'\nkey_file = '/k'\nlisten = '0.0.0.0:1'\n[peers]\n\"c.d\" = 'h:1'\n[memory]\ntotal = '64 MiB'";
    let config = load_text(text, &[]).unwrap();
    assert_eq!(load_text(&effective_file(&config), &[]).unwrap(), config);
    assert_eq!(load_text(&effective_file(&Config::default()), &[]).unwrap(), Config::default());
    assert_eq!(load_text(&default_file(), &[]).unwrap(), Config::default());
    // The default file with its comments taken off holds every default.
    let settings = default_file();
    let bare: String = settings
        .lines()
        .filter(|line| {
            line.starts_with('[') || (line.contains(" = ") && !line.contains(". ") && !line.ends_with("\"\""))
        })
        .map(|line| format!("{}\n", line.trim_start_matches("# ")))
        .filter(|line| !line.starts_with("b = "))
        .collect();
    assert_eq!(load_text(&bare, &[]).unwrap(), Config::default(), "{bare}");
}

#[test]
fn every_field_is_described_and_every_default_is_within_its_bounds() {
    let values = toml::Table::try_from(Config::default()).unwrap();
    let mut described = 0;
    for section in sections() {
        assert!(!section.doc.is_empty(), "[{}] has no doc", section.name);
        for setting in section.settings {
            described += 1;
            assert!(!setting.doc.is_empty() && !setting.cost.is_empty(), "{}", section.key(setting));
            let table = if section.name.is_empty() { Some(&values) } else { values[section.name].as_table() };
            if let Some(value) = table.unwrap().get(setting.name) {
                assert!(setting.bounds.allows(value), "{} = {value}", section.key(setting));
            }
        }
    }
    // Each value of the default configuration belongs to a described setting; four have no default.
    let serialized: usize = values.values().map(|v| v.as_table().map_or(1, toml::Table::len)).sum();
    assert_eq!(described, serialized + 4);
}

#[test]
fn a_cluster_key_is_32_bytes_that_only_the_owner_reads() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    let set = |bytes: usize, mode: u32| {
        std::fs::write(&path, vec![7; bytes]).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        read_cluster_key(&path)
    };
    assert_eq!(set(32, 0o600).unwrap(), ClusterKey([7; 32]));
    assert!(set(33, 0o600).unwrap_err().to_string().contains("found 33 bytes; needed exactly 32"));
    assert!(set(31, 0o400).is_err());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let open = read_cluster_key(&path).unwrap_err().to_string();
    assert!(open.contains("found mode 640; needed mode 600 or 400; fix: chmod 600"), "{open}");
    assert!(read_cluster_key(&dir.path().join("no")).is_err());
    assert!(read_cluster_key(dir.path()).is_err());
    assert!(!format!("{:?}", ClusterKey([7; 32])).contains('7'));
}

/// Fails when `docs/configuration.md` or `systemd/weir.toml` is not what the settings say. `WEIR_BLESS=1` writes them.
#[test]
fn the_generated_files_are_fresh() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (path, wanted) in [("docs/configuration.md", markdown()), ("systemd/weir.toml", default_file())] {
        let path = root.join(path);
        if std::env::var_os("WEIR_BLESS").is_some_and(|value| value == "1") {
            std::fs::write(&path, &wanted).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == wanted,
            "{} is stale; fix: WEIR_BLESS=1 cargo test -p weir --lib generated",
            path.display()
        );
    }
}

/// What may lie where a file is expected, and what a message says of it.
#[test]
fn whatever_lies_where_a_file_is_expected_is_named_and_nobody_waits_for_it() {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("directory")).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    std::os::unix::fs::symlink("loop", at("loop")).unwrap();
    std::fs::write(at("bytes"), b"node = '\xff'").unwrap();
    std::fs::write(at("long"), vec![b'#'; (1 << 20) + 1]).unwrap();
    for (name, of_config, of_key) in [
        ("directory", "a directory, pipe or device", "a directory, pipe or device"),
        ("pipe", "a directory, pipe or device", "a directory, pipe or device"),
        ("socket", "No such device or address", "No such device or address"),
        ("loop", "Too many levels of symbolic links", "Too many levels of symbolic links"),
        ("nothing", "No such file or directory", "No such file or directory"),
        ("bytes", "a byte at offset 8 that is not UTF-8", "mode 644"),
        ("long", "1048577 bytes", "mode 644"),
    ] {
        let (said, is_said) = mpsc::channel();
        let path = at(name);
        thread::spawn(move || {
            let of_config = load(Some(&path), &[]).expect_err(name).to_string();
            said.send((of_config, read_cluster_key(&path).expect_err(name).to_string()))
        });
        let errors = is_said.recv_timeout(Duration::from_secs(30)).expect("nobody waits");
        assert!(errors.0.contains(of_config), "{name}: {}", errors.0);
        assert!(errors.1.contains(of_key), "{name}: {}", errors.1);
    }
}

#[test]
fn a_path_in_a_message_cannot_steer_a_terminal() {
    let error = load_text("", &[("a\u{1b}[31m\n.toml", "nodes = 1")]).expect_err("an unknown key");
    let text = error.to_string();
    assert!(text.contains("a\\u{1b}[31m\\n.toml:1: unknown key"), "{text:?}");
    assert!(!text.contains(char::is_control), "{text:?}");
}
