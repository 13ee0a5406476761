//! `weir top` on a terminal of its own: what it shows, and that the terminal is as it was when it has ended.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use common::{Pair, WEIR, eventually, recv, send, signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

/// A terminal of 80 columns and 24 lines, and the program on it.
struct Terminal {
    master: File,
    slave: OwnedFd,
    /// Everything that was written to it.
    written: Arc<Mutex<Vec<u8>>>,
    before: Termios,
    is_read: Arc<AtomicBool>,
    reading: Option<JoinHandle<()>>,
}

impl Terminal {
    fn open() -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&master).expect("its rights");
        unlockpt(&master).expect("its lock");
        let name = ptsname(&master, Vec::new()).expect("its name");
        let slave = File::options()
            .read(true)
            .write(true)
            .open(name.to_str().expect("UTF-8"))
            .expect("its other end");
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&slave, size).expect("its size");
        let before = tcgetattr(&slave).expect("its modes");
        let (master, written) = (File::from(master), Arc::new(Mutex::new(Vec::new())));
        let (mut source, sink) = (master.try_clone().expect("a copy"), Arc::clone(&written));
        let is_read = Arc::new(AtomicBool::new(true));
        let goes_on = Arc::clone(&is_read);
        let reading = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while goes_on.load(Ordering::Relaxed) {
                let mut polled = [PollFd::new(&source, PollFlags::IN)];
                let pause = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                if poll(&mut polled, Some(&pause)).expect("a poll") == 0 {
                    continue;
                }
                let Ok(count @ 1..) = source.read(&mut bytes) else { return };
                sink.lock().expect("not poisoned").extend_from_slice(&bytes[..count]);
            }
        });
        Self { master, slave: slave.into(), written, before, is_read, reading: Some(reading) }
    }

    /// The terminal goes away, as when its window is closed or its connection is lost.
    fn hang_up(mut self) {
        self.is_read.store(false, Ordering::Relaxed);
        self.reading.take().expect("it was opened").join().expect("the reader");
    }

    fn run(&self, run_dir: &std::path::Path) -> Child {
        let end = || Stdio::from(self.slave.try_clone().expect("a copy"));
        Command::new(WEIR)
            .args(["top", "--interval", "0.2", "--run-dir"])
            .arg(run_dir)
            .env("TERM", "xterm-256color")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("weir starts")
    }

    /// Whether this was ever written, whatever colours were set in between.
    fn has_shown(&self, text: &str) -> bool {
        String::from_utf8_lossy(&self.written.lock().expect("not poisoned")).contains(text)
    }

    fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("it takes keys");
    }

    /// The terminal has its own screen, its cursor and its modes again.
    fn expect_restored(&self) {
        let after = tcgetattr(&self.slave).expect("its modes");
        assert_eq!(
            (after.input_modes, after.output_modes, after.local_modes, after.control_modes),
            (
                self.before.input_modes,
                self.before.output_modes,
                self.before.local_modes,
                self.before.control_modes
            )
        );
        eventually("the screen is given back", || {
            (self.has_shown("\u{1b}[?1049l") && self.has_shown("\u{1b}[?25h")).then_some(())
        });
    }
}

fn exit_code(child: &mut Child) -> Option<i32> {
    eventually("weir top ends", || child.try_wait().expect("its state")).code()
}

#[test]
fn it_shows_what_is_attached_and_gives_the_terminal_back_when_a_key_or_a_signal_ends_it() {
    let pair = Pair::start();
    let receiver = recv(&pair.b, "clicks", "0/1");
    let mut sender = send(&pair.a, "clicks", &["--consumers", "1", "--task", "writer"]);
    for ending in [None, Some(Signal::TERM), Some(Signal::HUP), Some(Signal::INT)] {
        let mut terminal = Terminal::open();
        let mut top = terminal.run(&pair.a.run_dir);
        for text in ["bottleneck:", "writer", "recv", "q quit"] {
            eventually(text, || terminal.has_shown(text).then_some(()));
        }
        terminal.press("3");
        eventually("the channels", || terminal.has_shown("from>to").then_some(()));
        match ending {
            None => terminal.press("q"),
            Some(kind) => signal(top.id(), kind),
        }
        assert_eq!(exit_code(&mut top), Some(0), "{ending:?}");
        terminal.expect_restored();
    }
    drop(sender.child.stdin.take());
    assert!(sender.output().status.success() && receiver.output().status.success());
}

/// It is not the leader of a session here, so that no signal tells it unless the test sends one.
#[test]
fn it_ends_when_its_terminal_goes_away() {
    let pair = Pair::start();
    for is_told in [false, true, false, true] {
        let terminal = Terminal::open();
        let mut top = terminal.run(&pair.a.run_dir);
        eventually("the screen", || terminal.has_shown("q quit").then_some(()));
        terminal.hang_up();
        if is_told {
            signal(top.id(), Signal::HUP);
        }
        assert_eq!(exit_code(&mut top), Some(0), "an end, and no panic");
    }
}

#[test]
fn without_a_terminal_or_a_daemon_it_says_so_and_touches_nothing() {
    let pair = Pair::start();
    let output = common::weir(["top"], &pair.a.run_dir).stdin(Stdio::null()).output().expect("weir runs");
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("needs a terminal") && text.contains("--output json"), "{text}");
    assert!(output.stdout.is_empty());

    let terminal = Terminal::open();
    let mut top = terminal.run(&pair.directory.path().join("nobody"));
    assert_eq!(exit_code(&mut top), Some(4));
    assert!(!terminal.has_shown("\u{1b}[?1049h"), "the screen did not change");
}
