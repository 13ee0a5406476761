//! A node: a container with systemd as its first process, a network, a BPF file system and all that root may do, like a
//! machine. Its root file system is a layer of memory above the common one.
//!
//! Everything is mounted and started in namespaces of their own, which end with the process that made them, however
//! that ends: nothing is left behind.

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::groups;
use super::setup::said;
use crate::process::{self, Outcome};

/// Longest time from the start of a node until systemd says that it is up, on a machine with other work.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);

/// Longest time of one command in a node, in seconds.
const COMMAND_SECONDS: &str = "120";

/// Longest time that a node may take to stop in order.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// How often something is looked at that is waited for.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// System calls that a container may not use unless told so, and a machine may.
const SYSTEM_CALLS: &str = "bpf perf_event_open";

/// A node that runs.
pub(super) struct Node {
    /// Its host name.
    pub(super) name: &'static str,
    /// The process that is the first one inside, as seen from here.
    leader: u32,
    container: Child,
    root: PathBuf,
}

impl Node {
    /// Starts a node of this run, with files of this machine in its `/root`, and waits until systemd says that it is up.
    ///
    /// # Errors
    /// A mount is refused, or it does not come up; the last words of its console are told.
    pub(super) fn boot(
        run: &str,
        name: &'static str,
        rootfs: &Path,
        directory: &Path,
        files: &[&Path],
    ) -> Result<Self, String> {
        let own = directory.join(name);
        let (root, bpf) = (own.join("root"), own.join("bpf"));
        for made in ["upper", "work", "root", "bpf"] {
            let made = own.join(made);
            fs::create_dir_all(&made).map_err(|error| format!("{}: {error}", made.display()))?;
        }
        let layers = format!(
            "lowerdir={},upperdir={},workdir={}",
            rootfs.display(),
            own.join("upper").display(),
            own.join("work").display()
        );
        said(Command::new("mount").args(["-t", "overlay", "-o", &layers, "none"]).arg(&root))?;
        said(Command::new("mount").args(["-t", "bpf", "-o", "mode=0700", "none"]).arg(&bpf))?;
        write(&root.join("etc/hostname"), &format!("{name}\n"))?;
        for file in files {
            let target = root.join("root").join(file.file_name().unwrap_or_default());
            fs::copy(file, &target).map_err(|error| format!("{}: {error}", target.display()))?;
        }
        let socket = format!("weir-lab-{run}-{name}");
        let address = SocketAddr::from_abstract_name(&socket).and_then(|name| UnixDatagram::bind_addr(&name));
        let notices = address.map_err(|error| format!("a socket for notices: {error}"))?;
        let console = own.join("console.log");
        let command = groups::command_in(run, name)?;
        let mut container = Self::container(command, name, [&root, &bpf], &format!("@{socket}"), &console)?;
        match await_ready(&notices, &mut container) {
            Ok(leader) => Ok(Self { name, leader, container, root }),
            Err(problem) => {
                let _ = container.kill();
                let _ = container.wait();
                let told = fs::read_to_string(&console).unwrap_or_default();
                let last: Vec<&str> = told.lines().rev().take(5).collect();
                Err(format!("node {name} does not start: {problem}; its last words, latest first: {last:?}"))
            }
        }
    }

    /// Starts it with a command that begins in its control groups.
    fn container(
        mut command: Command,
        name: &str,
        [root, bpf]: [&Path; 2],
        socket: &str,
        console: &Path,
    ) -> Result<Child, String> {
        let log = fs::File::create(console).map_err(|error| format!("{}: {error}", console.display()))?;
        let errors = log.try_clone().map_err(|error| format!("{}: {error}", console.display()))?;
        command
            .arg("systemd-nspawn")
            .env("NOTIFY_SOCKET", socket)
            // Control groups as on a machine; settings of its network are its own.
            .env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1")
            .env("SYSTEMD_NSPAWN_API_VFS_WRITABLE", "network")
            .args(["--quiet", "--register=no", "--keep-unit", "--notify-ready=yes", "--private-network"])
            .args(["--kill-signal=SIGRTMIN+3", "--capability=all", "--resolv-conf=off", "--timezone=off"])
            .arg(format!("--system-call-filter={SYSTEM_CALLS}"))
            .arg(format!("--machine={name}"))
            .arg(format!("--bind={}:/sys/fs/bpf", bpf.display()))
            .arg("--directory")
            .arg(root)
            .arg("--boot")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors);
        command.spawn().map_err(|error| format!("cannot start `systemd-nspawn`: {error}"))
    }

    /// Runs a shell script in the node as root and returns what it prints on both streams.
    ///
    /// # Errors
    /// It fails, or takes longer than two minutes: with its status and what it printed.
    pub(super) fn sh(&self, script: &str) -> Result<String, String> {
        let output = self
            .command()
            .args(["sh", "-c", &format!("exec 2>&1\n{script}")])
            .output()
            .map_err(|error| format!("cannot start `nsenter`: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.status.success() {
            return Ok(text);
        }
        let last: Vec<&str> = text.lines().rev().take(6).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        Err(format!(
            "node {}: `{}` failed ({}): {}",
            self.name,
            script.trim(),
            output.status,
            last.join(" | ")
        ))
    }

    /// A command that begins in the node, as root, with an environment of its own.
    fn command(&self) -> Command {
        let mut command = Command::new("timeout");
        command
            .args([COMMAND_SECONDS, "nsenter", "--all", "--target", &self.leader.to_string(), "--"])
            .args(["env", "-i", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"])
            .arg("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null());
        command
    }

    /// Writes a file of the node, for all to read.
    pub(super) fn write(&self, path: &str, text: &str) -> Outcome {
        write(&self.root.join(path.trim_start_matches('/')), text)
    }

    /// Gives another node a file of this one, with its mode.
    pub(super) fn pass_on(&self, path: &str, other: &Self) -> Outcome {
        let of = |node: &Self| node.root.join(path.trim_start_matches('/'));
        fs::copy(of(self), of(other)).map(drop).map_err(|error| format!("{path}: {error}"))
    }

    /// Lays a cable between two nodes, whose ends have these addresses.
    pub(super) fn connect(one: &Self, other: &Self, addresses: [&str; 2]) -> Outcome {
        let ends = ["weir0", "weir1"];
        let make = ["link", "add", ends[0], "type", "veth", "peer", "name", ends[1]];
        said(Command::new("ip").args(make))?;
        for ((node, end), address) in [one, other].into_iter().zip(ends).zip(addresses) {
            // The end goes with the network that it is moved to.
            said(Command::new("ip").args([
                "link",
                "set",
                end,
                "netns",
                &node.leader.to_string(),
                "name",
                "host0",
            ]))?;
            node.sh(&format!("ip address add {address}/24 dev host0 && ip link set host0 up"))?;
        }
        Ok(())
    }

    /// Stops it in order.
    ///
    /// # Errors
    /// It does not stop in time; it is killed then.
    pub(super) fn stop(mut self) -> Outcome {
        self.sh("systemctl poweroff")?;
        let deadline = Instant::now() + STOP_TIMEOUT;
        loop {
            match self.container.try_wait() {
                Ok(Some(_)) => return Ok(()),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK),
                Ok(None) => {
                    return Err(format!("node {} runs after {} s", self.name, STOP_TIMEOUT.as_secs()));
                }
                Err(error) => return Err(format!("node {}: {error}", self.name)),
            }
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Both fail where it has ended, which is what is wanted.
        let _ = self.container.kill();
        let _ = self.container.wait();
    }
}

/// Waits until the container says that systemd is up, and returns its first process.
fn await_ready(notices: &UnixDatagram, container: &mut Child) -> Result<u32, String> {
    let deadline = Instant::now() + BOOT_TIMEOUT;
    let failed = |error: std::io::Error| format!("notices: {error}");
    notices.set_read_timeout(Some(LOOK)).map_err(failed)?;
    let mut leader = None;
    let mut bytes = [0; 4096];
    while Instant::now() < deadline {
        if let Ok(length) = notices.recv(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            leader = leader.or_else(|| text.lines().find_map(leader_in));
            if let (true, Some(leader)) = (text.lines().any(|line| line == "READY=1"), leader) {
                return Ok(leader);
            }
        }
        if let Some(status) = container.try_wait().map_err(failed)? {
            return Err(format!("it has ended ({status})"));
        }
    }
    Err(format!("systemd is not up after {} s", BOOT_TIMEOUT.as_secs()))
}

fn leader_in(line: &str) -> Option<u32> {
    line.strip_prefix("X_NSPAWN_LEADER_PID=")?.parse().ok()
}

fn write(path: &Path, text: &str) -> Outcome {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Runs this program again in namespaces that end with it: of processes, so that nothing outlives it, of mounts, and of
/// network, for the cable between the nodes.
///
/// # Errors
/// They are refused.
pub(super) fn inside(arguments: &[&str]) -> Result<Command, String> {
    let own = std::env::current_exe().map_err(|error| format!("the path of this program: {error}"))?;
    let mut command = process::command("unshare");
    command
        .args(["--mount", "--propagation=private", "--net"])
        .args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"])
        .arg(own)
        .args(arguments);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_process_is_the_one_that_is_named() {
        assert_eq!(leader_in("X_NSPAWN_LEADER_PID=4711"), Some(4711));
        assert_eq!(leader_in("STATUS=Container running."), None);
    }
}
