//! Every scenario with its usual effort, and about how long that takes.

use std::time::Duration;

use super::{
    Settings, debloat, hash_skew, idle, isolation, latency, local, peers, priority, probes, rebalance,
    resume, scale, scrape, selection, throughput, trickle, zero_copy,
};
use crate::report::Case;

/// A scenario by its name.
pub struct Scenario {
    /// What `--scenario` calls it.
    pub name: &'static str,
    /// One line for `--list`.
    pub about: &'static str,
    /// Runs it.
    pub run: fn(&Settings) -> Result<Vec<Case>, String>,
    /// Rounds, unless another number is asked for.
    pub rounds: u32,
    /// Length of a window in milliseconds, unless another one is asked for.
    pub window_ms: u64,
    /// What it takes.
    pub time: Time,
}

/// What a scenario takes: about so long on two cores that do little else.
pub struct Time {
    /// Windows of one round.
    pub windows: u32,
    /// The rest of a round, in seconds.
    pub beside: f64,
    /// Before the first round and after the last, in seconds.
    pub once: f64,
}

impl Scenario {
    /// The scenario of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        SCENARIOS.iter().find(|scenario| scenario.name == name)
    }

    /// Its usual window.
    #[must_use]
    pub fn window(&self) -> Duration {
        Duration::from_millis(self.window_ms)
    }

    /// About how long it takes, in seconds.
    #[must_use]
    pub fn seconds(&self, rounds: u32, window: Duration) -> f64 {
        let Time { windows, beside, once } = self.time;
        once + f64::from(rounds) * (f64::from(windows) * window.as_secs_f64() + beside)
    }
}

/// Every scenario.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "throughput",
        about: "1, 16, 64 and 1,000 channels over one link; records of 64 B, 1 KiB, 32 KiB and 1 MiB",
        run: throughput::run,
        rounds: 3,
        window_ms: 500,
        time: Time { windows: 17, beside: 17.5, once: 0.5 },
    },
    Scenario {
        name: "local",
        about: "64 channels on one node, against the same between two nodes; records of 32 KiB, 1 KiB and 64 B",
        run: local::run,
        rounds: 5,
        window_ms: 500,
        time: Time { windows: 6, beside: 2.5, once: 0.5 },
    },
    Scenario {
        name: "peers",
        about: "64 streams over Weir, raw TCP, tokio, h2, tonic, yamux, quinn, ZeroMQ, Aeron: CPU per GB and GB/s",
        run: peers::run,
        rounds: 3,
        window_ms: 400,
        time: Time { windows: 23, beside: 14.5, once: 0.5 },
    },
    Scenario {
        name: "peers-latency",
        about: "10,000 messages a second at fixed times over Weir, raw TCP, ZeroMQ and tonic",
        run: peers::run_latency,
        rounds: 3,
        window_ms: 800,
        time: Time { windows: 8, beside: 3.3, once: 0.5 },
    },
    Scenario {
        name: "isolation",
        about: "64 forward channels over one link, then one consumer stopped",
        run: isolation::run,
        rounds: 5,
        window_ms: 500,
        time: Time { windows: 2, beside: 0.9, once: 1.0 },
    },
    Scenario {
        name: "scale",
        about: "1 to 10,000 channels of 4 KiB segments, and numbers of shards: set-up, memory, throughput",
        run: scale::run,
        rounds: 3,
        window_ms: 500,
        time: Time { windows: 7, beside: 10.8, once: 0.0 },
    },
    Scenario {
        name: "idle",
        about: "1,024 attached channels at rest: CPU and memory of the daemons",
        run: idle::run,
        rounds: 3,
        window_ms: 2000,
        time: Time { windows: 1, beside: 0.1, once: 3.0 },
    },
    Scenario {
        name: "latency",
        about: "there and back, and 10,000 messages a second at fixed times, beside raw TCP",
        run: latency::run,
        rounds: 3,
        window_ms: 800,
        time: Time { windows: 13, beside: 5.4, once: 0.5 },
    },
    Scenario {
        name: "trickle",
        about: "100 B every 20 ms beside a bulk channel: delay against the buffer timeout",
        run: trickle::run,
        rounds: 3,
        window_ms: 4000,
        time: Time { windows: 2, beside: 0.5, once: 0.7 },
    },
    Scenario {
        name: "priority",
        about: "priority events while both directions are full, while they move, and behind a queue of their own",
        run: priority::run,
        rounds: 3,
        window_ms: 2000,
        time: Time { windows: 3, beside: 2.5, once: 0.8 },
    },
    Scenario {
        name: "rebalance",
        about: "8 consumers of which one is slow, stopped, or recovers: in turn, Flink's next four, adaptive",
        run: rebalance::run,
        rounds: 3,
        window_ms: 700,
        time: Time { windows: 5, beside: 5.4, once: 0.5 },
    },
    Scenario {
        name: "selection",
        about: "what it costs to choose a consumer, without daemons: in turn, adaptive, up to 4,096 consumers",
        run: selection::run,
        rounds: 5,
        window_ms: 0,
        time: Time { windows: 0, beside: 0.2, once: 0.0 },
    },
    Scenario {
        name: "hash-skew",
        about: "half of the records have one key: more consumers, and salting",
        run: hash_skew::run,
        rounds: 3,
        window_ms: 700,
        time: Time { windows: 1, beside: 0.9, once: 0.5 },
    },
    Scenario {
        name: "resume",
        about: "what retention costs; how long records stop when all sockets are killed (root, ss)",
        run: resume::run,
        rounds: 3,
        window_ms: 700,
        time: Time { windows: 3, beside: 9.4, once: 1.8 },
    },
    Scenario {
        name: "debloat",
        about: "what is in flight to a slow consumer with debloating and without, what it costs a fast one, how it follows",
        run: debloat::run,
        rounds: 3,
        window_ms: 500,
        time: Time { windows: 17, beside: 15.5, once: 11.0 },
    },
    Scenario {
        name: "probes",
        about: "what the kernel probes cost: on links that move 32 KiB records, and on sockets of others (root)",
        run: probes::run,
        rounds: 3,
        window_ms: 700,
        time: Time { windows: 2, beside: 3.2, once: 0.3 },
    },
    Scenario {
        name: "zero-copy",
        about: "sends with and without a copy in the kernel, over loopback and between virtual interfaces (root, ip)",
        run: zero_copy::run,
        rounds: 3,
        window_ms: 500,
        time: Time { windows: 6, beside: 4.3, once: 0.3 },
    },
    Scenario {
        name: "scrape",
        about: "10,000 channels: how long a scrape of /metrics takes, and how large it is",
        run: scrape::run,
        rounds: 3,
        window_ms: 0,
        time: Time { windows: 0, beside: 0.7, once: 2.9 },
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole bench is to take less than 12 minutes and each scenario less than 2, with what starting costs.
    #[test]
    fn the_usual_effort_is_short() {
        let mut all = 0.0;
        for scenario in SCENARIOS {
            let seconds = scenario.seconds(scenario.rounds, scenario.window());
            assert!(seconds < 110.0, "{}: {seconds} s", scenario.name);
            all += seconds;
        }
        assert!(all < 700.0, "{all} s");
    }

    #[test]
    fn no_two_scenarios_have_one_name() {
        for scenario in SCENARIOS {
            let found = Scenario::named(scenario.name).map(|found| found.about);
            assert_eq!(found, Some(scenario.about), "{}", scenario.name);
        }
    }
}
