//! gRPC by tonic: one connection, a client-streaming call per stream, a message per record. Messages are bytes as they are,
//! without protobuf around them.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes};
use futures::Stream;
use futures::future::BoxFuture;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{ClientStreamingService, NamedService};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};
use weir_bench::app::Board;
use weir_bench::latency::open_loop;
use weir_bench::latency::transport::Sender;
use weir_bench::peers::{CONNECTION_WINDOW_BYTES, FRAME_BYTES, Options, Part, STREAM_WINDOW_BYTES};

use crate::byte_stream;
use crate::messages::{self, Messages};

/// Messages are what they are.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// What an open loop sends goes to the thread of the connection.
struct Queue(mpsc::UnboundedSender<Bytes>);

impl Sender for Queue {
    fn send(&mut self, message: &[u8]) -> Result<(), String> {
        self.0.send(Bytes::copy_from_slice(message)).map_err(|_| "the call has ended".to_owned())
    }
}

pub(crate) fn send(options: Options, board: &Arc<Board>) -> Result<(), String> {
    let address = byte_stream::address(&options)?;
    byte_stream::run(board, move |board| async move {
        let channel = Endpoint::from_shared(format!("http://{address}"))
            .map_err(text)?
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .tcp_nodelay(true)
            .connect()
            .await
            .map_err(text)?;
        let mut tasks = JoinSet::new();
        if let Part::OpenLoop { every_ns } = options.part {
            let mut senders: Vec<Box<dyn Sender>> = Vec::new();
            for _ in 0..options.streams {
                let (sender, receiver) = mpsc::unbounded_channel();
                senders.push(Box::new(Queue(sender)));
                tasks.spawn(call(channel.clone(), UnboundedReceiverStream::new(receiver)));
            }
            open_loop::start(senders, options.record_bytes, every_ns, &board);
        } else {
            for _ in 0..options.streams {
                let messages = futures::stream::iter(Messages::new(&board, &options));
                tasks.spawn(call(channel.clone(), messages));
            }
        }
        byte_stream::join(tasks).await
    })
}

async fn call(channel: Channel, messages: impl Stream<Item = Bytes> + Send + 'static) -> Result<(), String> {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(text)?;
    let path = http::uri::PathAndQuery::from_static("/weir.Peer/Send");
    let answer: Result<Response<Bytes>, Status> =
        client.client_streaming(Request::new(messages), path, Raw).await;
    answer.map(drop).map_err(text)
}

pub(crate) fn receive(options: Options, board: &Arc<Board>) -> Result<(), String> {
    let listener = byte_stream::listen(board)?;
    byte_stream::run(board, move |board| async move {
        let listener = tokio::net::TcpListener::from_std(listener).map_err(text)?;
        Server::builder()
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES)
            .max_concurrent_streams(options.streams)
            .tcp_nodelay(true)
            .add_service(Service { board, notes_times: options.part == Part::NoteTimes })
            .serve_with_incoming(TcpListenerStream::new(listener))
            .await
            .map_err(text)
    })
}

/// The server's side of every call.
#[derive(Clone)]
struct Service {
    board: Arc<Board>,
    notes_times: bool,
}

impl NamedService for Service {
    const NAME: &'static str = "weir.Peer";
}

impl tower_service::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(tonic::server::Grpc::new(Raw).client_streaming(service, request).await) })
    }
}

impl ClientStreamingService<Bytes> for Service {
    type Response = Bytes;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Bytes>, Status>> + Send>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let Self { board, notes_times } = self.clone();
        Box::pin(async move {
            let counter = byte_stream::counter(&board).map_err(Status::internal)?;
            let mut messages = request.into_inner();
            while let Some(message) = messages.message().await? {
                if notes_times {
                    messages::note_time(&message, &board, counter);
                } else {
                    messages::take(&message, counter);
                }
            }
            Ok(Response::new(Bytes::new()))
        })
    }
}

fn text(error: impl ToString) -> String {
    error.to_string()
}
