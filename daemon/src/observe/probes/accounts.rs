//! The array of accounts as user space sees it: memory that the probes write while it is read.

#![allow(unsafe_code)] // reads memory that the kernel writes

use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use memmap2::{MmapOptions, MmapRaw};
use weir_ebpf_abi::{Account, MARKS, Mark, SocketStall};

use super::slots::Slot;

/// Times that a copy is tried before its account is held to be written without a pause. One copy takes less than a
/// microsecond, and so does what a program does between two of its events.
const TRIES: usize = 100;

const WORD_BYTES: usize = size_of::<u64>();

/// Memory of an array map, to be read.
struct Mapped {
    memory: MmapRaw,
    /// Its length in words.
    words: usize,
}

impl Mapped {
    /// Maps all of an array whose elements have this many bytes together.
    fn new(map: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        let memory = MmapOptions::new().len(bytes).map_raw_read_only(map.as_raw_fd())?;
        Ok(Self { memory, words: bytes / WORD_BYTES })
    }

    /// A word, which may be written at the same time.
    fn word(&self, number: usize) -> Option<u64> {
        if number >= self.words {
            return None;
        }
        // SAFETY: the mapping has that many words, lives as long as `self`, and begins at a page. Others write them,
        // which is what an atomic word is for; it is only loaded here.
        let word = unsafe { &*self.memory.as_ptr().cast::<AtomicU64>().add(number) };
        Some(word.load(Ordering::Relaxed))
    }
}

/// The accounts of all watched sockets.
pub(super) struct Accounts {
    mapped: Mapped,
}

impl Accounts {
    const WORDS: usize = size_of::<Account>() / WORD_BYTES;

    /// Maps an array of this many accounts.
    pub(super) fn new(map: BorrowedFd<'_>, slots: u32) -> io::Result<Self> {
        Ok(Self { mapped: Mapped::new(map, size_of::<Account>() * slots as usize)? })
    }

    /// A copy of the account of a place, at one moment. `None`: it belongs to another socket, or is written without a
    /// pause.
    pub(super) fn copy(&self, slot: Slot) -> Option<Box<Account>> {
        let mut copy = Box::new(MaybeUninit::<Account>::uninit());
        self.consistently(slot, |first| {
            let words = copy.as_mut_ptr().cast::<u64>();
            for number in 0..Self::WORDS {
                let word = self.mapped.word(first + number)?;
                // SAFETY: an account is that many words without a gap, all of which any number may stand in.
                unsafe { words.add(number).write(word) };
            }
            Some(())
        })?;
        // SAFETY: every word of it was written.
        let account = unsafe { copy.assume_init() };
        (account.generation == slot.generation).then_some(account)
    }

    /// The longest time that one of the arrivals from number `seen` on lay in the receive queue before it was read,
    /// in nanoseconds, and the number of the first that is not read. Of arrivals that were read long ago only the last
    /// [`MARKS`] are known. `None` for the time: none was read since.
    pub(super) fn read_since(&self, slot: Slot, seen: u64) -> Option<(Option<u64>, u64)> {
        let at = |place: usize| place / WORD_BYTES;
        let read = at(offset_of!(Account, receive.marks_read));
        let marks = at(offset_of!(Account, receive.marks));
        let generation = at(offset_of!(Account, generation));
        self.consistently(slot, |first| {
            if self.mapped.word(first + generation)? != slot.generation {
                return None;
            }
            let end = self.mapped.word(first + read)?;
            let begin = seen.max(end.saturating_sub(MARKS as u64));
            let mut longest = None;
            for number in begin..end {
                let mark = first + marks + (number as usize % MARKS) * at(size_of::<Mark>());
                let arrived = self.mapped.word(mark + at(offset_of!(Mark, arrived_ns)))?;
                let was_read = self.mapped.word(mark + at(offset_of!(Mark, read_ns)))?;
                longest = longest.max(Some(was_read.saturating_sub(arrived)));
            }
            Some((longest, end))
        })
    }

    /// Calls `read` with the number of the account's first word until nothing was written meanwhile.
    fn consistently<T>(&self, slot: Slot, mut read: impl FnMut(usize) -> Option<T>) -> Option<T> {
        let first = slot.index as usize * Self::WORDS;
        let sequence = first + offset_of!(Account, sequence) / WORD_BYTES;
        for _ in 0..TRIES {
            let before = self.mapped.word(sequence)?;
            if before % 2 == 0 {
                fence(Ordering::Acquire);
                let found = read(first);
                fence(Ordering::Acquire);
                if self.mapped.word(sequence)? == before {
                    return found;
                }
            }
            std::hint::spin_loop();
        }
        None
    }
}

/// A record of the ring of stalls; `None` if it is too short to be one.
pub(super) fn stall(record: &[u8]) -> Option<SocketStall> {
    let bytes8 = |at: usize| record.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
    let bytes4 = |at: usize| record.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    Some(SocketStall {
        cookie: bytes8(offset_of!(SocketStall, cookie))?,
        began_ns: bytes8(offset_of!(SocketStall, began_ns))?,
        lasted_ns: bytes8(offset_of!(SocketStall, lasted_ns))?,
        stream_offset: bytes8(offset_of!(SocketStall, stream_offset))?,
        queued_bytes: bytes4(offset_of!(SocketStall, queued_bytes))?,
        state: bytes4(offset_of!(SocketStall, state))?,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    const BYTES: usize = size_of::<Account>();

    /// Two accounts in a file, which is mapped as the array is: the first all zeros, the second of generation 9.
    fn accounts() -> (File, Accounts) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![0; 2 * BYTES]).unwrap();
        let accounts = Accounts::new(file.as_fd(), 2).unwrap();
        put(&file, offset_of!(Account, generation), 9);
        (file, accounts)
    }

    /// Writes a word of the second account.
    fn put(file: &File, at: usize, value: u64) {
        file.write_all_at(&value.to_ne_bytes(), (BYTES + at) as u64).unwrap();
    }

    fn slot(index: u32, generation: u64) -> Slot {
        Slot { index, generation }
    }

    #[test]
    fn an_account_is_read_by_its_place_and_generation_and_not_while_it_is_written() {
        let (file, accounts) = accounts();
        put(&file, offset_of!(Account, send.state_ns) + 8, 77);
        put(&file, BYTES - 8, 78);
        let copy = accounts.copy(slot(1, 9)).unwrap();
        assert_eq!((copy.send.state_ns[1], copy.receive.marks[MARKS - 1].read_ns), (77, 78));
        assert!(accounts.copy(slot(1, 8)).is_none(), "another generation");
        assert!(accounts.copy(slot(2, 9)).is_none(), "another array");
        put(&file, offset_of!(Account, sequence), 3);
        assert!(accounts.copy(slot(1, 9)).is_none(), "half written");
        assert!(accounts.read_since(slot(1, 9), 0).is_none(), "half written");
        put(&file, offset_of!(Account, sequence), 4);
        assert!(accounts.copy(slot(1, 9)).is_some());
    }

    #[test]
    fn the_longest_residence_since_a_mark_is_found_over_the_end_of_the_ring() {
        let (file, accounts) = accounts();
        assert_eq!(accounts.read_since(slot(1, 9), 0), Some((None, 0)));
        let marks = MARKS as u64;
        for number in 0..marks + 2 {
            let at = offset_of!(Account, receive.marks) + (number % marks) as usize * size_of::<Mark>();
            put(&file, at + offset_of!(Mark, arrived_ns), 1_000);
            // The longer the later, but the last took least.
            let resided = if number == marks + 1 { 1 } else { number };
            put(&file, at + offset_of!(Mark, read_ns), 1_000 + resided);
        }
        put(&file, offset_of!(Account, receive.marks_read), marks + 2);
        assert_eq!(accounts.read_since(slot(1, 9), 0), Some((Some(marks), marks + 2)));
        assert_eq!(accounts.read_since(slot(1, 9), marks + 1), Some((Some(1), marks + 2)));
        assert_eq!(accounts.read_since(slot(1, 9), marks + 2), Some((None, marks + 2)));
        assert_eq!(accounts.read_since(slot(1, 8), 0), None);
    }

    #[test]
    fn a_record_of_a_stall_is_read_as_it_was_written() {
        let words: Vec<u8> =
            [1_u64, 2, 3, 4, 6 << 32 | 5].iter().flat_map(|word| word.to_le_bytes()).collect();
        let expected =
            SocketStall { cookie: 1, began_ns: 2, lasted_ns: 3, stream_offset: 4, queued_bytes: 5, state: 6 };
        if cfg!(target_endian = "little") {
            assert_eq!(stall(&words), Some(expected));
        }
        assert_eq!(stall(&words[..39]), None);
    }
}
