//! Accepting connections on the control socket. A client that is slow, silent or wrong costs one of a few places for
//! a few seconds and nothing else.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::SocketType;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinSet};

use super::routes;
use super::snapshot::SnapshotSource;
use crate::attach::run_dir;
use crate::observe::metrics::Exporter;

/// Longest time that the daemon takes to make one answer.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Most connections at a time. When there are as many, that which has read nothing of its answer for longest is closed; if
/// all read, the oldest that has not asked yet; if all have asked, more wait in the listener's queue until one is answered.
const CONNECTIONS_MAX: usize = 32;

/// A client that takes nothing of its answer for as long does not read, and one that is alone in asking nothing for as long
/// does not ask.
const STUCK_MIN: Duration = Duration::from_millis(500);

/// Time between looks for one that does not read, while there is no room.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Longest life of a connection: it carries one request.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);

/// Longest time that a client takes for the head of its request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after a connection could not be accepted, as when there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who may ask: owner and group.
const SOCKET_MODE: u32 = 0o660;

/// The control socket, listening. Dropped: it is closed, its file stays for the owner of the run directory.
#[derive(Debug)]
pub struct ControlServer {
    listener: UnixListener,
    path: PathBuf,
}

impl ControlServer {
    /// Listens on `path` with mode 0660, in place of a socket that a dead daemon left there. The caller holds the lock of
    /// the run directory. Must be called inside a tokio runtime with I/O.
    ///
    /// # Errors
    /// Something else lies there, which is named and left alone; or what the kernel answers when the socket is made.
    pub fn bind(path: &Path) -> io::Result<Self> {
        run_dir::clear(path, SocketType::STREAM).map_err(io::Error::other)?;
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Goes on with the socket of an earlier daemon at `path`. Must be called inside a tokio runtime with I/O.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn resume(socket: OwnedFd, path: &Path) -> io::Result<Self> {
        let listener = std::os::unix::net::UnixListener::from(socket);
        listener.set_nonblocking(true)?;
        Ok(Self { listener: UnixListener::from_std(listener)?, path: path.to_owned() })
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Answers requests until dropped, or until there are no answers any more.
    pub async fn serve<S: SnapshotSource>(self, source: S, exporter: Arc<Exporter>) {
        let mut connections = JoinSet::new();
        let mut open = Open::default();
        loop {
            while connections.try_join_next().is_some() {}
            let has_room = open.make_room(connections.len());
            tokio::select! {
                accepted = self.listener.accept(), if has_room => match accepted {
                    Ok((stream, _)) => {
                        let progress = Arc::new(Progress::new());
                        let answering = (source.clone(), Arc::clone(&exporter));
                        let serving = serve_connection(stream, answering, Arc::clone(&progress));
                        open.push(connections.spawn(serving), progress);
                        // Its turn to read: who asks at once is never the oldest that has not.
                        tokio::task::yield_now().await;
                    }
                    Err(e) => {
                        tracing::warn!(error = %e, path = %self.path.display(), "control connection not accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.join_next() => {}
                () = source.ended() => break,
                () = tokio::time::sleep(LOOK_INTERVAL), if !has_room => {}
            }
        }
        drop(self.listener);
        // Who was accepted is told.
        while connections.join_next().await.is_some() {}
    }
}

/// How far a connection has come.
struct Progress {
    connected: Instant,
    has_asked: AtomicBool,
    /// Since when the client takes nothing of its answer, while it does not.
    stuck_since: Mutex<Option<Instant>>,
}

impl Progress {
    fn new() -> Self {
        Self { connected: Instant::now(), has_asked: AtomicBool::new(false), stuck_since: Mutex::new(None) }
    }

    fn note(&self, is_stuck: bool) {
        let mut since = self.stuck_since.lock().unwrap_or_else(PoisonError::into_inner);
        *since = if is_stuck { since.or_else(|| Some(Instant::now())) } else { None };
    }

    fn stuck_since(&self) -> Option<Instant> {
        *self.stuck_since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that notes whether its client reads.
struct Noted {
    stream: UnixStream,
    progress: Arc<Progress>,
}

impl AsyncRead for Noted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Noted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.progress.note(written.is_pending());
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Connections that were open when last looked at, the oldest first.
#[derive(Default)]
struct Open {
    connections: VecDeque<(AbortHandle, Arc<Progress>)>,
}

impl Open {
    fn push(&mut self, connection: AbortHandle, progress: Arc<Progress>) {
        self.connections.push_back((connection, progress));
    }

    /// Whether there is room for one more connection beside `open` ones. If there is none, one that holds its place for
    /// nothing is closed, which makes room as soon as it has ended.
    fn make_room(&mut self, open: usize) -> bool {
        self.connections.retain(|(connection, _)| !connection.is_finished());
        if open < CONNECTIONS_MAX {
            return true;
        }
        let idle = self.stuck_longest().or_else(|| self.silent_longest());
        if let Some((connection, _)) = idle.and_then(|at| self.connections.remove(at)) {
            connection.abort();
        }
        false
    }

    /// The oldest that has not asked. One that has come just now is still about to, unless others come behind it.
    fn silent_longest(&self) -> Option<usize> {
        let is_silent = |progress: &Progress| !progress.has_asked.load(Ordering::Relaxed);
        let mut silent = self.connections.iter().enumerate().filter(|(_, (_, progress))| is_silent(progress));
        let (at, (_, progress)) = silent.next()?;
        (silent.next().is_some() || progress.connected.elapsed() >= STUCK_MIN).then_some(at)
    }

    fn stuck_longest(&self) -> Option<usize> {
        let stuck = self.connections.iter().enumerate();
        let stuck = stuck.filter_map(|(at, (_, progress))| Some((progress.stuck_since()?, at)));
        stuck.filter(|(since, _)| since.elapsed() >= STUCK_MIN).min().map(|(_, at)| at)
    }
}

async fn serve_connection<S: SnapshotSource>(
    stream: UnixStream,
    answering: (S, Arc<Exporter>),
    progress: Arc<Progress>,
) {
    let noted = Noted { stream, progress: Arc::clone(&progress) };
    let service = service_fn(move |request: Request<Incoming>| {
        progress.has_asked.store(true, Ordering::Relaxed);
        let (source, exporter) = answering.clone();
        async move { Ok::<_, Infallible>(routes::answer(&request, &source, &exporter).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        .serve_connection(TokioIo::new(noted), service);
    // A client that left or sent nonsense is no concern of the daemon's.
    match tokio::time::timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Err(e)) => tracing::debug!(error = %e, "control connection failed"),
        Err(_) => tracing::debug!("control connection took too long"),
        Ok(Ok(())) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::fs::MetadataExt;

    use super::super::bottleneck::BottleneckReport;
    use super::super::configuration::ConfigurationReport;
    use super::super::plan::PlanReport;
    use super::super::shards::ShardsReport;
    use super::super::snapshot::{ChannelsReport, MemoryReport, SCHEMA_VERSION, StatusReport, Subsystem};
    use super::super::stalls::StallsReport;
    use super::super::tasks::TasksReport;
    use super::*;
    use crate::attach::run_dir::CONTROL_SOCKET;
    use crate::control::client;
    use crate::exit::{Exit, Problem};

    #[derive(Clone)]
    struct Fixed;

    impl SnapshotSource for Fixed {
        async fn status(&self) -> Result<StatusReport, Problem> {
            Ok(StatusReport {
                schema_version: SCHEMA_VERSION,
                node: "a".into(),
                version: "1".into(),
                pid: 1,
                uptime_seconds: 2,
                listen: "127.0.0.1:7070".into(),
                memory: MemoryReport::default(),
                links: Vec::new(),
                shards: Vec::new(),
                shards_missing: Vec::new(),
                capabilities_given_up: Vec::new(),
                hooks: Vec::new(),
                zero_copy: None,
                subsystems: vec![Subsystem::degraded("memory", "ordinary pages", "no hugepages", "sysctl")],
            })
        }

        async fn configuration(&self) -> Result<ConfigurationReport, Problem> {
            Ok(ConfigurationReport::default())
        }

        async fn shards(&self) -> Result<ShardsReport, Problem> {
            Err(Problem::new(Exit::Failed, "shard 0 ended"))
        }

        async fn channels(&self) -> Result<ChannelsReport, Problem> {
            Err(Problem::new(Exit::Failed, "shard 0 ended"))
        }

        async fn stalls(&self) -> Result<StallsReport, Problem> {
            Err(Problem::new(Exit::Failed, "shard 0 ended"))
        }

        async fn plan(&self) -> Result<PlanReport, Problem> {
            Ok(PlanReport {
                schema_version: SCHEMA_VERSION,
                nodes: Vec::new(),
                exchanges: Vec::new(),
                // More than a socket holds.
                included: vec!["a".repeat(512 << 10)],
                missing: Vec::new(),
                missing_unnamed: 0,
                predecessors_left_out: 0,
            })
        }

        async fn tasks(&self) -> Result<TasksReport, Problem> {
            Err(Problem::new(Exit::Failed, "no tasks"))
        }

        async fn bottleneck(&self) -> Result<BottleneckReport, Problem> {
            Err(Problem::new(Exit::Failed, "no verdict"))
        }
    }

    /// Runs a server on a directory of its own while `ask` runs on this thread.
    fn with_server(ask: impl FnOnce(&Path)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CONTROL_SOCKET);
        // What a dead daemon leaves.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let server_path = path.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let server = ControlServer::bind(&server_path).unwrap();
                ready.send(()).unwrap();
                tokio::select! {
                    () = server.serve(Fixed, Arc::new(Exporter::new(1))) => {}
                    _ = stopped => {}
                }
            });
        });
        is_ready.recv().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        ask(dir.path());
        drop(stop);
        thread.join().unwrap();
    }

    /// Sends `request` as it is and returns the whole answer.
    fn raw(run_dir: &Path, request: &str) -> String {
        let mut stream = std::os::unix::net::UnixStream::connect(run_dir.join(CONTROL_SOCKET)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_report_arrives_and_a_problem_arrives_as_a_problem() {
        with_server(|run_dir| {
            let status: StatusReport = client::get(run_dir, "/v1/status").unwrap();
            assert!(status.is_degraded());
            assert_eq!(status.node, "a");
            let problem = client::get::<ChannelsReport>(run_dir, "/v1/channels").unwrap_err();
            assert_eq!((problem.exit, problem.what.as_str()), (Exit::Failed, "shard 0 ended"));
        });
    }

    #[test]
    fn unknown_paths_and_methods_and_nonsense_get_answers_and_the_server_goes_on() {
        with_server(|run_dir| {
            let missing = raw(run_dir, "GET /v2/status HTTP/1.1\r\nHost: x\r\n\r\n");
            assert!(missing.starts_with("HTTP/1.1 404"), "{missing}");
            assert!(
                missing
                    .contains(r#"{"schema_version":1,"error":{"what":"no such path","found":"/v2/status""#)
            );
            let posted = raw(run_dir, "POST /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
            assert!(
                posted.starts_with("HTTP/1.1 405") && posted.to_lowercase().contains("allow: get"),
                "{posted}"
            );
            let nonsense = raw(run_dir, "\0\0\0\0\r\n\r\n");
            assert!(nonsense.starts_with("HTTP/1.1 400"), "{nonsense}");
            let _silent = std::os::unix::net::UnixStream::connect(run_dir.join(CONTROL_SOCKET)).unwrap();
            client::get::<StatusReport>(run_dir, "/v1/status").unwrap();
        });
    }

    #[test]
    fn whoever_asks_is_answered_beside_any_number_who_do_not() {
        with_server(|run_dir| {
            let connect = || std::os::unix::net::UnixStream::connect(run_dir.join(CONTROL_SOCKET)).unwrap();
            let silent: Vec<_> = (0..4 * CONNECTIONS_MAX).map(|_| connect()).collect();
            // The client gives up long before all of those would be closed for their silence.
            client::get::<StatusReport>(run_dir, "/v1/status").unwrap();
            // The oldest were closed for the others; the last are still there.
            let is_open = |stream: &std::os::unix::net::UnixStream| {
                stream.set_nonblocking(true).unwrap();
                let mut stream = stream;
                stream.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            };
            assert!(!is_open(&silent[0]) && is_open(silent.last().unwrap()));
        });
    }

    #[test]
    fn whoever_asks_is_answered_beside_any_number_who_do_not_read_their_answers() {
        with_server(|run_dir| {
            let ask = || {
                let mut stream =
                    std::os::unix::net::UnixStream::connect(run_dir.join(CONTROL_SOCKET)).unwrap();
                stream.write_all(b"GET /v1/plan HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
                stream
            };
            let deaf: Vec<_> = (0..2 * CONNECTIONS_MAX).map(|_| ask()).collect();
            // The client gives up long before all of those would be closed for their age.
            client::get::<StatusReport>(run_dir, "/v1/status").unwrap();
            // Who reads gets all of its answer beside them.
            let plan: PlanReport = client::get(run_dir, "/v1/plan").unwrap();
            assert_eq!(plan.included[0].len(), 512 << 10);
            drop(deaf);
        });
    }

    /// Connections of whom each holds a place.
    struct Places {
        open: Open,
        tasks: Vec<tokio::task::JoinHandle<()>>,
        progress: Vec<Arc<Progress>>,
    }

    impl Places {
        /// As many as there may be, all of whom have asked and read.
        fn full() -> Self {
            let mut places = Self { open: Open::default(), tasks: Vec::new(), progress: Vec::new() };
            (0..CONNECTIONS_MAX).for_each(|_| places.push(Progress::new(), true));
            places
        }

        fn push(&mut self, progress: Progress, has_asked: bool) {
            progress.has_asked.store(has_asked, Ordering::Relaxed);
            let (task, progress) = (tokio::spawn(std::future::pending()), Arc::new(progress));
            self.open.push(task.abort_handle(), Arc::clone(&progress));
            self.tasks.push(task);
            self.progress.push(progress);
        }

        /// Who is closed for one more.
        async fn closed(&mut self) -> Vec<usize> {
            let before = self.ended();
            let open = self.tasks.len() - before.len();
            assert_eq!(self.open.make_room(open), open < CONNECTIONS_MAX);
            while self.ended() == before && self.open.connections.len() < open {
                tokio::task::yield_now().await;
            }
            self.ended().into_iter().filter(|place| !before.contains(place)).collect()
        }

        fn ended(&self) -> Vec<usize> {
            (0..self.tasks.len()).filter(|place| self.tasks[*place].is_finished()).collect()
        }
    }

    #[tokio::test]
    async fn only_who_holds_a_place_for_nothing_is_closed_and_who_does_so_for_longest_first() {
        let long_ago = |more| Instant::now().checked_sub(STUCK_MIN + Duration::from_secs(more)).unwrap();
        // However long this test takes, that is no time ago.
        let just_now = Instant::now() + Duration::from_secs(3600);
        let mut places = Places::full();
        assert_eq!(places.closed().await, [] as [usize; 0], "all of them read");
        for (place, since) in [(3, long_ago(0)), (5, long_ago(2)), (7, long_ago(1)), (9, just_now)] {
            *places.progress[place].stuck_since.lock().unwrap() = Some(since);
            // It is still so, which is no news.
            places.progress[place].note(true);
        }
        // This one reads again.
        places.progress[7].note(false);
        assert_eq!(places.closed().await, [5]);
        assert_eq!(places.closed().await, [] as [usize; 0], "there is room");
        places.push(Progress { connected: long_ago(0), ..Progress::new() }, false);
        assert_eq!(
            places.closed().await,
            [3],
            "who has asked and does not read goes before who has not asked"
        );
        places.push(Progress { connected: just_now, ..Progress::new() }, false);
        assert_eq!(places.closed().await, [CONNECTIONS_MAX], "the older one that has not asked");
        places.push(Progress::new(), true);
        assert_eq!(places.closed().await, [] as [usize; 0], "who has just come is about to ask");
        places.push(Progress::new(), false);
        assert_eq!(places.closed().await, [CONNECTIONS_MAX + 1], "who came before another asks no more");
    }

    /// What else may lie there, and that it is left alone: [`run_dir`].
    #[tokio::test]
    async fn only_a_socket_that_nobody_listens_on_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CONTROL_SOCKET);
        let refused = |word: &str| {
            let before = std::fs::symlink_metadata(&path).unwrap();
            let text = ControlServer::bind(&path).map(drop).unwrap_err().to_string();
            let words = [word, &path.display().to_string(), "--run-dir"];
            assert!(words.iter().all(|word| text.contains(word)), "{words:?} in {text}");
            let after = std::fs::symlink_metadata(&path).expect("it still lies there");
            assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()));
        };
        std::fs::write(&path, "precious").unwrap();
        refused("is a regular file");
        std::fs::remove_file(&path).unwrap();
        let live = ControlServer::bind(&path).unwrap();
        refused("another live process listens");
        // And the one that listens is still the one that is found.
        let asking = UnixStream::connect(&path).await.unwrap();
        live.listener.accept().await.unwrap();
        drop((asking, live));
        // Its file stays, and is stale now.
        assert!(path.exists());
        ControlServer::bind(&path).unwrap();
    }

    #[test]
    fn schema_version_is_the_first_field() {
        with_server(|run_dir| {
            let answer = raw(run_dir, "GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n");
            let body = answer.split("\r\n\r\n").nth(1).unwrap();
            assert!(body.starts_with("{\"schema_version\":1,"), "{body}");
        });
    }
}
