//! Whether the node and all its shards go on: what a service manager's watchdog is fed by.
//!
//! Every shard is asked once a second what it has done, and an answer is given at the beginning of a turn, so that one
//! that comes stands for a loop that turns. That the node itself goes on is shown by its answer to the question.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::{LOAD_INTERVAL, Node};
use crate::control::snapshot::SHARD_ANSWER_TIMEOUT;

/// A shard that has not answered for so long does not go on.
pub(crate) const SILENCE_MAX: Duration = LOAD_INTERVAL.saturating_add(SHARD_ANSWER_TIMEOUT);

/// How the node is at one moment, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Shards that have not answered for some seconds, or never.
    pub silent: Vec<u16>,
    /// One line for people.
    pub line: String,
}

impl Node {
    pub(super) fn handle_beat(&self, reply: oneshot::Sender<Beat>) {
        let (linked, missing) = self.peers.linked_and_missing();
        let drains = if self.drain.is_some() { "draining; " } else { "" };
        let line = format!(
            "{drains}node {}, {} of {} peers linked, {} clients{}",
            self.options.node,
            linked.len(),
            linked.len() + missing.len(),
            self.attachments.attached().count(),
            self.configuration.note()
        );
        // The asker may have given up.
        let _ = reply.send(Beat { silent: self.load.silent(Instant::now(), SILENCE_MAX), line });
    }
}
