//! ZeroMQ: one PUSH socket for all streams, which are written in turn by one thread, connected to one PULL socket over TCP; in
//! an open loop a PUSH socket per stream. One I/O thread at each end, a message per record.

use std::sync::Arc;

use weir_bench::app::Board;
use weir_bench::latency::open_loop;
use weir_bench::latency::transport::Sender;
use weir_bench::peers::{Options, Part};
use weir_bench::pipeline::spawn_worker;
use zmq::{Context, Message, Socket, SocketType};

use crate::byte_stream::{self, counter, tell_port};
use crate::messages::{self, Messages};

/// Bytes that a socket may hold in each direction: its high-water mark is in messages, 1,000 unless told otherwise, which
/// with long records is memory that no cache holds.
const HELD_BYTES: usize = 4 << 20;

fn socket(context: &Context, kind: SocketType, options: &Options) -> Result<Socket, String> {
    let socket = context.socket(kind).map_err(text)?;
    let mark = (HELD_BYTES / options.record_bytes.max(1)).clamp(32, 1000) as i32;
    socket.set_sndhwm(mark).map_err(text)?;
    socket.set_rcvhwm(mark).map_err(text)?;
    Ok(socket)
}

struct Push(Socket);

impl Sender for Push {
    fn send(&mut self, message: &[u8]) -> Result<(), String> {
        self.0.send(message, 0).map_err(text)
    }
}

pub(crate) fn send(options: Options, board: &Arc<Board>) -> Result<(), String> {
    let context = Context::new();
    let address = format!("tcp://{}", byte_stream::address(&options)?);
    let connect = || -> Result<Socket, String> {
        let socket = socket(&context, SocketType::PUSH, &options)?;
        socket.connect(&address).map_err(text)?;
        Ok(socket)
    };
    if let Part::OpenLoop { every_ns } = options.part {
        let mut senders: Vec<Box<dyn Sender>> = Vec::new();
        for _ in 0..options.streams {
            senders.push(Box::new(Push(connect()?)));
        }
        open_loop::start(senders, options.record_bytes, every_ns, board);
        return Ok(());
    }
    let socket = connect()?;
    let mut streams: Vec<_> = (0..options.streams).map(|_| Messages::new(board, &options)).collect();
    spawn_worker("ZeroMQ sender", Arc::clone(board), move |_| {
        // Every stream has as many records: the first that has none is the end of all.
        for at in (0..streams.len()).cycle() {
            let mut message = Message::with_size(options.record_bytes);
            if !streams[at].write(&mut message) {
                break;
            }
            socket.send(message, 0).map_err(text)?;
        }
        Ok(())
    });
    Ok(())
}

pub(crate) fn receive(options: Options, board: &Arc<Board>) -> Result<(), String> {
    let context = Context::new();
    let socket = socket(&context, SocketType::PULL, &options)?;
    socket.bind("tcp://127.0.0.1:*").map_err(text)?;
    let endpoint = socket.get_last_endpoint().map_err(text)?.map_err(|_| "an endpoint that is no text")?;
    let port = endpoint.rsplit(':').next().and_then(|port| port.parse().ok());
    tell_port(board, port.ok_or_else(|| format!("no port in {endpoint}"))?);
    spawn_worker("ZeroMQ receiver", Arc::clone(board), move |board| {
        let counter = counter(board)?;
        let mut message = Message::new();
        loop {
            socket.recv(&mut message, 0).map_err(text)?;
            match options.part {
                Part::NoteTimes => messages::note_time(&message, board, counter),
                _ => messages::take(&message, counter),
            }
        }
    });
    Ok(())
}

fn text(error: impl ToString) -> String {
    error.to_string()
}
