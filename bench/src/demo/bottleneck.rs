//! The scenario `bottleneck`: a chain of four operators over two daemons, of which one thing is slow; and `weir bottleneck` has to
//! say which and why.
//!
//! A and B run on node a, C and D on node b, each in a process of its own. What is slow is really slow: it computes, it
//! sleeps, its output is a pipe that is read slowly, its path is held up.

mod operator;
mod path;
mod shard;

use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;
use weir_bench::cluster::{Cluster, ClusterOptions};

use self::operator::{Chain, RECORD_BYTES};
use self::path::{Hold, Path};
use self::shard::Neighbour;
use crate::Arguments;
use crate::pressure::MEMORY_BYTES;
use crate::text::Teller;

pub(crate) use self::operator::serve;

/// How long a verdict may take, from when all operators are attached.
const VERDICT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(500);

/// A verdict stands when it was given so often in a row.
const LOOKS_ALIKE: u32 = 4;

/// What is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Slow {
    /// C computes for each record
    Cpu,
    /// C waits for each record, as for another service
    Wait,
    /// D writes to something that takes little
    Sink,
    /// The path between the nodes carries little
    Network,
    /// The daemon's thread on node a hardly gets a processor
    Shard,
    /// One key has most records: one instance of C has most of the work
    Skew,
    /// The pool of B holds too little for a path that takes its time
    Pool,
    /// Nothing
    None,
}

impl Slow {
    /// What `weir bottleneck` must say: the task or the exchange, and the cause. None: that there is no bottleneck. The shard of
    /// node a carries two exchanges: either is right, and both are.
    const fn needed(self) -> Option<(&'static [&'static str], &'static str)> {
        match self {
            Self::Cpu => Some((&["C"], "cpu")),
            Self::Wait => Some((&["C"], "outside")),
            Self::Sink => Some((&["D"], "sink")),
            Self::Network => Some((&["bc"], "network")),
            Self::Shard => Some((&["ab", "bc"], "shard")),
            Self::Skew => Some((&["C"], "hot_key")),
            Self::Pool => Some((&["bc"], "pool")),
            Self::None => None,
        }
    }

    const fn told(self) -> &'static str {
        match self {
            Self::Cpu => "C computes for 2 ms for each record.",
            Self::Wait => "C sleeps for 2 ms for each record, as if it asked another service.",
            Self::Sink => "D writes each record to a pipe that is read slowly.",
            Self::Network => "The path between the nodes carries 2 MB/s.",
            Self::Shard => {
                "The daemon's thread on node a shares a processor with a busy neighbour, which goes first."
            }
            Self::Skew => "C has four instances behind a hash, and nine of ten records have one key.",
            Self::Pool => {
                "A byte takes 20 ms from node to node, and the partition of B has two segments: what is on its way fills them."
            }
            Self::None => "Nothing: A emits 100 records a second, and everybody has time.",
        }
    }

    /// What is done to the path between the nodes.
    const fn hold(self) -> Option<Hold> {
        match self {
            Self::Network => Some(Hold { bytes_per_second: Some(2_000_000), delay: Duration::ZERO }),
            Self::Pool => Some(Hold { bytes_per_second: None, delay: Duration::from_millis(20) }),
            _ => None,
        }
    }
}

#[derive(Serialize)]
struct Summary {
    schema_version: u32,
    scenario: &'static str,
    slow: String,
    /// The task or exchange that is named, and its cause.
    found: Vec<(String, String)>,
    /// From when all operators were attached until the verdict stood.
    seconds: f64,
    /// Whether both nodes say the same.
    both_nodes_agree: bool,
    verdict: Value,
}

/// Runs it and prints what is seen.
///
/// # Errors
/// One line: what went wrong, or what was said instead of what is so.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let (slow, teller) = (arguments.slow, Teller::new(arguments.json));
    let options = ClusterOptions {
        shards: 1,
        memory_bytes: MEMORY_BYTES,
        // A partition on a hugepage has all segments that fit it, which is no small pool.
        hugepages: (slow == Slow::Pool).then_some("off"),
        ..ClusterOptions::default()
    };
    let mut path = None;
    let cluster = Cluster::start_over(&options, |addresses| {
        let Some(hold) = slow.hold() else { return Ok(addresses.clone()) };
        let held = [Path::start(&addresses[0], hold)?, Path::start(&addresses[1], hold)?];
        let through = [held[0].address(), held[1].address()];
        path = Some(held);
        Ok(through)
    })?;
    introduce(teller, slow);
    let _neighbour = match slow {
        Slow::Shard => Some(Neighbour::of_shard(cluster.a().pid())?),
        _ => None,
    };
    let chain = Chain::start(&cluster, slow)?;
    chain.await_attached(&cluster)?;
    let began = Instant::now();
    let verdict = await_verdict(&cluster, slow, teller, began)?;
    let seconds = began.elapsed().as_secs_f64();
    let other = cluster.ask(cluster.b(), "bottleneck")?;
    let both_nodes_agree = named(&other) == named(&verdict);
    tell(teller, &cluster, seconds, both_nodes_agree)?;
    drop(chain);
    let found = named(&verdict);
    let is_right = is_right(slow, &verdict);
    let slow_name = slow.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    teller.json(&Summary {
        schema_version: 1,
        scenario: "bottleneck",
        slow: slow_name,
        found: found.clone(),
        seconds,
        both_nodes_agree,
        verdict: verdict.clone(),
    })?;
    if !is_right {
        return Err(format!(
            "after {seconds:.1} s `weir bottleneck` says {}: {found:?}; needed: {}",
            verdict.get("summary").and_then(Value::as_str).unwrap_or("nothing"),
            slow.needed().map_or("no bottleneck".to_owned(), |needed| format!("{needed:?}")),
        ));
    }
    teller.paragraph("That is what was made slow, and why.");
    Ok(())
}

/// Asks until the same right verdict was given several times in a row, or the time is up.
fn await_verdict(cluster: &Cluster, slow: Slow, teller: Teller, began: Instant) -> Result<Value, String> {
    let (mut alike, mut told) = (0, None);
    loop {
        let verdict = cluster.ask(cluster.a(), "bottleneck")?;
        let found = named(&verdict);
        if told.as_ref() != Some(&found) {
            let summary = verdict.get("summary").and_then(Value::as_str).unwrap_or_default();
            teller.say(&format!("{:5.1} s  ", began.elapsed().as_secs_f64()), summary);
            told = Some(found);
        }
        alike = if is_right(slow, &verdict) { alike + 1 } else { 0 };
        if alike >= LOOKS_ALIKE || began.elapsed() > VERDICT_TIMEOUT {
            return Ok(verdict);
        }
        std::thread::sleep(LOOK);
    }
}

/// The tasks and exchanges that are named, with their causes.
fn named(verdict: &Value) -> Vec<(String, String)> {
    let text = |found: &Value, key: &str| found.get(key).and_then(Value::as_str).map(str::to_owned);
    let found = verdict.get("bottlenecks").and_then(Value::as_array).cloned().unwrap_or_default();
    let found = found.iter().map(|found| {
        let name = text(found, "task").or_else(|| text(found, "exchange")).unwrap_or_default();
        (name, text(found, "cause").unwrap_or_default())
    });
    found.collect()
}

/// Whether exactly what is slow is named, with its cause.
fn is_right(slow: Slow, verdict: &Value) -> bool {
    let kind = verdict.get("verdict").and_then(Value::as_str);
    match (slow.needed(), named(verdict).as_slice()) {
        (None, []) => kind == Some("no_bottleneck"),
        (Some((names, cause)), found @ [_, ..]) => {
            let is_meant = |(name, why): &(String, String)| names.contains(&name.as_str()) && why == cause;
            kind == Some("bottleneck") && found.iter().all(is_meant)
        }
        _ => false,
    }
}

fn introduce(teller: Teller, slow: Slow) {
    teller.say(
        "",
        &format!(
            "Two daemons on this machine, a and b, and a chain of four operators: A and B on a, C and D on b. Records of {} \
             KiB go from A over the exchanges ab, bc and cd to D.",
            RECORD_BYTES / 1024
        ),
    );
    teller.paragraph(&format!("What is slow: {}", slow.told()));
    teller.line("");
}

/// The verdict as a person sees it.
fn tell(teller: Teller, cluster: &Cluster, seconds: f64, both_nodes_agree: bool) -> Result<(), String> {
    if teller.is_quiet() {
        return Ok(());
    }
    teller.line("");
    teller.line(&format!("$ weir bottleneck        # {seconds:.1} s after all were attached"));
    for line in cluster.show(cluster.a(), "bottleneck")?.lines() {
        teller.line(line);
    }
    let agree = if both_nodes_agree { "says the same" } else { "says something else at this moment" };
    teller.paragraph(&format!("Asked of the other node it {agree}."));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_is_slow_and_why_is_right() {
        let verdict = |found: &[(&str, &str, &str)]| {
            let found: Vec<Value> =
                found.iter().map(|(key, name, cause)| json!({ *key: name, "cause": cause })).collect();
            json!({ "verdict": if found.is_empty() { "no_bottleneck" } else { "bottleneck" }, "bottlenecks": found })
        };
        assert!(is_right(Slow::Cpu, &verdict(&[("task", "C", "cpu")])));
        assert!(is_right(Slow::Network, &verdict(&[("exchange", "bc", "network")])));
        assert!(is_right(Slow::None, &verdict(&[])));
        let both = [("exchange", "ab", "shard"), ("exchange", "bc", "shard")];
        assert!(is_right(Slow::Shard, &verdict(&both)) && is_right(Slow::Shard, &verdict(&both[1..])));
        for wrong in [
            verdict(&[]),
            verdict(&[("task", "C", "outside")]),
            verdict(&[("task", "D", "cpu")]),
            verdict(&[("task", "C", "cpu"), ("task", "D", "cpu")]),
        ] {
            assert!(!is_right(Slow::Cpu, &wrong), "{wrong}");
        }
        assert!(!is_right(Slow::None, &json!({ "verdict": "not_enough_data", "bottlenecks": [] })));
        assert!(!is_right(Slow::None, &verdict(&[("task", "C", "cpu")])));
    }
}
