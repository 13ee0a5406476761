//! A daemon under each limit that a machine, a container or a unit may put on it, with real clients. Whatever the limit: no
//! process ends by a signal, and the error or the line of `weir status` names the limit and what changes it, with which
//! `weir doctor` agrees. `cargo xtask lab limits` runs these and prints what was said of each limit.
//!
//! | limit | the test |
//! |---|---|
//! | a cpuset of one processor | `a_cpuset_of_one_processor` |
//! | hugepages of the control group: none, half of what is wanted, enough | `hugepages_of_the_control_group` |
//! | `RLIMIT_MEMLOCK` of 64 KiB, without `CAP_IPC_LOCK` | `locked_memory` |
//! | `RLIMIT_NOFILE` | `file_descriptors` |
//! | a run directory that may not be written | `a_read_only_run_directory` |
//! | a full disk | `a_full_disk` |
//! | `kernel.io_uring_disabled=2` | not here, since it is the switch of a whole machine: `cargo xtask lab qemu`; and a system call filter that refuses io_uring, `cargo xtask lab nspawn` |

mod common;
#[path = "common/doctor.rs"]
mod doctor;
#[path = "common/groups.rs"]
mod groups;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{
    Daemon, DaemonOptions, Guarded, WEIR, eventually, feed, free_address, lines, memory_used, number, recv,
    send, subsystem, weir,
};
use doctor::Found;
use groups::Group;
use serde_json::Value;
use tempfile::TempDir;

/// A user that nobody else is here: the kernel counts locked memory by user.
const OTHER_USER: u32 = 63_211;

/// What is sent through a daemon under a limit: it needs more than one segment, and is over at once.
const INPUT_BYTES: usize = 1 << 20;

/// Says what a limit came to, as `cargo xtask lab limits` shows it.
fn told(text: &Value) {
    println!("limit: {}", text.as_str().expect("a text"));
}

/// A directory with configurations of `a`, which is put under a limit, and of `b`, which is not.
fn configured(of_a: &str) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let ordinary = "[observe]\nprobes = \"off\"\n";
    fs::write(directory.path().join("b.toml"), format!("{ordinary}[memory]\nhugepages = \"off\"\n"))
        .expect("a file");
    let file = directory.path().join("a.toml");
    fs::write(&file, format!("{ordinary}{of_a}")).expect("a file");
    (directory, file)
}

/// The daemon under the limit and one that has none, linked.
struct Limited {
    a: Daemon,
    b: Daemon,
}

impl Limited {
    fn start(directory: &Path, options: &DaemonOptions<'_>) -> Self {
        let second = free_address();
        let peers = [("b", second.as_str())];
        let a = Daemon::start(directory, &DaemonOptions { peers: &peers, ..*options });
        let b = Daemon::start(directory, &DaemonOptions::new("b", &second));
        let limited = Self { a, b };
        // Until then that is DEGRADED, and no matter of a limit.
        eventually("they are linked", || {
            subsystem(&limited.a, "peer/b").filter(|line| line["state"] == "ok")
        });
        limited
    }

    /// Records from and to the daemon under the limit, by commands that must end well.
    fn carries(&self, exchange: &str) {
        for (from, to, way) in [(&self.a, &self.b, "out"), (&self.b, &self.a, "in")] {
            let exchange = format!("{exchange}-{way}");
            let receiver = recv(to, &exchange, "0/1");
            let mut sender = send(from, &exchange, &["--strategy", "forward", "--consumers", "1"]);
            let input = lines(INPUT_BYTES);
            let feeder = feed(&mut sender, input.clone());
            let (sent, received) = (sender.output(), receiver.output());
            feeder.join().expect("the feeder");
            for output in [&sent, &received] {
                assert!(output.status.success(), "{exchange}: {output:?}");
            }
            assert!(
                received.stdout == input,
                "{exchange}: {} bytes of {}",
                received.stdout.len(),
                input.len()
            );
        }
    }

    /// What both say of it is the same, and names the limit.
    fn agree(&self, line: &str, row: &str, state: &str, limit: &str) {
        let line = subsystem(&self.a, line).expect("the line");
        let found = Found::of_daemon(&self.a);
        let row = found.row(row);
        assert_eq!((&line["state"], &row["state"]), (&state.into(), &state.into()), "{line} {row}");
        if state == "degraded" {
            assert_eq!(line["fix"], row["fix"], "{line} {row}");
            let reason = line["reason"].as_str().expect("a reason");
            assert!(reason.contains(limit) && row.to_string().contains(limit), "{limit}: {line} {row}");
            told(&line["reason"]);
        }
        for degraded in self.degraded() {
            let rows = found.report["rows"].as_array().expect("rows");
            let is_known = rows.iter().any(|row| row["state"] == "degraded" && row["fix"] == degraded["fix"]);
            assert!(is_known, "the doctor does not know of {degraded}");
        }
    }

    /// Lines of the status that are DEGRADED.
    fn degraded(&self) -> Vec<Value> {
        let status = self.a.ask("status");
        let all = status["subsystems"].as_array().expect("lines").iter();
        all.filter(|line| line["state"] == "degraded").cloned().collect()
    }

    /// It stops in order.
    fn ends(mut self) {
        assert_eq!(self.a.terminate(), Some(0), "{}", self.a.printed());
    }
}

/// A daemon that does not start: by its own decision, with this text in what it says and in the doctor's row, which is
/// returned.
fn assert_refused(
    directory: &Path,
    config: &Path,
    options: &DaemonOptions<'_>,
    (row, limit, fix): (&str, &str, &str),
) -> Value {
    let found = Found::of(options.prefix, options.program, config, &directory.join(options.name));
    let row = found.row(row).clone();
    assert_eq!((found.code, &row["state"]), (Some(1), &"failed".into()), "{row}");
    assert!(row.to_string().contains(limit) && row["fix"].as_str().expect("a fix").contains(fix), "{row}");
    let mut daemon = Daemon::spawn(directory, options);
    // None would be a signal.
    assert_eq!(daemon.exit_code(), Some(1), "{}", daemon.printed());
    let printed = daemon.printed();
    assert!(printed.contains(limit) && printed.contains(fix), "{limit}, {fix}: {printed}");
    let last = printed.lines().last().unwrap_or_default();
    told(&last.into());
    row
}

#[test]
fn a_cpuset_of_one_processor() {
    let cpus = [("cpuset.cpus", "0"), ("cpuset.mems", "0")];
    let group = match Group::new("cpuset", &cpus, &cpus[..1]) {
        Ok(group) => group,
        Err(why) => return println!("not run here: a cpuset of one processor ({why})"),
    };
    let enter = group.enter();
    let prefix = ["sh", "-c", &enter];
    for (shards, state) in [("0", "ok"), ("2", "degraded")] {
        let (directory, _file) = configured("");
        let (listen, extra) = (free_address(), ["--shards", shards]);
        let options = DaemonOptions { prefix: &prefix, extra: &extra, ..DaemonOptions::new("a", &listen) };
        let limited = Limited::start(directory.path(), &options);
        limited.carries("x");
        let rows = limited.a.ask("status")["shards"].as_array().expect("shards").len();
        assert_eq!(
            rows,
            if state == "ok" { 1 } else { 2 },
            "one for each processor, or as many as it is told"
        );
        let found = Found::of_daemon(&limited.a);
        let row = found.row("cpus");
        assert_eq!(row["state"], state, "{row}");
        if state == "degraded" {
            assert!(row["fix"].as_str().expect("a fix").contains("AllowedCPUs="), "{row}");
            told(&row["found"]);
            limited.agree("placement", "placement", state, "CPU");
        }
        limited.ends();
    }
}

#[test]
fn hugepages_of_the_control_group() {
    // Receive buffers of two shards, and regions of four partitions.
    const WANTED: u64 = 6;
    let free = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let free: u64 = free.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let what = "hugepages of a control group";
    if free < 2 * WANTED {
        return println!("not run here: {what} ({free} hugepages are free; needed: {})", 2 * WANTED);
    }
    let limit = |pages: u64| (pages * (2 << 20)).to_string();
    for (kind, pages) in [("", 0), ("rsvd.", 0), ("", WANTED - 2), ("", 2 * WANTED)] {
        let bytes = limit(pages);
        let [first, second] = ["limit_in_bytes", "max"].map(|file| format!("hugetlb.2MB.{kind}{file}"));
        let group = match Group::new("hugetlb", &[(&first, &bytes)], &[(&second, &bytes)]) {
            Ok(group) => group,
            Err(why) => return println!("not run here: {what} ({why})"),
        };
        let (enter, named) = (group.enter(), format!("hugetlb.2MB.{kind}"));
        let prefix = ["sh", "-c", &enter];
        let (directory, file) = configured("[memory]\nhugepages = \"auto\"\n");
        let listen = free_address();
        let options = DaemonOptions { prefix: &prefix, ..DaemonOptions::new("a", &listen) };
        let limited = Limited::start(directory.path(), &options);
        limited.carries("x");
        let _held = holding(&limited.a, 4);
        let line = subsystem(&limited.a, "memory").expect("a line");
        let (huge, ordinary) = match pages {
            0 => (0, 4),
            _ if pages < WANTED => (2, 2),
            _ => (4, 0),
        };
        let expected = format!("{huge} regions of hugepages, {ordinary} of ordinary pages");
        assert_eq!(line["detail"], expected.as_str(), "{line}");
        limited.agree("memory", "memory", if ordinary > 0 { "degraded" } else { "ok" }, &named);
        drop(limited);
        if pages == 0 {
            fs::write(&file, "[observe]\nprobes = \"off\"\n[memory]\nhugepages = \"require\"\n")
                .expect("a file");
            assert_refused(directory.path(), &file, &options, ("memory", &named, "echo "));
        }
    }
}

/// Producers that have a region each and nobody who reads them.
fn holding(daemon: &Daemon, producers: usize) -> Vec<Guarded> {
    let all: Vec<Guarded> = (0..producers)
        .map(|number| send(daemon, &format!("held-{number}"), &["--strategy", "forward", "--consumers", "1"]))
        .collect();
    eventually("each has its region", || {
        let line = subsystem(daemon, "attach")?;
        let is_whole = line["detail"].as_str()?.starts_with(&format!("{producers} of "));
        (is_whole && regions(daemon) == producers as u64).then_some(())
    });
    all
}

fn regions(daemon: &Daemon) -> u64 {
    let line = subsystem(daemon, "memory").expect("a line");
    let words: Vec<&str> = line["detail"].as_str().expect("a text").split([' ', ',']).collect();
    words.iter().filter_map(|word| word.parse::<u64>().ok()).sum()
}

#[test]
fn locked_memory() {
    let has_tool = Command::new("setpriv").arg("--version").output().is_ok();
    if !rustix::process::geteuid().is_root() || !has_tool {
        return println!("not run here: a limit on locked memory (needs root and setpriv)");
    }
    // What is sent without a copy is locked: two rings leave nothing for it.
    let (directory, file) = configured("[link]\nzero_copy = \"always\"\n[memory]\nhugepages = \"off\"\n");
    for path in [directory.path(), &file] {
        chown(path, Some(OTHER_USER), Some(OTHER_USER)).expect("root may");
    }
    // Where that user may run it.
    let program = directory.path().join("weir");
    fs::copy(WEIR, &program).expect("a copy");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("its mode");
    let program = program.to_str().expect("UTF-8");
    let under = |kibibytes: u32| {
        format!(
            "ulimit -l {kibibytes} && exec setpriv --reuid={OTHER_USER} --regid={OTHER_USER} --clear-groups \
             --bounding-set=-all --inh-caps=-all \"$0\" \"$@\""
        )
    };
    let listen = free_address();
    let run = under(64);
    let options = DaemonOptions { prefix: &["sh", "-c", &run], program, ..DaemonOptions::new("a", &listen) };
    let row = assert_refused(
        directory.path(),
        &file,
        &options,
        ("RLIMIT_MEMLOCK", "MEMLOCK", "LimitMEMLOCK=infinity"),
    );
    assert_eq!(row["found"], "64 KiB");
    let (run, listen) = (under(192), free_address());
    let options = DaemonOptions { prefix: &["sh", "-c", &run], program, ..DaemonOptions::new("a", &listen) };
    let found = Found::of(options.prefix, program, &file, &directory.path().join("a"));
    assert_eq!(found.row("RLIMIT_MEMLOCK")["state"], "ok", "{}", found.row("RLIMIT_MEMLOCK"));
    let limited = Limited::start(directory.path(), &options);
    assert_eq!(
        subsystem(&limited.a, "io_uring").expect("a line")["state"],
        found.row("io_uring/full")["state"]
    );
    if found.row("io_uring/full")["state"] == "ok" {
        // At this level the kernel charges what is sent without a copy to the daemon's user. How much of it is in flight at a time
        // the machine decides: so there is more, until it was too much.
        let is_told = |round: &u32| {
            limited.carries(&format!("x{round}"));
            let line = subsystem(&limited.a, "zero copy").expect("a line");
            line["state"] == "degraded" && line["reason"].as_str().is_some_and(|why| why.contains("memlock"))
        };
        if (0..20).any(|round| is_told(&round)) {
            limited.agree("zero copy", "zero copy", "degraded", "memlock");
        } else {
            println!(
                "not run here: zero copy that may lock no memory (20 transfers never had more in flight than may be locked)"
            );
        }
    } else {
        limited.carries("x");
        println!("not run here: zero copy that may lock no memory (io_uring is below its level full here)");
    }
    limited.ends();
}

#[test]
fn file_descriptors() {
    let (directory, file) = configured("");
    let listen = free_address();
    let under = |limit: u32| format!("ulimit -n {limit} && exec \"$0\" \"$@\"");
    let run = under(200);
    let options = DaemonOptions { prefix: &["sh", "-c", &run], ..DaemonOptions::new("a", &listen) };
    let row = assert_refused(directory.path(), &file, &options, ("RLIMIT_NOFILE", "NOFILE", "LimitNOFILE="));
    assert_eq!(row["found"], "200");
    let (run, listen) = (under(264), free_address());
    let options = DaemonOptions { prefix: &["sh", "-c", &run], ..DaemonOptions::new("a", &listen) };
    let limited = Limited::start(directory.path(), &options);
    limited.agree("attach", "RLIMIT_NOFILE", "degraded", "RLIMIT_NOFILE");
    // More clients than it has descriptors for: those that it has none for are told why, and nobody else is harmed.
    let waiting = |number: u32| {
        let mut command =
            weir(["recv", "--exchange", &format!("w{number}"), "--consumer", "0/1"], &limited.a.run_dir);
        Guarded::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()))
    };
    let mut clients: Vec<Guarded> = (0..45).map(waiting).collect();
    let refused: Vec<Output> = eventually("each client is in or refused", || {
        let attached =
            subsystem(&limited.a, "attach")?["detail"].as_str()?.split(' ').next()?.parse::<usize>().ok()?;
        let ended = |client: &mut Guarded| client.child.try_wait().expect("its state").is_some();
        let count = clients.iter_mut().filter_map(|client| ended(client).then_some(())).count();
        (count > 0 && attached + count == clients.len()).then(|| {
            let (gone, staying): (Vec<_>, Vec<_>) = std::mem::take(&mut clients)
                .into_iter()
                .map(|mut one| (ended(&mut one), one))
                .partition(|one| one.0);
            clients = staying.into_iter().map(|(_, one)| one).collect();
            gone.into_iter().map(|(_, one)| one.output()).collect()
        })
    });
    for output in refused {
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("LimitNOFILE"), "{said}");
    }
    limited.agree("attach", "RLIMIT_NOFILE", "degraded", "RLIMIT_NOFILE");
    drop(clients);
    eventually("there is room again", || {
        subsystem(&limited.a, "attach")?["detail"].as_str()?.starts_with("0 of ").then_some(())
    });
    limited.carries("x");
    limited.ends();
}

/// A script that becomes the program behind it where these mounts were made, which nobody else sees; or why there is none.
fn mounted(script: &str) -> Result<String, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root".to_owned());
    }
    let tried = Command::new("unshare").args(["-m", "sh", "-c", script]).output();
    let output = tried.map_err(|error| format!("unshare: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    Ok(format!("{script} && exec \"$0\" \"$@\""))
}

/// Starts the pair with `a` where the mounts are, and returns it with the words that do a thing there.
fn start_mounted(directory: &Path, run: &str) -> Limited {
    let listen = free_address();
    let second = free_address();
    let peers = [("b", second.as_str())];
    let prefix = ["unshare", "-m", "sh", "-c", run];
    let options = DaemonOptions { prefix: &prefix, peers: &peers, ..DaemonOptions::new("a", &listen) };
    let mut a = Daemon::spawn(directory, &options);
    // Its sockets are seen through it.
    a.run_dir = PathBuf::from(format!("/proc/{}/root{}", a.pid(), a.run_dir.display()));
    eventually("the daemon answers", || {
        assert!(a.is_running(), "{}", a.printed());
        weir(["status"], &a.run_dir)
            .output()
            .expect("weir runs")
            .status
            .code()
            .filter(|code| matches!(code, 0 | 3))
    });
    let b = Daemon::start(directory, &DaemonOptions::new("b", &second));
    Limited { a, b }
}

/// Does something where a daemon's mounts are.
fn inside(daemon: &Daemon, script: &str) {
    let pid = daemon.pid().to_string();
    let output =
        Command::new("nsenter").args(["-t", &pid, "-m", "sh", "-c", script]).output().expect("nsenter");
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_read_only_run_directory() {
    let (directory, file) = configured("");
    let shown = directory.path().display();
    // On what is mounted so, which root cannot write either; there already, and to be made.
    for made in ["true", &format!("mkdir -p {shown}/a")] {
        let script = format!("{made} && mount --bind {shown} {shown} && mount -o remount,bind,ro {shown}");
        let run = match mounted(&script) {
            Ok(run) => run,
            Err(why) => return println!("not run here: a read-only run directory ({why})"),
        };
        let (listen, prefix) = (free_address(), ["unshare", "-m", "sh", "-c", run.as_str()]);
        let options = DaemonOptions { prefix: &prefix, ..DaemonOptions::new("a", &listen) };
        let row =
            assert_refused(directory.path(), &file, &options, ("run_dir", "Read-only file system", "run"));
        assert!(row["found"].as_str().expect("a text").contains("not read-only"), "{row}");
    }
}

#[test]
fn a_full_disk() {
    let (directory, file) = configured("");
    let run_dir = directory.path().join("a");
    fs::create_dir(&run_dir).expect("a directory");
    let shown = run_dir.display();
    let fill = format!("(dd if=/dev/zero of={shown}/filler bs=4k 2> /dev/null; true)");
    // Without a block that is free, and without a place for one more file.
    for full in [
        format!("mount -t tmpfs -o size=64k none {shown} && {fill}"),
        format!("mount -t tmpfs -o nr_inodes=1 none {shown}"),
    ] {
        let run = match mounted(&full) {
            Ok(run) => run,
            Err(why) => return println!("not run here: a full disk ({why})"),
        };
        let (listen, prefix) = (free_address(), ["unshare", "-m", "sh", "-c", run.as_str()]);
        let options = DaemonOptions { prefix: &prefix, ..DaemonOptions::new("a", &listen) };
        let row = assert_refused(directory.path(), &file, &options, ("run_dir", "No space left", "run"));
        assert!(row["found"].as_str().expect("a text").contains("(`df`)"), "{row}");
    }
    // One that becomes full while the daemon runs.
    let mount = format!("mount -t tmpfs -o size=64k none {shown}");
    let limited = start_mounted(directory.path(), &mounted(&mount).expect("as above"));
    limited.carries("before");
    // Such as a machine without hugepages. The peer is linked by now.
    let of_the_machine = limited.degraded();
    inside(&limited.a, &fill);
    limited.carries("x");
    let names = |lines: Vec<Value>| lines.iter().map(|line| line["name"].clone()).collect::<Vec<_>>();
    assert_eq!(names(limited.degraded()), names(of_the_machine), "it writes no data");
    eventually("all memory is given back", || (memory_used(&limited.a) == 0).then_some(()));
    assert_eq!(number(&limited.a.ask("status")["memory"], "used_bytes"), 0);
    limited.ends();
}
