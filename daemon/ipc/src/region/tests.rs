use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags};

use super::*;

const BYTES: u64 = 64 * 1024;

fn region() -> OwnedFd {
    let fd = rustix::fs::memfd_create("region", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, BYTES).unwrap();
    fd
}

/// The other side of a region: who writes and reads its bytes at addresses of its own. Over an anonymous mapping,
/// which Miri knows, so that it sees both sides. Not to be used after the mapping was dropped.
pub(crate) struct OtherSide {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: it is an address; what may be done there at which time is what the tests are about.
unsafe impl Send for OtherSide {}

impl OtherSide {
    fn of(mapping: &MmapRaw) -> Self {
        Self { start: mapping.as_mut_ptr(), bytes: mapping.len() }
    }

    /// Copies bytes out.
    pub(crate) fn read(&self, offset: usize, count: usize) -> Vec<u8> {
        assert!(offset + count <= self.bytes);
        let mut bytes = vec![0; count];
        // SAFETY: inside the mapping, which the test keeps; no reference to it is written through.
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(offset), bytes.as_mut_ptr(), count) };
        bytes
    }

    /// Writes bytes.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.bytes);
        // SAFETY: inside the mapping, which the test keeps; the test has let go of slices of these bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(offset), bytes.len()) };
    }
}

fn anonymous() -> MmapRaw {
    memmap2::MmapMut::map_anon(BYTES as usize).unwrap().into()
}

/// A send region and who reads it.
pub(crate) fn send() -> (SendMapping, OtherSide) {
    let mapping = anonymous();
    let other = OtherSide::of(&mapping);
    (SendMapping { mapping }, other)
}

/// A receive region and who writes it.
pub(crate) fn receive() -> (ReceiveMapping, OtherSide) {
    let mapping = anonymous();
    let other = OtherSide::of(&mapping);
    (ReceiveMapping { mapping }, other)
}

/// The last byte is one, and the whole is a slice.
#[test]
fn every_byte_is_written_and_read() {
    let ((mut send, sent), (receive, received)) = (send(), receive());
    let all: Vec<u8> = (0..BYTES).map(|byte| byte as u8).collect();
    assert!(send.write(0, &all));
    assert_eq!(sent.read(0, all.len()), all);
    received.write(0, &all);
    assert_eq!(receive.slice(0, all.len()), Some(all.as_slice()));
    for count in 0..9 {
        let offset = all.len() - count;
        assert!(send.write(offset as u64, &vec![count as u8; count]));
        assert_eq!(sent.read(offset, count), vec![count as u8; count]);
        assert_eq!(receive.slice(offset as u64, count), all.get(offset..));
    }
}

/// A slice is about its own bytes: those beside it may be written while it is held, and a write touches no others.
#[test]
fn bytes_beside_a_slice_are_others() {
    let (receive, daemon) = receive();
    daemon.write(64, &[1; 32]);
    daemon.write(128, &[2; 32]);
    let (first, second) = (receive.slice(64, 32).unwrap(), receive.slice(128, 32).unwrap());
    for offset in [0, 96, 160] {
        daemon.write(offset, &[9; 32]);
    }
    daemon.write(BYTES as usize - 1, &[9]);
    assert_eq!((first, second), ([1; 32].as_slice(), [2; 32].as_slice()));
    // Given back, and delivered again.
    daemon.write(64, &[3; 32]);
    assert_eq!(receive.slice(64, 32), Some([3; 32].as_slice()));
}

/// The kernel sends the bytes before while the next ones are written.
#[test]
fn bytes_are_sent_while_those_behind_them_are_written() {
    let rounds = if cfg!(miri) { 60 } else { 5_000 };
    let (mut send, kernel) = send();
    assert!(send.write(0, &[7; 64]));
    let sender = std::thread::spawn(move || {
        for _ in 0..rounds {
            assert_eq!(kernel.read(0, 64), [7; 64]);
        }
        kernel
    });
    for round in 0..rounds {
        assert!(send.write(64, &[round as u8; 64]));
    }
    assert_eq!(sender.join().unwrap().read(64, 64), [(rounds - 1) as u8; 64]);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfds")]
fn what_is_written_is_in_the_region() {
    let fd = region();
    let mut send = SendMapping::map(fd.try_clone().unwrap(), BYTES).unwrap();
    let receive = ReceiveMapping::map(fd, BYTES).unwrap();
    assert_eq!(
        (send.len(), receive.len(), send.is_empty(), receive.is_empty()),
        (BYTES, BYTES, false, false)
    );
    assert!(send.write(100, b"records"));
    assert_eq!(receive.slice(100, 7), Some(b"records".as_slice()));
    assert!(send.write(BYTES - 2, b"ok"));
    assert_eq!(receive.slice(BYTES - 2, 2), Some(b"ok".as_slice()));
}

#[test]
fn nothing_outside_is_read_or_written() {
    let ((mut send, sent), (receive, _)) = (send(), receive());
    for (offset, bytes) in [(BYTES - 2, 3), (BYTES, 1), (BYTES + 1, 0), (u64::MAX, 1), (u64::MAX - 1, 2)] {
        assert!(!send.write(offset, &vec![1; bytes]), "{offset} {bytes}");
        assert_eq!(receive.slice(offset, bytes), None, "{offset} {bytes}");
    }
    assert_eq!(receive.slice(1, usize::MAX), None);
    assert_eq!(sent.read(0, BYTES as usize), [0; BYTES as usize], "nothing was written in part");
    assert!(send.write(BYTES, b"") && receive.slice(BYTES, 0).is_some(), "no byte fits anywhere inside");
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfds")]
fn a_region_that_is_too_small_is_refused() {
    let text = |result: io::Result<()>| result.unwrap_err().to_string();
    let refused = "region has 65536 bytes; needed: 65537";
    assert_eq!(text(SendMapping::map(region(), BYTES + 1).map(|_| ())), refused);
    assert_eq!(text(ReceiveMapping::map(region(), BYTES + 1).map(|_| ())), refused);
}

/// A receive region can be mapped for reading after the daemon forbade all other writing.
#[test]
#[cfg_attr(miri, ignore = "Miri has no memfds")]
fn a_region_closed_to_writers_is_read() {
    let fd = region();
    let mut daemon = SendMapping::map(fd.try_clone().unwrap(), BYTES).unwrap();
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    assert!(SendMapping::map(fd.try_clone().unwrap(), BYTES).is_err());
    let receive = ReceiveMapping::map(fd, BYTES).unwrap();
    assert!(daemon.write(0, b"slice"));
    assert_eq!(receive.slice(0, 5), Some(b"slice".as_slice()));
}
