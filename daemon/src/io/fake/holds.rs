//! What zero-copy sends have left with a kernel that is not there.

use super::contents;
use crate::io::{Completion, Errno, HoldId, SendBatch};

/// When and how zero-copy sends are let go of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NoticePolicy {
    /// By the park after the one that completed the send; holds whether they are said to be copied.
    Soon(bool),
    /// Only when the test says so.
    #[default]
    Late,
    /// Zero-copy sends fail with this error, and take nothing.
    Refuse(Errno),
}

#[derive(Debug)]
struct Held {
    /// None while the completion that brings it back is on its way.
    batch: Option<SendBatch>,
    /// What the kernel read when the socket took it.
    read: Vec<u8>,
    /// The shard was told of it.
    is_told: bool,
    /// It is due, and whether it is said to be copied.
    copied: Option<bool>,
}

/// Batches by number, and when they are let go of.
#[derive(Debug, Default)]
pub(super) struct Holds {
    table: Vec<Option<Held>>,
    policy: NoticePolicy,
}

impl Holds {
    pub(super) fn set_policy(&mut self, policy: NoticePolicy) {
        self.policy = policy;
        let NoticePolicy::Soon(copied) = policy else { return };
        self.table.iter_mut().flatten().for_each(|held| held.copied = Some(copied));
    }

    pub(super) fn refusal(&self) -> Option<Errno> {
        match self.policy {
            NoticePolicy::Refuse(errno) => Some(errno),
            NoticePolicy::Soon(_) | NoticePolicy::Late => None,
        }
    }

    /// A socket took `bytes` of a batch.
    pub(super) fn hold(&mut self, batch: SendBatch, bytes: u32) -> HoldId {
        let read = contents(&batch, bytes);
        let copied = match self.policy {
            NoticePolicy::Soon(copied) => Some(copied),
            NoticePolicy::Late | NoticePolicy::Refuse(_) => None,
        };
        let held = Some(Held { batch: Some(batch), read, is_told: false, copied });
        let number = self.table.iter().position(Option::is_none).unwrap_or(self.table.len());
        if number == self.table.len() {
            self.table.push(None);
        }
        self.table[number] = held;
        HoldId(u32::try_from(number).expect("few batches"))
    }

    pub(super) fn handle_told(&mut self, hold: HoldId) {
        if let Some(Some(held)) = self.table.get_mut(hold.0 as usize) {
            held.is_told = true;
        }
    }

    /// The completion that brings a batch back was taken: its number is free.
    pub(super) fn handle_returned(&mut self, hold: HoldId) {
        if let Some(place) = self.table.get_mut(hold.0 as usize) {
            *place = None;
        }
    }

    /// Those that were not let go of.
    pub(super) fn batches(&self) -> impl Iterator<Item = &SendBatch> {
        self.table.iter().flatten().filter_map(|held| held.batch.as_ref())
    }

    pub(super) fn told(&self) -> Vec<HoldId> {
        let is_told =
            |held: &Option<Held>| held.as_ref().is_some_and(|held| held.is_told && held.batch.is_some());
        let numbers = self.table.iter().zip(0..).filter(|(held, _)| is_told(held));
        numbers.map(|(_, number)| HoldId(number)).collect()
    }

    pub(super) fn let_go(&mut self, hold: HoldId, copied: bool) {
        let held =
            self.table.get_mut(hold.0 as usize).and_then(Option::as_mut).expect("a batch that is held");
        assert!(held.is_told, "the shard was not told of batch {}", hold.0);
        held.copied = Some(copied);
    }

    /// The batches that are let go of now.
    ///
    /// Panics if the memory of one holds something else than what was read of it: it was used for something else while the
    /// kernel might have had to read it again.
    pub(super) fn due(&mut self) -> Vec<(u32, Completion)> {
        let mut due = Vec::new();
        for (number, place) in (0..).zip(&mut self.table) {
            let Some(Held { batch, read, is_told: true, copied: Some(copied) }) = place else { continue };
            let (Some(batch), copied) = (batch.take(), *copied) else { continue };
            let bytes = u32::try_from(read.len()).expect("a batch below 4 GiB");
            assert!(
                contents(&batch, bytes) == *read,
                "the memory of batch {number} was used again too early"
            );
            due.push((number, Completion::Released { hold: HoldId(number), copied: Some(copied), batch }));
        }
        due
    }
}
