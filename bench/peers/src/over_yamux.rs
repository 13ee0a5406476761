//! yamux: one connection, a yamux stream per stream; 32 KiB per write, frames of up to 64 KiB.

use std::future::poll_fn;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt, TokioAsyncReadCompatExt};
use weir_bench::app::Board;
use weir_bench::peers::{FRAME_BYTES, Options};
use yamux::{Config, Connection, Mode};

use crate::byte_stream::{self, Chunks};

fn connection(stream: TcpStream, mode: Mode) -> Connection<Compat<TcpStream>> {
    let mut config = Config::default();
    config.set_split_send_size(FRAME_BYTES as usize);
    Connection::new(stream.compat(), config, mode)
}

pub(crate) fn send(options: Options, board: &Arc<Board>) -> Result<(), String> {
    byte_stream::expect_bulk(&options)?;
    byte_stream::run(board, move |board| async move {
        let mut connection = connection(byte_stream::connect(&options).await?, Mode::Client);
        let mut tasks = JoinSet::new();
        for _ in 0..options.streams {
            let stream = poll_fn(|context| connection.poll_new_outbound(context)).await.map_err(text)?;
            tasks.spawn(byte_stream::write(stream.compat(), Chunks::new(&board, &options)));
        }
        // What drives the connection; the other end opens no streams, so it ends with the connection.
        let driver = tokio::spawn(async move {
            while let Some(Ok(_)) = poll_fn(|context| connection.poll_next_inbound(context)).await {}
        });
        byte_stream::join(tasks).await?;
        driver.await.map_err(text)
    })
}

pub(crate) fn receive(options: Options, board: &Arc<Board>) -> Result<(), String> {
    byte_stream::expect_bulk(&options)?;
    let listener = byte_stream::listen(board)?;
    byte_stream::run(board, move |board| async move {
        let listener = tokio::net::TcpListener::from_std(listener).map_err(text)?;
        let mut connection = connection(byte_stream::accept(&listener).await?, Mode::Server);
        let mut tasks = JoinSet::new();
        while let Some(stream) = poll_fn(|context| connection.poll_next_inbound(context)).await {
            tasks.spawn(byte_stream::read(stream.map_err(text)?.compat(), Arc::clone(&board)));
        }
        byte_stream::join(tasks).await
    })
}

fn text(error: impl ToString) -> String {
    error.to_string()
}
