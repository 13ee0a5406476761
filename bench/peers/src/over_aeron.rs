//! Aeron over UDP, by its C media driver and client: a media driver at each end, as there is a daemon at each end of Weir, in the
//! process that it serves and with one thread; an exclusive publication per stream, written in turn by one thread, where a record
//! is written straight into the log; and one thread that polls all subscriptions in turn.

use std::ffi::CString;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rusteron_client::{
    Aeron, AeronBufferClaim, AeronContext, AeronExclusivePublication, AeronFragmentHandlerCallback,
    AeronHeader, AeronSubscription, BackoffIdleStrategy, Handler, Handlers, IdleStrategy,
};
use rusteron_media_driver::bindings::aeron_threading_mode_enum;
use rusteron_media_driver::{AeronDriver, AeronDriverContext};
use weir_bench::app::Board;
use weir_bench::peers::{Options, Part};
use weir_bench::pipeline::spawn_worker;

use crate::byte_stream::{counter, tell_port};
use crate::messages::{self, Messages};

/// Longest datagram, in bytes: as long as loopback takes, so that a record of 32 KiB is one.
const DATAGRAM_BYTES: usize = 65_504;

/// Bytes of each of the three parts of a stream's log, at each end. A message may have an eighth of it.
const TERM_BYTES: usize = 1 << 20;

/// Bytes of a socket's buffers: as many as Linux allows unless told otherwise.
const SOCKET_BYTES: usize = 208 << 10;

/// The first stream's number.
const FIRST_STREAM: i32 = 1001;

/// Messages that are taken of a stream at a time.
const FRAGMENTS: usize = 64;

/// Longest wait for a media driver's answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Starts a media driver, which runs as long as the process does, and connects to it. What is asked of it is answered tens of
/// milliseconds later: streams are all asked for before the first answer is waited for.
/// The logs are there and touched before anything moves, as the segments of Weir are: else their first round, some 200 MB at
/// each end, would be one of page faults.
fn connect(directory: &Path) -> Result<Aeron, String> {
    let path = directory.to_str().ok_or("a directory whose name is no text")?;
    let named = CString::new(path).map_err(text)?;
    let context = AeronDriverContext::new().map_err(text)?;
    context.set_dir(&named).map_err(text)?;
    context.set_dir_delete_on_start(true).map_err(text)?;
    let shared = aeron_threading_mode_enum::AERON_THREADING_MODE_SHARED;
    context.set_threading_mode(shared).map_err(text)?;
    context.set_term_buffer_length(TERM_BYTES).map_err(text)?;
    context.set_term_buffer_sparse_file(false).map_err(text)?;
    context.set_mtu_length(DATAGRAM_BYTES).map_err(text)?;
    context.set_socket_so_sndbuf(SOCKET_BYTES).map_err(text)?;
    context.set_socket_so_rcvbuf(SOCKET_BYTES).map_err(text)?;
    // What was sent last is on the way when its sender has ended.
    std::mem::forget(AeronDriver::launch_embedded_guard(context, false));
    let context = AeronContext::new().map_err(text)?;
    context.set_dir(&named).map_err(text)?;
    context.set_pre_touch_mapped_memory(true).map_err(text)?;
    let aeron = Aeron::new(&context).map_err(text)?;
    aeron.start().map_err(text)?;
    Ok(aeron)
}

/// The directory of one end.
fn directory(options: &Options, end: &str) -> PathBuf {
    options.directory.join(format!("aeron-{end}"))
}

fn channel(port: u16) -> Result<CString, String> {
    CString::new(format!("aeron:udp?endpoint=127.0.0.1:{port}")).map_err(text)
}

fn streams(options: &Options) -> impl Iterator<Item = i32> {
    (FIRST_STREAM..).take(options.streams as usize)
}

/// One stream of a sender.
struct Stream {
    publication: AeronExclusivePublication,
    records: Messages,
    claim: AeronBufferClaim,
    /// A record that is too long for a datagram, and waits for room.
    waiting: Option<Vec<u8>>,
    is_over: bool,
}

impl Stream {
    /// Sends the next record, if there is one and room for it; whether it did.
    fn send(&mut self, record_bytes: usize, is_long: bool) -> Result<bool, String> {
        if self.is_over {
            return Ok(false);
        }
        if is_long {
            return self.offer(record_bytes);
        }
        if !self.has_room(self.publication.try_claim(record_bytes, &self.claim))? {
            return Ok(false);
        }
        self.is_over = !self.records.write(self.claim.data_mut());
        let ended = if self.is_over { self.claim.abort() } else { self.claim.commit() };
        ended.map_err(text)?;
        Ok(!self.is_over)
    }

    fn offer(&mut self, record_bytes: usize) -> Result<bool, String> {
        let mut record = self.waiting.take().unwrap_or_default();
        if record.is_empty() {
            record.resize(record_bytes, 0);
            self.is_over = !self.records.write(&mut record);
            if self.is_over {
                return Ok(false);
            }
        }
        let has_room = self.has_room(self.publication.offer(&record))?;
        self.waiting = (!has_room).then_some(record);
        Ok(has_room)
    }

    fn has_room<T>(&self, outcome: Result<T, rusteron_client::AeronOfferError>) -> Result<bool, String> {
        use rusteron_client::AeronOfferError::NotConnected;
        match outcome {
            Ok(_) => Ok(true),
            // The receiver is there before the sender, and its answer is on the way.
            Err(error) if error.is_retryable() || error == NotConnected => Ok(false),
            Err(error) => Err(text(error)),
        }
    }
}

pub(crate) fn send(options: Options, board: &Arc<Board>) -> Result<(), String> {
    let port = options.port.ok_or("no port")?;
    if !matches!(options.part, Part::Send) {
        return Err("Aeron has no such part".to_owned());
    }
    let of_streams = Arc::clone(board);
    spawn_worker("Aeron sender", Arc::clone(board), move |board| {
        // Of this thread alone.
        let aeron = connect(&directory(&options, "send"))?;
        let to = channel(port)?;
        let asked = streams(&options).map(|stream| aeron.async_add_exclusive_publication(&to, stream));
        let asked = asked.collect::<Result<Vec<_>, _>>().map_err(text)?;
        let mut senders = Vec::new();
        for asked in asked {
            senders.push(Stream {
                publication: asked.poll_blocking(PATIENCE).map_err(text)?,
                records: Messages::new(&of_streams, &options),
                claim: AeronBufferClaim::default(),
                waiting: None,
                is_over: false,
            });
        }
        let bytes = options.record_bytes;
        let Some(first) = senders.first() else { return Ok(()) };
        let is_long = bytes > first.publication.max_payload_length().map_err(text)?;
        let mut idle = BackoffIdleStrategy::new();
        while !board.is_ending() && senders.iter().any(|sender| !sender.is_over) {
            let mut sent = 0;
            for sender in &mut senders {
                sent += i32::from(sender.send(bytes, is_long)?);
            }
            idle.idle(sent);
        }
        // What is on the way is sent again if it was lost.
        while !board.is_ending() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    });
    Ok(())
}

/// Takes records, put together again where they were too long for a datagram.
struct Taken {
    board: Arc<Board>,
}

impl AeronFragmentHandlerCallback for Taken {
    fn handle_aeron_fragment_handler(&mut self, message: &[u8], _header: AeronHeader) {
        if let Ok(counter) = counter(&self.board) {
            messages::take(message, counter);
        }
    }
}

pub(crate) fn receive(options: Options, board: &Arc<Board>) -> Result<(), String> {
    if !matches!(options.part, Part::Receive) {
        return Err("Aeron has no such part".to_owned());
    }
    // What an earlier run left, which is over.
    for end in ["send", "receive"] {
        let _ = std::fs::remove_dir_all(directory(&options, end));
    }
    let (ready, is_ready) = mpsc::channel();
    let taken = Arc::clone(board);
    spawn_worker("Aeron receiver", Arc::clone(board), move |board| {
        let subscriptions = match subscribe(&options) {
            Ok((port, subscriptions)) => {
                tell_port(board, port);
                subscriptions
            }
            Err(problem) => {
                let _ = ready.send(Err(problem.clone()));
                return Err(problem);
            }
        };
        let _ = ready.send(Ok(()));
        let assembled = Handler::with_fragment_assembler(Taken { board: taken }).map_err(text)?;
        let mut idle = BackoffIdleStrategy::new();
        while !board.is_ending() {
            let mut fragments = 0;
            for subscription in &subscriptions {
                fragments += subscription.poll(Some(&assembled.0), FRAGMENTS).map_err(text)?;
            }
            idle.idle(fragments);
        }
        Ok(())
    });
    is_ready.recv().map_err(|_| "the receiver ended before it was ready".to_owned())?
}

/// The port, and a subscription of every stream.
fn subscribe(options: &Options) -> Result<(u16, Vec<AeronSubscription>), String> {
    let aeron = connect(&directory(options, "receive"))?;
    // The media driver opens it itself: one that is free now.
    let free = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    let port = free.map_err(text)?.port();
    let on = channel(port)?;
    let asked = streams(options)
        .map(|stream| aeron.async_add_subscription(&on, stream, Handlers::NONE, Handlers::NONE))
        .collect::<Result<Vec<_>, _>>()
        .map_err(text)?;
    let subscriptions = asked.into_iter().map(|asked| asked.poll_blocking(PATIENCE).map_err(text));
    Ok((port, subscriptions.collect::<Result<Vec<_>, _>>()?))
}

fn text(error: impl ToString) -> String {
    error.to_string()
}
