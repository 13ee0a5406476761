//! Deterministic text: lines of words whose frequencies are uneven, as those of real text are.

/// Length of the corpus, in bytes; at least this much, up to the end of a line.
pub(crate) const CORPUS_BYTES: usize = 200_000_000;

/// Bytes that are written to a producer at a time, up to the end of a line.
const CHUNK_BYTES: usize = 256 * 1024;

const WORDS: [&str; 32] = [
    "water", "gate", "the", "of", "river", "and", "a", "to", "weir", "level", "stone", "in", "flow", "rises",
    "it", "under", "bridge", "mill", "below", "wheel", "turns", "slowly", "night", "when", "rain", "falls",
    "on", "hills", "above", "town", "keeper", "opens",
];

/// A piece of the corpus that ends with a line, and what its lines add up to.
pub(crate) struct Chunk {
    pub(crate) text: Vec<u8>,
    pub(crate) sum: Tally,
}

/// A count and a checksum that do not depend on the order of the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) records: u64,
    pub(crate) checksum: u64,
}

impl Tally {
    pub(crate) fn add_record(&mut self, record: &[u8]) {
        self.records += 1;
        self.checksum = self.checksum.wrapping_add(hash(record));
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.records += other.records;
        self.checksum = self.checksum.wrapping_add(other.checksum);
    }
}

/// The corpus in chunks; the same in every run.
pub(crate) fn make() -> Vec<Chunk> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut chunks = Vec::new();
    let (mut made, mut line_number) = (0, 0_u64);
    while made < CORPUS_BYTES {
        let mut chunk = Chunk { text: Vec::with_capacity(CHUNK_BYTES + 256), sum: Tally::default() };
        while chunk.text.len() < CHUNK_BYTES {
            let start = chunk.text.len();
            push_line(&mut chunk.text, line_number, &mut state);
            line_number += 1;
            chunk.sum.add_record(chunk.text.get(start..chunk.text.len() - 1).unwrap_or_default());
        }
        made += chunk.text.len();
        chunks.push(chunk);
    }
    chunks
}

/// First the key, a word; then the number of the line, which makes it unique; then more words.
fn push_line(text: &mut Vec<u8>, number: u64, state: &mut u64) {
    let words = 8 + next(state) % 16;
    text.extend_from_slice(word(state).as_bytes());
    text.extend_from_slice(format!(" {number:010}").as_bytes());
    for _ in 0..words {
        text.push(b' ');
        text.extend_from_slice(word(state).as_bytes());
    }
    text.push(b'\n');
}

/// A word; early ones of the list come often.
pub(crate) fn word(state: &mut u64) -> &'static str {
    // The smaller of two draws: early words come often, late ones seldom.
    let (one, other) = (next(state) % 32, next(state) % 32);
    WORDS[one.min(other) as usize]
}

/// A step of xorshift64; the state must not be 0.
pub(crate) fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state >> 11
}

/// A hash of one record that is fast and spreads every byte. Not for use against an adversary.
fn hash(record: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9fb2_1c65_1e98_df25;
    let mut hash = record.len() as u64 ^ FACTOR;
    let words = record.chunks_exact(8);
    let rest = words.remainder();
    for word in words {
        let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
        hash = (hash ^ word).wrapping_mul(FACTOR).rotate_left(29);
    }
    for byte in rest {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(FACTOR).rotate_left(29);
    }
    hash ^ hash >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_lost_or_repeated_record_changes_the_tally() {
        let records: Vec<Vec<u8>> =
            (0..100_u32).map(|number| format!("record {number}").into_bytes()).collect();
        let tally = |records: &[Vec<u8>]| {
            let mut tally = Tally::default();
            records.iter().for_each(|record| tally.add_record(record));
            tally
        };
        let all = tally(&records);
        let mut reversed = records.clone();
        reversed.reverse();
        assert_eq!(tally(&reversed), all);
        assert_ne!(tally(&records[1..]), all);
        let mut doubled = records.clone();
        doubled[0] = doubled[1].clone();
        assert_ne!(tally(&doubled), all);
        for at in 0..records[5].len() {
            let mut changed = records.clone();
            changed[5][at] ^= 0x20;
            assert_ne!(tally(&changed), all, "byte {at}");
        }
    }
}
