//! Which request gets which answer.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Response, StatusCode};
use serde::Serialize;

use super::server::ANSWER_TIMEOUT;
use super::snapshot::{ErrorReport, SnapshotSource};
use crate::exit::{Exit, Problem};

/// Requests that have an answer.
const PATHS: &str = "/v1/status, /v1/channels or /v1/plan";

/// The answer to a request. Never fails: what goes wrong is an answer too.
pub(super) async fn answer<S: SnapshotSource>(
    method: &Method,
    path: &str,
    source: &S,
) -> Response<Full<Bytes>> {
    let is_known = matches!(path, "/v1/status" | "/v1/channels" | "/v1/plan");
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
        "/v1/plan" => within(source.plan()).await,
        _ => within(source.channels()).await,
    }
}

/// The report, or why there is none in time.
async fn within<T: Serialize>(report: impl Future<Output = Result<T, Problem>>) -> Response<Full<Bytes>> {
    match tokio::time::timeout(ANSWER_TIMEOUT, report).await {
        Ok(Ok(report)) => json(StatusCode::OK, &report),
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
