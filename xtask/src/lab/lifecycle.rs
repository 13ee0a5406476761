//! What happens to an installed service, in the order of its life: a kill, a standstill, a wrong configuration, an upgrade
//! while records flow, a switch-off, removal. Beside it runs a program that outlives its daemons.

use std::time::Instant;

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
    checks.check("killed, it is started again and programs attach again", || killed(node));
    reload(checks, node);
    checks.check("one that stands still is ended by the watchdog and started again", || watchdog(node));
    checks.check("a wrong configuration ends it with 78, once", || wrong_configuration(node));
    checks.check("an upgrade keeps the configuration, restarts it, and programs attach again", || {
        upgrade(node, packages.newer)
    });
    checks.check("a stop is in order, and what is attached is told", || {
        node.sh("systemctl stop steady-producer steady-consumer; systemctl stop weir")?;
        same("Result", &property(node, "Result")?, "success").map(|()| String::new())
    });
    checks.check("switched off it stays off, with an upgrade too", || switched_off(node, packages));
    checks.check("removed, it is gone, but not its configuration", || removed(node));
    checks.check("installed again, it has the configuration that was there", || {
        node.sh(&format!("dpkg --install {}", packages.package))?;
        node_is(node, "is-active", "weir", "active")?;
        node.sh(&format!("grep -q '{MARK}' /etc/weir/weir.toml")).map(|_| String::new())
    });
    checks.check("purged, nothing of it is left", || purged(node));
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

/// Waits until records flow again through another process of the daemon, and tells how long that took.
fn flows_again(node: &Node, before: &str, lives_before: usize, began: Instant) -> Result<String, String> {
    let restarted = eventually(PATIENCE, || {
        let pid = property(node, "MainPID")?;
        let is_new = pid != "0" && pid != before;
        if is_new && property(node, "ActiveState")? == "active" {
            Ok(began.elapsed())
        } else {
            Err(journal(node)?)
        }
    })?;
    lives(node, lives_before + 1)?;
    let flowing = began.elapsed();
    Ok(format!(
        "ready after {:.1} s, first record {:.1} s later",
        restarted.as_secs_f64(),
        (flowing - restarted).as_secs_f64()
    ))
}

fn killed(node: &Node) -> Result<String, String> {
    let (pid, lives) = (property(node, "MainPID")?, begun(node)?);
    // Where the service manager keeps the sockets, who comes while nothing runs waits for what comes next.
    let asks = if property(node, "FileDescriptorStoreMax")? == "0" { "" } else { ASKS };
    let began = Instant::now();
    node.sh(&format!("kill -KILL {pid}{asks}"))?;
    let found = flows_again(node, &pid, lives, began)?;
    same("NRestarts", &property(node, "NRestarts")?, "1").map(|()| found)
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
    same("times that the watchdog ended it", &told, "1").map(|()| found)
}

fn wrong_configuration(node: &Node) -> Result<String, String> {
    node.write("/etc/weir/conf.d/wrong.toml", "[memory]\nsegment_byte = 4096\n")?;
    // It is started more often here than the unit allows a service that fails.
    node.sh("systemctl reset-failed weir; systemctl restart weir || true")?;
    let restarts = property(node, "NRestarts")?;
    // Longer than a restart waits.
    std::thread::sleep(std::time::Duration::from_millis(1_500));
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
    node.sh(&format!("dpkg --force-confold --install {newer}"))?;
    let found = flows_again(node, &pid, lives, began)?;
    node.sh(&format!("grep -q '{MARK}' /etc/weir/weir.toml"))?;
    let version = node.sh("dpkg-query --show --showformat '${Version}' weir")?;
    if !version.ends_with("+1") {
        return Err(format!("the version is {version}"));
    }
    Ok(found)
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
