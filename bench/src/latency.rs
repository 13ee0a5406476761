//! How long messages are on their way: over Weir, and over what one would use in its place, with the same loops at both ends.
//!
//! `transport` is one message after the other over either; `ping` sends one there and back again; `open_loop` sends at
//! fixed times, whether what was sent before has arrived or not.

pub mod open_loop;
mod ping;
pub mod transport;

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::app::Board;

/// What carries messages of this process, and to where.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Transport {
    /// One TCP connection per channel, over loopback. The receiving end listens and prints its port as a record count.
    Tcp {
        /// Port of the receiving end; `None`: this is the receiving end.
        port: Option<u16>,
    },
    /// One producer per channel, all to one gate.
    Weir {
        /// Run directory of the daemon to attach to.
        run_dir: PathBuf,
        /// Name of the exchange; ping-pong has another one for the way back.
        exchange: String,
        /// How long a message may wait for others to be sent with it, in milliseconds; 0: each at once.
        buffer_timeout_ms: u64,
    },
}

/// What a process of a delay measurement does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Options {
    /// What carries its messages.
    pub transport: Transport,
    /// Length of a message, in bytes; at least 8.
    pub bytes: usize,
    /// Over so many channels in turn. Ping-pong has one.
    pub channels: u32,
    /// Its part.
    pub part: Part,
}

/// The part of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// Sends a message, waits until it is back, notes how long that took, and so on.
    Ping,
    /// Sends back what comes.
    Echo,
    /// Sends messages at fixed times.
    OpenLoop {
        /// Time between two messages, in nanoseconds.
        every_ns: u64,
    },
    /// Notes how long after its time each of them came.
    Receive,
    /// Both ends of two eventfds, in two threads: notes how long it takes to wake the other and to be woken. It has no
    /// transport.
    Wake,
}

/// Starts the part. The port at which it listens, if it does, stands as the record count of worker 1.
pub(crate) fn serve(options: Options) -> Result<Arc<Board>, String> {
    let board = Board::new(2);
    match options.part {
        Part::Ping => ping::ping(&options, &board)?,
        Part::Echo => ping::echo(options, &board)?,
        Part::OpenLoop { every_ns } => open_loop::send(options, every_ns, &board)?,
        Part::Receive => open_loop::receive(options, &board)?,
        Part::Wake => ping::wake(&board)?,
    }
    Ok(board)
}
