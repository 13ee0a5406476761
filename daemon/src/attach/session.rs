//! The conversation with one client: its requests go to the node, the node's answers go to it.
//!
//! The session only carries messages. It ends when the client is gone (end of its socket, or of its process), when
//! the client sends what is no request, when it does not read its answers, or when the node lets go.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use socket2::SockRef;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use weir_flow::failure::Failure;
use weir_ipc::attach::message::{Request, RequestBody, Response, ResponseBody};
use weir_ipc::attach::socket::{AttachError, receive_request, send_response};
use weir_ipc::layout::ATTACHMENT_RINGS_MAX;

use super::listener::Connected;
use super::readiness::registered;

/// Answers that may wait for a client that does not read: one for each partition and gate that a process may have, all
/// of which its threads may ask for at once, and some for what it is told unasked.
pub const ANSWERS_MAX: usize = ATTACHMENT_RINGS_MAX as usize + 128;

/// Bytes of answers that the kernel may hold for a client. Few, for it also bounds the descriptors under way, of which
/// the kernel allows the daemon only so many.
const SOCKET_BYTES: usize = 8 * 1024;

/// How long a client may take to say Hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a client that the node has let go of may take to read what was still said to it.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

/// How often a session whose client does not read looks whether the node has let go.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// One answer with its descriptors.
#[derive(Debug)]
pub struct Answer {
    /// What is said.
    pub response: Response,
    /// What goes beside it.
    pub descriptors: Vec<OwnedFd>,
}

impl Answer {
    /// An answer without descriptors.
    #[must_use]
    pub fn plain(response: Response) -> Self {
        Self { response, descriptors: Vec::new() }
    }
}

/// The name of a failure's kind for programs.
#[must_use]
pub fn code_of(failure: &Failure) -> String {
    failure.code.as_str().replace(' ', "_")
}

/// What a client is told last, and why.
#[must_use]
pub fn last_word(failure: &Failure) -> Response {
    let body = ResponseBody::Detached { code: code_of(failure), text: failure.text.clone() };
    Response { id: 0, body }
}

/// What a session tells the node.
#[derive(Debug)]
pub enum SessionEvent {
    /// The client asks for something.
    Request(Request),
    /// The client is gone. Nothing follows.
    Gone,
    /// The client did what it must not; the node is to detach it.
    Fault {
        /// One line: field, value found, value needed.
        text: String,
    },
}

/// Carries messages until the client is gone or `answers` is closed and written out, for which the client has a second:
/// one that does not read must not keep descriptors that count for nobody. What is to be told is wrapped by `wrap` and
/// sent to `events`; when nobody takes it any more, the session ends.
pub async fn run<E>(
    client: Connected,
    mut answers: mpsc::Receiver<Answer>,
    events: mpsc::Sender<E>,
    wrap: impl Fn(SessionEvent) -> E,
) {
    let (socket, pidfd) = match register(client) {
        Ok(registered) => registered,
        Err(error) => {
            tracing::warn!(%error, "cannot serve a client");
            let _ = events.send(wrap(SessionEvent::Gone)).await;
            return;
        }
    };
    let mut unsent: Option<Answer> = None;
    let mut is_heard = true;
    let mut hello_due = Some(tokio::time::Instant::now() + HELLO_TIMEOUT);
    let mut farewell_due = None;
    loop {
        // What a client says that the node has let go of concerns nobody.
        is_heard &= !answers.is_closed();
        if !is_heard && farewell_due.is_none() {
            farewell_due = Some(tokio::time::Instant::now() + FAREWELL_TIMEOUT);
        }
        let event = tokio::select! {
            answer = answers.recv(), if unsent.is_none() => {
                let Some(answer) = answer else { return };
                unsent = Some(answer);
                continue;
            }
            sent = send(&socket, &unsent), if unsent.is_some() => {
                unsent = None;
                match sent {
                    Ok(()) => continue,
                    Err(error) => end_of(error),
                }
            }
            () = until(farewell_due) => return,
            () = tokio::time::sleep(LOOK_INTERVAL), if unsent.is_some() => continue,
            received = receive(&socket), if is_heard => {
                hello_due = None;
                received.map_or_else(end_of, event_of)
            }
            () = ended(pidfd.as_ref()), if is_heard => SessionEvent::Gone,
            () = until(hello_due), if is_heard => {
                SessionEvent::Fault { text: format!("no Hello within {HELLO_TIMEOUT:?}") }
            }
        };
        // Nothing is heard after the end; only what the node still has to say is written.
        is_heard &= matches!(event, SessionEvent::Request(_));
        if events.send(wrap(event)).await.is_err() {
            return;
        }
    }
}

/// A request, or what of it is wrong by itself so that no answer could be found for it.
fn event_of(request: Request) -> SessionEvent {
    if request.id == 0 {
        return SessionEvent::Fault { text: "request id is 0; needed: any other number".to_owned() };
    }
    SessionEvent::Request(request)
}

/// Whether a request opens a conversation.
#[must_use]
pub fn is_hello(body: &RequestBody) -> bool {
    matches!(body, RequestBody::Hello { .. })
}

fn register(client: Connected) -> io::Result<(AsyncFd<OwnedFd>, Option<AsyncFd<OwnedFd>>)> {
    SockRef::from(&client.socket).set_send_buffer_size(SOCKET_BYTES)?;
    Ok((registered(client.socket)?, client.pidfd.map(registered).transpose()?))
}

fn end_of(error: AttachError) -> SessionEvent {
    match error {
        AttachError::Closed => SessionEvent::Gone,
        error => SessionEvent::Fault { text: error.to_string() },
    }
}

async fn receive(socket: &AsyncFd<OwnedFd>) -> Result<Request, AttachError> {
    loop {
        let mut guard = socket.readable().await.map_err(|_| AttachError::Closed)?;
        match receive_request(guard.get_inner()) {
            Err(AttachError::WouldBlock) => guard.clear_ready(),
            received => return received,
        }
    }
}

async fn send(socket: &AsyncFd<OwnedFd>, answer: &Option<Answer>) -> Result<(), AttachError> {
    let Some(Answer { response, descriptors }) = answer else {
        return Ok(());
    };
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    loop {
        let mut guard = socket.writable().await.map_err(|_| AttachError::Closed)?;
        match send_response(guard.get_inner(), response, &descriptors) {
            Err(AttachError::WouldBlock) => guard.clear_ready(),
            // Clients that do not read their answers have as many descriptors under way as the kernel allows the
            // daemon. That is not this client's fault: it waits.
            Err(AttachError::Os { errno: Errno::TOOMANYREFS, .. }) => tokio::time::sleep(LOOK_INTERVAL).await,
            sent => return sent,
        }
    }
}

/// Resolves when the client's process has ended; never without a pidfd.
async fn ended(pidfd: Option<&AsyncFd<OwnedFd>>) {
    match pidfd {
        Some(pidfd) => {
            // An error means that there is no runtime any more: nothing is left to be told.
            let _ = pidfd.readable().await;
        }
        None => std::future::pending().await,
    }
}

async fn until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use weir_ipc::attach::socket::send_request;

    use super::*;
    use crate::attach::listener::Credentials;

    /// A session with one end of a socket pair, and the other end.
    fn session(pidfd: Option<OwnedFd>) -> (OwnedFd, mpsc::Sender<Answer>, mpsc::Receiver<SessionEvent>) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (daemon, client) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let connected = Connected { socket: daemon, credentials: Credentials { pid: None, uid: 0 }, pidfd };
        let (answers, due) = mpsc::channel(ANSWERS_MAX);
        let (events, heard) = mpsc::channel(8);
        tokio::spawn(run(connected, due, events, |event| event));
        (client, answers, heard)
    }

    #[tokio::test]
    async fn a_killed_process_is_noticed_although_its_socket_lives_on() {
        let mut process = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_raw(process.id().try_into().unwrap()).unwrap();
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        // As when a child of the client has inherited the socket.
        let (_socket, _answers, mut heard) = session(Some(pidfd));
        process.kill().unwrap();
        assert!(matches!(heard.recv().await, Some(SessionEvent::Gone)));
        process.wait().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_says_nothing_is_not_kept() {
        let (_socket, _answers, mut heard) = session(None);
        let event = heard.recv().await;
        assert!(
            matches!(&event, Some(SessionEvent::Fault { text }) if text == "no Hello within 5s"),
            "{event:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_left_once_the_node_has_let_go_of_it() {
        let (socket, answers, mut heard) = session(None);
        let body = RequestBody::Hello { version: 1, process_name: String::new() };
        send_request(&socket, &Request { id: 1, body }).unwrap();
        assert!(matches!(heard.recv().await, Some(SessionEvent::Request(_))));
        let said = || ResponseBody::Refused { code: "no".to_owned(), text: "no ".repeat(1000) };
        while answers.capacity() > 0 {
            let sent = answers.send(Answer::plain(Response { id: 2, body: said() }));
            // The session takes what the socket has room for; then the way to it fills.
            tokio::time::timeout(LOOK_INTERVAL * 2, sent).await.unwrap_or(Ok(())).unwrap();
        }
        drop(answers);
        let ended = tokio::time::timeout(HELLO_TIMEOUT, heard.recv()).await;
        assert!(matches!(ended, Ok(None)), "the session has ended: {ended:?}");
        drop(socket);
    }

    #[tokio::test]
    async fn a_closed_socket_is_noticed_without_a_pidfd() {
        let (socket, _answers, mut heard) = session(None);
        drop(socket);
        assert!(matches!(heard.recv().await, Some(SessionEvent::Gone)));
    }
}
