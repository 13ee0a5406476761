//! From the package to records between two nodes, as docs/operations.md tells it.

use std::time::Duration;

use serde_json::Value;

use super::checks::{Checks, eventually, same};
use super::node::Node;
use crate::process::Outcome;

/// The addresses of the two nodes.
const ADDRESSES: [&str; 2] = ["10.91.0.1", "10.91.0.2"];

/// Longest wait for what must come, on a machine that has other work.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The capabilities that the unit names: CAP_IPC_LOCK, CAP_PERFMON, CAP_BPF.
const CAPABILITIES: u64 = 1 << 14 | 1 << 38 | 1 << 39;

/// CAP_IPC_LOCK alone.
const IPC_LOCK: u64 = 1 << 14;

/// The records of the stream: lines with these numbers.
const LINES: u64 = 1_000_000;

/// Installs on both, then looks, links them and lets records flow.
///
/// # Errors
/// The package cannot be installed, so that nothing else can be tried.
pub(super) fn run(checks: &mut Checks, a: &Node, b: &Node, package: &str) -> Outcome {
    for node in [a, b] {
        let installed = checks.check(&format!("{} installs the package", node.name), || {
            node.sh(&format!("dpkg --install {package}")).map(|_| String::new())
        });
        if !installed {
            return Err("the package cannot be installed".to_owned());
        }
    }
    checks.check("the service is enabled and active", || {
        eventually(PATIENCE, || node_is(a, "is-active", "weir", "active"))?;
        same("is-enabled", &a.sh("systemctl is-enabled weir weir-hugepages")?, "enabled\nenabled")?;
        a.sh("systemctl show -p StatusText --value weir")
    });
    checks.check("it runs as weir, with the capabilities of the unit and no others", || process(a));
    checks.check("files belong to whom they should", || files(a));
    checks.check("members of its group may ask, and others not", || {
        a.sh("systemd-run -q --wait --pipe -p DynamicUser=yes -p SupplementaryGroups=weir weir status > /dev/null || [ $? = 3 ]")?;
        a.sh("! systemd-run -q --collect --wait --pipe -p DynamicUser=yes weir status").map(|_| String::new())
    });
    checks.check("the kernel probes are attached", || probes(a));
    checks.leave_out(
        "hugepages at boot, LimitMEMLOCK, other kernels",
        "a container has the kernel of this machine; `cargo xtask lab qemu` shows them",
    );
    checks.check("TCP's buffers may grow as the package says", || {
        let found = a.sh("sysctl -n net.ipv4.tcp_rmem net.ipv4.tcp_wmem")?;
        let most: Vec<&str> = found.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
        same("their largest sizes", &most.join(" "), "16777216 16777216").map(|()| String::new())
    });
    let linked = checks.check("with a key and each other's address the nodes are linked", || link(a, b));
    if linked {
        checks.check("a stream arrives whole", || stream(a, b));
        match free_hugepages(b) {
            0 => checks.leave_out("hugepages of the daemon", "no page is free here"),
            _ => drop(checks.check("the daemon's memory is hugepages", || hugepages(b))),
        }
        checks.check("`weir bottleneck` names the slow consumer", || bottleneck(a, b));
    }
    Ok(())
}

/// Whether systemctl says this of a unit.
pub(super) fn node_is(node: &Node, verb: &str, unit: &str, wanted: &str) -> Outcome {
    // Its status says it too.
    same(verb, &node.sh(&format!("systemctl {verb} {unit} || true"))?, wanted)
}

/// A property of the service.
pub(super) fn property(node: &Node, name: &str) -> Result<String, String> {
    node.sh(&format!("systemctl show -p {name} --value weir"))
}

/// What `weir VERB --output json` says; of a degraded daemon too.
pub(super) fn ask(node: &Node, verb: &str) -> Result<Value, String> {
    let text = node.sh(&format!("weir {verb} --output json || [ $? = 3 ]"))?;
    serde_json::from_str(&text).map_err(|error| format!("weir {verb}: {error}: {text}"))
}

/// A line of `weir status`, with its state and all that it says.
pub(super) fn subsystem(node: &Node, name: &str) -> Result<(String, String), String> {
    let status = ask(node, "status")?;
    let rows = status["subsystems"].as_array().cloned().unwrap_or_default();
    let row = rows.iter().find(|row| row["name"] == name).ok_or_else(|| format!("no line {name}"))?;
    let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
    Ok((text("state"), format!("{} {}", text("detail"), text("reason")).trim().to_owned()))
}

fn process(node: &Node) -> Result<String, String> {
    let status = node.sh(&format!("cat /proc/{}/status", property(node, "MainPID")?))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|rest| rest.trim_start_matches(':').trim().to_owned()).unwrap_or_default()
    };
    let own = node.sh("id -u weir")?;
    same("its user", field("Uid").split_whitespace().next().unwrap_or_default(), &own)?;
    same("its privileges", &subsystem(node, "privileges")?.0, "ok")?;
    // Kept where locked memory has a bound, which a manager without CAP_SYS_RESOURCE cannot lift.
    let is_bounded = !node
        .sh(&format!("cat /proc/{}/limits", property(node, "MainPID")?))?
        .lines()
        .any(|line| line.starts_with("Max locked memory") && line.contains("unlimited"));
    let held = if is_bounded { IPC_LOCK } else { 0 };
    for (name, wanted) in [("CapEff", held), ("CapPrm", held), ("CapBnd", CAPABILITIES)] {
        same(name, &field(name), &format!("{wanted:016x}"))?;
    }
    same("NoNewPrivs", &field("NoNewPrivs"), "1")?;
    same("Seccomp", &field("Seccomp"), "2")?;
    Ok(format!("uid {own}, may have {}, has {}", field("CapBnd"), field("CapEff")))
}

fn files(node: &Node) -> Result<String, String> {
    let owners =
        "stat -c '%a %U:%G %n' /etc/weir /etc/weir/conf.d /etc/weir/weir.toml /run/weir /usr/bin/weir";
    same(
        "what there is",
        &node.sh(owners)?,
        "750 root:weir /etc/weir\n750 root:weir /etc/weir/conf.d\n644 root:root /etc/weir/weir.toml\n\
         750 weir:weir /run/weir\n755 root:root /usr/bin/weir",
    )?;
    same("what dpkg finds changed", &node.sh("dpkg --verify weir")?, "")?;
    node.sh("zcat /usr/share/man/man1/weir-config-check.1.gz | grep -q 'weir.-config.-check'")?;
    node.sh("bash -n /usr/share/bash-completion/completions/weir").map(|_| String::new())
}

/// Those of sends and reads need a kernel that lets programs stand at functions, or has tracepoints there.
fn probes(node: &Node) -> Result<String, String> {
    let (state, said) = subsystem(node, "probes")?;
    if state == "ok" || said.contains("hook missing") {
        return Ok(said);
    }
    // What this machine refuses to root it refuses to everybody.
    match node.sh("weir probes") {
        Ok(_) => Err(format!("{state}: {said}; as root they can be loaded")),
        Err(refused) => Ok(format!("not on this machine, as root neither: {refused}")),
    }
}

/// A cable, a key, and the configuration of both.
fn link(a: &Node, b: &Node) -> Result<String, String> {
    Node::connect(a, b, ADDRESSES)?;
    a.sh("umask 077; head -c 32 /dev/urandom > /root/cluster.key")?;
    a.pass_on("/root/cluster.key", b)?;
    for (node, (peer, address)) in [(a, (b, 0)), (b, (a, 1))] {
        let (own, other) = (ADDRESSES[address], ADDRESSES[1 - address]);
        node.sh(
            "install -m 600 -o weir -g weir /root/cluster.key /etc/weir/cluster.key && rm /root/cluster.key",
        )?;
        node.write(
            "/etc/weir/weir.toml",
            &format!(
                "node = \"{}\"\nlisten = \"{own}:7070\"\nkey_file = \"/etc/weir/cluster.key\"\n\n[peers]\n{} = \"{other}:7070\"\n",
                node.name, peer.name
            ),
        )?;
        node.sh("weir config check && systemctl restart weir")?;
    }
    for (node, peer) in [(a, b), (b, a)] {
        eventually(PATIENCE, || {
            let (state, said) = subsystem(node, &format!("peer/{}", peer.name))?;
            if state == "ok" { Ok(()) } else { Err(format!("{}: {state}: {said}", node.name)) }
        })?;
    }
    Ok(String::new())
}

fn stream(a: &Node, b: &Node) -> Result<String, String> {
    b.sh("systemd-run -q --unit=sink -p Group=weir sh -c \
          'weir recv --exchange numbers --consumer 0/1 | sha256sum > /run/sum && mv /run/sum /run/received'")?;
    let sent = a.sh(&format!(
        "seq {LINES} | sha256sum; seq {LINES} | weir send --exchange numbers --strategy forward > /dev/null"
    ))?;
    let received = eventually(PATIENCE, || b.sh("cat /run/received"))?;
    same("the sum of what was received", &received, &sent)?;
    Ok(format!("{LINES} records, sha256 {}", sent.get(..12).unwrap_or_default()))
}

fn free_hugepages(node: &Node) -> u64 {
    let read = node.sh("cat /sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    read.ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The kernel's own count, while something is attached.
fn hugepages(node: &Node) -> Result<String, String> {
    let (state, said) = subsystem(node, "memory")?;
    same("memory", &state, "ok")?;
    let pid = property(node, "MainPID")?;
    let pages = node.sh(&format!("awk '/^HugetlbPages/ {{ print $2 }}' /proc/{pid}/status"))?;
    if pages.parse::<u64>().unwrap_or(0) == 0 {
        return Err(format!("the daemon has no hugepages: {said}"));
    }
    Ok(format!("{pages} KiB of the daemon"))
}

/// A consumer whose output takes a line each 10 ms, behind a producer that would be faster.
fn bottleneck(a: &Node, b: &Node) -> Result<String, String> {
    a.sh("systemd-run -q --unit=source -p Group=weir sh -c \
          'yes record | weir send --task source --exchange lines --strategy forward'")?;
    b.sh("systemd-run -q --unit=slow -p Group=weir sh -c 'weir recv --task slow --exchange lines --consumer 0/1 | \
          while read -r line; do sleep 0.01; done'")?;
    let verdict = eventually(PATIENCE, || {
        let told = a.sh("weir bottleneck")?;
        let first = told.lines().next().unwrap_or_default().to_owned();
        if first.starts_with("slow is the bottleneck") { Ok(first) } else { Err(first) }
    });
    a.sh("systemctl stop source")?;
    b.sh("systemctl stop slow")?;
    verdict
}
