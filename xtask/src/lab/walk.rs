//! From the package to records between two nodes, as docs/operations.md tells it: with the commands that stand there, each of
//! them, and looks behind them.

use std::time::Duration;

use serde_json::Value;

use super::checks::{Checks, eventually, same};
use super::node::Node;
use super::page::{self, Page, Place};
use crate::process::Outcome;

/// The section that is walked through.
const SECTION: &str = "From the package to the first records";

/// The addresses of the two nodes, there and here.
const ADDRESSES: [&str; 2] = ["10.0.0.1", "10.0.0.2"];

/// Who sends and receives, where the page has `USER`.
const USER: &str = "newcomer";

/// Longest wait for what must come, on a machine that has other work.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// The capabilities that the unit names: CAP_IPC_LOCK, CAP_PERFMON, CAP_BPF.
const CAPABILITIES: u64 = 1 << 14 | 1 << 38 | 1 << 39;

/// CAP_IPC_LOCK alone.
const IPC_LOCK: u64 = 1 << 14;

/// The records of the stream: lines with these numbers.
const LINES: u64 = 1_000_000;

/// Two nodes, and what is read to whoever has them before them.
struct Way<'a> {
    page: Page,
    a: &'a Node,
    b: &'a Node,
}

impl Way<'_> {
    /// Runs the next command that begins with these words, as root, where its comment says. What DEGRADED is told by is no
    /// failure.
    fn run(&self, words: &str) -> Outcome {
        let line = self.page.take(words)?;
        let command = line.command.replace("USER", USER);
        let script = format!("cd /root; ({command}) || [ $? = 3 ]");
        self.nodes(line.place).into_iter().try_for_each(|node| node.sh(&script).map(drop))
    }

    fn nodes(&self, place: Place) -> Vec<&Node> {
        match place {
            Place::First => vec![self.a],
            Place::Second => vec![self.b],
            Place::Both => vec![self.a, self.b],
        }
    }

    /// Runs one as a member of the group, in a terminal of its own as it were: as a unit of this name, which goes on.
    fn begin(&self, words: &str, unit: &str) -> Result<&Node, String> {
        let line = self.page.take(words)?;
        let node = match line.place {
            Place::First => self.a,
            Place::Second => self.b,
            Place::Both => return Err(format!("the page does not say where to run {:?}", line.command)),
        };
        node.sh("mkdir -p /opt/way")?;
        node.write(&format!("/opt/way/{unit}"), &line.command)?;
        node.sh(&format!(
            "systemd-run -q --unit={unit} -p StandardOutput=file:/run/{unit}.out runuser -u {USER} -- sh /opt/way/{unit}"
        ))?;
        Ok(node)
    }

    /// The next command that begins with these words, for who runs it more than once.
    fn command(&self, words: &str) -> Result<String, String> {
        Ok(self.page.take(words)?.command.clone())
    }
}

/// Installs on both, then looks, links them and lets records flow.
///
/// # Errors
/// The package cannot be installed, so that nothing else can be tried.
pub(super) fn run(checks: &mut Checks, a: &Node, b: &Node) -> Outcome {
    let way = Way { page: Page::read(SECTION)?, a, b };
    // Made before.
    way.page.take("cargo xtask dist")?;
    let installed = checks.check("both install the package", || {
        [a, b]
            .into_iter()
            .try_for_each(|node| node.sh(&format!("useradd --create-home {USER}")).map(drop))?;
        way.run("apt install").map(|()| String::new())
    });
    if !installed {
        return Err("the package cannot be installed".to_owned());
    }
    checks.check("the service is enabled and active", || {
        eventually(PATIENCE, || node_is(a, "is-active", "weir", "active"))?;
        same("is-enabled", &a.sh("systemctl is-enabled weir weir-hugepages")?, "enabled\nenabled")?;
        a.sh("systemctl show -p StatusText --value weir")
    });
    checks.check("status and doctor find nothing that keeps it from running", || {
        way.run("weir status")?;
        way.run("weir doctor").map(|()| String::new())
    });
    checks.check("it runs as weir, with the capabilities of the unit and no others", || process(a));
    checks.check("files belong to whom they should", || files(a));
    checks.check("members of its group may ask, and others not", || {
        let asks = format!("runuser -u {USER} -- weir status");
        a.sh(&format!("! {asks}"))?;
        way.run("adduser")?;
        a.sh(&format!("{asks} > /dev/null || [ $? = 3 ]")).map(|_| String::new())
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
    if checks.check("with a key and each other's address the nodes are linked", || link(&way)) {
        checks.check("records arrive", || numbers(&way));
        checks.check("a stream arrives whole", || stream(a, b));
        match free_hugepages(b) {
            0 => checks.leave_out("hugepages of the daemon", "no page is free here"),
            _ => drop(checks.check("the daemon's memory is hugepages", || hugepages(b))),
        }
        checks.check("`weir bottleneck` names the slow consumer", || bottleneck(&way));
        checks.check("every command of the page was run", || {
            let left = way.page.left();
            if left.is_empty() { Ok(String::new()) } else { Err(format!("not {}", left.join("; "))) }
        });
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
fn link(way: &Way<'_>) -> Result<String, String> {
    let Way { page, a, b } = way;
    Node::connect(a, b, ADDRESSES)?;
    way.run("(umask 077; head -c 32")?;
    a.pass_on("/root/cluster.key", b)?;
    way.run("install -m 600")?;
    let configuration = page.block("toml")?;
    a.write("/etc/weir/weir.toml", configuration)?;
    let names = (&*format!("node = \"{}\"", a.name), &*format!("node = \"{}\"", b.name));
    let peers = (&*format!("\n{} = ", a.name), &*format!("\n{} = ", b.name));
    let addresses = (ADDRESSES[0], ADDRESSES[1]);
    b.write("/etc/weir/weir.toml", &page::changed_places(configuration, &[names, peers, addresses]))?;
    way.run("weir config check && systemctl restart weir")?;
    // Where /sys may not be written, as here, the first of the units does nothing.
    way.run("echo PAGES_PER_NODE=64")?;
    let status = way.command("weir status")?;
    for (node, peer) in [(a, b), (b, a)] {
        eventually(PATIENCE, || {
            let (state, said) = subsystem(node, &format!("peer/{}", peer.name))?;
            if state == "ok" { Ok(()) } else { Err(format!("{}: {state}: {said}", node.name)) }
        })?;
        node.sh(&format!("{status} || [ $? = 3 ]"))?;
    }
    Ok(String::new())
}

/// What the page says that is printed.
fn numbers(way: &Way<'_>) -> Result<String, String> {
    let to = way.begin("weir recv", "numbers-to")?;
    let from = way.begin("seq 1000000", "numbers-from")?;
    let printed = eventually(PATIENCE, || {
        node_is(from, "is-active", "numbers-from", "inactive")?;
        node_is(to, "is-active", "numbers-to", "inactive")?;
        to.sh("cat /run/numbers-to.out")
    })?;
    same("what b has printed", &printed, "1000000").map(|()| printed)
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
fn bottleneck(way: &Way<'_>) -> Result<String, String> {
    let to = way.begin("weir recv --task slow", "slow")?;
    let from = way.begin("yes record", "source")?;
    let (asks, looks) = (way.command("weir bottleneck")?, way.command("weir top")?);
    let verdict = eventually(PATIENCE, || {
        let told = from.sh(&format!("runuser -u {USER} -- {asks}"))?;
        let first = told.lines().next().unwrap_or_default().to_owned();
        if first.starts_with("slow is the bottleneck") { Ok(first) } else { Err(first) }
    });
    // It needs a terminal, and a key that ends it.
    let screen = from.sh(&format!(
        "(sleep 1; printf q) | TERM=xterm runuser -u {USER} -- script --quiet --return --command 'stty rows 40 cols 140; {looks}' /dev/null"
    ));
    from.sh("systemctl stop source")?;
    to.sh("systemctl stop slow")?;
    let screen = screen?;
    if !screen.contains("slow is the bottleneck") {
        return Err(format!("{looks} shows {screen:?}"));
    }
    verdict
}
