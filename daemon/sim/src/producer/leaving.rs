//! How a producer ends: in good order, with a lie, or killed.

use bytes::Bytes;
use weir_flow::ids::{SegmentIndex, SubpartitionIndex};
use weir_flow::shard::Submission;

use super::{Producer, State};
use crate::common::Common;
use crate::coverage::Mark;
use crate::trace;

impl Producer {
    pub(super) fn finish(&mut self, common: &mut Common) -> Result<bool, String> {
        let subpartition = self.ends_given;
        self.ends_given += 1;
        // One that is lost may still have a segment open, if that has just been told.
        self.submit(subpartition, true, common)?;
        // Nobody reads the end of one that is lost; to say it or not is the same.
        if !self.is_gone(subpartition, common) || self.rng.chance(500) {
            for key in self.channels(subpartition) {
                common.model.give_end(key)?;
            }
            self.push(Submission::End { subpartition: SubpartitionIndex(subpartition as u32) })?;
        }
        trace!(common.trace, self, "ends subpartition {subpartition}");
        if self.ends_given == self.builders.len() {
            self.selecting.check()?;
            if let Some(adapting) = &self.adapting {
                adapting.check_even().map_err(|text| format!("{self}: {text}"))?;
            }
            self.state = State::Ending;
        }
        Ok(true)
    }

    /// Hands over something that cannot be true in any state.
    pub(super) fn lie(&mut self, common: &mut Common) {
        let (subpartition, segment) = (SubpartitionIndex(0), SegmentIndex(0));
        let data = |segment, offset, bytes, records| Submission::Data {
            subpartition,
            segment,
            offset,
            bytes,
            records,
            last: true,
        };
        let lie = match self.rng.below(6) {
            0 => data(SegmentIndex(self.segments()), 0, 1, 0),
            1 => data(segment, u32::MAX, 1, 0),
            2 => data(segment, 0, u32::MAX, 0),
            3 => data(segment, 0, 1, 2),
            4 => Submission::End { subpartition: SubpartitionIndex(self.builders.len() as u32) },
            _ => Submission::Event { subpartition, payload: Bytes::from(vec![0; 1025]), priority: true },
        };
        trace!(common.trace, self, "lies: {lie:?}");
        common.coverage.hit(Mark::ProducerLied);
        let key = (self.key.exchange, self.key.producer);
        common.model.causes.producers_lied.insert(key);
        common.model.causes.producers_gone.insert(key);
        self.lied = true;
        self.ring.push_back(lie);
    }

    /// The process is killed: whatever it had not published is lost.
    pub fn kill(&mut self, common: &mut Common) {
        trace!(common.trace, self, "is killed");
        self.state = State::Dead;
        self.left = true;
        self.updates.clear();
    }
}
