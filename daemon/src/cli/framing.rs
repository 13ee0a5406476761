//! Records as bytes of a stream: one per line, or each behind its length as a u32 in little endian.
//!
//! Neither reading nor writing allocates per record: a record is a range of one large buffer.

use std::io::{self, Read, Write};

use clap::ValueEnum;

/// Bytes asked for in one read, and the least that is written at a time when more is to come.
const CHUNK_BYTES: usize = 256 << 10;

/// Bytes of the length in front of a record with [`Framing::U32`].
const LENGTH_BYTES: usize = 4;

/// How records are told apart in a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Framing {
    /// A record is a line without its newline.
    #[default]
    Lines,
    /// A record is as many bytes as the u32 in little endian before it says.
    U32,
}

/// Why there is no next record.
#[derive(Debug)]
pub(super) enum FramingError {
    /// The record with this number (from 1) is longer than the limit.
    TooLong { record: u64, found: Option<u64>, max: usize },
    /// The input ends inside the record with this number.
    Truncated { record: u64, found: usize, needed: usize },
    /// The input cannot be read.
    Io(io::Error),
}

/// The records of a stream.
pub(super) struct RecordInput<R> {
    input: R,
    framing: Framing,
    record_bytes_max: usize,
    /// Bytes read and not yet handed out are `buffer[start..end]`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes after `start` that hold no newline, so that a long line is searched once.
    searched: usize,
    is_at_end: bool,
    records: u64,
}

impl<R: Read> RecordInput<R> {
    /// The records of `input`, none longer than `record_bytes_max`.
    pub(super) fn new(input: R, framing: Framing, record_bytes_max: usize) -> Self {
        Self {
            input,
            framing,
            record_bytes_max,
            buffer: vec![0; 2 * CHUNK_BYTES],
            start: 0,
            end: 0,
            searched: 0,
            is_at_end: false,
            records: 0,
        }
    }

    /// The next record that was read whole. None: [`Self::fill`] has to read more, unless [`Self::is_at_end`].
    pub(super) fn next_read(&mut self) -> Result<Option<&[u8]>, FramingError> {
        let Some((from, to, next)) = self.find()? else { return Ok(None) };
        self.start = next;
        self.searched = 0;
        self.records += 1;
        Ok(Some(&self.buffer[from..to]))
    }

    /// Whether there is no more to read.
    pub(super) fn is_at_end(&self) -> bool {
        self.is_at_end
    }

    /// First byte, end, and begin of the next, of a record that is wholly in the buffer.
    fn find(&mut self) -> Result<Option<(usize, usize, usize)>, FramingError> {
        let rest = &self.buffer[self.start..self.end];
        match self.framing {
            Framing::Lines => {
                let found = find_byte(&rest[self.searched..], b'\n').map(|at| at + self.searched);
                let bytes = found.unwrap_or(rest.len());
                if bytes > self.record_bytes_max {
                    let found = found.map(|at| at as u64);
                    return Err(FramingError::TooLong {
                        record: self.records + 1,
                        found,
                        max: self.record_bytes_max,
                    });
                }
                self.searched = rest.len();
                Ok(match found {
                    Some(at) => Some((self.start, self.start + at, self.start + at + 1)),
                    None if self.is_at_end && !rest.is_empty() => Some((self.start, self.end, self.end)),
                    None => None,
                })
            }
            Framing::U32 => {
                let Some((length, body)) = rest.split_first_chunk::<LENGTH_BYTES>() else {
                    return self.none_or_truncated(rest.len(), LENGTH_BYTES);
                };
                let length = u32::from_le_bytes(*length);
                let bytes = length as usize;
                if bytes > self.record_bytes_max {
                    let found = Some(u64::from(length));
                    return Err(FramingError::TooLong {
                        record: self.records + 1,
                        found,
                        max: self.record_bytes_max,
                    });
                }
                if body.len() < bytes {
                    return self.none_or_truncated(rest.len(), LENGTH_BYTES + bytes);
                }
                let from = self.start + LENGTH_BYTES;
                Ok(Some((from, from + bytes, from + bytes)))
            }
        }
    }

    fn none_or_truncated(
        &self,
        found: usize,
        needed: usize,
    ) -> Result<Option<(usize, usize, usize)>, FramingError> {
        if self.is_at_end && found > 0 {
            return Err(FramingError::Truncated { record: self.records + 1, found, needed });
        }
        Ok(None)
    }

    /// Reads once, and waits for it. The buffer grows only while one record does not fit, so at most to the longest
    /// record and a few chunks.
    pub(super) fn fill(&mut self) -> Result<(), FramingError> {
        if self.buffer.len() - self.end < CHUNK_BYTES {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if self.buffer.len() - self.end < CHUNK_BYTES {
                self.buffer.resize(self.end + 2 * CHUNK_BYTES, 0);
            }
        }
        loop {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.is_at_end = true,
                Ok(bytes) => self.end += bytes,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(FramingError::Io(e)),
            }
            return Ok(());
        }
    }
}

/// Index of the first `byte`, eight bytes at a time.
fn find_byte(haystack: &[u8], byte: u8) -> Option<usize> {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = LOW << 7;
    let pattern = u64::from(byte) * LOW;
    let (words, tail) = haystack.as_chunks::<8>();
    for (nth, word) in words.iter().enumerate() {
        // A byte of `differing` is 0 where the byte is found; the lowest high bit of `hits` marks the first of them.
        let differing = u64::from_le_bytes(*word) ^ pattern;
        let hits = differing.wrapping_sub(LOW) & !differing & HIGH;
        if hits != 0 {
            return Some(nth * 8 + hits.trailing_zeros() as usize / 8);
        }
    }
    tail.iter().position(|found| *found == byte).map(|at| words.len() * 8 + at)
}

/// Field number `field` (from 1) of a record: the fields are divided by ASCII white space.
pub(super) fn field(record: &[u8], field: usize) -> Option<&[u8]> {
    record.split(u8::is_ascii_whitespace).filter(|part| !part.is_empty()).nth(field.checked_sub(1)?)
}

/// Writes records to a stream.
pub(super) struct RecordOutput<W> {
    output: W,
    framing: Framing,
    buffer: Vec<u8>,
}

impl<W: Write> RecordOutput<W> {
    /// Writes to `output`, which need not have a buffer of its own.
    pub(super) fn new(output: W, framing: Framing) -> Self {
        Self { output, framing, buffer: Vec::with_capacity(CHUNK_BYTES) }
    }

    /// Adds a record. It is written when enough has come together, or by [`Self::flush`].
    pub(super) fn push(&mut self, record: &[u8]) -> io::Result<()> {
        if self.buffer.len() + record.len() + LENGTH_BYTES > CHUNK_BYTES {
            self.flush()?;
        }
        match self.framing {
            Framing::Lines => {
                self.buffer.extend_from_slice(record);
                self.buffer.push(b'\n');
            }
            Framing::U32 => {
                let length = u32::try_from(record.len()).map_err(io::Error::other)?;
                self.buffer.extend_from_slice(&length.to_le_bytes());
                self.buffer.extend_from_slice(record);
            }
        }
        Ok(())
    }

    /// Writes what was added.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let written = self.output.write_all(&self.buffer);
        self.buffer.clear();
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands out its bytes in pieces of the given sizes, in turn.
    struct Pieces<'a>(&'a [u8], Vec<usize>, usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let bytes = self.1[self.2 % self.1.len()].min(self.0.len()).min(into.len());
            self.2 += 1;
            into[..bytes].copy_from_slice(&self.0[..bytes]);
            self.0 = &self.0[bytes..];
            Ok(bytes)
        }
    }

    fn records_of(
        bytes: &[u8],
        framing: Framing,
        pieces: &[usize],
        max: usize,
    ) -> Result<Vec<Vec<u8>>, FramingError> {
        let mut input = RecordInput::new(Pieces(bytes, pieces.to_vec(), 0), framing, max);
        let mut records = Vec::new();
        loop {
            while let Some(record) = input.next_read()? {
                records.push(record.to_vec());
            }
            if input.is_at_end() {
                break;
            }
            input.fill()?;
        }
        assert_eq!(input.records, records.len() as u64);
        Ok(records)
    }

    #[test]
    fn lines_are_records_however_the_bytes_arrive() {
        let long = vec![b'x'; CHUNK_BYTES * 5];
        let mut text = b"one\n\nthree\xff\r\n".to_vec();
        text.extend(&long);
        text.extend(b"\nlast without newline");
        let expected: Vec<Vec<u8>> =
            vec![b"one".into(), b"".into(), b"three\xff\r".into(), long, b"last without newline".into()];
        for pieces in [vec![1], vec![3, 1, 7], vec![1 << 20], vec![8191]] {
            assert_eq!(records_of(&text, Framing::Lines, &pieces, 1 << 30).unwrap(), expected);
        }
        assert!(records_of(b"", Framing::Lines, &[1], 10).unwrap().is_empty());
        assert_eq!(records_of(b"\n", Framing::Lines, &[1], 10).unwrap(), vec![b"".to_vec()]);
    }

    #[test]
    fn a_record_over_the_limit_is_named_by_its_number() {
        assert_eq!(records_of(b"1234\n", Framing::Lines, &[2], 4).unwrap().len(), 1);
        for text in [&b"a\n12345\n"[..], b"a\n12345"] {
            let error = records_of(text, Framing::Lines, &[3], 4).unwrap_err();
            assert!(matches!(error, FramingError::TooLong { record: 2, max: 4, .. }), "{error:?}");
        }
        let error = records_of(&u32::MAX.to_le_bytes(), Framing::U32, &[4], 1 << 20).unwrap_err();
        assert!(
            matches!(error, FramingError::TooLong { record: 1, found: Some(0xffff_ffff), .. }),
            "{error:?}"
        );
    }

    #[test]
    fn lengths_are_followed_and_a_cut_record_is_told() {
        let records: Vec<Vec<u8>> = vec![b"a\nb".into(), b"".into(), vec![0; CHUNK_BYTES * 3]];
        let mut output = RecordOutput::new(Vec::new(), Framing::U32);
        for record in &records {
            output.push(record).unwrap();
        }
        output.flush().unwrap();
        let bytes = output.output.clone();
        for pieces in [vec![1, 5], vec![1 << 20]] {
            assert_eq!(records_of(&bytes, Framing::U32, &pieces, 1 << 20).unwrap(), records);
        }
        for cut in [1, 3, 5, 8, 13, bytes.len() - 1] {
            let result = records_of(&bytes[..cut], Framing::U32, &[2], 1 << 20);
            assert!(matches!(result, Err(FramingError::Truncated { .. })), "cut at {cut}");
        }
    }

    #[test]
    fn lines_written_are_lines_read() {
        let mut output = RecordOutput::new(Vec::new(), Framing::Lines);
        for nth in 0..100_000 {
            output.push(format!("line {nth}").as_bytes()).unwrap();
        }
        assert!(!output.buffer.is_empty());
        output.flush().unwrap();
        let text: String = (0..100_000).map(|nth| format!("line {nth}\n")).collect();
        assert_eq!(output.output, text.as_bytes());
    }

    #[test]
    fn a_byte_is_found_at_every_offset_and_among_its_neighbours() {
        for length in 0..40 {
            for at in 0..length {
                for other in [b'\n' + 1, b'\n' - 1, 0, 0x8a, 0xff] {
                    let mut bytes = vec![other; length];
                    assert_eq!(find_byte(&bytes, b'\n'), None);
                    bytes[at] = b'\n';
                    bytes[length - 1] = b'\n';
                    assert_eq!(find_byte(&bytes, b'\n'), Some(at));
                }
            }
        }
    }

    #[test]
    fn fields_are_counted_from_one_and_runs_of_space_divide_once() {
        assert_eq!(field(b"  a\t bc  d", 1), Some(&b"a"[..]));
        assert_eq!(field(b"  a\t bc  d", 3), Some(&b"d"[..]));
        assert_eq!(field(b"  a\t bc  d", 4), None);
        assert_eq!(field(b"a", 0), None);
    }
}
