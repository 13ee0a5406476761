//! What a hot key costs, and what helps: not more consumers, but a salt.
//!
//! Consumers keep a pace by sleeping, so that what they can take is known exactly and the CPU is not what limits them: all ways are
//! measured at once, each with an exchange of its own.

use std::time::Duration;

use crate::choice::Choice;
use crate::cluster::Cluster;
use crate::pipeline::Layout;
use crate::report::Case;

use super::{Settings, Stream, Workload, watch_rates};

const RECORD_BYTES: usize = 4096;
const MEMORY_BYTES: u64 = 1 << 30;

/// Records a second that each consumer takes.
const PACE: u64 = 2000;

/// Percent of the records that have the hot key.
const HOT_PERCENT: u64 = 50;

/// How long a producer may take to fill what is in flight.
const SETTLE: Duration = Duration::from_millis(700);

struct Way {
    name: &'static str,
    consumers: u32,
    hot_key_percent: u64,
    salt: u32,
}

const WAYS: [Way; 4] = [
    Way { name: "even_keys_8_consumers", consumers: 8, hot_key_percent: 0, salt: 1 },
    Way { name: "hot_key_4_consumers", consumers: 4, hot_key_percent: HOT_PERCENT, salt: 1 },
    Way { name: "hot_key_8_consumers", consumers: 8, hot_key_percent: HOT_PERCENT, salt: 1 },
    Way { name: "hot_key_8_consumers_salt_8", consumers: 8, hot_key_percent: HOT_PERCENT, salt: 8 },
];

/// Each round: all ways.
pub(super) fn run(settings: &Settings) -> Result<Vec<Case>, String> {
    let cluster = Cluster::start(&settings.cluster(MEMORY_BYTES))?;
    let rounds = settings.every_round("hash-skew", |round| {
        let mut streams = Vec::new();
        for way in &WAYS {
            let layout = Layout::Spread { producers: 1, consumers: way.consumers };
            let mut workload = Workload::new(format!("{}-{round}", way.name), layout, RECORD_BYTES);
            workload.choice = Choice::Hash { salt: way.salt };
            workload.hot_key_percent = way.hot_key_percent;
            let mut stream = workload.start(cluster.a(), cluster.b())?;
            stream.set_pace(&vec![PACE; way.consumers as usize])?;
            streams.push(stream);
        }
        std::thread::sleep(SETTLE);
        let rates = watch_rates(&mut streams, settings.window)?;
        streams.into_iter().try_for_each(Stream::end)?;
        Ok(rates)
    })?;
    let mut case = Case::new(format!(
        "hash-skew: {HOT_PERCENT} % of the records have one key, consumers of {PACE} records/s each"
    ));
    for (at, way) in WAYS.iter().enumerate() {
        case.figure(&format!("records_per_second_{}", way.name), rounds.iter().map(|rates| rates[at]));
    }
    let over = |at: usize, base: usize| rounds.iter().map(move |rates| rates[at] / rates[base]);
    case.figure("twice_the_consumers_over_4", over(2, 1));
    case.figure("salt_over_none", over(3, 2));
    Ok(vec![case])
}
