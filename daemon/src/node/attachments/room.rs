//! How many clients there may be: those that are attached, and those that have connected and not said so yet.

use std::collections::BTreeMap;

use weir_flow::failure::{Failure, FailureCode};

use super::Node;
use crate::attach::descriptors;

/// Most connections at a time that have not said Hello. More than can be accepted before the first of them has had its
/// turn: who says Hello at once is never the oldest that has not.
const SILENT_MAX: usize = 512;

/// The part of all descriptors, as its denominator, whose number such connections do not exceed. Each takes two.
const SILENT_PART: u64 = 8;

impl Node {
    /// Who has said nothing yet counts for no attachment and costs descriptors. When there are too many, the one that
    /// has been silent for longest goes.
    pub(super) fn make_room_for_silent(&mut self) {
        let silent = || self.attachments.live().filter(|(_, client)| client.shard.is_none());
        let most = descriptors::share(SILENT_PART).min(SILENT_MAX);
        if silent().count() < most {
            return;
        }
        let Some((oldest, _)) = silent().next() else { return };
        let text = format!(
            "no Hello came, nor from {} later connections; needed: Hello at once",
            most.saturating_sub(1)
        );
        self.distrust(oldest, &Failure::new(FailureCode::OverBudget, text));
    }

    /// Whether one more client may be attached. If not, who has most of the attachments is named.
    pub(super) fn check_room(&self) -> Result<(), Failure> {
        let most = self.options.attachments_max;
        if self.attachments.attached().count() < usize::try_from(most).unwrap_or(usize::MAX) {
            return Ok(());
        }
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for client in self.attachments.attached() {
            *counts.entry(client.describe()).or_default() += 1;
        }
        let largest = counts.into_iter().max_by_key(|(_, count)| *count).filter(|(_, count)| *count > 1);
        let holder = largest.map_or_else(String::new, |(who, count)| format!(", {count} of them {who}"));
        let text =
            format!("{most} clients are attached{holder}; needed: fewer, or a larger limits.attachments_max");
        Err(Failure::new(FailureCode::OverBudget, text))
    }
}
