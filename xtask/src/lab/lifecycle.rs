//! What happens to an installed service, in the order of its life: a kill, a standstill, a wrong configuration, an upgrade
//! while records flow, a switch-off, removal. Beside it runs a program that outlives its daemons.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::checks::{Checks, eventually, same};
use super::node::Node;
use super::walk::{PATIENCE, ask, node_is, property, subsystem};
use crate::process::Outcome;

/// The packages, as paths in the node.
pub(super) struct Packages<'a> {
    /// The one that is installed.
    pub(super) package: &'a str,
    /// A later version.
    pub(super) newer: &'a str,
}

/// Files in `/etc` that come with the package and are for an administrator to edit.
const CONFFILES: [&str; 2] = ["/etc/weir/weir.toml", "/etc/default/weir-hugepages"];

/// What the later version has in each of them that the first has not.
const NEW_DEFAULT: &str = "# a default of the next version";

/// The longest time in which what is attached to a daemon that is killed has attached to the next one.
const REATTACH_MAX: Duration = Duration::from_secs(2);

/// Kills of which one must be as short: the machine may have other work.
const KILLS_MAX: u32 = 5;

/// A setting that is to outlive the package's own file: a line that says nothing new.
const MARK: &str = "# edited by an administrator";

/// Asks until there is an answer: the command waits for ten seconds, and a start may take longer on a machine with other work.
const ASKS: &str = "; for try in 1 2 3 4 5 6; do \
     code=0; said=$(weir status 2>&1) || code=$?; \
     case $said in *'did not answer within'*) ;; *) break ;; esac; \
     done; [ $code = 0 ] || [ $code = 3 ] || { echo \"$said\"; false; }";

/// Does all of it, up to a node without the package.
pub(super) fn run(checks: &mut Checks, node: &Node, packages: &Packages<'_>) -> Outcome {
    let steady = |role: &str| {
        format!(
            "systemd-run -q --unit=steady-{role} -p DynamicUser=yes -p SupplementaryGroups=weir \
             /opt/steady /run/weir {role}"
        )
    };
    node.sh("install -D -m 755 /root/steady /opt/steady")?;
    node.sh(&format!("{}; {}", steady("consumer"), steady("producer")))?;
    checks.check("a program of another user attaches", || lives(node, 1));
    checks.check("killed, it is started again and programs attach again within 2 s", || killed(node));
    reload(checks, node);
    checks.check("one that stands still is ended by the watchdog and started again", || watchdog(node));
    checks.check("a wrong configuration ends it with 78, once", || wrong_configuration(node));
    checks.check(
        "a system call filter that refuses io_uring ends it with its name, and the doctor agrees",
        || refused(node),
    );
    checks.check("an upgrade keeps edited files, restarts it, and programs attach again", || {
        upgrade(node, packages.newer)
    });
    checks.check("a stop is in order, and what is attached is told", || {
        node.sh("systemctl stop steady-producer steady-consumer; systemctl stop weir")?;
        same("Result", &property(node, "Result")?, "success").map(|()| String::new())
    });
    checks.check("switched off it stays off, with an upgrade too", || switched_off(node, packages));
    checks.check("removed, it is gone, but not its configuration", || removed(node));
    checks.check("installed again, it has the configuration that was there", || {
        node.sh(&format!("dpkg --force-confold --install {}", packages.package))?;
        node_is(node, "is-active", "weir", "active")?;
        node.sh(&format!("grep -q '{MARK}' /etc/weir/weir.toml")).map(|_| String::new())
    });
    checks.check("purged, nothing of it is left", || purged(node));
    checks.check("an upgrade brings new defaults where nobody has edited the file", || {
        new_defaults(node, packages)
    });
    checks.check("purged, nothing of that is left either", || purged(node));
    checks.check("no unit of the node has failed", || {
        same("those", &node.sh("systemctl --failed --plain --no-legend")?, "").map(|()| String::new())
    });
    Ok(())
}

/// Waits until the consumer has begun this many lives.
fn lives(node: &Node, number: usize) -> Result<String, String> {
    eventually(PATIENCE, || {
        let lives = begun(node)?;
        if lives >= number { Ok(()) } else { Err(format!("{lives} lives, not {number}: {}", journal(node)?)) }
    })
    .map(|()| String::new())
}

/// How many lives the consumer has begun.
fn begun(node: &Node) -> Result<usize, String> {
    let told = node.sh("journalctl -u steady-consumer -o cat --no-pager")?;
    Ok(told.lines().filter(|line| line.starts_with("life ") && line.ends_with(" begins")).count())
}

fn journal(node: &Node) -> Result<String, String> {
    node.sh("journalctl -u weir -u 'steady*' -o cat --no-pager | tail -n 5")
}

/// How long it took until records flowed again through another process of the daemon.
struct Again {
    ready: Duration,
    flowing: Duration,
}

impl std::fmt::Display for Again {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (ready, flowing) = (self.ready.as_secs_f64(), self.flowing.as_secs_f64());
        write!(f, "ready after {ready:.1} s, first record {:.1} s later", flowing - ready)
    }
}

/// Waits for that.
fn flows_again(node: &Node, before: &str, lives_before: usize, began: Instant) -> Result<Again, String> {
    let ready = eventually(PATIENCE, || {
        let pid = property(node, "MainPID")?;
        let is_new = pid != "0" && pid != before;
        if is_new && property(node, "ActiveState")? == "active" {
            Ok(began.elapsed())
        } else {
            Err(journal(node)?)
        }
    })?;
    lives(node, lives_before + 1)?;
    Ok(Again { ready, flowing: began.elapsed() })
}

/// Again and again, until it was as short once as it can be.
fn killed(node: &Node) -> Result<String, String> {
    // Where the service manager keeps the sockets, who comes while nothing runs waits for what comes next.
    let asks = if property(node, "FileDescriptorStoreMax")? == "0" { "" } else { ASKS };
    let mut longer = String::new();
    for kills in 1..=KILLS_MAX {
        let (pid, lives) = (property(node, "MainPID")?, begun(node)?);
        let began = Instant::now();
        node.sh(&format!("kill -KILL {pid}{asks}"))?;
        let again = flows_again(node, &pid, lives, began)?;
        same("NRestarts", &property(node, "NRestarts")?, &kills.to_string())?;
        if again.flowing <= REATTACH_MAX {
            return Ok(format!("{longer}{again}"));
        }
        longer.push_str(&format!("{again}; "));
    }
    Err(format!("never within {} s: {longer}", REATTACH_MAX.as_secs()))
}

/// The daemon stands still as a whole. It gets the signal that ends it when it is let go on, so the unit's patience with
/// that is made short here; how long the watchdog waits is what the package says.
fn watchdog(node: &Node) -> Result<String, String> {
    let directory = "/run/systemd/system/weir.service.d";
    node.sh(&format!(
        "mkdir -p {directory} && printf '[Service]\\nTimeoutAbortSec=1s\\n' > {directory}/abort.conf && systemctl daemon-reload"
    ))?;
    let (pid, lives) = (property(node, "MainPID")?, begun(node)?);
    let began = Instant::now();
    node.sh(&format!("kill -STOP {pid}"))?;
    let found = flows_again(node, &pid, lives, began)?;
    let told = node.sh("journalctl -u weir -o cat --no-pager | grep -c 'Watchdog timeout'")?;
    node.sh("rm /run/systemd/system/weir.service.d/abort.conf && systemctl daemon-reload")?;
    same("times that the watchdog ended it", &told, "1").map(|()| found.to_string())
}

fn wrong_configuration(node: &Node) -> Result<String, String> {
    node.write("/etc/weir/conf.d/wrong.toml", "[memory]\nsegment_byte = 4096\n")?;
    // It is started more often here than the unit allows a service that fails.
    node.sh("systemctl reset-failed weir; systemctl restart weir || true")?;
    let restarts = property(node, "NRestarts")?;
    // Longer than a restart waits.
    std::thread::sleep(Duration::from_millis(1_500));
    let state =
        [property(node, "ExecMainStatus")?, property(node, "ActiveState")?, property(node, "NRestarts")?];
    let told = node.sh("journalctl -u weir -o cat --no-pager | grep 'unknown key' | tail -n 1")?;
    let lives = begun(node)?;
    node.sh("rm /etc/weir/conf.d/wrong.toml && systemctl reset-failed weir && systemctl start weir")?;
    same("status, state and restarts", &state.join(" "), &format!("78 failed {restarts}"))?;
    lives_after(node, lives)?;
    Ok(told)
}

fn lives_after(node: &Node, before: usize) -> Outcome {
    lives(node, before + 1).map(drop)
}

/// Settings that can change while it runs, if this release has any.
fn reload(checks: &mut Checks, node: &Node) {
    let can = property(node, "CanReload").unwrap_or_default();
    if can != "yes" {
        checks.leave_out("a reload, good and bad", "weir.service of this release has none");
        return;
    }
    checks.check("a reload takes what is right and refuses what is wrong, and goes on", || reloaded(node));
}

fn reloaded(node: &Node) -> Result<String, String> {
    let (pid, lives) = (property(node, "MainPID")?, begun(node)?);
    let says = |name: &str, wanted: &str, state: &str| {
        eventually(PATIENCE, || match subsystem(node, name)? {
            (found, said) if found == state && said.contains(wanted) => Ok(said),
            (found, said) => Err(format!("{name} is {found}: {said}")),
        })
    };
    node.write("/etc/weir/conf.d/limits.toml", "[limits]\nattachments_max = 77\n")?;
    node.sh("systemctl reload weir")?;
    says("attach", " of 77 attachments", "ok")?;
    node.write("/etc/weir/conf.d/limits.toml", "[limits]\nattachment_max = 78\n")?;
    node.sh("systemctl reload weir")?;
    let refused = says("configuration", "limits.toml:2", "degraded")?;
    says("attach", " of 77 attachments", "ok")?;
    node.sh("rm /etc/weir/conf.d/limits.toml && systemctl reload weir")?;
    says("configuration", "", "ok")?;
    same("MainPID", &property(node, "MainPID")?, &pid)?;
    // What flowed went on.
    same("lives of the consumer", &begun(node)?.to_string(), &lives.to_string()).map(|()| refused)
}

fn upgrade(node: &Node, newer: &str) -> Result<String, String> {
    node.sh(&format!("echo '{MARK}' >> /etc/weir/weir.toml"))?;
    let (pid, lives) = (property(node, "MainPID")?, begun(node)?);
    let began = Instant::now();
    node.sh(&format!("apt -o Dpkg::Options::=--force-confold install {newer}"))?;
    let found = flows_again(node, &pid, lives, began)?;
    node.sh(&format!("grep -q '{MARK}' /etc/weir/weir.toml"))?;
    for edited in CONFFILES {
        is_new(node, edited, false)?;
        is_new(node, &format!("{edited}.dpkg-dist"), true)?;
    }
    let version = node.sh("dpkg-query --show --showformat '${Version}' weir")?;
    if !version.ends_with("+1") {
        return Err(format!("the version is {version}"));
    }
    Ok(found.to_string())
}

/// What a unit's own system call filter does to it that is too narrow: no restart here, so that its end can be looked at.
fn refused(node: &Node) -> Result<String, String> {
    const FILTER: &str = "SystemCallFilter=~io_uring_setup io_uring_enter io_uring_register";
    let directory = "/run/systemd/system/weir.service.d";
    let lives = begun(node)?;
    node.sh(&format!(
        "mkdir -p {directory} && printf '[Service]\\nRestart=no\\n{FILTER}\\n' > {directory}/filter.conf && \
         systemctl daemon-reload && systemctl stop weir && ! systemctl start weir"
    ))?;
    // CLD_EXITED: by itself, and not by a signal.
    let state = [property(node, "ExecMainCode")?, property(node, "ExecMainStatus")?];
    // The journal may be behind.
    let told = eventually(PATIENCE, || {
        node.sh("journalctl -u weir -o cat --no-pager | grep 'io_uring_setup.*SystemCallFilter=' | tail -n 1 | grep .")
    });
    let asked = node.sh(&format!(
        "systemd-run -q --collect --wait --pipe -p User=weir -p '{FILTER}' -p SystemCallErrorNumber=EPERM \
         weir doctor --output json || [ $? = 1 ]"
    ))?;
    node.sh(&format!("rm {directory}/filter.conf && systemctl daemon-reload && systemctl reset-failed weir && systemctl start weir"))?;
    same("how it ended", &state.join(" "), "1 1")?;
    let report: Value =
        serde_json::from_str(&asked).map_err(|error| format!("weir doctor: {error}: {asked}"))?;
    for name in ["io_uring/oneshot", "seccomp"] {
        let rows = report["rows"].as_array().map_or(&[][..], Vec::as_slice);
        let row = rows.iter().find(|row| row["name"] == name).ok_or_else(|| format!("no row {name}"))?;
        if row["state"] != "failed" || !row["fix"].to_string().contains("SystemCallFilter=") {
            return Err(format!("the doctor says {row}"));
        }
    }
    lives_after(node, lives)?;
    told
}

/// Changes what the package of the next version brings for an administrator to edit, in the tree that it is made of.
pub(super) fn change_defaults(tree: &Path) -> Outcome {
    CONFFILES.iter().try_for_each(|file| {
        let file = tree.join(file.trim_start_matches('/'));
        let shown = |error: std::io::Error| format!("{}: {error}", file.display());
        let text = fs::read_to_string(&file).map_err(shown)?;
        fs::write(&file, format!("{text}{NEW_DEFAULT}\n")).map_err(shown)
    })
}

/// Whether a file that the package brings is that of the later version.
fn is_new(node: &Node, file: &str, wanted: bool) -> Outcome {
    let not = if wanted { "" } else { "! " };
    node.sh(&format!("{not}grep -q '^{NEW_DEFAULT}$' {file}")).map(drop)
}

/// On a node without the package. Nobody is asked, for nobody is here who could answer, and nothing lies beside the files.
fn new_defaults(node: &Node, packages: &Packages<'_>) -> Result<String, String> {
    let Packages { package, newer } = packages;
    node.sh(&format!("apt install {package}"))?;
    CONFFILES.iter().try_for_each(|file| is_new(node, file, false))?;
    node.sh(&format!("apt install {newer}"))?;
    CONFFILES.iter().try_for_each(|file| is_new(node, file, true))?;
    node.sh("! ls /etc/weir/weir.toml.* /etc/default/weir-hugepages.*").map(|_| String::new())
}

fn switched_off(node: &Node, packages: &Packages<'_>) -> Result<String, String> {
    node.sh("systemctl disable --now weir")?;
    node.sh(&format!("dpkg --force-confold --force-downgrade --install {}", packages.package))?;
    node.sh(&format!("dpkg --force-confold --install {}", packages.newer))?;
    node_is(node, "is-enabled", "weir", "disabled")?;
    node_is(node, "is-active", "weir", "inactive")?;
    node.sh("systemctl enable --now weir").map(|_| String::new())
}

fn removed(node: &Node) -> Result<String, String> {
    node.sh("dpkg --remove weir")?;
    node_is(node, "is-active", "weir", "inactive")?;
    for gone in ["/usr/bin/weir", "/usr/lib/systemd/system/weir.service", "/run/weir/attach.sock"] {
        node.sh(&format!("! test -e {gone}"))?;
    }
    node.sh("test -f /etc/weir/weir.toml && test -f /etc/weir/cluster.key").map(|_| String::new())
}

fn purged(node: &Node) -> Result<String, String> {
    node.sh("dpkg --purge weir")?;
    let left = node.sh("find / /run -xdev \\( -path /proc -o -path /sys -o -path /run/systemd -o -path /var/log \\) -prune -o -name '*weir*' -print")?;
    let left: Vec<&str> = left.lines().filter(|path| !path.starts_with("/root/")).collect();
    if left.is_empty() { Ok(String::new()) } else { Err(format!("left: {}", left.join(", "))) }
}

/// The archive on a node whose package was purged before: the same by its script.
pub(super) fn archive(checks: &mut Checks, node: &Node, archive: &str) {
    checks.check("the archive's script leaves a package's files alone", || {
        node.sh(&format!("mkdir /root/archive && tar -xf {archive} -C /root/archive --strip-components=1"))?;
        let verbs = ["install", "uninstall", "purge"];
        verbs.iter().try_for_each(|verb| node.sh(&format!("! /root/archive/install.sh {verb}")).map(drop))?;
        node.sh("test -x /usr/bin/weir && test -f /etc/weir/weir.toml").map(|_| String::new())
    });
    checks.check("the archive's script installs a service that runs", || {
        node.sh("dpkg --purge weir")?;
        node.sh("/root/archive/install.sh install && systemctl enable --now weir-hugepages weir")?;
        node_is(node, "is-active", "weir", "active")?;
        ask(node, "status").map(|_| String::new())
    });
    checks.check("it keeps an edited configuration and starts anew what runs", || {
        node.sh(&format!("echo '{MARK}' >> /etc/weir/weir.toml"))?;
        let pid = property(node, "MainPID")?;
        node.sh("/root/archive/install.sh install && test -f /etc/weir/weir.toml.new")?;
        node.sh(&format!("grep -q '{MARK}' /etc/weir/weir.toml"))?;
        if property(node, "MainPID")? == pid {
            Err("it was not started anew".to_owned())
        } else {
            Ok(String::new())
        }
    });
    checks.check("it takes everything away again", || {
        node.sh(
            "/root/archive/install.sh uninstall && test -f /etc/weir/weir.toml && ! test -e /usr/bin/weir",
        )?;
        node.sh("/root/archive/install.sh purge")?;
        purged(node)
    });
}
