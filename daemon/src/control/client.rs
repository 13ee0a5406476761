//! Asking a daemon over its control socket, for the command line: one request, one answer, bounded in time and size.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::snapshot::SCHEMA_VERSION;
use crate::attach::run_dir::CONTROL_SOCKET;
use crate::exit::{Exit, Problem};

/// Longest time for an answer: longer than the daemon itself takes to give up.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Largest answer: 65,536 channels fit, with all their stalls.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// What every answer has.
#[derive(Deserialize)]
struct Versioned {
    schema_version: u32,
}

/// An answer that is a problem, as read.
#[derive(Deserialize)]
struct ErrorAnswer {
    error: ErrorParts,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorParts {
    what: String,
    found: String,
    needed: String,
    fix: String,
}

/// Asks the daemon on `run_dir` for `path` (as `/v1/status`) and returns its answer.
///
/// # Errors
/// No daemon answers ([`Exit::Unreachable`]), it answers with a problem, or its answer has another version or form
/// ([`Exit::Failed`]).
pub fn get<T: DeserializeOwned>(run_dir: &Path, path: &str) -> Result<T, Problem> {
    let bytes = get_bytes(run_dir, path)?;
    let unreadable = |found: String| {
        Problem::new(Exit::Failed, "the daemon's answer cannot be read")
            .found(found)
            .needed(format!("schema_version {SCHEMA_VERSION}"))
            .fix("use the `weir` of the same version as the daemon")
    };
    let version: Versioned = serde_json::from_slice(&bytes).map_err(|e| unreadable(e.to_string()))?;
    if version.schema_version != SCHEMA_VERSION {
        return Err(unreadable(format!("schema_version {}", version.schema_version)));
    }
    serde_json::from_slice(&bytes).map_err(|e| unreadable(e.to_string()))
}

fn get_bytes(run_dir: &Path, path: &str) -> Result<Bytes, Problem> {
    let socket = run_dir.join(CONTROL_SOCKET);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Problem::new(Exit::Failed, "cannot start a runtime").found(e.to_string()))?;
    let ask = async { tokio::time::timeout(TIMEOUT, ask(socket.clone(), path)).await };
    match runtime.block_on(ask) {
        Ok(Ok((StatusCode::OK, body))) => Ok(body),
        Ok(Ok((status, body))) => Err(problem_of(status, &body)),
        Ok(Err(AskError::Connect(e))) if e.kind() == io::ErrorKind::WouldBlock => {
            Err(unanswered(&socket, "those who wait to be let in already"))
        }
        Ok(Err(AskError::Connect(e))) => Err(unreachable(&socket, run_dir, &e)),
        Ok(Err(AskError::Talk(e))) => Err(unreachable(&socket, run_dir, &io::Error::other(e))),
        Err(_) => Err(unanswered(&socket, &format!("within {} s", TIMEOUT.as_secs()))),
    }
}

enum AskError {
    Connect(io::Error),
    Talk(String),
}

async fn ask(socket: PathBuf, path: &str) -> Result<(StatusCode, Bytes), AskError> {
    let talk = |e: hyper::Error| AskError::Talk(e.to_string());
    let stream = UnixStream::connect(&socket).await.map_err(AskError::Connect)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(talk)?;
    let connection = tokio::spawn(connection);
    let request = Request::get(path)
        .header(HOST, "weir")
        .body(Empty::<Bytes>::new())
        .map_err(|e| AskError::Talk(e.to_string()))?;
    let response = sender.send_request(request).await.map_err(talk)?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    connection.abort();
    Ok((status, body.map_err(|e| AskError::Talk(e.to_string()))?.to_bytes()))
}

/// What the daemon says is wrong.
fn problem_of(status: StatusCode, body: &[u8]) -> Problem {
    match serde_json::from_slice::<ErrorAnswer>(body) {
        Ok(ErrorAnswer { error }) => {
            Problem::new(Exit::Failed, error.what).found(error.found).needed(error.needed).fix(error.fix)
        }
        Err(_) => Problem::new(Exit::Failed, "the daemon refused").found(format!("HTTP status {status}")),
    }
}

/// A daemon is there, and too busy or stopped.
fn unanswered(socket: &Path, what: &str) -> Problem {
    let what = format!("the daemon at {} did not answer {what}", socket.display());
    Problem::new(Exit::Unreachable, what).needed("a daemon that is not stopped and has CPU time").fix(
        "ask again; if that does not help, look at its log and at who is connected to the socket (`ss -xp`)",
    )
}

/// Why no daemon answers, and what helps.
pub(crate) fn unreachable(socket: &Path, run_dir: &Path, error: &io::Error) -> Problem {
    let problem = Problem::new(Exit::Unreachable, format!("no daemon answers at {}", socket.display()))
        .found(error.to_string());
    match error.kind() {
        io::ErrorKind::PermissionDenied => problem
            .needed("permission to use it")
            .fix("run as a member of the socket's group, as `sudo -g weir`"),
        _ => problem.needed("a running daemon").fix(format!(
            "weir daemon --run-dir {}, or name the daemon's own with --run-dir",
            run_dir.display()
        )),
    }
}
