//! What the kernel tells of one TCP socket to whoever asks: without privileges, and in steps of its timer.

#![allow(unsafe_code)] // options and requests of sockets that no crate here has

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use weir_ebpf_abi::SendState;

use super::arrival;

/// A socket at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Time with anything in the send queue, in nanoseconds.
    pub(crate) busy_ns: u64,
    /// Of that, time in which the peer's window held data back.
    pub(crate) receive_window_ns: u64,
    /// Of that, time in which the send buffer held the writer back.
    pub(crate) send_buffer_ns: u64,
    /// Bytes written and not acknowledged.
    pub(crate) queued_bytes: u64,
    /// Of those, bytes that were not sent.
    pub(crate) unsent_bytes: u64,
    /// Bytes that arrived and were not read.
    pub(crate) unread_bytes: u64,
    /// Bytes of the stream that have arrived so far.
    pub(crate) received_bytes: u64,
    /// Of those, bytes that were read; `None`: others arrived while it was asked.
    pub(crate) read_bytes: Option<u64>,
    /// When the first of those that were not read arrived, in nanoseconds of `CLOCK_MONOTONIC`, or a little later; `None`
    /// too where that is not asked for, and where nothing is unread.
    pub(crate) oldest_arrival_ns: Option<u64>,
    /// Segments sent again so far.
    pub(crate) retransmitted_segments: u64,
    /// Smoothed round trip, in nanoseconds; 0 before the first.
    pub(crate) round_trip_ns: u64,
    /// The peer's window, in bytes.
    pub(crate) peer_window_bytes: u64,
    /// Bytes of a full segment.
    pub(crate) segment_bytes: u64,
    /// Segments under way.
    pub(crate) under_way_segments: u64,
    /// Segments that the congestion window allows.
    pub(crate) congestion_window_segments: u64,
    /// Whether the connection is still open to send.
    pub(crate) is_established: bool,
}

/// `TCP_ESTABLISHED`.
const ESTABLISHED: u8 = 1;

impl Reading {
    /// Asks the kernel.
    ///
    /// # Errors
    /// The descriptor is not that of a TCP socket.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let unread_before_bytes = queue_bytes(socket, libc::FIONREAD)?;
        let info = tcp_info(socket)?;
        let unread_bytes = queue_bytes(socket, libc::FIONREAD)?;
        // Otherwise the two are of different moments.
        let is_settled = unread_bytes == unread_before_bytes;
        let micro = |micro: u64| micro.saturating_mul(1000);
        let under_way = u64::from(info.tcpi_unacked) + u64::from(info.tcpi_retrans);
        Ok(Self {
            busy_ns: micro(info.tcpi_busy_time),
            receive_window_ns: micro(info.tcpi_rwnd_limited),
            send_buffer_ns: micro(info.tcpi_sndbuf_limited),
            queued_bytes: queue_bytes(socket, libc::TIOCOUTQ)?,
            unsent_bytes: info.tcpi_notsent_bytes.into(),
            unread_bytes,
            received_bytes: info.tcpi_bytes_received,
            read_bytes: is_settled.then(|| info.tcpi_bytes_received.saturating_sub(unread_bytes)),
            oldest_arrival_ns: None,
            retransmitted_segments: info.tcpi_total_retrans.into(),
            round_trip_ns: micro(info.tcpi_rtt.into()),
            peer_window_bytes: info.tcpi_snd_wnd.into(),
            segment_bytes: info.tcpi_snd_mss.into(),
            under_way_segments: under_way
                .saturating_sub(u64::from(info.tcpi_sacked) + u64::from(info.tcpi_lost)),
            congestion_window_segments: info.tcpi_snd_cwnd.into(),
            is_established: info.tcpi_state == ESTABLISHED,
        })
    }

    /// The same, with when the oldest unread byte arrived: to be asked for by whoever reads the socket, and of a socket
    /// whose arrivals are stamped. Takes nothing out of it.
    pub(crate) fn with_arrival(mut self, socket: BorrowedFd<'_>) -> Self {
        // A look at an empty queue would take an error of the connection, which is for whoever reads.
        if self.unread_bytes > 0 && self.is_established {
            self.oldest_arrival_ns = arrival::oldest_arrival_ns(socket);
        }
        self
    }

    /// What the sending side waits for at this moment, as far as these numbers tell: the kernel's own clocks show what
    /// was, and not which of them runs.
    pub(crate) fn state(&self) -> SendState {
        let under_way_bytes = self.queued_bytes.saturating_sub(self.unsent_bytes);
        if self.queued_bytes == 0 {
            SendState::Idle
        } else if self.unsent_bytes == 0 {
            SendState::Flight
        } else if self.under_way_segments >= self.congestion_window_segments {
            SendState::CongestionWindow
        } else if under_way_bytes + self.segment_bytes.min(self.unsent_bytes) > self.peer_window_bytes {
            SendState::ReceiveWindow
        } else {
            SendState::Held
        }
    }
}

/// `TCP_INFO`. What this kernel does not have is 0.
fn tcp_info(socket: BorrowedFd<'_>) -> io::Result<libc::tcp_info> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut bytes = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes to `info`, and their number to `bytes`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: integers, all of which were zero before the kernel wrote some of them.
    Ok(unsafe { info.assume_init() })
}

/// `SIOCOUTQ` or `SIOCINQ`.
fn queue_bytes(socket: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one integer.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut bytes) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::try_from(bytes).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_waits_on_a_connection_is_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let idle = Reading::of(near.as_fd()).unwrap();
        assert_eq!((idle.state(), idle.queued_bytes, idle.unread_bytes), (SendState::Idle, 0, 0));
        assert!(idle.is_established && idle.segment_bytes > 0 && idle.congestion_window_segments > 0);
        near.write_all(&[7; 1000]).unwrap();
        // Loopback delivers before the call returns, or a moment later.
        for _ in 0..10_000 {
            let reading = Reading::of(far.as_fd()).unwrap();
            if reading.unread_bytes == 1000 {
                drop(near);
                return;
            }
            std::thread::yield_now();
        }
        panic!("1000 bytes did not arrive");
    }

    #[test]
    fn what_was_read_is_what_arrived_and_does_not_lie_there_any_more() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let mut read = 0;
        for bytes in [1, 500, 70_000] {
            near.write_all(&vec![7; bytes]).unwrap();
            let reading = loop {
                let reading = Reading::of(far.as_fd()).unwrap();
                assert!(reading.read_bytes.is_none_or(|found| found == read), "{reading:?}");
                if reading.unread_bytes == bytes as u64 && reading.read_bytes.is_some() {
                    break reading;
                }
                std::thread::yield_now();
            };
            assert_eq!((reading.received_bytes, reading.oldest_arrival_ns), (read + bytes as u64, None));
            far.read_exact(&mut vec![0; bytes]).unwrap();
            read += bytes as u64;
            assert_eq!(Reading::of(far.as_fd()).unwrap().read_bytes, Some(read));
        }
    }

    #[test]
    fn each_state_is_told_from_the_numbers() {
        let reading = |queued, unsent, under_way, window| Reading {
            queued_bytes: queued,
            unsent_bytes: unsent,
            under_way_segments: under_way,
            peer_window_bytes: window,
            segment_bytes: 1_000,
            congestion_window_segments: 10,
            ..Reading::default()
        };
        for (reading, state) in [
            (reading(0, 0, 0, 9_000), SendState::Idle),
            (reading(5_000, 0, 5, 9_000), SendState::Flight),
            (reading(20_000, 10_000, 10, 50_000), SendState::CongestionWindow),
            (reading(6_000, 1_000, 5, 5_500), SendState::ReceiveWindow),
            (reading(6_000, 10, 5, 5_999), SendState::ReceiveWindow),
            (reading(6_000, 1_000, 5, 9_000), SendState::Held),
        ] {
            assert_eq!(reading.state(), state, "{reading:?}");
        }
    }

    #[test]
    fn what_is_no_tcp_socket_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        assert!(Reading::of(file.as_fd()).is_err());
    }
}
