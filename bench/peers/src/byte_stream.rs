//! What the libraries that run on tokio have in common: one thread with a runtime of its own, and streams of bytes in which
//! records lie behind their lengths.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use weir_bench::app::{Board, Counter};
use weir_bench::peers::{Options, Part};
use weir_bench::pipeline::spawn_worker;

use crate::records::{Sink, Source};

/// Bytes of one read.
const READ_BYTES: usize = 64 * 1024;

/// Runs `work` on a thread of its own.
pub(crate) fn run<F>(
    board: &Arc<Board>,
    work: impl FnOnce(Arc<Board>) -> F + Send + 'static,
) -> Result<(), String>
where
    F: Future<Output = Result<(), String>>,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("no runtime: {error}"))?;
    let of_work = Arc::clone(board);
    spawn_worker("peer", Arc::clone(board), move |_| runtime.block_on(work(of_work)));
    Ok(())
}

/// The counter of everything that a process moves.
pub(crate) fn counter(board: &Board) -> Result<&Counter, String> {
    board.counters.first().ok_or_else(|| "no counter".to_owned())
}

/// Tells the port of a receiver on the board.
pub(crate) fn tell_port(board: &Board, port: u16) {
    if let Some(counter) = board.counters.get(1) {
        counter.records.store(u64::from(port), Ordering::Relaxed);
    }
}

/// Listens on loopback and tells the port.
pub(crate) fn listen(board: &Board) -> Result<TcpListener, String> {
    let problem = |error: std::io::Error| format!("cannot listen: {error}");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(problem)?;
    listener.set_nonblocking(true).map_err(problem)?;
    tell_port(board, listener.local_addr().map_err(problem)?.port());
    Ok(listener)
}

/// The next connection.
pub(crate) async fn accept(listener: &tokio::net::TcpListener) -> Result<TcpStream, String> {
    let (stream, _) = listener.accept().await.map_err(|error| format!("cannot accept: {error}"))?;
    at_once(stream)
}

/// Where the receiver is.
pub(crate) fn address(options: &Options) -> Result<SocketAddr, String> {
    let port = options.port.ok_or("a sender needs the port of its receiver")?;
    Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

/// A connection to the receiver.
pub(crate) async fn connect(options: &Options) -> Result<TcpStream, String> {
    let stream =
        TcpStream::connect(address(options)?).await.map_err(|error| format!("cannot connect: {error}"))?;
    at_once(stream)
}

fn at_once(stream: TcpStream) -> Result<TcpStream, String> {
    stream.set_nodelay(true).map_err(|error| format!("cannot set TCP_NODELAY: {error}"))?;
    Ok(stream)
}

/// Only throughput is measured over this library.
pub(crate) fn expect_bulk(options: &Options) -> Result<(), String> {
    match options.part {
        Part::Send | Part::Receive => Ok(()),
        Part::OpenLoop { .. } | Part::NoteTimes => Err(format!("{} has no open loop", options.peer.name())),
    }
}

/// The chunks of one stream, until it has had all its records or the process is to end.
pub(crate) struct Chunks {
    board: Arc<Board>,
    source: Source,
    chunk: Vec<u8>,
}

impl Chunks {
    pub(crate) fn new(board: &Arc<Board>, options: &Options) -> Self {
        let source = Source::new(options.record_bytes, options.records_per_stream);
        Self { board: Arc::clone(board), source, chunk: Vec::new() }
    }

    /// The next one, in memory that is used again.
    pub(crate) fn next(&mut self) -> Option<&[u8]> {
        if self.board.is_ending() {
            return None;
        }
        self.source.chunk(&mut self.chunk);
        Some(&self.chunk[..]).filter(|chunk| !chunk.is_empty())
    }

    /// The next one, for a library that keeps what it is given.
    pub(crate) fn next_owned(&mut self) -> Option<Bytes> {
        self.next()?;
        Some(Bytes::from(std::mem::take(&mut self.chunk)))
    }
}

/// Writes chunks until there are none, and closes the stream.
pub(crate) async fn write(mut stream: impl AsyncWrite + Unpin, mut chunks: Chunks) -> Result<(), String> {
    while let Some(chunk) = chunks.next() {
        stream.write_all(chunk).await.map_err(|error| format!("cannot write: {error}"))?;
    }
    stream.shutdown().await.map_err(|error| format!("cannot close: {error}"))
}

/// Reads a stream to its end.
pub(crate) async fn read(mut stream: impl AsyncRead + Unpin, board: Arc<Board>) -> Result<(), String> {
    let (counter, mut sink) = (counter(&board)?, Sink::default());
    let mut buffer = vec![0_u8; READ_BYTES];
    loop {
        match stream.read(&mut buffer).await.map_err(|error| format!("cannot read: {error}"))? {
            0 => return Ok(()),
            read => sink.take(&buffer[..read], counter),
        }
    }
}

/// Waits for all tasks; the first failure is that of all.
pub(crate) async fn join(mut tasks: JoinSet<Result<(), String>>) -> Result<(), String> {
    while let Some(outcome) = tasks.join_next().await {
        outcome.map_err(|error| format!("a task failed: {error}"))??;
    }
    Ok(())
}
