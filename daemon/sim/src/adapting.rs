//! Adaptive selection of one producer: the core's code, driven as a client drives it and held against what it promises.
//!
//! - A record goes to the first eligible consumer from the turn on, and each is asked once.
//! - Nobody is eligible who is lost, or has neither credit nor quota.
//! - Whoever has room and has worked off all that it was given is eligible: nobody is left out for good.
//! - When all have room somebody is eligible.

use weir_flow::selector::Rebalance;
use weir_flow::selector::adaptive::{Adaptive, Take, TargetView};

use crate::common::Common;
use crate::coverage::Mark;
use crate::faults::Sabotage;

/// How a consumer stood at the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Eligible,
    Slow,
    Full,
    Gone,
}

/// Adaptive selection, with what it has chosen so far.
#[derive(Debug)]
pub struct Adapting {
    adaptive: Adaptive<Rebalance>,
    standings: Vec<Standing>,
    /// Whose turn it is, once that is known.
    turn: Option<u32>,
    /// Bytes and records emitted to each consumer.
    emitted: Vec<(u64, u64)>,
    /// Whether anyone was ever left out.
    left_out: bool,
    /// The canary: a consumer that is left out for good.
    never_back: Option<u32>,
    /// The canary: it goes in turn, whoever has room.
    ignores_credit: bool,
}

impl Adapting {
    /// Among so many consumers.
    #[must_use]
    pub fn new(seed: u64, consumers: u32) -> Self {
        Self {
            adaptive: Adaptive::new(Rebalance::new(seed), consumers),
            standings: vec![Standing::Eligible; consumers as usize],
            turn: None,
            emitted: vec![(0, 0); consumers as usize],
            left_out: false,
            never_back: None,
            ignores_credit: false,
        }
    }

    /// Whether a consumer has room and too much to do already.
    #[must_use]
    pub fn is_slow(&self, target: u32) -> bool {
        self.adaptive.is_slow(target)
    }

    /// Whether it does not ask who has room, which is a defect.
    #[must_use]
    pub const fn ignores_credit(&self) -> bool {
        self.ignores_credit
    }

    /// It does not ask who has room from now on.
    pub const fn ignore_credit(&mut self) {
        self.ignores_credit = true;
    }

    /// The consumer of a record, if one can take it.
    pub fn choose(
        &mut self,
        record: &[u8],
        mut take: impl FnMut(u32) -> Result<Take, String>,
    ) -> Result<Option<u32>, String> {
        let Self { adaptive, turn, left_out, .. } = self;
        let count = adaptive.targets();
        let mut eligible: Vec<u32> = (0..count).filter(|target| adaptive.is_eligible(*target)).collect();
        let asked = |target| {
            let from = turn.unwrap_or(target);
            let wanted = eligible.iter().find(|eligible| **eligible >= from).or(eligible.first()).copied();
            if wanted != Some(target) {
                return Err(format!("{target} was chosen; {wanted:?} of {eligible:?} has its turn"));
            }
            *turn = Some((target + 1) % count);
            let answer = take(target)?;
            if answer != Take::Now {
                eligible.retain(|eligible| *eligible != target);
                *left_out = true;
            }
            Ok(answer)
        };
        let chosen = adaptive.select_able(record, None, asked)?;
        if chosen.is_none() {
            if !eligible.is_empty() {
                return Err(format!("none was chosen; {eligible:?} are eligible"));
            }
            // To find that none is eligible is a turn too.
            *turn = turn.map(|turn| (turn + 1) % count);
        }
        Ok(chosen)
    }

    /// A record was emitted. Whether it is time to look.
    pub fn emitted(&mut self, target: u32, bytes: u64, pauses: bool, common: &Common) -> bool {
        if let Some((sum, records)) = self.emitted.get_mut(target as usize) {
            *sum += bytes;
            *records += 1;
        }
        if pauses {
            self.adaptive.handle_pause();
        }
        self.adaptive.handle_emitted(target, bytes) && self.adaptive.is_due(common.now)
    }

    /// A consumer was lost in the middle of a record.
    pub fn lost(&mut self, target: u32) {
        self.left_out = true;
        self.adaptive.handle_gone(target);
    }

    /// Looks at all consumers, of which this is what the client sees.
    pub fn look(&mut self, views: &[TargetView], common: &mut Common) -> Result<(), String> {
        let Self { adaptive, never_back, ignores_credit, .. } = self;
        adaptive.look(common.now, |target| {
            let view = views.get(target as usize).copied().unwrap_or_default();
            let is_full = (view.is_full || *never_back == Some(target)) && !*ignores_credit;
            let unsubmitted_bytes = if *ignores_credit { u64::MAX } else { view.unsubmitted_bytes };
            TargetView { is_full, unsubmitted_bytes, ..view }
        });
        self.note(views, common);
        if self.ignores_credit { Ok(()) } else { self.check_views(views) }
    }

    /// What has changed for whom.
    fn note(&mut self, views: &[TargetView], common: &mut Common) {
        for (target, view) in (0..).zip(views) {
            let standing = match () {
                () if view.is_gone => Standing::Gone,
                () if self.adaptive.is_slow(target) => Standing::Slow,
                () if self.adaptive.is_eligible(target) => Standing::Eligible,
                () => Standing::Full,
            };
            let Some(before) = self.standings.get_mut(target as usize) else { continue };
            let before = std::mem::replace(before, standing);
            self.left_out |= standing != Standing::Eligible;
            if before == standing {
                continue;
            }
            let mark = match (before, standing) {
                (_, Standing::Slow) => Mark::LeftOutSlow,
                (_, Standing::Full) => Mark::LeftOutFull,
                (Standing::Slow, Standing::Eligible) => Mark::BackSlow,
                (Standing::Full, Standing::Eligible) => Mark::BackFull,
                _ => continue,
            };
            common.coverage.hit(mark);
            let is_out = matches!(standing, Standing::Slow | Standing::Full);
            if is_out && common.sabotage(Sabotage::NeverBack) {
                self.never_back = Some(target);
            }
        }
    }

    fn check_views(&self, views: &[TargetView]) -> Result<(), String> {
        for ((target, view), (emitted, _)) in (0..).zip(views).zip(&self.emitted) {
            let (is_eligible, is_slow) = (self.adaptive.is_eligible(target), self.adaptive.is_slow(target));
            let outstanding =
                emitted.saturating_sub(view.unsubmitted_bytes).saturating_sub(view.consumed_bytes);
            let has_room = !view.is_full && !view.is_gone;
            let problem = match (has_room, is_eligible) {
                (false, true) => "cannot take a record, and is eligible",
                (true, false) if !is_slow => "has room and is not slow, and is left out",
                (true, false) if outstanding == 0 => "has room and nothing to do, and is left out",
                _ => continue,
            };
            return Err(format!("consumer {target} {problem}: {outstanding} bytes outstanding, {view:?}"));
        }
        let there = || views.iter().filter(|view| !view.is_gone);
        let is_any = (0..self.adaptive.targets()).any(|target| self.adaptive.is_eligible(target));
        if !is_any && there().count() > 0 && there().all(|view| !view.is_full) {
            return Err(format!("all consumers are left out, and all have room: {views:?}"));
        }
        Ok(())
    }

    /// While nobody is left out all get the same number of records, or one more.
    pub fn check_even(&self) -> Result<(), String> {
        let counts = || self.emitted.iter().map(|(_, records)| *records);
        let (least, most) = (counts().min().unwrap_or_default(), counts().max().unwrap_or_default());
        if self.left_out || most - least <= 1 {
            return Ok(());
        }
        Err(format!("nobody was left out, and the consumers have {:?} records", counts().collect::<Vec<_>>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::rng::Rng;

    fn common() -> Common {
        Common::new(Rng::new(1), Model::new(Vec::new()), false, Sabotage::None)
    }

    const FREE: TargetView =
        TargetView { unsubmitted_bytes: 0, consumed_bytes: 0, is_full: false, is_gone: false };
    const FULL: TargetView = TargetView { is_full: true, ..FREE };

    #[test]
    fn one_that_is_left_out_though_it_has_room_and_nothing_to_do_is_seen() {
        let mut adapting = Adapting::new(7, 2);
        adapting.look(&[FREE, FULL], &mut common()).unwrap();
        assert_eq!(adapting.choose(b"", |_| Ok(Take::Now)), Ok(Some(0)));
        adapting.look(&[FREE, FREE], &mut common()).unwrap();
        adapting.never_back = Some(1);
        let problem = adapting.look(&[FREE, FREE], &mut common()).unwrap_err();
        assert!(problem.contains("consumer 1 has room and is not slow, and is left out"), "{problem}");
    }

    #[test]
    fn one_that_is_eligible_though_it_has_no_room_is_seen() {
        let adapting = Adapting::new(7, 2);
        let problem = adapting.check_views(&[FREE, FULL]).unwrap_err();
        assert!(problem.contains("consumer 1 cannot take a record, and is eligible"), "{problem}");
        let gone = TargetView { is_gone: true, ..FREE };
        assert!(adapting.check_views(&[gone, FREE]).is_err());
    }

    #[test]
    fn a_choice_out_of_turn_is_seen() {
        let mut adapting = Adapting::new(7, 3);
        let first = adapting.choose(b"", |_| Ok(Take::Now)).unwrap().unwrap();
        adapting.turn = Some((first + 2) % 3);
        assert!(adapting.choose(b"", |_| Ok(Take::Now)).unwrap_err().contains("has its turn"));
    }

    #[test]
    fn uneven_shares_are_seen_unless_somebody_was_left_out() {
        let mut adapting = Adapting::new(7, 2);
        for _ in 0..2 {
            let _ = adapting.emitted(0, 10, false, &common());
        }
        assert!(adapting.check_even().is_err());
        adapting.look(&[FREE, FULL], &mut common()).unwrap();
        assert_eq!(adapting.check_even(), Ok(()));
    }
}
