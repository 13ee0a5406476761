//! QUIC by quinn: one connection, a stream per stream, always encrypted; 32 KiB per write.

use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::sync::Arc;

use quinn::{Connection, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, TransportConfig};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::task::JoinSet;
use weir_bench::app::Board;
use weir_bench::peers::Options;

use crate::byte_stream::{self, Chunks};
use crate::records::Sink;

/// Bytes that are taken out of a stream at once.
const READ_BYTES: usize = 64 * 1024;

/// The file by which the sender knows the receiver.
const CERTIFICATE: &str = "certificate.der";

pub(crate) fn send(options: Options, board: &Arc<Board>) -> Result<(), String> {
    byte_stream::expect_bulk(&options)?;
    byte_stream::run(board, move |board| async move {
        let certificate = std::fs::read(options.directory.join(CERTIFICATE)).map_err(text)?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(certificate)).map_err(text)?;
        let config = quinn::ClientConfig::with_root_certificates(Arc::new(roots)).map_err(text)?;
        let mut endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).map_err(text)?;
        endpoint.set_default_client_config(config);
        let connecting = endpoint.connect(byte_stream::address(&options)?, "localhost").map_err(text)?;
        let connection = connecting.await.map_err(text)?;
        let mut tasks = JoinSet::new();
        for _ in 0..options.streams {
            tasks.spawn(write(connection.clone(), Chunks::new(&board, &options)));
        }
        byte_stream::join(tasks).await?;
        // The receiver closes it when it has read everything.
        connection.closed().await;
        Ok(())
    })
}

async fn write(connection: Connection, mut chunks: Chunks) -> Result<(), String> {
    let mut stream = connection.open_uni().await.map_err(text)?;
    while let Some(chunk) = chunks.next_owned() {
        stream.write_chunk(chunk).await.map_err(text)?;
    }
    stream.finish().map_err(text)
}

pub(crate) fn receive(options: Options, board: &Arc<Board>) -> Result<(), String> {
    byte_stream::expect_bulk(&options)?;
    let mut config = server_config(&options.directory)?;
    let mut transport = TransportConfig::default();
    transport.max_concurrent_uni_streams(options.streams.into());
    config.transport_config(Arc::new(transport));
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(text)?;
    byte_stream::tell_port(board, socket.local_addr().map_err(text)?.port());
    byte_stream::run(board, move |board| async move {
        let endpoint = Endpoint::new(EndpointConfig::default(), Some(config), socket, Arc::new(TokioRuntime));
        let endpoint = endpoint.map_err(text)?;
        let incoming = endpoint.accept().await.ok_or("the endpoint was closed")?;
        let connection = incoming.await.map_err(text)?;
        let mut tasks = JoinSet::new();
        for _ in 0..options.streams {
            let stream = connection.accept_uni().await.map_err(text)?;
            tasks.spawn(read(stream, Arc::clone(&board)));
        }
        byte_stream::join(tasks).await?;
        connection.close(0_u32.into(), b"all read");
        endpoint.wait_idle().await;
        Ok(())
    })
}

/// A certificate of its own, which is left where the sender finds it.
fn server_config(directory: &Path) -> Result<ServerConfig, String> {
    let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).map_err(text)?;
    let certificate = own.cert.der().clone();
    std::fs::write(directory.join(CERTIFICATE), &certificate).map_err(text)?;
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der())?;
    ServerConfig::with_single_cert(vec![certificate], key).map_err(text)
}

async fn read(mut stream: quinn::RecvStream, board: Arc<Board>) -> Result<(), String> {
    let (counter, mut sink) = (byte_stream::counter(&board)?, Sink::default());
    while let Some(chunk) = stream.read_chunk(READ_BYTES, true).await.map_err(text)? {
        sink.take(&chunk.bytes, counter);
    }
    Ok(())
}

fn text(error: impl ToString) -> String {
    error.to_string()
}
