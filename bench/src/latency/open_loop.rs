//! Messages at fixed times, whether those before have arrived or not. Each carries the time at which it was due, so that a
//! sender which is late for one does not hide it: what waits at the sender counts like what waits anywhere else.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::transport::{self, Receiver, Sender};
use super::{Options, Transport};
use crate::app::Board;
use crate::clock::now_ns;
use crate::pipeline::spawn_worker;

/// Starts the sender: one message every `every_ns`, to the channels in turn.
pub(super) fn send(options: Options, every_ns: u64, board: &Arc<Board>) -> Result<(), String> {
    let mut senders: Vec<Box<dyn Sender>> = Vec::new();
    match &options.transport {
        Transport::Tcp { port: None } => return Err("a sender over TCP needs a port".to_owned()),
        Transport::Tcp { port: Some(port) } => {
            for _ in 0..options.channels {
                senders.push(Box::new(transport::connect(*port)?));
            }
        }
        Transport::Weir { run_dir, exchange, buffer_timeout_ms } => {
            for sender in transport::producers(run_dir, exchange, *buffer_timeout_ms, options.channels)? {
                senders.push(Box::new(sender));
            }
        }
    }
    start(senders, options.bytes, every_ns, board);
    Ok(())
}

/// Starts a thread that sends a message of `bytes` every `every_ns`, to the senders in turn.
pub fn start(mut senders: Vec<Box<dyn Sender>>, bytes: usize, every_ns: u64, board: &Arc<Board>) {
    spawn_worker("open loop", Arc::clone(board), move |board| {
        // Else the kernel wakes a sleeper up to 50 us late, half of the time between two messages.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).map_err(|error| error.to_string())?;
        let mut message = vec![0_u8; bytes];
        let mut due_ns = now_ns();
        for at in (0..senders.len()).cycle() {
            if board.is_ending() {
                break;
            }
            due_ns += every_ns;
            let early_ns = due_ns.saturating_sub(now_ns());
            if early_ns > 0 {
                std::thread::sleep(Duration::from_nanos(early_ns));
            }
            message[..8].copy_from_slice(&due_ns.to_le_bytes());
            senders[at].send(&message)?;
        }
        Ok(())
    });
}

/// Starts the receiver.
pub(super) fn receive(options: Options, board: &Arc<Board>) -> Result<(), String> {
    match &options.transport {
        Transport::Tcp { .. } => {
            let listener = transport::listen(board)?;
            let of_listener = Arc::clone(board);
            spawn_worker("receiver", Arc::clone(board), move |_| {
                for _ in 0..options.channels {
                    let mut stream = transport::accept(&listener)?;
                    let bytes = options.bytes;
                    spawn_worker("receiver", Arc::clone(&of_listener), move |board| {
                        note(board, &mut stream, bytes)
                    });
                }
                Ok(())
            });
        }
        Transport::Weir { run_dir, exchange, .. } => {
            let mut receiver = transport::consumer(run_dir, exchange, options.channels)?;
            spawn_worker("receiver", Arc::clone(board), move |board| {
                note(board, &mut receiver, options.bytes)
            });
        }
    }
    Ok(())
}

fn note(board: &Board, receiver: &mut dyn Receiver, bytes: usize) -> Result<(), String> {
    let counter = board.counters.first().ok_or("no counter")?;
    let mut message = vec![0_u8; bytes];
    while receiver.receive(&mut message)? {
        let now = now_ns();
        if let Some(due) = message.first_chunk::<8>() {
            board.note_time(now.saturating_sub(u64::from_le_bytes(*due)));
        }
        counter.records.fetch_add(1, Ordering::Relaxed);
        counter.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
    Ok(())
}
