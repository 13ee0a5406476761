//! Which request gets which answer.

use std::sync::Arc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;

use super::server::ANSWER_TIMEOUT;
use super::snapshot::{ErrorReport, SnapshotSource};
use crate::exit::{Exit, Problem};
use crate::observe::metrics::{Exporter, Facts, Format};

/// Requests that have an answer.
const PATHS: &str = "/v1/status, /v1/configuration, /v1/channels, /v1/shards, /v1/stalls, /v1/plan, /v1/tasks, /v1/bottleneck or /metrics";

/// The answer to a request. Never fails: what goes wrong is an answer too.
pub(super) async fn answer<S: SnapshotSource>(
    request: &Request<Incoming>,
    source: &S,
    exporter: &Arc<Exporter>,
) -> Response<Full<Bytes>> {
    let (method, path) = (request.method(), request.uri().path());
    let is_known = matches!(
        path,
        "/v1/status"
            | "/v1/configuration"
            | "/v1/channels"
            | "/v1/shards"
            | "/v1/stalls"
            | "/v1/plan"
            | "/v1/tasks"
            | "/v1/bottleneck"
            | "/metrics"
    );
    if !is_known {
        let problem = Problem::new(Exit::Failed, "no such path").found(path).needed(PATHS);
        return refuse(StatusCode::NOT_FOUND, problem);
    }
    if method != Method::GET {
        let problem = Problem::new(Exit::Failed, "method not allowed").found(method.as_str()).needed("GET");
        let mut response = refuse(StatusCode::METHOD_NOT_ALLOWED, problem);
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return response;
    }
    match path {
        "/v1/status" => within(source.status()).await,
        "/v1/configuration" => within(source.configuration()).await,
        "/v1/shards" => within(source.shards()).await,
        "/v1/stalls" => within(source.stalls()).await,
        "/v1/plan" => within(source.plan()).await,
        "/v1/tasks" => within(source.tasks()).await,
        "/v1/bottleneck" => within(source.bottleneck()).await,
        "/metrics" => metrics(request, source, exporter).await,
        _ => within(source.channels()).await,
    }
}

/// The report, or why there is none in time.
async fn within<T: Serialize>(report: impl Future<Output = Result<T, Problem>>) -> Response<Full<Bytes>> {
    in_time(report, |report| json(StatusCode::OK, &report)).await
}

/// Metrics, in the format that was asked for.
pub(super) async fn metrics<S: SnapshotSource>(
    request: &Request<Incoming>,
    source: &S,
    exporter: &Arc<Exporter>,
) -> Response<Full<Bytes>> {
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    let format = Format::accepted(accept.unwrap_or_default());
    let exporter = Arc::clone(exporter);
    let text = async {
        let (status, channels, stalls) = source.own().await?;
        let facts = Facts { status, channels, stalls, tasks: source.tasks().await? };
        // The text of many channels takes a while, which links and clients must not wait for.
        let written = tokio::task::spawn_blocking(move || exporter.expose(&facts, format)).await;
        written.map_err(|error| Problem::new(Exit::Failed, "no metrics").found(error.to_string()))
    };
    in_time(text, |text| {
        let mut response = Response::new(Full::new(Bytes::from(text)));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
        response
    })
    .await
}

/// What is made of the answer, or why there is none in time.
async fn in_time<T>(
    answer: impl Future<Output = Result<T, Problem>>,
    shown: impl FnOnce(T) -> Response<Full<Bytes>>,
) -> Response<Full<Bytes>> {
    match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
        Ok(Ok(answer)) => shown(answer),
        Ok(Err(problem)) => refuse(StatusCode::INTERNAL_SERVER_ERROR, problem),
        Err(_) => {
            let problem = Problem::new(Exit::Failed, "the daemon is busy")
                .found(format!("no snapshot within {} s", ANSWER_TIMEOUT.as_secs()))
                .needed("one in time")
                .fix("ask again; its log names a shard that takes long turns");
            refuse(StatusCode::SERVICE_UNAVAILABLE, problem)
        }
    }
}

/// An answer that is a problem.
pub(super) fn refuse(status: StatusCode, problem: Problem) -> Response<Full<Bytes>> {
    json(status, &ErrorReport::new(problem))
}

fn json<T: Serialize>(status: StatusCode, body: &T) -> Response<Full<Bytes>> {
    let (status, mut bytes) = match serde_json::to_vec(body) {
        Ok(bytes) => (status, bytes),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, br#"{"schema_version":1}"#.to_vec()),
    };
    bytes.push(b'\n');
    let mut response = Response::new(Full::new(Bytes::from(bytes)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
