//! TCP by tokio: a connection per stream, 32 KiB per write, 64 KiB per read.

use std::sync::Arc;

use tokio::task::JoinSet;
use weir_bench::app::Board;
use weir_bench::peers::Options;

use crate::byte_stream::{self, Chunks};

pub(crate) fn send(options: Options, board: &Arc<Board>) -> Result<(), String> {
    byte_stream::expect_bulk(&options)?;
    byte_stream::run(board, move |board| async move {
        let mut tasks = JoinSet::new();
        for _ in 0..options.streams {
            let stream = byte_stream::connect(&options).await?;
            tasks.spawn(byte_stream::write(stream, Chunks::new(&board, &options)));
        }
        byte_stream::join(tasks).await
    })
}

pub(crate) fn receive(options: Options, board: &Arc<Board>) -> Result<(), String> {
    byte_stream::expect_bulk(&options)?;
    let listener = byte_stream::listen(board)?;
    byte_stream::run(board, move |board| async move {
        let listener = tokio::net::TcpListener::from_std(listener).map_err(|error| error.to_string())?;
        let mut tasks = JoinSet::new();
        for _ in 0..options.streams {
            let stream = byte_stream::accept(&listener).await?;
            tasks.spawn(byte_stream::read(stream, Arc::clone(&board)));
        }
        byte_stream::join(tasks).await
    })
}
