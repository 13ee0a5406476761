//! There and back again: the time that one message needs for it, while nothing else is under way.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;

use super::transport::{self, Receiver, Sender, WeirReceiver, WeirSender};
use super::{Options, Transport};
use crate::app::Board;
use crate::clock::now_ns;
use crate::pipeline::spawn_worker;

/// Both directions of one transport.
struct Both {
    sender: Box<dyn Sender>,
    receiver: Box<dyn Receiver>,
}

impl Both {
    fn over_tcp(stream: TcpStream) -> Result<Self, String> {
        let sender = stream.try_clone().map_err(|error| error.to_string())?;
        Ok(Self { sender: Box::new(sender), receiver: Box::new(stream) })
    }

    fn over_weir((sender, receiver): (WeirSender, WeirReceiver)) -> Self {
        Self { sender: Box::new(sender), receiver: Box::new(receiver) }
    }
}

/// Starts the end that asks.
pub(super) fn ping(options: &Options, board: &Arc<Board>) -> Result<(), String> {
    let mut both = match &options.transport {
        Transport::Tcp { port: None } => return Err("a ping over TCP needs a port".to_owned()),
        Transport::Tcp { port: Some(port) } => Both::over_tcp(transport::connect(*port)?)?,
        Transport::Weir { .. } => Both::over_weir(weir_ends(options, "there", "back")?),
    };
    let mut message = vec![0_u8; options.bytes];
    spawn_worker("ping", Arc::clone(board), move |board| {
        let counter = board.counters.first().ok_or("no counter")?;
        let mut number = 0_u64;
        while !board.is_ending() {
            number += 1;
            message[..8].copy_from_slice(&number.to_le_bytes());
            let began = now_ns();
            both.sender.send(&message)?;
            if !both.receiver.receive(&mut message)? {
                return Err("the echo has ended".to_owned());
            }
            board.note_time(now_ns() - began);
            if message[..8] != number.to_le_bytes() {
                return Err(format!("message {number} came back as another one"));
            }
            counter.records.store(number, Ordering::Relaxed);
        }
        Ok(())
    });
    Ok(())
}

/// Starts the end that answers.
pub(super) fn echo(options: Options, board: &Arc<Board>) -> Result<(), String> {
    let listener = match options.transport {
        Transport::Tcp { .. } => Some(transport::listen(board)?),
        Transport::Weir { .. } => None,
    };
    spawn_worker("echo", Arc::clone(board), move |_| {
        let mut both = match listener {
            Some(listener) => Both::over_tcp(transport::accept(&listener)?)?,
            None => Both::over_weir(weir_ends(&options, "back", "there")?),
        };
        let mut message = vec![0_u8; options.bytes];
        while both.receiver.receive(&mut message)? {
            both.sender.send(&message)?;
        }
        Ok(())
    });
    Ok(())
}

/// A producer and a consumer of this process. Consumers wait for their producers, so the producer comes first.
fn weir_ends(options: &Options, to: &str, from: &str) -> Result<(WeirSender, WeirReceiver), String> {
    let Transport::Weir { run_dir, exchange, buffer_timeout_ms } = &options.transport else {
        return Err("not over Weir".to_owned());
    };
    let producers = transport::producers(run_dir, &format!("{exchange}-{to}"), *buffer_timeout_ms, 1)?;
    let producer = producers.into_iter().next().ok_or("no producer")?;
    Ok((producer, transport::consumer(run_dir, &format!("{exchange}-{from}"), 1)?))
}

/// Starts two threads that wake each other by eventfds in turn: what waking alone costs, there and back.
pub(super) fn wake(board: &Arc<Board>) -> Result<(), String> {
    let make = || eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| format!("no eventfd: {error}"));
    let fds = Arc::new([make()?, make()?]);
    let of_other = Arc::clone(&fds);
    spawn_worker("woken", Arc::clone(board), move |board| {
        while !board.is_ending() {
            wait(&of_other[0])?;
            signal(&of_other[1])?;
        }
        Ok(())
    });
    spawn_worker("waker", Arc::clone(board), move |board| {
        while !board.is_ending() {
            let began = now_ns();
            signal(&fds[0])?;
            wait(&fds[1])?;
            board.note_time(now_ns() - began);
        }
        Ok(())
    });
    Ok(())
}

fn signal(fd: &OwnedFd) -> Result<(), String> {
    rustix::io::write(fd, &1_u64.to_ne_bytes()).map(drop).map_err(|error| error.to_string())
}

fn wait(fd: &OwnedFd) -> Result<(), String> {
    rustix::io::read(fd, &mut [0; 8]).map(drop).map_err(|error| error.to_string())
}
