//! The baseline: one TCP connection over loopback, 256 KiB per write and read unless a case says otherwise. Both ends touch their payload, as an
//! application does: the sender writes every word before it is sent, the receiver adds every word up.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use socket2::{Domain, Socket, Type};

use crate::app::Board;

/// Bytes of one write and one read.
pub const CHUNK_BYTES: usize = 256 * 1024;

/// Listens, and reads from the first connection in a thread. The port stands as the record count of worker 1.
pub(crate) fn receive(chunk_bytes: usize) -> Result<Arc<Board>, String> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| format!("cannot listen: {error}"))?;
    let port = listener.local_addr().map_err(|error| format!("no port: {error}"))?.port();
    let board = Board::new(2);
    board.counters[1].records.store(u64::from(port), Ordering::Relaxed);
    let counted = Arc::clone(&board);
    std::thread::spawn(move || {
        let Ok((mut stream, _)) = listener.accept() else { return };
        let mut chunk = vec![0_u8; chunk_bytes];
        let counter = &counted.counters[0];
        let (mut bytes, mut reads, mut checksum) = (0_u64, 0_u64, 0_u64);
        while let Ok(read @ 1..) = stream.read(&mut chunk) {
            checksum = checksum.wrapping_add(sum(&chunk[..read]));
            bytes += read as u64;
            reads += 1;
            counter.bytes.store(bytes, Ordering::Relaxed);
            counter.records.store(reads, Ordering::Relaxed);
            counter.checksum.store(checksum, Ordering::Relaxed);
        }
    });
    Ok(board)
}

/// Connects to `port` and writes in a thread until the process ends.
pub(crate) fn send(port: u16, chunk_bytes: usize, congestion: Option<&str>) -> Result<Arc<Board>, String> {
    let socket =
        Socket::new(Domain::IPV4, Type::STREAM, None).map_err(|error| format!("no socket: {error}"))?;
    if let Some(name) = congestion {
        socket
            .set_tcp_congestion(name.as_bytes())
            .map_err(|error| format!("cannot use congestion control {name}: {error}"))?;
    }
    let address = std::net::SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    socket.connect(&address.into()).map_err(|error| format!("cannot connect: {error}"))?;
    let mut stream = std::net::TcpStream::from(socket);
    let board = Board::new(1);
    let counted = Arc::clone(&board);
    std::thread::spawn(move || {
        let mut chunk = vec![0_u8; chunk_bytes];
        let counter = &counted.counters[0];
        let mut number = 0_u64;
        let mut bytes = 0_u64;
        loop {
            number = fill(&mut chunk, number);
            if stream.write_all(&chunk).is_err() {
                return;
            }
            bytes += chunk_bytes as u64;
            counter.bytes.store(bytes, Ordering::Relaxed);
        }
    });
    Ok(board)
}

/// Writes every byte: each 8-byte word is a number, counted up from `number`. The number that follows.
#[must_use]
pub fn fill(bytes: &mut [u8], mut number: u64) -> u64 {
    let mut words = bytes.chunks_exact_mut(8);
    for word in &mut words {
        word.copy_from_slice(&number.to_le_bytes());
        number = number.wrapping_add(1);
    }
    words.into_remainder().fill(number as u8);
    number.wrapping_add(1)
}

/// Sum of the 8-byte words of `bytes`, and of what is left over.
#[must_use]
pub fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(8);
    let rest = words.remainder().iter().fold(0_u64, |sum, byte| sum.wrapping_add(u64::from(*byte)));
    words.fold(rest, |sum, word| sum.wrapping_add(u64::from_le_bytes(word.try_into().unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filling_writes_every_byte() {
        for length in [0, 1, 7, 8, 9, 64, 1001] {
            let (mut first, mut second) = (vec![0_u8; length], vec![0xff_u8; length]);
            let next = fill(&mut first, 77);
            assert_eq!(fill(&mut second, 77), next);
            assert_eq!(first, second, "{length} bytes");
        }
    }

    #[test]
    fn every_byte_counts_in_the_sum() {
        assert_eq!(sum(&[]), 0);
        assert_eq!(sum(&[1, 2, 3]), 6);
        assert_eq!(sum(&[1, 0, 0, 0, 0, 0, 0, 0, 5]), 6);
        let mut bytes = vec![7_u8; 1000];
        let before = sum(&bytes);
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert_ne!(sum(&bytes), before, "byte {at}");
            bytes[at] ^= 1;
        }
    }
}
