//! io_uring, feature by feature: each is tried, as the daemon does when it starts.

use super::{Row, State};
use crate::config::{Config, IoLevel};
use crate::control::snapshot::StatusReport;
use crate::io::probe::{self, LOST_FIX, Level};
use crate::link::zero_copy::{Judged, ZeroCopySetting};

/// What became of each level.
#[derive(Clone, Debug)]
pub struct RingFacts {
    /// The highest level that the configuration allows.
    pub allowed: Level,
    /// From the lowest to the highest. An error has what is lost, in the words of `weir status`.
    pub tried: Vec<(Level, Result<(), String>)>,
    /// What holds for zero-copy sends, also what sockets are charged for those from hugepages.
    pub zero_copy: ZeroCopySetting,
}

impl RingFacts {
    /// Tries them all, on sockets of its own: some milliseconds, but for what [`probe::try_levels`] and the accounting wait for. What a
    /// daemon that runs has tried itself when it started is not tried again: that daemon goes by what it found then.
    #[must_use]
    pub fn find(config: &Config, said: Option<&StatusReport>) -> Self {
        let allowed = match config.io.level {
            IoLevel::Auto => Level::Full,
            IoLevel::Incremental => Level::Incremental,
            IoLevel::Oneshot => Level::OneShot,
        };
        let found = Self { allowed, tried: probe::try_levels(), zero_copy: ZeroCopySetting::never() };
        let zero_copy = match said.and_then(|said| said.zero_copy.clone()) {
            Some(said) => said,
            None => {
                let level = found.level().unwrap_or(Level::OneShot);
                ZeroCopySetting::find(config.link.zero_copy.into(), level, found.lost(level).as_deref()).0
            }
        };
        Self { zero_copy, ..found }
    }
}

impl RingFacts {
    /// The level that a daemon uses here; none if none works.
    #[must_use]
    pub fn level(&self) -> Option<Level> {
        let works = self.tried.iter().filter(|(_, outcome)| outcome.is_ok()).map(|(level, _)| *level).max();
        works.map(|level| level.min(self.allowed))
    }

    /// Why the level is not higher than this one.
    fn lost(&self, level: Level) -> Option<String> {
        let (next, outcome) = self.tried.iter().find(|(other, _)| *other > level)?;
        outcome
            .as_ref()
            .err()
            .cloned()
            .or_else(|| (*next > self.allowed).then(|| probe::limited(self.allowed)))
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

/// What a system call filter does to a daemon that must have io_uring, if one refuses it.
#[must_use]
pub fn refused_by_filter(facts: &RingFacts) -> Option<&'static str> {
    let mut tried = facts.tried.iter();
    let lowest = tried.find_map(|(level, outcome)| (*level == Level::OneShot).then_some(outcome))?;
    let is_refused = lowest.as_ref().is_err_and(|lost| lost.contains(probe::FILTERED));
    is_refused.then_some("it refuses io_uring: the daemon does not start")
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
                    Level::Full => row(found).degraded("a zero-copy send costs up to twice the CPU", fix),
                }
            }
        }
    });
    rows.chain([accounting(&facts.zero_copy)]).collect()
}

/// Name of the row on what sockets are charged.
pub(super) const ACCOUNTING: &str = "zero_copy/accounting";

fn accounting(found: &ZeroCopySetting) -> Row {
    let wanted = "what is sent is charged to the socket, and not a hugepage for it";
    let row = |found: &str| Row::new(ACCOUNTING, wanted, found);
    match found.judge() {
        Judged::Fine => row(&found.accounting),
        Judged::Off(reason) => Row::off(ACCOUNTING, wanted, reason),
        Judged::Untried(lost) => {
            row(&lost.reason).in_state(State::Off, "", lost.fix.clone().unwrap_or_default())
        }
        Judged::Degraded(effect, lost) => {
            row(&lost.reason).degraded(effect, lost.fix.clone().unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::accounting::{Lost, Unknown};
    use crate::link::zero_copy::ZeroCopyMode;

    fn facts(allowed: Level, outcomes: [Result<(), &str>; 3]) -> RingFacts {
        let tried = Level::ALL.into_iter().zip(outcomes.map(|outcome| outcome.map_err(str::to_owned)));
        RingFacts { allowed, tried: tried.collect(), zero_copy: ZeroCopySetting::never() }
    }

    fn states(facts: &RingFacts) -> Vec<State> {
        let rows = rows(facts);
        let (last, levels) = rows.split_last().unwrap();
        assert_eq!((last.name.as_str(), last.state), (ACCOUNTING, State::Off));
        levels.iter().map(|row| row.state).collect()
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
    fn a_filter_that_refuses_io_uring_is_told_from_a_switch() {
        let refused =
            |lost: &'static str| refused_by_filter(&facts(Level::Full, [Err(lost), Err("x"), Err("y")]));
        assert!(
            refused("io_uring_setup: EPERM; a seccomp filter or security module forbids io_uring_setup; x")
                .is_some()
        );
        assert_eq!(refused("io_uring_setup: EPERM; kernel.io_uring_disabled is 2; x"), None);
        assert_eq!(refused_by_filter(&facts(Level::Full, [Ok(()), Ok(()), Ok(())])), None);
    }

    #[test]
    fn what_the_configuration_forbids_is_told_as_in_the_status() {
        let found = rows(&facts(Level::OneShot, [Ok(()); 3]));
        assert_eq!(found[0].state, State::Ok);
        for row in &found[1..3] {
            assert_eq!((row.state, &*row.fix), (State::Degraded, LOST_FIX));
            assert_eq!(row.found, "oneshot is the highest level that the configuration allows");
        }
    }

    #[test]
    fn what_sockets_are_charged_is_a_row_that_says_what_it_costs_and_what_helps() {
        let lost = |why: Unknown| Some(Lost { reason: why.to_string(), fix: Some(why.fix().to_owned()) });
        let (none, stuck) = (Unknown::NoHugepage, Unknown::Stuck);
        let fine = ZeroCopySetting {
            accounting: "unregistered x2".to_owned(),
            ..ZeroCopySetting::of(ZeroCopyMode::Auto)
        };
        let row = accounting(&fine);
        assert_eq!((row.state, &*row.found, &*row.fix), (State::Ok, "unregistered x2", ""));
        let untried = accounting(&ZeroCopySetting { untried: lost(none), ..fine.clone() });
        assert_eq!(
            (untried.state, &*untried.found, &*untried.fix),
            (State::Off, "no hugepage is free", none.fix())
        );
        for setting in [
            ZeroCopySetting { lost: lost(stuck), ..fine.clone() },
            ZeroCopySetting { unregistered: lost(stuck), ..fine.clone() },
        ] {
            let row = accounting(&setting);
            assert_eq!((row.state, &*row.fix), (State::Degraded, stuck.fix()));
            assert!(!row.effect.is_empty());
        }
    }

    #[test]
    fn what_a_daemon_found_is_not_tried_again() {
        // No kernel says this.
        let lost =
            Some(Lost { reason: "as the daemon found".to_owned(), fix: Some("its advice".to_owned()) });
        let zero_copy = Some(ZeroCopySetting { lost, ..ZeroCopySetting::of(ZeroCopyMode::Auto) });
        let said = StatusReport { zero_copy, ..super::super::tests::said(Vec::new()) };
        let rows = rows(&RingFacts::find(&Config::default(), Some(&said)));
        let row = rows.last().expect("the row");
        assert_eq!(
            (&*row.name, row.state, &*row.found, &*row.fix),
            (ACCOUNTING, State::Degraded, "as the daemon found", "its advice")
        );
    }

    #[test]
    fn what_is_tried_here_is_what_the_daemon_finds() {
        let found = RingFacts::find(&Config::default(), None);
        let used = probe::probe(None).map(|probe| probe.level).ok();
        assert_eq!(found.level(), used, "{found:?}");
    }

    #[test]
    fn the_level_is_the_highest_that_works_and_is_allowed() {
        let (works, fails) = (Ok::<(), &str>(()), Err("x"));
        for (allowed, outcomes, expected) in [
            (Level::Full, [works; 3], Some(Level::Full)),
            (Level::OneShot, [works; 3], Some(Level::OneShot)),
            (Level::Full, [works, fails, fails], Some(Level::OneShot)),
            (Level::Full, [fails; 3], None),
        ] {
            assert_eq!(facts(allowed, outcomes).level(), expected);
        }
    }
}
