//! Messages of one length, one after the other, over TCP and over Weir.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weir_client::{BufferTimeout, Gate, GateOptions, Item, Partition, PartitionOptions, Strategy, Task};

use crate::app::Board;
use crate::pipeline::attach;

/// Where messages go.
pub trait Sender: Send {
    /// Sends one, without waiting for more of them.
    ///
    /// # Errors
    /// One line: why it cannot.
    fn send(&mut self, message: &[u8]) -> Result<(), String>;
}

/// Where they come from.
pub(super) trait Receiver: Send {
    /// Waits for the next one; whether there is one.
    fn receive(&mut self, message: &mut [u8]) -> Result<bool, String>;
}

impl Sender for TcpStream {
    fn send(&mut self, message: &[u8]) -> Result<(), String> {
        self.write_all(message).map_err(|error| error.to_string())
    }
}

impl Receiver for TcpStream {
    fn receive(&mut self, message: &mut [u8]) -> Result<bool, String> {
        match self.read_exact(message) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
                Ok(false)
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Listens on loopback, and tells the port on the board.
pub(super) fn listen(board: &Board) -> Result<TcpListener, String> {
    let problem = |error: std::io::Error| format!("cannot listen: {error}");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(problem)?;
    let port = listener.local_addr().map_err(problem)?.port();
    board.counters[1].records.store(u64::from(port), Ordering::Relaxed);
    Ok(listener)
}

/// The next connection, which sends each message at once.
pub(super) fn accept(listener: &TcpListener) -> Result<TcpStream, String> {
    let (stream, _) = listener.accept().map_err(|error| format!("cannot accept: {error}"))?;
    at_once(stream)
}

/// A connection to this port, which sends each message at once.
pub(super) fn connect(port: u16) -> Result<TcpStream, String> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
        .map_err(|error| format!("cannot connect: {error}"))?;
    at_once(stream)
}

fn at_once(stream: TcpStream) -> Result<TcpStream, String> {
    stream.set_nodelay(true).map_err(|error| format!("cannot set TCP_NODELAY: {error}"))?;
    Ok(stream)
}

/// One producer. It keeps its task.
pub(super) struct WeirSender {
    partition: Partition,
    _task: Task,
}

impl Sender for WeirSender {
    fn send(&mut self, message: &[u8]) -> Result<(), String> {
        self.partition.emit(message).map_err(|error| error.to_string())
    }
}

/// One gate. It keeps its task.
pub(super) struct WeirReceiver {
    gate: Gate,
    _task: Task,
}

impl Receiver for WeirReceiver {
    fn receive(&mut self, message: &mut [u8]) -> Result<bool, String> {
        loop {
            match self.gate.next().map_err(|error| error.to_string())? {
                None => return Ok(false),
                Some(Item::Event(_)) => {}
                Some(Item::Record(record)) if record.len() == message.len() => {
                    message.copy_from_slice(&record);
                    return Ok(true);
                }
                Some(Item::Record(record)) => {
                    return Err(format!("a message of {} B; needed: {}", record.len(), message.len()));
                }
            }
        }
    }
}

/// So many producers of one exchange with one consumer.
pub(super) fn producers(
    run_dir: &Path,
    exchange: &str,
    buffer_timeout_ms: u64,
    channels: u32,
) -> Result<Vec<WeirSender>, String> {
    let task = attach(run_dir, "latency-sender")?;
    let options = PartitionOptions {
        buffer_timeout: BufferTimeout::from(Duration::from_millis(buffer_timeout_ms)),
        ..PartitionOptions::default()
    };
    let strategy = if channels == 1 { Strategy::Forward } else { Strategy::Rebalance };
    (0..channels)
        .map(|index| {
            let partition = task
                .partition(exchange, index, channels, 1, strategy, options.clone())
                .map_err(|error| format!("cannot make producer {index}/{channels} of {exchange}: {error}"))?;
            Ok(WeirSender { partition, _task: task.clone() })
        })
        .collect()
}

/// The one consumer of an exchange with so many producers.
pub(super) fn consumer(run_dir: &Path, exchange: &str, channels: u32) -> Result<WeirReceiver, String> {
    let task = attach(run_dir, "latency-receiver")?;
    let options = GateOptions { producers: Some(channels), ..GateOptions::default() };
    let gate =
        task.gate(exchange, 0, 1, options).map_err(|error| format!("cannot read {exchange}: {error}"))?;
    Ok(WeirReceiver { gate, _task: task })
}
