use rustix::fs::fcntl_get_seals;
use rustix::io::Errno;

use super::*;
use crate::layout::{GateLayout, PartitionLayout};

fn header() -> Header {
    PartitionLayout { segments: 64, subpartitions: 2 }.places().unwrap().header
}

/// Where all words are.
fn all() -> Place {
    Place { at: 0, bytes: header().bytes }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfds")]
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

/// Both ends. Miri has no memfds: there they are handles of one mapping of this process.
fn pair() -> (Memory, Memory) {
    if cfg!(miri) {
        return Memory::anonymous(&header()).unwrap();
    }
    let (daemon, fd) = Memory::create("test", &header()).unwrap();
    (daemon, Memory::attach(fd, &header()).unwrap())
}

#[test]
fn both_sides_see_the_same_words() {
    let (daemon, client) = pair();
    let place = Place { at: 4096, bytes: 64 };
    daemon.words(place).unwrap().store(3, 7, Ordering::Relaxed);
    assert_eq!(client.words(place).unwrap().load(3, Ordering::Relaxed), 7);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfds")]
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
    let (memory, _) = pair();
    let bytes = header().bytes;
    assert!(memory.words(Place { at: bytes - 64, bytes: 64 }).is_ok());
    assert!(memory.words(Place { at: bytes - 64, bytes: 128 }).is_err());
    assert!(memory.words(Place { at: bytes, bytes: 8 }).is_err());
    let words = memory.words(Place { at: 0, bytes: 64 }).unwrap();
    assert!(words.part(7, 1).is_some() && words.part(7, 2).is_none() && words.part(usize::MAX, 2).is_none());
    words.store(8, 1, Ordering::Relaxed);
    assert_eq!((words.load(8, Ordering::Relaxed), words.swap(8, 1, Ordering::Relaxed)), (0, 0));
}

/// The whole mapping is there to the last word, and as long as anything names a word of it.
#[test]
fn words_keep_their_memory() {
    let (daemon, client) = pair();
    let (ours, theirs) = (daemon.words(all()).unwrap(), client.words(all()).unwrap());
    drop((daemon, client));
    let last = ours.count() - 1;
    ours.store(last, 7, Ordering::Release);
    let part = theirs.part(last, 1).unwrap();
    drop((ours, theirs));
    assert_eq!(part.load(0, Ordering::Acquire), 7);
    assert_eq!(part.swap(0, 8, Ordering::Relaxed), 7);
    part.fetch_or(0, 16, Ordering::Relaxed);
    assert_eq!(part.as_slice().iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>(), [24]);
}

/// A hole reads as zeros through a mapping made before, and can be written again: no signal.
#[test]
#[cfg_attr(miri, ignore = "Miri has no memfds")]
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
