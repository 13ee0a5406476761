//! HTTP/2 by h2: one connection, a request per stream, whose body is the records; 32 KiB per frame.

use std::future::poll_fn;
use std::sync::Arc;

use h2::{RecvStream, SendStream};
use tokio::task::JoinSet;
use weir_bench::app::Board;
use weir_bench::peers::{CONNECTION_WINDOW_BYTES, FRAME_BYTES, Options, STREAM_WINDOW_BYTES};

use crate::byte_stream::{self, Chunks};
use crate::records::Sink;

pub(crate) fn send(options: Options, board: &Arc<Board>) -> Result<(), String> {
    byte_stream::expect_bulk(&options)?;
    byte_stream::run(board, move |board| async move {
        let stream = byte_stream::connect(&options).await?;
        let (mut requests, connection) = h2::client::Builder::new()
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES)
            .handshake(stream)
            .await
            .map_err(text)?;
        let connection = tokio::spawn(connection);
        let mut tasks = JoinSet::new();
        for _ in 0..options.streams {
            requests = requests.ready().await.map_err(text)?;
            let request = http::Request::post("http://localhost/").body(()).map_err(text)?;
            let (response, body) = requests.send_request(request, false).map_err(text)?;
            let chunks = Chunks::new(&board, &options);
            tasks.spawn(async move {
                write(body, chunks).await?;
                // It is answered when all of it was read.
                response.await.map(drop).map_err(text)
            });
        }
        byte_stream::join(tasks).await?;
        drop(requests);
        connection.await.map_err(text)?.map_err(text)
    })
}

async fn write(mut body: SendStream<bytes::Bytes>, mut chunks: Chunks) -> Result<(), String> {
    while let Some(chunk) = chunks.next_owned() {
        body.reserve_capacity(chunk.len());
        while body.capacity() < chunk.len() {
            match poll_fn(|context| body.poll_capacity(context)).await {
                Some(outcome) => outcome.map(drop).map_err(text)?,
                None => return Err("the stream was closed".to_owned()),
            }
        }
        body.send_data(chunk, false).map_err(text)?;
    }
    body.send_data(bytes::Bytes::new(), true).map_err(text)
}

pub(crate) fn receive(options: Options, board: &Arc<Board>) -> Result<(), String> {
    byte_stream::expect_bulk(&options)?;
    let listener = byte_stream::listen(board)?;
    byte_stream::run(board, move |board| async move {
        let listener = tokio::net::TcpListener::from_std(listener).map_err(text)?;
        let mut connection = h2::server::Builder::new()
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES)
            .max_concurrent_streams(options.streams)
            .handshake::<_, bytes::Bytes>(byte_stream::accept(&listener).await?)
            .await
            .map_err(text)?;
        let mut tasks = JoinSet::new();
        while let Some(request) = connection.accept().await {
            let (request, mut respond) = request.map_err(text)?;
            let board = Arc::clone(&board);
            tasks.spawn(async move {
                read(request.into_body(), &board).await?;
                respond.send_response(http::Response::new(()), true).map(drop).map_err(text)
            });
        }
        byte_stream::join(tasks).await
    })
}

async fn read(mut body: RecvStream, board: &Board) -> Result<(), String> {
    let (counter, mut sink) = (byte_stream::counter(board)?, Sink::default());
    while let Some(data) = body.data().await {
        let data = data.map_err(text)?;
        sink.take(&data, counter);
        body.flow_control().release_capacity(data.len()).map_err(text)?;
    }
    Ok(())
}

fn text(error: impl ToString) -> String {
    error.to_string()
}
