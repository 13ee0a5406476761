//! Records that flow from one daemon to another for as long as a test needs, and then must all be there.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::Write;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::{Daemon, Guarded, channels, eventually, recv, send};

/// About 4 MB/s: a load, and nothing that keeps a busy machine from the rest of the test.
const ROUND_BYTES: usize = 40_000;

/// Time between rounds.
const ROUND: Duration = Duration::from_millis(10);

/// Records on their way.
pub(crate) struct Healthy {
    exchange: String,
    sender: Guarded,
    receiver: Guarded,
    enough: Arc<AtomicBool>,
    feeder: JoinHandle<Vec<u8>>,
}

impl Healthy {
    /// Starts a producer and a consumer, and waits until records have arrived.
    pub(crate) fn start(from: &Daemon, to: &Daemon, exchange: &str) -> Self {
        let receiver = recv(to, exchange, "0/1");
        let mut sender = send(from, exchange, &["--strategy", "forward", "--consumers", "1"]);
        let mut stdin = sender.child.stdin.take().expect("an input");
        let enough = Arc::new(AtomicBool::new(false));
        let is_enough = Arc::clone(&enough);
        let feeder = std::thread::spawn(move || {
            let mut all = Vec::new();
            let mut number = 0_u64;
            while !is_enough.load(Ordering::Relaxed) {
                let begin = all.len();
                while all.len() < begin + ROUND_BYTES {
                    writeln!(all, "{number} {:1$}", "", (number % 197) as usize).expect("memory");
                    number += 1;
                }
                if stdin.write_all(&all[begin..]).is_err() {
                    break;
                }
                std::thread::sleep(ROUND);
            }
            all
        });
        let healthy = Self { exchange: exchange.to_owned(), sender, receiver, enough, feeder };
        healthy.flows_on(to);
        healthy
    }

    /// Waits until more records have arrived at `to`.
    pub(crate) fn flows_on(&self, to: &Daemon) {
        let arrived = || -> u64 {
            let rows = channels(to, &self.exchange, "receive");
            rows.iter().filter_map(|row| row["bytes_total"].as_u64()).sum()
        };
        let begin = arrived();
        eventually("records flow", || (arrived() > begin + 3 * ROUND_BYTES as u64).then_some(()));
    }

    /// Ends the flow; all of it arrived, once and in order.
    pub(crate) fn finish(self) {
        self.enough.store(true, Ordering::Relaxed);
        let sent = self.feeder.join().expect("the feeder");
        let (sender, receiver) = (self.sender.output(), self.receiver.output());
        assert!(sender.status.success(), "{}", String::from_utf8_lossy(&sender.stderr));
        assert!(receiver.status.success(), "{}", String::from_utf8_lossy(&receiver.stderr));
        assert!(receiver.stdout == sent, "{} bytes arrived of {}", receiver.stdout.len(), sent.len());
    }

    /// Waits until both ends have failed by themselves; what sender and receiver said. What arrived before is the
    /// begin of what was sent.
    pub(crate) fn failed(self) -> [Output; 2] {
        let (sender, receiver) = (self.sender.output(), self.receiver.output());
        self.enough.store(true, Ordering::Relaxed);
        let sent = self.feeder.join().expect("the feeder");
        assert!(
            sent.starts_with(&receiver.stdout),
            "{} bytes arrived that were not sent so",
            receiver.stdout.len()
        );
        [sender, receiver]
    }
}
