use rustix::fs::fcntl_get_seals;
use rustix::io::Errno;

use super::*;
use crate::layout::{GateLayout, PartitionLayout};

fn header() -> Header {
    PartitionLayout { segments: 64, subpartitions: 2 }.places().unwrap().header
}

#[test]
fn a_client_cannot_change_its_size_or_its_seals() {
    let (_, fd) = Memory::create("test", &header()).unwrap();
    for bytes in [0, 4096, header().bytes as u64 + 4096] {
        assert_eq!(rustix::fs::ftruncate(&fd, bytes), Err(Errno::PERM), "{bytes}");
    }
    assert_eq!(rustix::fs::fcntl_add_seals(&fd, SealFlags::WRITE), Err(Errno::PERM));
    assert_eq!(fcntl_get_seals(&fd).unwrap(), SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL);
    let status = rustix::fs::fstat(&fd).unwrap();
    assert_eq!(status.st_mode & 0o7777, 0o600);
    assert_eq!(status.st_size, header().bytes as i64);
    let needed = header().bytes - 64 * 1024;
    assert_eq!(status.st_blocks as usize * 512, needed, "all but event slots is there before it is needed");
}

#[test]
fn both_sides_see_the_same_words() {
    let (daemon, fd) = Memory::create("test", &header()).unwrap();
    let client = Memory::attach(fd, &header()).unwrap();
    let place = Place { at: 4096, bytes: 64 };
    daemon.words(place).unwrap().store(3, 7, Ordering::Relaxed);
    assert_eq!(client.words(place).unwrap().load(3, Ordering::Relaxed), 7);
}

#[test]
fn memory_of_another_kind_version_or_size_is_refused() {
    let (daemon, fd) = Memory::create("test", &header()).unwrap();
    let attach = |header: &Header| Memory::attach(duplicate(&fd), header).map(|_| ());
    attach(&header()).unwrap();
    let refusal = |header: &Header| {
        let error = attach(header).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        error.to_string()
    };
    let gate = GateLayout { segments: 64, channels: 2 }.places().unwrap().header;
    assert!(refusal(&gate).contains("size"));
    assert!(refusal(&Header { kind: crate::layout::Kind::Gate, ..header() }).contains("version and kind"));
    assert!(refusal(&Header { first: 63, ..header() }).contains("first number"));
    assert!(refusal(&Header { second: 3, ..header() }).contains("second number"));
    daemon.words(Place { at: 0, bytes: 8 }).unwrap().store(0, 1, Ordering::Relaxed);
    let text = refusal(&header());
    assert_eq!(
        text,
        "shared memory has magic 0x1; needed: 0x4350492d52494557 (client and daemon of one version)"
    );
}

#[test]
fn words_outside_the_memory_do_not_exist() {
    let (memory, _) = Memory::create("test", &header()).unwrap();
    let bytes = header().bytes;
    assert!(memory.words(Place { at: bytes - 64, bytes: 64 }).is_ok());
    assert!(memory.words(Place { at: bytes - 64, bytes: 128 }).is_err());
    assert!(memory.words(Place { at: bytes, bytes: 8 }).is_err());
    let words = memory.words(Place { at: 0, bytes: 64 }).unwrap();
    assert!(words.part(7, 1).is_some() && words.part(7, 2).is_none() && words.part(usize::MAX, 2).is_none());
    words.store(8, 1, Ordering::Relaxed);
    assert_eq!((words.load(8, Ordering::Relaxed), words.swap(8, 1, Ordering::Relaxed)), (0, 0));
}

/// A hole reads as zeros through a mapping made before, and can be written again: no signal.
#[test]
fn a_hole_is_zeros() {
    let (daemon, fd) = Memory::create("test", &header()).unwrap();
    let words = daemon.words(Place { at: 4096, bytes: 4096 }).unwrap();
    words.store(5, 9, Ordering::Relaxed);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&fd, punch, 0, header().bytes as u64).unwrap();
    assert_eq!(words.load(5, Ordering::Relaxed), 0);
    words.store(5, 4, Ordering::Relaxed);
    assert_eq!(words.load(5, Ordering::Relaxed), 4);
}
