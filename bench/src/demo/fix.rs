//! The scenario `fix`: a map that is too slow, found by who waits for it, and helped by more of it.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use serde::Serialize;
use weir_bench::cluster::{Cluster, ClusterOptions};
use weir_client::Strategy;

use crate::chain::{self, Crew, Ran};
use crate::documents;
use crate::plan::Plan;
use crate::pressure::MEMORY_BYTES;
use crate::text::{Teller, grouped};
use crate::watch::{self, ChannelSeen, Watch};
use crate::{Arguments, scenario_seconds};

/// How long the map waits for each document.
const SERVICE: Duration = Duration::from_millis(2);

/// Documents for each second of the scenario: one map takes four fifths of its time for them, four maps the rest.
const DOCUMENTS_PER_SECOND: u64 = 350;

/// Maps before and after.
const MAPS: [u32; 2] = [1, 4];

/// By how much more maps must raise the rate at least; they would do so by four if nothing else took time.
const GAIN_MIN: f64 = 2.0;

#[derive(Serialize)]
struct Summary {
    schema_version: u32,
    scenario: &'static str,
    steps: Vec<Step>,
    /// Rate of the last step over that of the first.
    gain: f64,
}

/// One run of the pipeline.
#[derive(Serialize)]
struct Step {
    plan: Plan,
    documents: u64,
    seconds: f64,
    documents_per_second: f64,
    output_equals_baseline: bool,
    /// How long the source waited for room, in seconds.
    source_waited_seconds: f64,
    /// How long a map waited for documents, in seconds; the mean of all maps.
    map_waited_seconds: f64,
    /// How long the sink waited for results, in seconds.
    sink_waited_seconds: f64,
    channels: Vec<ChannelSeen>,
}

/// Runs it and prints what is seen.
///
/// # Errors
/// One line: what went wrong, or what was not as it must be.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let teller = Teller::new(arguments.json);
    let documents = Arc::new(documents::make(scenario_seconds(arguments) * DOCUMENTS_PER_SECOND));
    let baseline = documents::baseline(&documents);
    let cluster = Cluster::start(&ClusterOptions {
        shards: 1,
        memory_bytes: MEMORY_BYTES,
        ..ClusterOptions::default()
    })?;
    introduce(teller, documents.len() as u64);
    let mut steps = Vec::new();
    for (number, maps) in MAPS.into_iter().enumerate() {
        let strategy = if maps == 1 { Strategy::Forward } else { Strategy::Rebalance };
        announce(teller, number, maps);
        let step = run_step(&cluster, &documents, (maps, strategy), teller)
            .and_then(|ran| Step::new(ran, &baseline))
            .map_err(|problem| format!("step {}: {problem}", number + 1))?;
        step.tell(teller);
        steps.push(step);
    }
    let gain = check(&steps)?;
    conclude(teller, gain);
    teller.json(&Summary { schema_version: 1, scenario: "fix", steps, gain })
}

/// Runs the pipeline once with so many maps.
fn run_step(
    cluster: &Cluster,
    documents: &Arc<Vec<Vec<u8>>>,
    (maps, strategy): (u32, Strategy),
    teller: Teller,
) -> Result<Ran, String> {
    let (go, going) = mpsc::channel();
    let (a, b) = (cluster.a().run_dir.clone(), cluster.b().run_dir.clone());
    let mut crew = Crew::new();
    let (run_dir, input) = (a.clone(), Arc::clone(documents));
    crew.start("source", 0, move || {
        let task = chain::attach(&run_dir, "source")?;
        let partition = chain::partition(&task, "documents", (0, 1), maps, strategy, None)?;
        chain::emit_all(partition, &input, None, &going)
    });
    for map in 0..maps {
        let run_dir = b.clone();
        crew.start("map", map, move || {
            let task = chain::attach(&run_dir, "map")?;
            let mut results = chain::partition(&task, "results", (map, maps), 1, strategy, None)?;
            let mut gate = chain::gate(&task, "documents", map, maps)?;
            let done = chain::read_all(&mut gate, |document| {
                // Like a call to another service: time that costs no processor.
                std::thread::sleep(SERVICE);
                results.emit(&documents::summarize(document)).map_err(|error| error.to_string())
            })?;
            results.finish().map_err(|error| error.to_string())?;
            Ok(done)
        });
    }
    crew.start("sink", 0, move || {
        let task = chain::attach(&a, "sink")?;
        let mut gate = chain::gate(&task, "results", 0, 1)?;
        let mut output = Vec::new();
        let done = chain::read_all(&mut gate, |result| {
            output.push(result.to_vec());
            Ok(())
        })?;
        Ok(chain::Done { output, ..done })
    });

    let count = documents.len() as u64;
    let watch = Watch::new(cluster, ("documents", count), teller.is_quiet());
    let limit = Duration::from_secs(60) + SERVICE * u32::try_from(count).unwrap_or(u32::MAX) * 10;
    chain::run(crew, cluster, 2, &go, limit, watch)
}

fn introduce(teller: Teller, documents: u64) {
    teller.say(
        "",
        &format!(
            "Two daemons on this machine, a and b. A source on a sends {} documents to a map on b, and the map what \
             it makes of them to a sink on a.",
            grouped(documents)
        ),
    );
    teller.paragraph(&format!(
        "For each document the map waits {} ms, as if it asked another service. That takes time and no processor, so \
         several maps wait at the same time on any machine, however few processors it has.",
        SERVICE.as_millis()
    ));
}

fn announce(teller: Teller, number: usize, maps: u32) {
    teller.paragraph(&format!(
        "{}. {}",
        number + 1,
        match maps {
            1 => "One map, behind forward: producer i sends to consumer i.".to_owned(),
            _ => format!(
                "{maps} maps, behind rebalance: each document goes to a map that keeps up. Nothing else changes."
            ),
        }
    ));
}

impl Step {
    /// What a run came to, if its output is that of the baseline.
    fn new(ran: Ran, baseline: &[Vec<u8>]) -> Result<Self, String> {
        documents::compare(&ran.output("sink"), baseline)?;
        let documents = baseline.len() as u64;
        Ok(Self {
            documents,
            seconds: ran.seconds,
            documents_per_second: documents as f64 / ran.seconds,
            output_equals_baseline: true,
            source_waited_seconds: ran.waited_seconds("source"),
            map_waited_seconds: ran.waited_seconds("map"),
            sink_waited_seconds: ran.waited_seconds("sink"),
            plan: ran.plan,
            channels: ran.channels,
        })
    }

    fn tell(&self, teller: Teller) {
        let of_all = |seconds: f64| format!("{seconds:.1} s of {:.1} s", self.seconds);
        teller.line("");
        teller.line(&format!("   plan    {}", self.plan.line()));
        teller.line(&format!(
            "   rate    {:.0} documents/s ({} in {:.1} s)",
            self.documents_per_second,
            grouped(self.documents),
            self.seconds
        ));
        teller.line(&format!("   output  {} lines; sorted, equal to the baseline", grouped(self.documents)));
        teller.line(&format!("   waits   source, for room       {}", of_all(self.source_waited_seconds)));
        teller.line(&format!("           map, for documents     {}", of_all(self.map_waited_seconds)));
        teller.line(&format!("           sink, for results      {}", of_all(self.sink_waited_seconds)));
        teller.line("");
        for line in watch::table(&self.channels, "documents") {
            teller.line(&format!("   {line}"));
        }
        teller.line("");
        teller.say("   ", &self.seen());
    }

    /// What is to be seen, and why.
    fn seen(&self) -> String {
        let maps = self.channels.iter().filter(|seen| seen.exchange == "documents").count();
        if maps <= 1 {
            "The map has no document to wait for, and everybody else waits for the map: the source for credit, the sink \
             for results. Who is waited for and does not wait is what holds a pipeline up."
                .to_owned()
        } else {
            format!(
                "The source still waits, since {maps} maps are still slower than it, but now {maps} documents are \
                 waited for at the same time."
            )
        }
    }
}

/// The plan changed as it was meant to, and it helped; the gain.
fn check(steps: &[Step]) -> Result<f64, String> {
    let [before, after] = steps else { return Err(format!("{} steps were run", steps.len())) };
    check_plans(&before.plan, &after.plan)?;
    let (source, map) = (before.source_waited_seconds, before.map_waited_seconds);
    if source <= map {
        return Err(format!(
            "with one map the source waited {source:.1} s and the map {map:.1} s; needed: the source longer, since the map \
             is what is slow"
        ));
    }
    let gain = after.documents_per_second / before.documents_per_second;
    if gain >= GAIN_MIN {
        return Ok(gain);
    }
    Err(format!(
        "{} maps have {gain:.1} times the rate of {} ({:.0}/s and {:.0}/s); needed: {GAIN_MIN} times",
        MAPS[1], MAPS[0], after.documents_per_second, before.documents_per_second
    ))
}

/// The map went from 1 behind `FORWARD` to 4 behind `REBALANCE`, and the other tasks have the parallelism they had.
fn check_plans(before: &Plan, after: &Plan) -> Result<(), String> {
    before.expect("map", MAPS[0], "FORWARD").map_err(|problem| format!("before: {problem}"))?;
    after.expect("map", MAPS[1], "REBALANCE").map_err(|problem| format!("after: {problem}"))?;
    let others = |plan: &Plan| {
        let others = plan.tasks.iter().filter(|task| task.task != "map");
        others.map(|task| (task.task.clone(), task.parallelism)).collect::<Vec<_>>()
    };
    if others(before) == others(after) {
        return Ok(());
    }
    Err(format!("more than the map has changed: from {} to {}", before.line(), after.line()))
}

fn conclude(teller: Teller, gain: f64) {
    teller.paragraph(&format!(
        "The daemon's plan changed as meant: the map's parallelism from {} to {}, its ship strategy from FORWARD to \
         REBALANCE. The output is the same, the rate {gain:.1} times as high.",
        MAPS[0], MAPS[1]
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::{Done, Worker};
    use crate::plan::PlanTask;

    fn plan(maps: u64, strategy: &str) -> Plan {
        let task = |task: &str, parallelism: u64, strategy: &[&str]| PlanTask {
            task: task.to_owned(),
            parallelism,
            ship_strategies: strategy.iter().map(ToString::to_string).collect(),
        };
        let tasks =
            vec![task("source", 1, &[]), task("map", maps, &[strategy]), task("sink", 1, &[strategy])];
        Plan { tasks }
    }

    fn step(plan: Plan, rate: f64) -> Step {
        Step {
            plan,
            documents: 1000,
            seconds: 1000.0 / rate,
            documents_per_second: rate,
            output_equals_baseline: true,
            source_waited_seconds: 0.9,
            map_waited_seconds: 0.0,
            sink_waited_seconds: 0.0,
            channels: Vec::new(),
        }
    }

    #[test]
    fn the_plan_must_change_in_the_right_direction() {
        let (one, four) = (plan(1, "FORWARD"), plan(4, "REBALANCE"));
        assert_eq!(check_plans(&one, &four), Ok(()));
        assert!(check_plans(&four, &one).is_err(), "the wrong way");
        assert!(check_plans(&one, &one).is_err(), "not at all");
        assert!(check_plans(&one, &plan(4, "FORWARD")).is_err(), "the parallelism only");
        assert!(check_plans(&one, &plan(1, "REBALANCE")).is_err(), "the strategy only");
        let mut more = plan(4, "REBALANCE");
        more.tasks[2].parallelism = 4;
        assert!(check_plans(&one, &more).is_err(), "the sink too");
    }

    fn ran(output: Vec<Vec<u8>>) -> Ran {
        let worker = |task, output, waited| Worker {
            task,
            done: Done { output, waited: Duration::from_millis(waited), ..Done::default() },
        };
        let workers = vec![
            worker("source", Vec::new(), 900),
            worker("map", Vec::new(), 10),
            worker("map", Vec::new(), 30),
            worker("sink", output, 500),
        ];
        Ran { plan: plan(2, "REBALANCE"), seconds: 0.5, workers, channels: Vec::new() }
    }

    #[test]
    fn a_step_has_the_output_of_the_baseline_or_fails() {
        let made = documents::make(40);
        let baseline = documents::baseline(&made);
        // Maps that are several leave their results in any order.
        let output: Vec<Vec<u8>> = made.iter().rev().map(|document| documents::summarize(document)).collect();
        let step = Step::new(ran(output.clone()), &baseline).unwrap();
        assert_eq!((step.documents, step.plan), (40, plan(2, "REBALANCE")));
        assert!((step.documents_per_second - 80.0).abs() < 1e-9);
        let waits = [step.source_waited_seconds, step.map_waited_seconds, step.sink_waited_seconds];
        assert!(waits.iter().zip([0.9, 0.02, 0.5]).all(|(found, wanted)| (found - wanted).abs() < 1e-9));
        type Change = fn(&mut Vec<Vec<u8>>);
        let changes: [(&str, Change); 5] = [
            ("nothing", Vec::clear),
            ("one lost", |output| drop(output.remove(7))),
            ("one twice", |output| output.push(output[3].clone())),
            ("one in place of another", |output| output[4] = output[5].clone()),
            ("a document instead of what the map makes of it", |output| {
                output[0] = documents::make(1).remove(0)
            }),
        ];
        for (what, change) in changes {
            let mut wrong = output.clone();
            change(&mut wrong);
            assert!(Step::new(ran(wrong), &baseline).is_err(), "{what}");
        }
    }

    #[test]
    fn a_right_gain_does_not_hide_a_wrong_plan() {
        let wrong = [
            [plan(4, "REBALANCE"), plan(1, "FORWARD")],
            [plan(1, "FORWARD"), plan(1, "FORWARD")],
            [plan(1, "FORWARD"), plan(2, "REBALANCE")],
            [plan(1, "REBALANCE"), plan(4, "REBALANCE")],
        ];
        for [before, after] in wrong {
            let text = format!("{} to {}", before.line(), after.line());
            assert!(check(&[step(before, 400.0), step(after, 1500.0)]).is_err(), "{text}");
        }
    }

    #[test]
    fn more_maps_must_help() {
        let steps = |after: f64| [step(plan(1, "FORWARD"), 400.0), step(plan(4, "REBALANCE"), after)];
        assert!((check(&steps(1500.0)).unwrap() - 3.75).abs() < 1e-9);
        let problem = check(&steps(700.0)).unwrap_err();
        assert!(problem.contains("1.8 times"), "{problem}");
        assert!(check(&steps(1500.0)[..1]).is_err());
        let mut hungry = steps(1500.0);
        hungry[0].map_waited_seconds = 1.0;
        assert!(check(&hungry).is_err(), "the map was not what was slow");
    }
}
