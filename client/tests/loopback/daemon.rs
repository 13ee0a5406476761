//! A daemon for tests: one thread that answers the attach socket with weir-ipc's endpoints, and carries slices from
//! send regions to receive regions of the same process. It sleeps like the real one, on doorbells only and without a
//! timeout, so that a wake-up which a client forgets hangs the test.
//!
//! Each slice takes a receive segment of its own, which is free again once all its bytes were given back. A channel
//! has an equal share of the gate's segments. That is the whole of its flow control.

mod requests;
mod rings;
mod world;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use rustix::event::EventfdFlags;
use weir_ipc::Submission;
use weir_ipc::attach::socket;
use weir_ipc::task_cell::TaskState;

use self::world::World;

/// What the daemon is configured with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) segment_bytes: u32,
    pub(crate) record_bytes_max: u32,
    pub(crate) partition_segments: u32,
    pub(crate) quota: u32,
    pub(crate) overdraft: u32,
    pub(crate) gate_segments: u32,
    pub(crate) event_window: u32,
    pub(crate) spanning_bytes_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            segment_bytes: 4096,
            record_bytes_max: 64 << 10,
            partition_segments: 24,
            quota: 10,
            overdraft: 5,
            gate_segments: 16,
            event_window: 8,
            spanning_bytes_max: 64 << 20,
        }
    }
}

enum Command {
    Hold(bool, Sender<()>),
    Bound { exchange: String, subpartition: u32, bytes: Option<u32> },
    FailPartition { exchange: String, code: u16, text: String },
    LoseConsumer { exchange: String, consumer: u32, consumed_bytes: u64 },
    FailChannel { exchange: String, channel: u32, code: u16, text: String },
    Inject { exchange: String, channel: u32, bytes: Vec<u8> },
    Detach(String),
    DetachUnheard(String, Sender<()>),
    RefuseUnheard(String, Sender<()>),
    Sessions(Sender<usize>),
    WaitingGates(Sender<Vec<String>>),
    Has(Sender<(usize, usize)>),
    TasksMade(Sender<usize>),
    Submissions(Sender<Vec<Submission>>),
    Announced(Sender<usize>),
    TaskState(u32, Sender<Option<TaskState>>),
    Pause(Sender<()>, Receiver<()>),
    Die,
}

/// The daemon, as a test sees it.
pub(crate) struct Daemon {
    directory: tempfile::TempDir,
    commands: Sender<Command>,
    bell: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    pub(crate) fn start(settings: Settings) -> Self {
        let directory = tempfile::tempdir().expect("run dir");
        let bell =
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("eventfd");
        let (commands, _) = mpsc::channel();
        let mut daemon = Self { directory, commands, bell, thread: None };
        daemon.revive(settings);
        daemon
    }

    /// The next daemon on the run directory of one that was killed.
    pub(crate) fn revive(&mut self, settings: Settings) {
        assert!(self.thread.is_none(), "one at a time");
        let path = self.directory.path().join("attach.sock");
        if path.exists() {
            std::fs::remove_file(&path).expect("a stale socket");
        }
        let listener = socket::listen(&path, 0o600).expect("listen");
        let (commands, inbox) = mpsc::channel();
        self.commands = commands;
        let bell = self.bell.try_clone().expect("dup");
        self.thread = Some(std::thread::spawn(move || {
            let (sessions, seen) = (Vec::new(), Vec::new());
            World { settings, listener, bell, inbox, sessions, is_held: false, tasks_made: 0, seen }.run();
        }));
    }

    pub(crate) fn run_dir(&self) -> &Path {
        self.directory.path()
    }

    fn tell(&self, command: Command) {
        self.commands.send(command).expect("the daemon runs");
        rustix::io::write(&self.bell, &1_u64.to_ne_bytes()).expect("bell");
    }

    /// Stops carrying data, or goes on.
    pub(crate) fn hold(&self, is_held: bool) {
        let (reply, answer) = mpsc::channel();
        self.tell(Command::Hold(is_held, reply));
        answer.recv().expect("the daemon runs");
    }

    /// The consumer of a subpartition wants so many bytes on their way at most; any when not given.
    pub(crate) fn bound(&self, exchange: &str, subpartition: u32, bytes: Option<u32>) {
        self.tell(Command::Bound { exchange: exchange.into(), subpartition, bytes });
        // Whatever is asked next is asked behind it.
        self.sessions();
    }

    pub(crate) fn fail_partition(&self, exchange: &str, code: u16, text: &str) {
        self.tell(Command::FailPartition { exchange: exchange.into(), code, text: text.into() });
    }

    /// A consumer is gone that had given so many bytes back.
    pub(crate) fn lose_consumer(&self, exchange: &str, consumer: u32, consumed_bytes: u64) {
        self.tell(Command::LoseConsumer { exchange: exchange.into(), consumer, consumed_bytes });
        // Whatever is asked next is asked behind it.
        self.sessions();
    }

    pub(crate) fn fail_channel(&self, exchange: &str, channel: u32, code: u16, text: &str) {
        self.tell(Command::FailChannel { exchange: exchange.into(), channel, code, text: text.into() });
    }

    /// Delivers bytes that no client of this crate would write.
    pub(crate) fn inject(&self, exchange: &str, channel: u32, bytes: &[u8]) {
        self.tell(Command::Inject { exchange: exchange.into(), channel, bytes: bytes.into() });
    }

    pub(crate) fn detach(&self, text: &str) {
        self.tell(Command::Detach(text.into()));
    }

    /// Waits for a request of each client, reads none of them, and detaches.
    pub(crate) fn detach_unheard(&self, text: &str) {
        let (reply, answer) = mpsc::channel();
        self.tell(Command::DetachUnheard(text.into(), reply));
        answer.recv().expect("the daemon runs");
    }

    /// Waits for the Hello of the next client, does not read it, and detaches.
    pub(crate) fn refuse_unheard(&self, text: &str) {
        let (reply, answer) = mpsc::channel();
        self.tell(Command::RefuseUnheard(text.into(), reply));
        answer.recv().expect("the daemon runs");
    }

    /// Stands still until what is returned is dropped.
    pub(crate) fn pause(&self) -> Sender<()> {
        let ((reply, answer), (resume, resumed)) = (mpsc::channel(), mpsc::channel());
        self.tell(Command::Pause(reply, resumed));
        answer.recv().expect("the daemon runs");
        resume
    }

    /// How many clients are attached.
    pub(crate) fn sessions(&self) -> usize {
        let (reply, answer) = mpsc::channel();
        self.tell(Command::Sessions(reply));
        answer.recv().expect("the daemon runs")
    }

    /// How many tasks, and how many partitions and gates, there are.
    pub(crate) fn has(&self) -> (usize, usize) {
        let (reply, answer) = mpsc::channel();
        self.tell(Command::Has(reply));
        answer.recv().expect("the daemon runs")
    }

    /// How many tasks it has made since it was started, those that have ended among them.
    pub(crate) fn tasks_made(&self) -> usize {
        let (reply, answer) = mpsc::channel();
        self.tell(Command::TasksMade(reply));
        answer.recv().expect("the daemon runs")
    }

    /// Exchanges of which a client waits for a gate.
    pub(crate) fn waiting_gates(&self) -> Vec<String> {
        let (reply, answer) = mpsc::channel();
        self.tell(Command::WaitingGates(reply));
        answer.recv().expect("the daemon runs")
    }

    /// Returns once a client waits for a gate of this exchange.
    pub(crate) fn await_gate(&self, exchange: &str) {
        patiently(|| self.waiting_gates().iter().any(|name| name == exchange));
    }

    /// Everything that was submitted so far, and carried if it can be; clients see what came of it.
    pub(crate) fn submissions(&self) -> Vec<Submission> {
        let (reply, answer) = mpsc::channel();
        self.tell(Command::Submissions(reply));
        answer.recv().expect("the daemon runs")
    }

    /// Returns once so many submissions were made, and carried if they can be.
    pub(crate) fn await_submissions(&self, count: usize) {
        patiently(|| self.submissions().len() >= count);
    }

    /// How many rings have a client that has announced to sleep, and was not rung since. They are not rung any more.
    pub(crate) fn take_announced(&self) -> usize {
        let (reply, answer) = mpsc::channel();
        self.tell(Command::Announced(reply));
        answer.recv().expect("the daemon runs")
    }

    /// What the cell of a task of any client says.
    pub(crate) fn task_state(&self, cell: u32) -> Option<TaskState> {
        let (reply, answer) = mpsc::channel();
        self.tell(Command::TaskState(cell, reply));
        answer.recv().expect("the daemon runs")
    }

    /// Returns once the task is in this state.
    pub(crate) fn await_task_state(&self, cell: u32, state: TaskState) {
        patiently(|| self.task_state(cell) == Some(state));
    }

    /// Dies without a word.
    pub(crate) fn kill(&mut self) {
        self.tell(Command::Die);
        self.thread.take().expect("killed once").join().expect("the daemon did not panic");
    }
}

/// Returns once this holds.
#[track_caller]
fn patiently(mut holds: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !holds() {
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "it does not come to that");
        std::thread::yield_now();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.tell(Command::Die);
            let joined = thread.join();
            if !std::thread::panicking() {
                joined.expect("the daemon did not panic");
            }
        }
    }
}
