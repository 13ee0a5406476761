//! Control frames that happen once, kept until the peer has them.
//!
//! Data is acknowledged by channel, and what a Limit or a Backlog says is told by the next one. An OpenChannel or an
//! EndAck that is lost with a socket is told by nothing else. So each end counts those that it sent and those that it
//! received, since the link began; and it keeps what it sent until a Pong answers a Ping that was sent behind it. On a
//! new socket each end says how many it received, and the other sends the rest again. So each takes effect once, in
//! order, over any number of sockets.

use alloc::collections::VecDeque;

use crate::wire::Message;

/// So many frames that are not known to have arrived make a Ping due at once.
const PING_AFTER: usize = 1 << 10;

/// So many, and no more is sent before the peer answers.
const SENT_MAX: usize = 1 << 14;

#[derive(Debug, Default)]
pub(crate) struct ControlLog {
    /// Frames that are in a socket and not known to have arrived, in order.
    sent: VecDeque<Message>,
    /// How many came before the first of `sent`.
    known: u64,
    /// How many the peer sent.
    pub(crate) received: u64,
    /// The Ping on its way, and how many frames were sent before it.
    ping: Option<(u64, u64)>,
}

impl ControlLog {
    /// The socket took all of this frame.
    pub(crate) fn push(&mut self, message: Message) {
        self.sent.push_back(message);
    }

    /// Whether another one may be sent.
    pub(crate) fn has_room(&self) -> bool {
        self.sent.len() < SENT_MAX
    }

    /// Whether the peer should be asked soon, and was not.
    pub(crate) fn wants_ping(&self) -> bool {
        self.sent.len() >= PING_AFTER && self.ping.is_none()
    }

    /// A Ping is planned behind what was sent and `begun` more frames. One at a time is waited for: if each took the
    /// place of the one before, none would ever be answered where the way is longer than the time between two.
    pub(crate) fn handle_ping(&mut self, token: u64, begun: usize) {
        let sent = self.known + (self.sent.len() + begun) as u64;
        self.ping.get_or_insert((token, sent));
    }

    /// A Ping that was planned did not leave.
    pub(crate) fn revert_ping(&mut self, token: u64) {
        self.ping.take_if(|(asked, _)| *asked == token);
    }

    /// The peer answered: it has all that was sent before that Ping.
    pub(crate) fn handle_pong(&mut self, token: u64) {
        if let Some((_, count)) = self.ping.take_if(|(asked, _)| *asked == token) {
            self.forget(count);
        }
    }

    fn forget(&mut self, count: u64) {
        while self.known < count && self.sent.pop_front().is_some() {
            self.known += 1;
        }
    }

    /// The socket is gone, and with it the answer.
    pub(crate) fn handle_lost(&mut self) {
        self.ping = None;
    }

    /// The peer has `received` frames: what it has not goes in front of `waiting`. The bounds of `received` if it
    /// cannot be.
    pub(crate) fn take_back(
        &mut self,
        received: u64,
        waiting: &mut VecDeque<Message>,
    ) -> Result<(), (u64, u64)> {
        let sent = self.known + self.sent.len() as u64;
        if !(self.known..=sent).contains(&received) {
            return Err((self.known, sent));
        }
        self.forget(received);
        while let Some(message) = self.sent.pop_back() {
            waiting.push_front(message);
        }
        Ok(())
    }
}
