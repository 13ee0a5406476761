//! The scenario `skew`: a hot key, which more consumers do not help, and salting does.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use serde::Serialize;
use weir_bench::cluster::{Cluster, ClusterOptions};
use weir_client::{HeavyKey, Strategy};

use crate::chain::{self, Crew, Done, Ran};
use crate::counts::{self, Counts, HOT, Merged};
use crate::plan::Plan;
use crate::pressure::MEMORY_BYTES;
use crate::text::{Teller, bar, grouped};
use crate::watch::{self, ChannelSeen, Watch};
use crate::{Arguments, scenario_seconds};

/// How long a counter waits for each page view.
const SERVICE: Duration = Duration::from_millis(4);

/// Page views for each second of the scenario.
const VIEWS_PER_SECOND: u64 = 115;

/// Consumers before and after.
const FEW: u32 = 2;
const MANY: u32 = 8;

/// Tasks that merge the partial counts.
const MERGERS: u32 = 2;

/// Four times the counters must not even give this gain while one key has most records.
const GAIN_OF_MORE_MAX: f64 = 2.0;

/// And the same counters must give at least this once the key is spread.
const GAIN_OF_SALT_MIN: f64 = 2.0;

/// The steps: how many counters, and over how many of them each key is spread.
const STEPS: [(u32, Option<u32>); 3] = [(FEW, None), (MANY, None), (MANY, Some(MANY))];

#[derive(Serialize)]
struct Summary {
    schema_version: u32,
    scenario: &'static str,
    steps: Vec<Step>,
    /// Rate of many counters over that of few, both without salt.
    gain_of_more: f64,
    /// Rate with salt over that without, both of many counters.
    gain_of_salt: f64,
}

/// One run of the pipeline.
#[derive(Serialize)]
struct Step {
    plan: Plan,
    counters: u32,
    salt: Option<u32>,
    views: u64,
    seconds: f64,
    views_per_second: f64,
    counts_equal_baseline: bool,
    /// The key that had most records, as the producer knows it.
    heaviest_key: String,
    /// Its share of the records: at most and at least, from 0 to 1.
    heaviest_share: (f64, f64),
    /// Partial counts of the hot key that were merged.
    hot_parts: u64,
    /// Most partial counts of any key.
    parts_max: u64,
    /// Records of each counter.
    records: Vec<u64>,
    channels: Vec<ChannelSeen>,
}

/// Runs it and prints what is seen.
///
/// # Errors
/// One line: what went wrong, or what was not as it must be.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let teller = Teller::new(arguments.json);
    let views = Arc::new(counts::make(scenario_seconds(arguments) * VIEWS_PER_SECOND));
    let baseline = counts::baseline(&views);
    let cluster = Cluster::start(&ClusterOptions {
        shards: 1,
        memory_bytes: MEMORY_BYTES,
        ..ClusterOptions::default()
    })?;
    introduce(teller, views.len() as u64);
    let mut steps = Vec::new();
    for (number, (counters, salt)) in STEPS.into_iter().enumerate() {
        announce(teller, number, counters, salt);
        let step = run_step(&cluster, &views, (counters, salt), teller)
            .and_then(|ran| Step::new(ran, (counters, salt), views.len() as u64, &baseline))
            .map_err(|problem| format!("step {}: {problem}", number + 1))?;
        step.tell(teller);
        steps.push(step);
    }
    let (gain_of_more, gain_of_salt) = check(&steps)?;
    conclude(teller, gain_of_more, gain_of_salt);
    teller.json(&Summary { schema_version: 1, scenario: "skew", steps, gain_of_more, gain_of_salt })
}

/// Runs the pipeline once: source, counters, and those that merge what the counters come to.
fn run_step(
    cluster: &Cluster,
    views: &Arc<Vec<Vec<u8>>>,
    (counters, salt): (u32, Option<u32>),
    teller: Teller,
) -> Result<Ran, String> {
    let (go, going) = mpsc::channel();
    let (a, b) = (cluster.a().run_dir.clone(), cluster.b().run_dir.clone());
    let mut crew = Crew::new();
    let (run_dir, input) = (a.clone(), Arc::clone(views));
    crew.start("source", 0, move || {
        let task = chain::attach(&run_dir, "source")?;
        let partition = chain::partition(&task, "views", (0, 1), counters, Strategy::Hash, salt)?;
        chain::emit_all(partition, &input, Some(counts::key_of), &going)
    });
    for counter in 0..counters {
        let run_dir = b.clone();
        crew.start("count", counter, move || count(&run_dir, counter, counters));
    }
    for merger in 0..MERGERS {
        let run_dir = a.clone();
        crew.start("merge", merger, move || {
            let task = chain::attach(&run_dir, "merge")?;
            let mut gate = chain::gate(&task, "partials", merger, MERGERS)?;
            let mut output = Vec::new();
            let done = chain::read_all(&mut gate, |partial| {
                output.push(partial.to_vec());
                Ok(())
            })?;
            Ok(Done { output, ..done })
        });
    }
    let watch = Watch::new(cluster, ("views", views.len() as u64), teller.is_quiet());
    let limit = Duration::from_secs(60) + SERVICE * u32::try_from(views.len()).unwrap_or(u32::MAX) * 10;
    chain::run(crew, cluster, 2, &go, limit, watch)
}

/// Counts page views by their keys, and emits the counts when there are no more. With salt they are partial counts; the
/// counter does not know, and need not.
fn count(run_dir: &Path, counter: u32, counters: u32) -> Result<Done, String> {
    let task = chain::attach(run_dir, "count")?;
    let mut partials =
        chain::partition(&task, "partials", (counter, counters), MERGERS, Strategy::Hash, None)?;
    let mut gate = chain::gate(&task, "views", counter, counters)?;
    let mut counted = Counts::new();
    let done = chain::read_all(&mut gate, |view| {
        // Like a call to another service: time that costs no processor.
        std::thread::sleep(SERVICE);
        counts::count(&mut counted, view);
        Ok(())
    })?;
    for (key, count) in &counted {
        partials.emit_keyed(key, &counts::partial(key, *count)).map_err(|error| error.to_string())?;
    }
    partials.finish().map_err(|error| error.to_string())?;
    Ok(done)
}

impl Step {
    /// What a run came to, if its counts are right and its hot key is named.
    fn new(
        ran: Ran,
        (counters, salt): (u32, Option<u32>),
        views: u64,
        baseline: &Counts,
    ) -> Result<Self, String> {
        let merged = merge(&ran)?;
        counts::compare(&merged, baseline)?;
        let heavy: Vec<HeavyKey> = ran.of("source").flat_map(|source| source.done.heavy.clone()).collect();
        let heaviest = heavy.first().ok_or("the producer names no heavy key")?;
        Ok(Self {
            counters,
            salt,
            views,
            seconds: ran.seconds,
            views_per_second: views as f64 / ran.seconds,
            counts_equal_baseline: true,
            heaviest_key: String::from_utf8_lossy(&heaviest.key).into_owned(),
            heaviest_share: (heaviest.share, heaviest.share_min),
            hot_parts: merged.get(HOT.as_bytes()).map_or(0, |merged| merged.parts),
            parts_max: merged.values().map(|merged| merged.parts).max().unwrap_or(0),
            records: ran.of("count").map(|counter| counter.done.records).collect(),
            plan: ran.plan,
            channels: ran.channels,
        })
    }

    fn tell(&self, teller: Teller) {
        let (most, least) = self.heaviest_share;
        teller.line("");
        teller.line(&format!("   plan    {}", self.plan.line()));
        teller.line(&format!(
            "   rate    {:.0} views/s ({} in {:.1} s)",
            self.views_per_second,
            grouped(self.views),
            self.seconds
        ));
        let percent = |share: f64| format!("{:.0}", 100.0 * share);
        let shares = [percent(least), percent(most)];
        let share = if shares[0] == shares[1] { percent(most) } else { shares.join(" to ") };
        teller.line(&format!("   hot     heavy_keys: {}, {share} % of the records", self.heaviest_key));
        let parts =
            if self.hot_parts == 1 { "1 part".to_owned() } else { format!("{} parts", self.hot_parts) };
        teller.line(&format!("   counts  equal to the baseline; that of {HOT} from {parts}"));
        teller.line("");
        teller.line("   counter  records  channel waited");
        let most = self.records.iter().copied().max().unwrap_or(0);
        for (counter, records) in (0_u32..).zip(&self.records) {
            teller.line(&format!(
                "   {counter:>7} {:>8} {:>13.1} s  {}",
                grouped(*records),
                watch::waited(&self.channels, "views", counter),
                bar(*records, most, 34)
            ));
        }
        teller.line("");
        teller.say("   ", &self.seen());
    }

    /// Without salt no channel waits longer than the one to the counter that has most records.
    fn check_who_waits(&self) -> Result<(), String> {
        let waits = |counter: u32| watch::waited(&self.channels, "views", counter);
        let hot = (0_u32..).zip(&self.records).max_by_key(|(_, records)| **records).map_or(0, |(hot, _)| hot);
        match (0..self.counters).find(|counter| waits(*counter) > waits(hot)) {
            None => Ok(()),
            Some(other) => Err(format!(
                "the channel to counter {other} waited {:.1} s, that to {hot}, which has most records, {:.1} s; \
                 needed: {hot} the longest",
                waits(other),
                waits(hot)
            )),
        }
    }

    /// What is to be seen, and why.
    fn seen(&self) -> String {
        match self.salt {
            None if self.counters <= FEW => format!(
                "One counter has most of the records, since every record of {HOT} is its own. The source waits for it, \
                 and what the other could do is lost."
            ),
            None => format!(
                "{} counters, and one of them still has all of {HOT}: it sets the pace, and the others wait for what \
                 the source cannot send while it waits. More parallelism spreads keys, and this is one key.",
                self.counters
            ),
            Some(_) => format!(
                "The records of {HOT} are spread over all counters. Each counts its part by the plain key, and merge adds \
                 up the {} parts.",
                self.hot_parts
            ),
        }
    }
}

/// The partial counts, merged. Each task that merges has keys of its own.
fn merge(ran: &Ran) -> Result<BTreeMap<Vec<u8>, Merged>, String> {
    let mut all = BTreeMap::new();
    for merger in ran.of("merge") {
        for (key, merged) in counts::merge(&merger.done.output)? {
            if all.insert(key.clone(), merged).is_some() {
                return Err(format!("two tasks merge the counts of {}", String::from_utf8_lossy(&key)));
            }
        }
    }
    Ok(all)
}

fn introduce(teller: Teller, views: u64) {
    teller.say(
        "",
        &format!(
            "Two daemons on this machine, a and b. A source on a sends {} page views to counters on b, each page always \
             to the same counter (hash); tasks on a merge the counts. Of ten views eight are of one page, {HOT}.",
            grouped(views)
        ),
    );
    teller.paragraph(&format!(
        "For each view a counter waits {} ms, as if it asked another service. That takes time and no processor, so \
         several counters wait at the same time on any machine, however few processors it has.",
        SERVICE.as_millis()
    ));
}

fn announce(teller: Teller, number: usize, counters: u32, salt: Option<u32>) {
    let what = match salt {
        None if counters <= FEW => format!("{counters} counters."),
        None => format!("{counters} counters instead of {FEW}. Nothing else changes."),
        Some(salt) => {
            format!("{counters} counters, and salt = {salt}: each key is spread over {salt} of them.")
        }
    };
    teller.paragraph(&format!("{}. {what}", number + 1));
}

/// What must be so whatever the machine; the gains of more counters and of salt.
fn check(steps: &[Step]) -> Result<(f64, f64), String> {
    let [few, many, salted] = steps else { return Err(format!("{} steps were run", steps.len())) };
    for step in steps {
        step.plan.expect("count", step.counters, "HASH")?;
        let share = step.heaviest_share.0;
        if step.heaviest_key != HOT || share <= 1.0 / f64::from(MANY) {
            return Err(format!(
                "heavy_keys has {} with {:.0} % of the records first; needed: {HOT} with more than 1 / {MANY}",
                step.heaviest_key,
                100.0 * share
            ));
        }
    }
    for step in [few, many] {
        step.check_who_waits()?;
    }
    let parts = [few.parts_max, many.parts_max, salted.hot_parts];
    if parts[..2] != [1, 1] || !(2..=u64::from(MANY)).contains(&parts[2]) {
        return Err(format!(
            "keys were counted in {parts:?} parts; needed: 1 and 1, and with salt 2 to {MANY}"
        ));
    }
    let gain_of_more = many.views_per_second / few.views_per_second;
    let gain_of_salt = salted.views_per_second / many.views_per_second;
    if gain_of_more >= GAIN_OF_MORE_MAX {
        return Err(format!(
            "{MANY} counters have {gain_of_more:.1} times the rate of {FEW}, though one key has most records; \
             needed: less than {GAIN_OF_MORE_MAX} times"
        ));
    }
    if gain_of_salt < GAIN_OF_SALT_MIN {
        return Err(format!("salt gives {gain_of_salt:.1} times the rate; needed: {GAIN_OF_SALT_MIN} times"));
    }
    Ok((gain_of_more, gain_of_salt))
}

fn conclude(teller: Teller, gain_of_more: f64, gain_of_salt: f64) {
    teller.paragraph(&format!(
        "{} times as many counters had {gain_of_more:.1} times the rate; the same counters with salt had \
         {gain_of_salt:.1} times that. The counts were the same each time. What cannot be merged from parts, and what \
         needs a key's records in their order, cannot be salted.",
        MANY / FEW
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::Worker;
    use crate::plan::PlanTask;

    fn step((counters, salt): (u32, Option<u32>), rate: f64, parts: u64) -> Step {
        let task = |task: &str, parallelism: u32, strategies: &[&str]| PlanTask {
            task: task.to_owned(),
            parallelism: u64::from(parallelism),
            ship_strategies: strategies.iter().map(ToString::to_string).collect(),
        };
        let tasks = vec![task("source", 1, &[]), task("count", counters, &["HASH"])];
        Step {
            plan: Plan { tasks },
            counters,
            salt,
            views: 1000,
            seconds: 1000.0 / rate,
            views_per_second: rate,
            counts_equal_baseline: true,
            heaviest_key: HOT.to_owned(),
            heaviest_share: (0.8, 0.7),
            hot_parts: parts,
            parts_max: parts,
            records: Vec::new(),
            channels: Vec::new(),
        }
    }

    fn steps(rates: [f64; 3]) -> [Step; 3] {
        let [few, many, salted] = STEPS;
        [step(few, rates[0], 1), step(many, rates[1], 1), step(salted, rates[2], 8)]
    }

    /// A run in which the tasks that merge got these partial counts, and the producer names these keys.
    fn ran(partials: [Vec<Vec<u8>>; 2], heavy: &[(&str, f64)]) -> Ran {
        let heavy = heavy.iter().map(|(key, share)| HeavyKey {
            key: key.as_bytes().to_vec(),
            key_bytes: key.len(),
            share: *share,
            share_min: *share,
        });
        let mut workers =
            vec![Worker { task: "source", done: Done { heavy: heavy.collect(), ..Done::default() } }];
        let merge = |output| Worker { task: "merge", done: Done { output, ..Done::default() } };
        workers.extend(partials.into_iter().map(merge));
        let plan = step(STEPS[0], 1.0, 1).plan;
        Ran { plan, seconds: 2.0, workers, channels: Vec::new() }
    }

    #[test]
    fn a_step_has_the_counts_of_the_baseline_and_a_heavy_key_or_fails() {
        let views = counts::make(300);
        let baseline = counts::baseline(&views);
        let mut parts = [Vec::new(), Vec::new()];
        for (number, (key, count)) in baseline.iter().enumerate() {
            // The hot key comes in two parts, both to the task that has this key.
            let rest = if key == HOT.as_bytes() { 100 } else { 0 };
            let of = &mut parts[number % 2];
            of.push(counts::partial(key, count - rest));
            of.extend((rest > 0).then(|| counts::partial(key, rest)));
        }
        let heavy = [(HOT, 0.8), ("page-01", 0.02)];
        let new = |parts: &[Vec<Vec<u8>>; 2], heavy: &[(&str, f64)]| {
            Step::new(ran(parts.clone(), heavy), (FEW, None), 300, &baseline)
        };
        let step = new(&parts, &heavy).unwrap();
        assert_eq!((step.hot_parts, step.parts_max, step.heaviest_key.as_str()), (2, 2, HOT));
        assert!((step.views_per_second - 150.0).abs() < 1e-9);
        assert!(new(&parts, &[]).is_err(), "no heavy key");
        type Change = fn(&mut [Vec<Vec<u8>>; 2]);
        let changes: [(&str, Change); 5] = [
            ("a part lost", |parts| drop(parts[1].pop())),
            ("a part twice", |parts| parts[0].push(parts[0][0].clone())),
            ("a part that is no count", |parts| parts[0].push(b"home many".to_vec())),
            ("one count for another", |parts| parts[1][0] = counts::partial(b"page-99", 1)),
            ("one key at two tasks", |parts| {
                let part = parts[0].pop().unwrap_or_default();
                let key = counts::key_of(&part).to_vec();
                let count = String::from_utf8_lossy(&part[key.len() + 1..]).parse::<u64>().unwrap_or(0);
                parts[0].push(counts::partial(&key, count - 1));
                parts[1].push(counts::partial(&key, 1));
            }),
        ];
        for (what, change) in changes {
            let mut wrong = parts.clone();
            change(&mut wrong);
            assert!(new(&wrong, &heavy).is_err(), "{what}");
        }
    }

    #[test]
    fn more_counters_must_not_help_and_salt_must() {
        let (more, salt) = check(&steps([280.0, 308.0, 1540.0])).unwrap();
        assert!((more - 1.1).abs() < 1e-9 && (salt - 5.0).abs() < 1e-9);
        let wrong = [[280.0, 600.0, 1540.0], [280.0, 308.0, 400.0]];
        for rates in wrong {
            assert!(check(&steps(rates)).is_err(), "{rates:?}");
        }
        assert!(check(&steps([280.0, 308.0, 1540.0])[..2]).is_err());
    }

    #[test]
    fn the_channel_to_the_counter_with_most_records_must_wait_longest() {
        let channel = |consumer: u64, waited_seconds: f64| ChannelSeen {
            exchange: "views".to_owned(),
            consumer,
            waited_seconds,
            ..ChannelSeen::default()
        };
        for (waits, is_right) in [([0.1, 3.0], true), ([3.0, 0.1], false)] {
            let mut steps = steps([280.0, 308.0, 1540.0]);
            steps[0].records = vec![100, 900];
            steps[0].channels = vec![channel(0, waits[0]), channel(1, waits[1])];
            assert_eq!(check(&steps).is_ok(), is_right, "{waits:?}");
        }
    }

    #[test]
    fn the_plan_the_hot_key_and_the_parts_must_be_what_they_are_meant_to_be() {
        type Change = fn(&mut [Step; 3]);
        let changes: [(&str, Change); 6] = [
            ("parallelism", |steps| steps[1].plan.tasks[1].parallelism = 2),
            ("strategy", |steps| steps[2].plan.tasks[1].ship_strategies = vec!["REBALANCE".to_owned()]),
            ("another key", |steps| steps[0].heaviest_key = "page-01".to_owned()),
            ("a small share", |steps| steps[1].heaviest_share.0 = 0.1),
            ("a key at two counters without salt", |steps| steps[1].parts_max = 2),
            ("a key at one counter with salt", |steps| steps[2].hot_parts = 1),
        ];
        for (what, change) in changes {
            let mut steps = steps([280.0, 308.0, 1540.0]);
            change(&mut steps);
            assert!(check(&steps).is_err(), "{what}");
        }
    }
}
