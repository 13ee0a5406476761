//! Metrics on an address of their own, for a Prometheus that is elsewhere. Nothing else is answered there, and who asks can
//! change nothing.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::routes;
use super::snapshot::SnapshotSource;
use crate::exit::{Exit, Problem};
use crate::link::listen;
use crate::observe::metrics::Exporter;

/// Most connections at a time. Whoever comes then waits until one has ended, which takes [`CONNECTION_TIMEOUT`] at most.
const CONNECTIONS_MAX: usize = 16;

/// Longest life of a connection: it carries one request.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time that a client takes for the head of its request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);

/// Pause after a connection could not be accepted, as when there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An address, listened on for who scrapes metrics.
#[derive(Debug)]
pub struct ScrapeServer {
    listener: TcpListener,
}

impl ScrapeServer {
    /// Listens on `address`. Must be called inside a tokio runtime with I/O.
    ///
    /// # Errors
    /// The address is not one of this machine, is taken, or may not be listened on.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(address).await? })
    }

    /// Goes on with the socket of an earlier daemon. Must be called inside a tokio runtime with I/O.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn resume(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { listener: listen::resume(socket)? })
    }

    /// Its socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until dropped, or until there are no answers any more.
    pub async fn serve<S: SnapshotSource>(self, source: S, exporter: Arc<Exporter>) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut connections = tokio::task::JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            // Closed only when this ends.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = source.ended() => return,
            };
            match accepted {
                Ok((stream, _)) => {
                    let answering = (source.clone(), Arc::clone(&exporter));
                    connections.spawn(async move {
                        serve_connection(stream, answering).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "connection for metrics not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

async fn serve_connection<S: SnapshotSource>(stream: TcpStream, answering: (S, Arc<Exporter>)) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (source, exporter) = answering.clone();
        async move { Ok::<_, Infallible>(answer(&request, &source, &exporter).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // A client that left, was slow or sent nonsense is no concern of the daemon's.
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
}

async fn answer<S: SnapshotSource>(
    request: &Request<Incoming>,
    source: &S,
    exporter: &Arc<Exporter>,
) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    if path != "/metrics" {
        let problem = Problem::new(Exit::Failed, "no such path").found(path).needed("/metrics");
        return routes::refuse(StatusCode::NOT_FOUND, problem);
    }
    if request.method() != Method::GET {
        let problem =
            Problem::new(Exit::Failed, "method not allowed").found(request.method().as_str()).needed("GET");
        let mut response = routes::refuse(StatusCode::METHOD_NOT_ALLOWED, problem);
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return response;
    }
    routes::metrics(request, source, exporter).await
}
