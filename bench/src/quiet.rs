//! Rounds, and which of them count: what other processes do meanwhile falls on the figures.
//!
//! The rule: a round in which others took more than [`QUIET_SHARE`] of the machine's CPU time is noisy and is dropped. So that
//! something is left, at least half of the rounds are kept, the quietest first; the report says how many noisy ones are
//! among them.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::statistics::Spread;
use crate::usage;

/// Share of the CPU time of the whole machine that other processes may take in a quiet round.
pub const QUIET_SHARE: f64 = 0.05;

/// What became of the rounds of one part of a scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Rounds {
    /// The scenario, or the part of it.
    pub name: String,
    /// Rounds that were run.
    pub run: u32,
    /// Noisy ones that were dropped.
    pub dropped: u32,
    /// Noisy ones that had to be kept.
    pub kept_noisy: u32,
    /// CPU time of all other processes, as a share of one core, over all rounds.
    pub foreign_cores: Spread,
    /// All of them together, in seconds.
    pub seconds: f64,
}

/// What a run has to tell beside its figures.
#[derive(Clone, Debug, Default)]
pub struct Notes(Rc<RefCell<Found>>);

#[derive(Debug, Default)]
struct Found {
    rounds: Vec<Rounds>,
    not_run: Vec<String>,
    remarks: Vec<String>,
}

impl Notes {
    /// Notes, and says at once, what stands out.
    pub fn remark(&self, what: impl Into<String>) {
        let what = what.into();
        eprintln!("{what}");
        self.0.borrow_mut().remarks.push(what);
    }

    /// Notes, and says at once, that something cannot be measured here.
    pub fn not_run(&self, what: impl Into<String>) {
        let what = what.into();
        eprintln!("not measured here: {what}");
        self.0.borrow_mut().not_run.push(what);
    }

    /// Runs `round` so often, with the number of each from 0, and returns what the rounds that count have found.
    ///
    /// # Errors
    /// The first of a round.
    pub fn run_rounds<T>(
        &self,
        name: &str,
        rounds: u32,
        mut round: impl FnMut(u32) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        let (mut found, mut foreign) = (Vec::new(), Vec::new());
        let began = Instant::now();
        for number in 0..rounds {
            let load = Load::begin();
            found.push(round(number)?);
            let (cores, length) = load.end();
            foreign.push(cores);
            eprintln!(
                "{name}: round {} of {rounds}, {:.1} s, others took {cores:.2} cores",
                number + 1,
                length.as_secs_f64()
            );
        }
        let quiet_cores = QUIET_SHARE * cpus() as f64;
        let kept = kept(&foreign, quiet_cores);
        let count = |wanted: fn(bool, bool) -> bool| {
            foreign.iter().zip(&kept).filter(|(cores, kept)| wanted(**cores > quiet_cores, **kept)).count()
        };
        self.0.borrow_mut().rounds.push(Rounds {
            name: name.to_owned(),
            run: rounds,
            dropped: count(|_, kept| !kept) as u32,
            kept_noisy: count(|is_noisy, kept| is_noisy && kept) as u32,
            foreign_cores: Spread::of(foreign.iter().copied()),
            seconds: began.elapsed().as_secs_f64(),
        });
        Ok(found.into_iter().zip(kept).filter_map(|(found, kept)| kept.then_some(found)).collect())
    }

    /// What became of all rounds so far, what could not be measured, and what stands out.
    #[must_use]
    pub fn take(&self) -> (Vec<Rounds>, Vec<String>, Vec<String>) {
        let found = std::mem::take(&mut *self.0.borrow_mut());
        (found.rounds, found.not_run, found.remarks)
    }
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Which rounds count, from what others took in each, in cores.
fn kept(foreign: &[f64], quiet_cores: f64) -> Vec<bool> {
    let needed = foreign.len().div_ceil(2);
    let mut order: Vec<usize> = (0..foreign.len()).collect();
    order.sort_by(|a, b| foreign[*a].total_cmp(&foreign[*b]));
    let mut kept = vec![false; foreign.len()];
    for (place, at) in order.into_iter().enumerate() {
        kept[at] = place < needed || foreign[at] <= quiet_cores;
    }
    kept
}

/// The CPU time of the machine, and of this process with all that it has started.
struct Load {
    began: Instant,
    busy_ns: u64,
    own_ns: u64,
}

impl Load {
    fn begin() -> Self {
        Self { began: Instant::now(), busy_ns: usage::machine_busy_ns(), own_ns: usage::family_ns() }
    }

    /// What all others took since, as a share of one core, and for how long.
    fn end(self) -> (f64, Duration) {
        let busy = usage::machine_busy_ns().saturating_sub(self.busy_ns);
        let own = usage::family_ns().saturating_sub(self.own_ns);
        let length = self.began.elapsed();
        (busy.saturating_sub(own) as f64 / 1e9 / length.as_secs_f64(), length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noisy_rounds_are_dropped_but_never_more_than_half() {
        assert_eq!(kept(&[0.02, 0.5, 0.1, 0.11], 0.1), [true, false, true, false]);
        assert_eq!(kept(&[0.3, 0.9, 0.2], 0.1), [true, false, true], "the quietest half stays");
        assert_eq!(kept(&[0.9], 0.1), [true]);
        assert!(kept(&[], 0.1).is_empty());
    }

    #[test]
    fn what_a_round_found_and_what_became_of_it_is_told() {
        let notes = Notes::default();
        let found = notes.run_rounds("a part", 3, |round| Ok(round * 10)).expect("no round fails");
        assert!(found.len() >= 2 && found.iter().all(|found| [0, 10, 20].contains(found)), "{found:?}");
        notes.not_run("something");
        notes.remark("so");
        let (rounds, not_run, remarks) = notes.take();
        let [of_part] = &rounds[..] else { panic!("one part, not {rounds:?}") };
        assert_eq!((of_part.name.as_str(), of_part.run), ("a part", 3));
        assert_eq!(of_part.dropped as usize, 3 - found.len());
        assert_eq!((&not_run[..], &remarks[..]), (&["something".to_owned()][..], &["so".to_owned()][..]));
        let failed: Result<Vec<()>, String> = notes.run_rounds("b", 2, |_| Err("no".to_owned()));
        assert_eq!(failed, Err("no".to_owned()));
    }
}
