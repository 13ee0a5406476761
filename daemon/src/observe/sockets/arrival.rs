//! When the bytes that lie unread in a socket arrived there, as the kernel has stamped them.
//!
//! The kernel keeps one stamp for each buffer of the receive queue. Segments that arrive one after the other may share a
//! buffer, and then the stamp is that of the last of them: what is read here is never earlier than the arrival, and may
//! be later.

#![allow(unsafe_code)] // an option of sockets and a message with control data that no crate here has

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::time::{ClockId, clock_gettime};

use super::monotonic_ns;

/// Room for control data, in words: twice what stamps need, for nobody says that they come alone.
const CONTROL_WORDS: usize = 16;

/// Stamps of one arrival: by the kernel, a converted one that is not in use any more, and by the network card.
type Stamps = [libc::timespec; 3];

/// From now on what arrives at this socket is stamped. It costs a few nanoseconds per packet of the whole machine, as
/// long as there is any such socket.
///
/// # Errors
/// The kernel refuses the option.
pub(super) fn stamp_arrivals(socket: BorrowedFd<'_>) -> io::Result<()> {
    let flags = libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE;
    // SAFETY: the kernel reads one integer.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPING,
            (&raw const flags).cast(),
            size_of_val(&flags) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// When the first of the bytes that lie unread arrived, in nanoseconds of `CLOCK_MONOTONIC`. `None`: nothing lies there,
/// or what does was not stamped. Takes nothing out of the socket.
pub(super) fn oldest_arrival_ns(socket: BorrowedFd<'_>) -> Option<u64> {
    // In this order whatever passes between two of them makes the arrival later, and what is found lies there at both.
    let real_ns = real_ns()?;
    let now_ns = monotonic_ns();
    let stamp_ns = first_stamp_ns(socket)?;
    // A clock that was set back since makes it an arrival of this moment.
    Some(now_ns.saturating_sub(real_ns.saturating_sub(stamp_ns)))
}

/// The stamp of the first byte that lies unread, in nanoseconds of `CLOCK_REALTIME`.
fn first_stamp_ns(socket: BorrowedFd<'_>) -> Option<u64> {
    let mut byte = 0_u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = [0_u64; CONTROL_WORDS];
    // SAFETY: all zeroes is a message without name, parts and control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the kernel writes to the byte and to the control data, at most as much as is said of them, and both live
    // until it returns.
    let bytes =
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
    if bytes != 1 {
        return None;
    }
    // SAFETY: the control data are as the kernel has left them, and aligned for their headers.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: null, or a header within the control data.
    while let Some(header) = unsafe { next.as_ref() } {
        // SAFETY: it computes a length.
        let least = unsafe { libc::CMSG_LEN(size_of::<Stamps>() as libc::c_uint) };
        let is_stamps = header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_TIMESTAMPING;
        if is_stamps && header.cmsg_len >= least as _ {
            // SAFETY: behind the header there are as many bytes as it says, of which any are integers.
            let [stamp, ..] = unsafe { libc::CMSG_DATA(header).cast::<Stamps>().read_unaligned() };
            return nanoseconds(stamp.tv_sec, stamp.tv_nsec).filter(|ns| *ns > 0);
        }
        // SAFETY: the header is one of this message.
        next = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    None
}

fn real_ns() -> Option<u64> {
    let time = clock_gettime(ClockId::Realtime);
    nanoseconds(time.tv_sec, time.tv_nsec)
}

/// `None` for a time before 1970.
fn nanoseconds(seconds: i64, nanoseconds: i64) -> Option<u64> {
    let (seconds, nanoseconds) = (u64::try_from(seconds).ok()?, u64::try_from(nanoseconds).ok()?);
    Some(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::*;
    use crate::observe::sockets::Reading;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        // What should lie there and does not is a failure, not a hang.
        far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        (near, far)
    }

    /// Waits until so many bytes lie unread.
    fn arrived(socket: &TcpStream, bytes: u64) {
        for _ in 0..1_000_000 {
            if Reading::of(socket.as_fd()).unwrap().unread_bytes == bytes {
                return;
            }
            std::thread::yield_now();
        }
        panic!("{bytes} bytes did not arrive");
    }

    /// The kernel begins to stamp a moment after the first socket has asked for it.
    fn stamped_pair() -> (TcpStream, TcpStream) {
        let (mut near, mut far) = pair();
        stamp_arrivals(far.as_fd()).unwrap();
        for _ in 0..10_000 {
            near.write_all(&[0]).unwrap();
            arrived(&far, 1);
            let stamp = oldest_arrival_ns(far.as_fd());
            far.read_exact(&mut [0]).unwrap();
            if stamp.is_some() {
                return (near, far);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("nothing is stamped");
    }

    #[test]
    fn the_first_unread_byte_is_known_by_its_arrival_and_stays_where_it_is() {
        let (mut near, mut far) = stamped_pair();
        assert_eq!(oldest_arrival_ns(far.as_fd()), None, "nothing lies there");
        let before = monotonic_ns();
        near.write_all(&[1, 2, 3]).unwrap();
        arrived(&far, 3);
        let after = monotonic_ns();
        std::thread::sleep(Duration::from_millis(30));
        // Over a duplicate, as it is looked at; and as often as one likes.
        let duplicate = far.try_clone().unwrap();
        for _ in 0..3 {
            let asked = monotonic_ns();
            let arrival = oldest_arrival_ns(duplicate.as_fd()).unwrap();
            // The two clocks are read one after the other, and this thread may have been away in between.
            let away = monotonic_ns() - asked;
            // The wall clock may be slewed meanwhile: by far less than a millisecond.
            let slewed = 1_000_000;
            assert!(
                arrival + slewed > before && arrival < after + away + slewed,
                "{before} {arrival} {after}"
            );
        }
        let mut bytes = [0; 3];
        far.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3]);
        assert_eq!(oldest_arrival_ns(far.as_fd()), None);
    }

    #[test]
    fn what_is_not_stamped_has_no_arrival() {
        let (mut near, far) = pair();
        near.write_all(&[1, 2, 3]).unwrap();
        arrived(&far, 3);
        assert_eq!(oldest_arrival_ns(far.as_fd()), None);
        let file = tempfile::tempfile().unwrap();
        assert!(stamp_arrivals(file.as_fd()).is_err());
        assert_eq!(oldest_arrival_ns(file.as_fd()), None);
    }
}
