//! Emulated machines that start from a disk with the package on it: what a container cannot show, since it has the kernel
//! of this machine. Hugepages at boot, limits that systemd may raise, other kernels, two NUMA nodes.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::checks::Checks;
use super::machine::Card;
use super::setup::{self, QEMU, Series, directory, said};
use super::{groups, joined, rootfs};
use crate::dist::{self, Effort};
use crate::process::Outcome;

/// What the guest does when it is up.
const SCRIPT: &str = include_str!("installed.sh");

/// Hugepages that each node of the guest is to have.
const PAGES: u32 = 24;

/// NUMA nodes of the guest, with a processor each.
const NODES: u32 = 2;

/// Memory of each, in MiB.
const NODE_MIB: u32 = 640;

/// Size of the disk, in MiB. Only what is written of it takes space.
const DISK_MIB: u32 = 1024;

/// Words for the kernel.
const WORDS: &str =
    "root=/dev/nvme0n1 rw console=ttyS0 quiet panic=-1 mitigations=off systemd.show_status=no";

/// Longest time of one machine from its start to its end.
const TIMEOUT: Duration = Duration::from_secs(420);

/// Longest time until the guest says its first word. The emulator can lose a timer of a guest that boots, whose kernel stands still
/// then. That says nothing about Weir: such a machine is started once more, with all of its time.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(90);

/// Starts each of these kernels from a disk on which the package with this program is installed.
///
/// # Errors
/// The disk cannot be made, or something does not hold.
pub(super) fn run(series: &[Series], weir: &Path) -> Outcome {
    let runs = directory().join("runs");
    fs::create_dir_all(&runs).map_err(|error| format!("{}: {error}", runs.display()))?;
    let image = runs.join("installed.img");
    disk(weir, series, &runs.join("installed"), &image)?;
    let mut checks = Checks::new("qemu");
    for one in series {
        println!("qemu: starting Debian's kernel {}, at most {} s", one.name(), TIMEOUT.as_secs());
        let report = runs.join(format!("installed-{}.txt", one.name()));
        let console = runs.join(format!("installed-{}.log", one.name()));
        let began = Instant::now();
        let text = boot(*one, &image, &report, &console, &Guest::default())?;
        judge(&mut checks, one.name(), text, began, &console);
        println!(
            "qemu: starting two machines with Debian's kernel {}, at most {} s",
            one.name(),
            TIMEOUT.as_secs()
        );
        joined::run(&mut checks, *one, &image)?;
    }
    let _ = fs::remove_file(&image);
    checks.finish()
}

/// What else a machine has: a network card, and words for its kernel and what runs there.
#[derive(Default)]
pub(super) struct Guest {
    pub(super) card: Option<Card>,
    pub(super) words: String,
}

/// What a machine told, from its last start.
#[derive(Debug)]
pub(super) struct Told {
    text: String,
    /// Whether it was started twice.
    is_again: bool,
}

/// Each line of what a machine told as a check, and that it came to its end.
pub(super) fn judge(checks: &mut Checks, name: &str, told: Told, began: Instant, console: &Path) {
    let Told { text, is_again } = told;
    if is_again {
        let why = format!("its guest had said nothing after {} s", BEGIN_TIMEOUT.as_secs());
        checks.started_again(name, &why);
    }
    for line in text.lines() {
        let fields: Vec<&str> = line.splitn(3, '|').collect();
        let [word, what, found] = fields.as_slice() else { continue };
        let (what, found) = (format!("{name}: {what}"), found.trim());
        if *word == "left" {
            checks.leave_out(&what, found);
            continue;
        }
        checks.check(&what, || if *word == "ok" { Ok(found.to_owned()) } else { Err(found.to_owned()) });
    }
    checks.check(&format!("{name}: the machine started, was looked at and stopped"), || {
        let seconds = began.elapsed().as_secs();
        if text.lines().any(|line| line.trim() == "end") {
            return Ok(format!("{seconds} s"));
        }
        Err(format!("it said no more after {seconds} s; its console is in {}", console.display()))
    });
}

/// A disk with the package on it and the script that looks at it, made in this directory.
fn disk(weir: &Path, series: &[Series], root: &Path, image: &Path) -> Outcome {
    let rootfs = rootfs::ensure()?;
    let _ = fs::remove_dir_all(root);
    said(Command::new("cp").arg("--archive").args([&rootfs, root]))?;
    let package = dist::deb::build(weir, &dist::version(), &root.join("root"), Effort::Little)?;
    let inside = Path::new("/root").join(package.file_name().unwrap_or_default());
    install(root, &inside)?;
    let write = |path: &str, text: &str| -> Outcome {
        let path = root.join(path);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    fs::remove_file(&package).map_err(|error| format!("{}: {error}", package.display()))?;
    write("etc/hostname", "guest\n")?;
    write("etc/default/weir-hugepages", &format!("PAGES_PER_NODE={PAGES}\n"))?;
    write("root/check.sh", SCRIPT)?;
    write("root/joined.sh", joined::SCRIPT)?;
    joined::prepare(root, series)?;
    write(
        "etc/systemd/system/check.service",
        &format!(
            "[Unit]\nAfter=weir.service\n[Service]\nType=oneshot\nEnvironment=PAGES={PAGES} NODES={NODES} {}\n\
             StandardOutput=file:/dev/ttyS1\nExecStart=/bin/sh -c 'grep -q weir.role= /proc/cmdline && \
             exec sh /root/joined.sh; exec sh /root/check.sh'\n",
            joined::VARIABLES
        ),
    )?;
    let wanted = root.join("etc/systemd/system/multi-user.target.wants/check.service");
    std::os::unix::fs::symlink("../check.service", &wanted)
        .map_err(|error| format!("{}: {error}", wanted.display()))?;
    let _ = fs::remove_file(image);
    said(
        Command::new("mkfs.ext4")
            .args(["-q", "-F", "-E", "lazy_itable_init=1,nodiscard", "-L", "root", "-d"])
            .args([root, image])
            .arg(format!("{DISK_MIB}M"))
            .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin"),
    )?;
    fs::remove_dir_all(root).map_err(|error| format!("{}: {error}", root.display()))
}

/// Installs a package, named as it is seen inside, in a root file system.
fn install(root: &Path, package: &Path) -> Outcome {
    let run = groups::new_run();
    let installed = groups::command_in(&run, "installed").and_then(|mut command| {
        command
            .args(["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--pipe"])
            .args(["--resolv-conf=off", "--timezone=off", "--directory"])
            .arg(root)
            .args(["dpkg", "--install"])
            .arg(package);
        said(&mut command)
    });
    groups::sweep(&run);
    installed.map(drop)
}

/// Starts a kernel from the disk, which stays as it is, and returns what the guest told before it stopped or was stopped.
pub(super) fn boot(
    series: Series,
    image: &Path,
    report: &Path,
    console: &Path,
    guest: &Guest,
) -> Result<Told, String> {
    let start = || {
        fs::write(console, "").map_err(|error| format!("{}: {error}", console.display()))?;
        Ok(command(&series.kernel(), image, report, console, guest))
    };
    twice(start, report, BEGIN_TIMEOUT, TIMEOUT)
}

/// Starts a machine, and once more if it has not written the first byte of its report in time. Waits until it has stopped, or is
/// stopped.
fn twice(
    mut start: impl FnMut() -> Result<Command, String>,
    report: &Path,
    begin: Duration,
    end: Duration,
) -> Result<Told, String> {
    for is_again in [false, true] {
        fs::write(report, "").map_err(|error| format!("{}: {error}", report.display()))?;
        let child = start()?.spawn();
        let mut machine = Running(child.map_err(|error| format!("cannot start `{QEMU}`: {error}"))?);
        let has_begun = || is_again || fs::metadata(report).is_ok_and(|report| report.len() > 0);
        if !machine.wait(has_begun, begin, end)? {
            continue;
        }
        let text = String::from_utf8_lossy(&fs::read(report).unwrap_or_default()).replace('\r', "");
        return Ok(Told { text, is_again });
    }
    Err("a machine was neither waited for nor given up".to_owned())
}

/// The emulator, with two nodes of memory.
fn command(kernel: &Path, image: &Path, report: &Path, console: &Path, guest: &Guest) -> Command {
    let mut command = guest.card.as_ref().map_or_else(|| Command::new(QEMU), Card::command);
    command
        .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
        .args(["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"])
        .args(["-smp", &NODES.to_string(), "-m", &(NODES * NODE_MIB).to_string()]);
    for node in 0..NODES {
        command
            .args(["-object", &format!("memory-backend-ram,id=m{node},size={NODE_MIB}M")])
            .args(["-numa", &format!("node,nodeid={node},cpus={node},memdev=m{node}")]);
    }
    let drive = format!("file={},if=none,id=disk,format=raw,snapshot=on,cache=unsafe", image.display());
    command
        .args(["-serial", &format!("file:{}", console.display())])
        .args(["-serial", &format!("file:{}", report.display())])
        .args(["-drive", &drive, "-device", "nvme,drive=disk,serial=root"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-append")
        .arg(format!("{WORDS} {}", guest.words).trim_end())
        .stdin(Stdio::null());
    command
}

/// A process that is killed when nobody waits for it any more.
struct Running(Child);

impl Running {
    /// Waits until it has ended, for at most `end`. Returns false, at once, if it has not begun by `begin`.
    fn wait(&mut self, has_begun: impl Fn() -> bool, begin: Duration, end: Duration) -> Result<bool, String> {
        let started = Instant::now();
        while started.elapsed() < end {
            match self.0.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(true),
                Ok(Some(status)) => return Err(format!("`{QEMU}` failed ({status})")),
                Ok(None) if started.elapsed() >= begin && !has_begun() => return Ok(false),
                Ok(None) => std::thread::sleep(Duration::from_millis(200)),
                Err(error) => return Err(format!("cannot wait for `{QEMU}`: {error}")),
            }
        }
        Ok(true)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail where it has ended, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What is missing to do it, one line each.
pub(super) fn missing(series: &[Series]) -> Vec<String> {
    let mut missing = setup::missing(series);
    for (program, package) in
        [("mkfs.ext4", "e2fsprogs"), ("systemd-nspawn", "systemd-container"), ("mmdebstrap", "mmdebstrap")]
    {
        if !crate::setup::is_on_path(program) {
            missing.push(format!("`{program}` is missing (package {package}, by `cargo xtask setup`)"));
        }
    }
    if !crate::process::is_root() {
        missing.push("only root can make a root file system".to_owned());
    }
    missing
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::process;

    #[test]
    fn the_machine_has_a_disk_that_stays_as_it_is_and_two_nodes() {
        let path = |name: &str| PathBuf::from("/lab").join(name);
        let line = process::describe(&command(
            &path("kernel"),
            &path("disk"),
            &path("report"),
            &path("console"),
            &Guest::default(),
        ));
        for part in [
            " -accel tcg,thread=multi ",
            " -m 1280 ",
            " -numa node,nodeid=1,cpus=1,memdev=m1 ",
            "file=/lab/disk,if=none,id=disk,format=raw,snapshot=on,",
            " -serial file:/lab/console -serial file:/lab/report ",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert!(!line.contains("kvm"), "{line}");
    }

    #[test]
    fn the_script_begins_and_ends_with_the_words_that_are_waited_for() {
        for script in [SCRIPT, joined::SCRIPT] {
            assert!(script.contains("\necho begun\n") && script.contains("\necho end\n"));
            assert!(script.find("echo begun") < script.find("() {"), "before anything that takes time");
        }
    }

    #[test]
    fn a_machine_that_says_nothing_at_first_is_started_once_more_and_no_third_time() {
        let report = std::env::temp_dir().join(format!("weir-lab-report-{}", std::process::id()));
        let (soon, late) = (Duration::ZERO, Duration::from_secs(300));
        let run = |scripts: &[&str], begin, end| {
            let mut starts = 0;
            let start = || {
                let script = scripts[starts];
                starts += 1;
                let mut command = Command::new("sh");
                command.args(["-c", script, "sh"]).arg(&report);
                Ok(command)
            };
            let told = twice(start, &report, begin, end);
            (told.map(|told| (told.text, told.is_again)), starts)
        };
        let (silent, speaks) = ("exec sleep 600", "echo begun > $1; echo end >> $1");
        let whole = || "begun\nend\n".to_owned();
        assert_eq!(run(&[silent, speaks], soon, late), (Ok((whole(), true)), 2));
        assert_eq!(run(&[speaks], late, late), (Ok((whole(), false)), 1));
        // The second has all of its time, whenever it says its first word; and there is no third.
        let slow = "sleep 1; echo begun > $1; echo end >> $1";
        assert_eq!(run(&[silent, slow], soon, late), (Ok((whole(), true)), 2));
        let (told, starts) = run(&[silent, silent], soon, Duration::from_secs(1));
        assert_eq!((told, starts), (Ok((String::new(), true)), 2));
        assert!(run(&["exit 3"], late, late).0.is_err());
        let _ = fs::remove_file(&report);
    }
}
