//! Whose turn it is between the channels of a link: deficit round robin by bytes.
//!
//! Only channels that can send are in the round. At its turn a channel gets a quantum of bytes and sends until what it
//! has is used up; the rest is kept for its next turn, and lost when it has nothing more to send. So small frames and
//! large ones get the same share of the link, and nobody who has nothing to send costs anything.
//!
//! A turn counts when its frames leave. What a short write takes back is planned anew in the same order and with the
//! same bytes; otherwise a socket that takes little at a time would serve only those that happen to be first in a batch.

use alloc::collections::VecDeque;

use crate::link::SendKey;

/// The channels of one link that can send, in the order of their turns.
#[derive(Debug, Default)]
pub(crate) struct Round {
    turns: VecDeque<SendKey>,
    /// The first one has had its quantum.
    is_begun: bool,
}

impl Round {
    /// Nobody has a turn any more. Who had one.
    pub(crate) fn clear(&mut self) -> impl Iterator<Item = SendKey> + use<> {
        self.is_begun = false;
        core::mem::take(&mut self.turns).into_iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = SendKey> {
        self.turns.iter().copied()
    }

    /// Its turn comes last.
    pub(crate) fn push(&mut self, key: SendKey) {
        self.turns.push_back(key);
    }

    /// Its turn comes first, wherever it was. `is_begun` says whether it has had its quantum.
    pub(crate) fn move_first(&mut self, key: SendKey, is_begun: bool) {
        if let Some(position) = self.turns.iter().position(|listed| *listed == key) {
            self.turns.remove(position);
        }
        self.turns.push_front(key);
        self.is_begun = is_begun;
    }

    /// The turn that an earlier batch began and did not end.
    pub(crate) fn begun(&self) -> Option<SendKey> {
        self.turns.front().copied().filter(|_| self.is_begun)
    }

    /// Whose turn it is, and whether the turn begins now.
    pub(crate) fn first(&mut self) -> Option<(SendKey, bool)> {
        let key = *self.turns.front()?;
        let begins = !self.is_begun;
        self.is_begun = true;
        Some((key, begins))
    }

    /// The first one leaves the round.
    pub(crate) fn drop_first(&mut self) {
        self.turns.pop_front();
        self.is_begun = false;
    }

    /// The first one has used up its bytes; the next one's turn begins.
    pub(crate) fn rotate(&mut self) {
        if let Some(key) = self.turns.pop_front() {
            self.turns.push_back(key);
        }
        self.is_begun = false;
    }
}
