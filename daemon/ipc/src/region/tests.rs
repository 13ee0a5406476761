use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags};

use super::*;

const BYTES: u64 = 64 * 1024;

fn region() -> OwnedFd {
    let fd = rustix::fs::memfd_create("region", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, BYTES).unwrap();
    fd
}

#[test]
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
    let fd = region();
    let mut send = SendMapping::map(fd.try_clone().unwrap(), BYTES).unwrap();
    let receive = ReceiveMapping::map(fd, BYTES).unwrap();
    for (offset, bytes) in [(BYTES - 2, 3), (BYTES, 1), (BYTES + 1, 0), (u64::MAX, 1), (u64::MAX - 1, 2)] {
        assert!(!send.write(offset, &vec![1; bytes]), "{offset} {bytes}");
        assert_eq!(receive.slice(offset, bytes), None, "{offset} {bytes}");
    }
    assert_eq!(receive.slice(1, usize::MAX), None);
    assert_eq!(receive.slice(BYTES - 2, 2), Some([0, 0].as_slice()), "nothing was written in part");
    assert!(send.write(BYTES, b"") && receive.slice(BYTES, 0).is_some(), "no byte fits anywhere inside");
}

#[test]
fn a_region_that_is_too_small_is_refused() {
    let text = |result: io::Result<()>| result.unwrap_err().to_string();
    let refused = "region has 65536 bytes; needed: 65537";
    assert_eq!(text(SendMapping::map(region(), BYTES + 1).map(|_| ())), refused);
    assert_eq!(text(ReceiveMapping::map(region(), BYTES + 1).map(|_| ())), refused);
}

/// A receive region can be mapped for reading after the daemon forbade all other writing.
#[test]
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
