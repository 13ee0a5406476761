//! io_uring, feature by feature: each is tried, as the daemon does when it starts.

use super::Row;
use crate::config::{Config, IoLevel};
use crate::io::probe::{self, LOST_FIX, Level};

/// What became of each level.
#[derive(Clone, Debug)]
pub struct RingFacts {
    /// The highest level that the configuration allows.
    pub allowed: Level,
    /// From the lowest to the highest. An error has what is lost, in the words of `weir status`.
    pub tried: Vec<(Level, Result<(), String>)>,
}

impl RingFacts {
    /// Tries them all: some milliseconds, on sockets of its own.
    #[must_use]
    pub fn find(config: &Config) -> Self {
        let allowed = match config.io.level {
            IoLevel::Auto => Level::Full,
            IoLevel::Incremental => Level::Incremental,
            IoLevel::Oneshot => Level::OneShot,
        };
        let tried = Level::ALL.into_iter().map(|level| (level, probe::try_level(level)));
        Self { allowed, tried: tried.collect() }
    }
}

/// What each level is.
const fn wanted(level: Level) -> &'static str {
    match level {
        Level::OneShot => "rings, with sends and receives through them",
        Level::Incremental => "lasting receives, into buffers that all sockets share",
        Level::Full => "zero-copy sends from registered memory",
    }
}

/// Judges.
#[must_use]
pub fn rows(facts: &RingFacts) -> Vec<Row> {
    let rows = facts.tried.iter().map(|(level, outcome)| {
        let row = |found: &str| Row::new(format!("io_uring/{level}"), wanted(*level), found);
        match outcome {
            Ok(()) if *level > facts.allowed => {
                let lost = probe::limited(facts.allowed);
                row(&lost).degraded("it works here, and is not used", LOST_FIX)
            }
            Ok(()) => row("works"),
            Err(lost) => {
                // A problem of the lowest level ends in what to do about it.
                let (found, fix) = match lost.split_once("; ") {
                    Some((found, fix)) if *level == Level::OneShot => (found, fix),
                    _ => (lost.as_str(), LOST_FIX),
                };
                match level {
                    Level::OneShot => row(found).failed("the daemon does not start", fix),
                    Level::Incremental => {
                        row(found).degraded("one receive at a time, each into memory of its socket", fix)
                    }
                    Level::Full => row(found).degraded("the kernel copies what is sent", fix),
                }
            }
        }
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    fn facts(allowed: Level, outcomes: [Result<(), &str>; 3]) -> RingFacts {
        let tried = Level::ALL.into_iter().zip(outcomes.map(|outcome| outcome.map_err(str::to_owned)));
        RingFacts { allowed, tried: tried.collect() }
    }

    fn states(facts: &RingFacts) -> Vec<State> {
        rows(facts).iter().map(|row| row.state).collect()
    }

    #[test]
    fn each_level_is_a_row_that_is_fine_or_says_what_is_lost() {
        use State::{Degraded, Failed, Ok as Fine};
        let works = Ok::<(), &str>(());
        assert_eq!(states(&facts(Level::Full, [works; 3])), [Fine; 3]);
        assert_eq!(states(&facts(Level::Full, [works, works, Err("x")])), [Fine, Fine, Degraded]);
        assert_eq!(states(&facts(Level::Full, [works, Err("x"), Err("y")])), [Fine, Degraded, Degraded]);
        let none = facts(Level::Full, [Err("io_uring_setup: EPERM; sysctl x=0"), Err("x"), Err("y")]);
        assert_eq!(states(&none), [Failed, Degraded, Degraded]);
        let first = rows(&none).remove(0);
        assert_eq!((&*first.found, &*first.fix), ("io_uring_setup: EPERM", "sysctl x=0"));
    }

    #[test]
    fn what_the_configuration_forbids_is_told_as_in_the_status() {
        let found = rows(&facts(Level::OneShot, [Ok(()); 3]));
        assert_eq!(found[0].state, State::Ok);
        for row in &found[1..] {
            assert_eq!((row.state, &*row.fix), (State::Degraded, LOST_FIX));
            assert_eq!(row.found, "oneshot is the highest level that the configuration allows");
        }
    }

    #[test]
    fn what_is_tried_here_is_what_the_daemon_finds() {
        let found = RingFacts::find(&Config::default());
        let works = found.tried.iter().filter(|(_, outcome)| outcome.is_ok()).map(|(level, _)| *level).max();
        let used = probe::probe(None).map(|probe| probe.level).ok();
        assert_eq!(works, used, "{found:?}");
    }
}
