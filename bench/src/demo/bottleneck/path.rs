//! A path between two nodes that carries little, or takes its time: a process in the middle that passes bytes on.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Bytes that are passed on at a time.
const PIECE_BYTES: usize = 16 << 10;

/// Pieces that may be on their way in one direction: with a delay, as many as come in that time.
const PIECES_MAX: usize = 4096;

/// How the path is held up, in each direction of each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    /// As much as it carries; without bound if `None`.
    pub(super) bytes_per_second: Option<u64>,
    /// How long a byte is on its way.
    pub(super) delay: Duration,
}

/// The way to one address. It is there for as long as this program runs.
pub(super) struct Path {
    address: String,
}

impl Path {
    /// Opens a way to this address.
    ///
    /// # Errors
    /// No port is free.
    pub(super) fn start(target: &str, hold: Hold) -> Result<Self, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| format!("no free port: {error}"))?;
        let address = listener.local_addr().map_err(|error| format!("no address: {error}"))?.to_string();
        let target = target.to_owned();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                // Whoever is not reached dials again.
                if let Ok(far) = TcpStream::connect(&target) {
                    join(&near, &far, hold);
                }
            }
        });
        Ok(Self { address })
    }

    /// Where the way begins.
    pub(super) fn address(&self) -> String {
        self.address.clone()
    }
}

/// Passes on what either end sends.
fn join(near: &TcpStream, far: &TcpStream, hold: Hold) {
    for (from, to) in [(near, far), (far, near)] {
        let _ = from.set_nodelay(true);
        let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { return };
        // What waits is bounded by the sockets and by this channel.
        let (pieces, arriving) = mpsc::sync_channel::<(Instant, Vec<u8>)>(PIECES_MAX);
        std::thread::spawn(move || read(from, &pieces, hold));
        std::thread::spawn(move || write(to, &arriving));
    }
}

fn read(mut from: TcpStream, pieces: &mpsc::SyncSender<(Instant, Vec<u8>)>, hold: Hold) {
    let mut free_at = Instant::now();
    let mut bytes = vec![0; PIECE_BYTES];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let now = Instant::now();
        if let Some(rate) = hold.bytes_per_second {
            free_at = free_at.max(now) + Duration::from_nanos(count as u64 * 1_000_000_000 / rate.max(1));
            std::thread::sleep(free_at.saturating_duration_since(now));
        }
        let piece = bytes.get(..count).unwrap_or_default().to_vec();
        if pieces.send((Instant::now() + hold.delay, piece)).is_err() {
            return;
        }
    }
}

fn write(mut to: TcpStream, arriving: &mpsc::Receiver<(Instant, Vec<u8>)>) {
    while let Ok((due, piece)) = arriving.recv() {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_as_they_were_and_no_sooner_than_they_may() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let hold = Hold { bytes_per_second: Some(1_000_000), delay: Duration::from_millis(30) };
        let path = Path::start(&server.local_addr().unwrap().to_string(), hold).unwrap();
        let sent: Vec<u8> = (0..200_000_u32).map(|number| number as u8).collect();
        let began = Instant::now();
        let mut near = TcpStream::connect(path.address()).unwrap();
        let bytes = sent.clone();
        let writer = std::thread::spawn(move || near.write_all(&bytes));
        let (mut far, _) = server.accept().unwrap();
        let mut read = Vec::new();
        far.read_to_end(&mut read).unwrap();
        writer.join().unwrap().unwrap();
        assert_eq!(read, sent);
        assert!(began.elapsed() >= Duration::from_millis(230), "{:?}", began.elapsed());
    }
}
