//! A client process that is killed, at a system call or at a moment, and those that it leaves behind.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use weir_client::{Client, Error, FailureCode, GateOptions, Item, PartitionOptions, Strategy, Task};

use crate::common::{PATIENCE, WEIR, lines};

/// Which end the victim is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum End {
    Producer,
    Consumer,
}

/// When it is killed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    /// As it enters this system call after its `connect`, counted from 1.
    Call(u32),
    /// This long after it was started.
    After(Duration),
}

/// Starts its program only once it is traced.
const STOPPED: &str = "kill -STOP $$; exec \"$0\" \"$@\"";

/// A victim, started.
struct Victim {
    child: Child,
}

impl Victim {
    fn start(run_dir: &Path, exchange: &str, end: End, is_stopped: bool) -> Self {
        let mut command = if is_stopped { Command::new("sh") } else { Command::new(WEIR) };
        if is_stopped {
            command.args(["-c", STOPPED, WEIR]);
        }
        match end {
            End::Producer => command.args(["send", "--strategy", "forward", "--consumers", "1"]),
            End::Consumer => command.args(["recv", "--consumer", "0/1"]),
        };
        command.args(["--exchange", exchange]).arg("--run-dir").arg(run_dir);
        command.stdin(if end == End::Producer { Stdio::piped() } else { Stdio::null() });
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a client");
        if end == End::Producer {
            let mut stdin = child.stdin.take().expect("an input");
            // Without end: it must not finish before it is killed.
            std::thread::spawn(move || {
                let input = lines(1 << 20);
                while stdin.write_all(&input).is_ok() {}
            });
        }
        Self { child }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Waits for its next stop. `None`: it has ended.
    fn next_stop(&self) -> Option<WaitStatus> {
        let began = Instant::now();
        loop {
            match waitpid(
                self.pid(),
                Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL | WaitPidFlag::WUNTRACED),
            ) {
                Ok(WaitStatus::StillAlive) => {}
                Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(_) => return None,
                Ok(status) => return Some(status),
            }
            assert!(began.elapsed() < PATIENCE, "a traced client makes no system call");
            std::thread::yield_now();
        }
    }

    /// Runs it to the system call after its `connect` that has this number. False: it ended before.
    fn run_to(&self, number: u32) -> Result<bool, nix::Error> {
        let pid = self.pid();
        let Some(WaitStatus::Stopped(..)) = self.next_stop() else { return Ok(false) };
        ptrace::seize(pid, Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACEEXEC)?;
        kill(pid, Signal::SIGCONT)?;
        // Calls entered since the connect; none before it. Each call stops twice.
        let (mut entered, mut is_inside) = (None, false);
        while let Some(stop) = self.next_stop() {
            let mut signal = None;
            match stop {
                WaitStatus::PtraceSyscall(_) => {
                    is_inside = !is_inside;
                    if let Some(count) = entered.as_mut().filter(|_| is_inside) {
                        *count += 1;
                        if *count == number {
                            return Ok(true);
                        }
                    }
                    if is_inside && entered.is_none() && is_connect(pid)? {
                        entered = Some(0);
                    }
                }
                WaitStatus::Stopped(_, found) => signal = Some(found),
                _ => {}
            }
            ptrace::syscall(pid, signal)?;
        }
        Ok(false)
    }

    fn kill(mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(target_arch = "x86_64")]
fn is_connect(pid: Pid) -> Result<bool, nix::Error> {
    Ok(ptrace::getregs(pid)?.orig_rax == libc::SYS_connect.cast_unsigned())
}

#[cfg(target_arch = "aarch64")]
fn is_connect(pid: Pid) -> Result<bool, nix::Error> {
    Ok(ptrace::getregs(pid)?.regs[8] == libc::SYS_connect.cast_unsigned())
}

/// Kills one end of an exchange. The other end is told why or notices nothing, the place is free, and a successor goes
/// on there to the end. False, with the reason printed: this machine does not let it be traced.
pub(crate) fn kill_one(run_dir: &Path, exchange: &str, end: End, when: When) -> bool {
    let is_over = AtomicBool::new(false);
    let _watchdog = Watchdog::start(run_dir, exchange);
    std::thread::scope(|scope| {
        // Also if this end fails: the other must not go on without it for ever.
        let over = SetWhenDropped(&is_over);
        let other = scope.spawn(|| match end {
            End::Producer => consume(run_dir, exchange, Until::End),
            End::Consumer => produce(run_dir, exchange, &is_over),
        });
        let victim = Victim::start(run_dir, exchange, end, matches!(when, When::Call(_)));
        let reached = match when {
            When::After(delay) => {
                std::thread::sleep(delay);
                Ok(true)
            }
            When::Call(number) => victim.run_to(number),
        };
        victim.kill();
        match end {
            End::Producer => finish(run_dir, exchange),
            End::Consumer => consume(run_dir, exchange, Until::FirstRecord),
        }
        drop(over);
        other.join().expect("the other end");
        match reached {
            Ok(is_reached) => assert!(is_reached, "{exchange}: it ended before it was killed"),
            Err(error) => println!("not run here: clients killed at each system call (ptrace: {error})"),
        }
        reached.is_ok()
    })
}

struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Ends the whole test program, in vain, if it is not dropped in time: a client that waits for a daemon that forgot it
/// waits for ever, and no test may. What the daemon says of itself is printed first.
struct Watchdog {
    _done: Sender<()>,
}

impl Watchdog {
    fn start(run_dir: &Path, exchange: &str) -> Self {
        let (done, not_done) = channel();
        let (run_dir, exchange) = (run_dir.to_owned(), exchange.to_owned());
        std::thread::spawn(move || {
            if not_done.recv_timeout(2 * PATIENCE) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{exchange}: those who are left wait for ever");
                for view in [["status", "--json"], ["plan", "--json"], ["channels", "--wide"]] {
                    let output = Command::new(WEIR).args(view).arg("--run-dir").arg(&run_dir).output();
                    let said = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
                    eprintln!("{view:?}: {}", said.unwrap_or_else(|error| error.to_string()));
                }
                let log = std::fs::read_to_string(run_dir.with_extension("log")).unwrap_or_default();
                eprintln!("{log}");
                std::process::exit(1);
            }
        });
        Self { _done: done }
    }
}

/// Whether a gate or partition failed because the other end is gone.
fn is_orphaned(error: &Error) -> bool {
    let code = error.failure().map(|failure| failure.code);
    matches!(code, Some(FailureCode::ProducerGone | FailureCode::ConsumerGone))
}

/// Whether the place is not free yet.
fn is_taken(error: &Error) -> bool {
    matches!(error, Error::Refused { code, .. } if code.starts_with("duplicate"))
}

/// How much a consumer wants.
#[derive(Clone, Copy, PartialEq)]
enum Until {
    /// Everything of a producer that finishes.
    End,
    /// A sign that the exchange lives.
    FirstRecord,
}

/// Consumes as much. Producers before that may have gone.
fn consume(run_dir: &Path, exchange: &str, until: Until) {
    attempt(run_dir, exchange, |task| {
        let mut gate = task.gate(exchange, 0, 1, GateOptions::default())?;
        while let Some(item) = gate.next()? {
            assert!(matches!(item, Item::Record(_)));
            if until == Until::FirstRecord {
                return Ok(());
            }
        }
        Ok(())
    });
}

/// Produces for whoever consumes until all is over. Consumers before that may have gone.
fn produce(run_dir: &Path, exchange: &str, is_over: &AtomicBool) {
    attempt(run_dir, exchange, |task| {
        let mut partition =
            task.partition(exchange, 0, 1, 1, Strategy::Forward, PartitionOptions::default())?;
        while !is_over.load(Ordering::Relaxed) {
            // Without waiting: there may be no consumer.
            for _ in 0..4 {
                let _ = partition.try_emit(&[b'x'; 3000])?;
            }
            partition.flush()?;
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    });
}

/// Produces one record, to the end.
fn finish(run_dir: &Path, exchange: &str) {
    attempt(run_dir, exchange, |task| {
        let mut partition =
            task.partition(exchange, 0, 1, 1, Strategy::Forward, PartitionOptions::default())?;
        partition.emit(b"the last")?;
        partition.finish().map(drop)
    });
}

/// Tries until it is not the other end's going, or its own predecessor's place, that stands in the way.
fn attempt(run_dir: &Path, exchange: &str, try_it: impl Fn(&Task) -> Result<(), Error>) {
    let client = Client::connect(run_dir).expect("a daemon");
    let task = client.task("successor").expect("a task");
    let began = Instant::now();
    loop {
        match try_it(&task) {
            Ok(()) => return,
            Err(error) if is_taken(&error) || is_orphaned(&error) => {}
            Err(error) => panic!("{exchange}: {error:?}"),
        }
        assert!(began.elapsed() < PATIENCE, "{exchange}: the place does not come free");
    }
}
