//! The reference model: what each channel has been given and must hand out, written without any of the core's ideas
//! (no segments, credits or frames). It says which record comes next, byte by byte, and which failures have a cause.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use weir_flow::exchange::{Shape, Strategy};
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{ConsumerIndex, ProducerIndex};

use crate::rng::mix;

/// One stream from a producer to a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChannelKey {
    /// Position of the exchange in the plan.
    pub exchange: u32,
    /// Producer index.
    pub producer: u32,
    /// Consumer index.
    pub consumer: u32,
}

impl fmt::Display for ChannelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "x{} p{}→c{}", self.exchange, self.producer, self.consumer)
    }
}

/// What a producer put into a channel, in the order in which it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    Record { content: Content, at: u64 },
    Event { content: Content, at: u64 },
}

/// The bytes of a record or an event, as a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// What tells this content from all others.
    pub seed: u64,
    /// Length in bytes.
    pub bytes: u32,
}

impl Content {
    /// Writes the content into `out`, which is emptied first.
    pub fn write(self, out: &mut Vec<u8>) {
        out.clear();
        let words = (self.bytes as u64).div_ceil(8);
        for word in 0..words {
            out.extend_from_slice(&mix(self.seed.wrapping_add(word)).to_le_bytes());
        }
        out.truncate(self.bytes as usize);
    }

    /// Says where `found` differs from this content, if it does.
    pub fn compare(self, found: &[u8]) -> Result<(), String> {
        if found.len() != self.bytes as usize {
            return Err(format!("has {} bytes; expected {}", found.len(), self.bytes));
        }
        for (word, chunk) in found.chunks(8).enumerate() {
            let expected = mix(self.seed.wrapping_add(word as u64)).to_le_bytes();
            if let Some(at) = chunk.iter().zip(expected).position(|(found, expected)| *found != expected) {
                let (found, expected) = (chunk[at], expected[at]);
                return Err(format!("byte {} is {found:#04x}; expected {expected:#04x}", word * 8 + at));
            }
        }
        Ok(())
    }
}

/// How a channel ended at its consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// End of data, after everything.
    End,
    /// A typed failure.
    Failed(FailureCode),
}

/// What the model knows of one channel.
#[derive(Debug, Default)]
pub struct ChannelModel {
    expected: VecDeque<Item>,
    priority: VecDeque<(Content, u64)>,
    given: u64,
    /// Whether the producer said that no more comes.
    pub end_given: bool,
    /// How it ended at the consumer.
    pub outcome: Option<Outcome>,
    /// Records that the consumer has checked.
    pub records: u64,
    /// Bytes of those records.
    pub bytes: u64,
    /// Events that the consumer has checked.
    pub events: u64,
    /// Priority events that arrived before something that was given earlier.
    pub overtakes: u64,
}

impl ChannelModel {
    /// Items given and not yet seen at the consumer.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.expected.len() + self.priority.len()
    }

    fn accepts(&self) -> Result<(), String> {
        match &self.outcome {
            None => Ok(()),
            Some(outcome) => Err(format!("something was delivered after {outcome:?}")),
        }
    }

    /// Nothing may be handed out before a priority event that was given earlier.
    fn not_before_priority(&self, at: u64) -> Result<(), String> {
        match self.priority.front() {
            Some((_, earlier)) if *earlier < at => {
                Err(format!("item {at} was delivered before the earlier priority event {earlier}"))
            }
            _ => Ok(()),
        }
    }
}

/// Everything that has been injected and that explains a failure.
#[derive(Debug, Default)]
pub struct Causes {
    /// Producers that died or left before their end: (exchange, producer).
    pub producers_gone: BTreeSet<(u32, u32)>,
    /// Consumers that died or left before they had everything: (exchange, consumer).
    pub consumers_gone: BTreeSet<(u32, u32)>,
    /// Producers that handed over what cannot be true: (exchange, producer).
    pub producers_lied: BTreeSet<(u32, u32)>,
    /// Consumers that gave back what they did not hold: (exchange, consumer).
    pub consumers_lied: BTreeSet<(u32, u32)>,
    /// Whether some node is stopping.
    pub draining: bool,
    /// Channels that were refused because of that.
    pub refused: BTreeSet<ChannelKey>,
    /// Links lost, by position in the world.
    pub links_lost: BTreeSet<usize>,
}

/// The model of all channels.
#[derive(Debug)]
pub struct Model {
    shapes: Vec<Shape>,
    /// Whether an exchange goes on without a consumer that is lost.
    continues: Vec<bool>,
    channels: BTreeMap<ChannelKey, ChannelModel>,
    /// Which link carries a channel, once it was opened.
    pub links: BTreeMap<ChannelKey, usize>,
    /// What explains failures.
    pub causes: Causes,
}

impl Model {
    /// The model of these exchanges.
    #[must_use]
    pub fn new(shapes: Vec<Shape>) -> Self {
        let mut channels = BTreeMap::new();
        for (exchange, shape) in (0u32..).zip(&shapes) {
            for producer in 0..shape.producers {
                for consumer in 0..shape.consumers {
                    if shape.subpartition(ProducerIndex(producer), ConsumerIndex(consumer)).is_some() {
                        let key = ChannelKey { exchange, producer, consumer };
                        channels.insert(key, ChannelModel::default());
                    }
                }
            }
        }
        let continues = vec![false; shapes.len()];
        Self { shapes, continues, channels, links: BTreeMap::new(), causes: Causes::default() }
    }

    /// Sets which exchanges go on without a consumer that is lost. Those whose consumers are not interchangeable
    /// never do.
    #[must_use]
    pub fn continuing(mut self, continues: &[bool]) -> Self {
        let may = self.shapes.iter().map(|shape| shape.strategy.has_interchangeable_consumers());
        self.continues = continues.iter().zip(may).map(|(wanted, may)| *wanted && may).collect();
        self
    }

    /// Whether an exchange goes on without a consumer that is lost.
    #[must_use]
    pub fn continues(&self, exchange: u32) -> bool {
        self.continues.get(exchange as usize).copied().unwrap_or_default()
    }

    /// The channels whose loss this one feels: its own, and with the policy `fail` its siblings.
    fn felt(&self, key: ChannelKey) -> impl Iterator<Item = ChannelKey> {
        let alone = self.continues(key.exchange);
        self.siblings(key.exchange, key.producer).filter(move |sibling| !alone || *sibling == key)
    }

    /// All channels.
    pub fn channels(&self) -> impl Iterator<Item = (&ChannelKey, &ChannelModel)> {
        self.channels.iter()
    }

    /// One channel.
    pub fn channel(&self, key: ChannelKey) -> Result<&ChannelModel, String> {
        self.channels.get(&key).ok_or_else(|| format!("there is no channel {key}"))
    }

    fn channel_mut(&mut self, key: ChannelKey) -> Result<&mut ChannelModel, String> {
        self.channels.get_mut(&key).ok_or_else(|| format!("there is no channel {key}"))
    }

    /// The producer has written a record.
    pub fn give_record(&mut self, key: ChannelKey, content: Content) -> Result<(), String> {
        let channel = self.channel_mut(key)?;
        channel.expected.push_back(Item::Record { content, at: channel.given });
        channel.given += 1;
        Ok(())
    }

    /// The producer has submitted an event.
    pub fn give_event(&mut self, key: ChannelKey, content: Content, priority: bool) -> Result<(), String> {
        let channel = self.channel_mut(key)?;
        let at = channel.given;
        channel.given += 1;
        if priority {
            channel.priority.push_back((content, at));
        } else {
            channel.expected.push_back(Item::Event { content, at });
        }
        Ok(())
    }

    /// The producer has said that no more comes.
    pub fn give_end(&mut self, key: ChannelKey) -> Result<(), String> {
        self.channel_mut(key)?.end_given = true;
        Ok(())
    }

    /// The consumer has read a record.
    pub fn take_record(&mut self, key: ChannelKey, found: &[u8]) -> Result<(), String> {
        self.right_consumer(key, found)?;
        let channel = self.channel_mut(key)?;
        channel.accepts().map_err(|text| format!("{key}: {text}"))?;
        match channel.expected.pop_front() {
            Some(Item::Record { content, at }) => {
                channel.not_before_priority(at).map_err(|text| format!("{key}: {text}"))?;
                let number = channel.records;
                content.compare(found).map_err(|text| format!("{key}: record {number} {text}"))?;
                channel.records += 1;
                channel.bytes += u64::from(content.bytes);
                Ok(())
            }
            other => {
                Err(format!("{key}: a record of {} bytes was delivered; expected {other:?}", found.len()))
            }
        }
    }

    /// The consumer has read an event.
    pub fn take_event(&mut self, key: ChannelKey, found: &[u8], priority: bool) -> Result<bool, String> {
        let channel = self.channel_mut(key)?;
        channel.accepts().map_err(|text| format!("{key}: {text}"))?;
        let (content, at) = if priority {
            let front = channel.priority.pop_front();
            front.ok_or_else(|| format!("{key}: a priority event that nobody sent was delivered"))?
        } else {
            match channel.expected.pop_front() {
                Some(Item::Event { content, at }) => (content, at),
                other => return Err(format!("{key}: an event was delivered; expected {other:?}")),
            }
        };
        channel.not_before_priority(at).map_err(|text| format!("{key}: {text}"))?;
        content.compare(found).map_err(|text| format!("{key}: event {text}"))?;
        channel.events += 1;
        let first = match channel.expected.front() {
            Some(Item::Record { at, .. } | Item::Event { at, .. }) => *at,
            None => u64::MAX,
        };
        let overtook = priority && first < at;
        channel.overtakes += u64::from(overtook);
        Ok(overtook)
    }

    /// The consumer has read the end of data.
    pub fn take_end(&mut self, key: ChannelKey) -> Result<(), String> {
        let channel = self.channel_mut(key)?;
        channel.accepts().map_err(|text| format!("{key}: {text}"))?;
        if !channel.end_given {
            return Err(format!("{key}: end of data was delivered; the producer has not ended"));
        }
        if channel.missing() > 0 {
            return Err(format!("{key}: end of data was delivered; {} items are missing", channel.missing()));
        }
        channel.outcome = Some(Outcome::End);
        Ok(())
    }

    /// The consumer has read a failure of the channel.
    pub fn take_failure(&mut self, key: ChannelKey, failure: &Failure) -> Result<(), String> {
        self.explained(key, failure)?;
        let channel = self.channel_mut(key)?;
        channel.accepts().map_err(|text| format!("{key}: {text}"))?;
        channel.outcome = Some(Outcome::Failed(failure.code));
        if failure.code == FailureCode::Stopping {
            self.causes.refused.insert(key);
        }
        Ok(())
    }

    /// A failure of one channel must have a cause of the same kind: its own, or with the policy `fail`, by which a
    /// failed channel fails its partition, one of a sibling.
    pub fn explained(&self, key: ChannelKey, failure: &Failure) -> Result<(), String> {
        let siblings = || self.felt(key);
        let code = failure.code;
        let caused = match code {
            FailureCode::ProducerGone => {
                self.causes.producers_gone.contains(&(key.exchange, key.producer))
                    || siblings().any(|sibling| self.lost(sibling) || self.abandoned(sibling))
            }
            FailureCode::ConsumerGone => siblings().any(|sibling| self.abandoned(sibling)),
            FailureCode::LinkLost => siblings().any(|sibling| self.lost(sibling)),
            FailureCode::PartitionNotFound => {
                self.causes.producers_gone.contains(&(key.exchange, key.producer))
                    || siblings().any(|sibling| self.lost(sibling) || self.abandoned(sibling))
            }
            FailureCode::ClientFault => {
                self.causes.producers_lied.contains(&(key.exchange, key.producer))
                    || siblings().any(|s| self.causes.consumers_lied.contains(&(s.exchange, s.consumer)))
            }
            FailureCode::Stopping => self.causes.draining,
            _ => false,
        };
        if caused { Ok(()) } else { Err(format!("{key}: failed with nothing that explains it: {failure}")) }
    }

    /// A failure of a whole partition must have a cause in one of its channels.
    pub fn partition_explained(&self, exchange: u32, producer: u32, failure: &Failure) -> Result<(), String> {
        if self.continues(exchange) {
            let left = self.siblings(exchange, producer).find(|key| !self.may_fail(*key));
            if let Some(key) = left {
                return Err(format!("{key}: the partition failed while this channel goes on: {failure}"));
            }
        }
        let mut results = self.siblings(exchange, producer).map(|key| self.explained(key, failure));
        let first = results.next().unwrap_or_else(|| Err("there is no such partition".into()));
        if results.any(|result| result.is_ok()) { Ok(()) } else { first }
    }

    /// Whether the channel, or a sibling of it, was hit by a fault, so that it need not deliver everything.
    #[must_use]
    pub fn may_fail(&self, key: ChannelKey) -> bool {
        self.causes.producers_gone.contains(&(key.exchange, key.producer))
            || self.felt(key).any(|s| self.lost(s) || self.abandoned(s) || self.causes.refused.contains(&s))
    }

    /// The channels of one producer.
    pub fn siblings(&self, exchange: u32, producer: u32) -> impl Iterator<Item = ChannelKey> {
        let first = ChannelKey { exchange, producer, consumer: 0 };
        let last = ChannelKey { exchange, producer, consumer: u32::MAX };
        self.channels.range(first..=last).map(|(key, _)| *key)
    }

    fn lost(&self, key: ChannelKey) -> bool {
        self.links.get(&key).is_some_and(|link| self.causes.links_lost.contains(link))
    }

    fn abandoned(&self, key: ChannelKey) -> bool {
        self.causes.consumers_gone.contains(&(key.exchange, key.consumer))
    }

    /// With `hash`, a record must be at the consumer that its key names.
    fn right_consumer(&self, key: ChannelKey, record: &[u8]) -> Result<(), String> {
        let Some(shape) = self.shapes.get(key.exchange as usize) else { return Ok(()) };
        if shape.strategy != Strategy::Hash {
            return Ok(());
        }
        let wanted = hash_target(record_key(record), shape.consumers);
        if wanted == key.consumer {
            return Ok(());
        }
        Err(format!("{key}: a record arrived whose key belongs to consumer {wanted}"))
    }
}

/// The key of a record in a `hash` exchange: its first four bytes, or all that it has.
#[must_use]
pub fn record_key(record: &[u8]) -> &[u8] {
    record.get(..4).unwrap_or(record)
}

/// The largest number of key groups, as all exchanges here use it.
pub const MAX_PARALLELISM: u32 = 128;

/// Which consumer a key belongs to: computed here from the published rule of key groups, not by the core's code.
#[must_use]
pub fn hash_target(key: &[u8], consumers: u32) -> u32 {
    let code = key.iter().fold(1i32, |hash, byte| hash.wrapping_mul(31).wrapping_add(i32::from(*byte as i8)));
    let group = murmur(code) % MAX_PARALLELISM;
    group * consumers / MAX_PARALLELISM
}

/// Murmur3's mixing of one 32-bit word with length 4 and seed 0, made non-negative.
fn murmur(code: i32) -> u32 {
    let mut k = (code as u32).wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    k = k.rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64) ^ 4;
    k = (k ^ (k >> 16)).wrapping_mul(0x85eb_ca6b);
    k = (k ^ (k >> 13)).wrapping_mul(0xc2b2_ae35);
    k ^= k >> 16;
    match k as i32 {
        value if value >= 0 => value as u32,
        i32::MIN => 0,
        value => value.unsigned_abs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        Model::new(vec![Shape {
            producers: 1,
            consumers: 2,
            strategy: Strategy::Rebalance,
            segment_bytes: 4096,
            checksum: false,
        }])
    }

    const KEY: ChannelKey = ChannelKey { exchange: 0, producer: 0, consumer: 1 };

    fn bytes(content: Content) -> Vec<u8> {
        let mut out = Vec::new();
        content.write(&mut out);
        out
    }

    #[test]
    fn a_lost_repeated_or_changed_record_is_seen() {
        let (first, second) = (Content { seed: 1, bytes: 9 }, Content { seed: 2, bytes: 9 });
        let mut given = model();
        given.give_record(KEY, first).unwrap();
        given.give_record(KEY, second).unwrap();
        assert!(given.take_record(KEY, &bytes(second)).unwrap_err().contains("byte 0"), "lost the first");

        let mut given = model();
        given.give_record(KEY, first).unwrap();
        given.take_record(KEY, &bytes(first)).unwrap();
        assert!(given.take_record(KEY, &bytes(first)).unwrap_err().contains("expected None"), "repeated");

        let mut given = model();
        given.give_record(KEY, first).unwrap();
        let mut changed = bytes(first);
        changed[8] ^= 1;
        assert!(given.take_record(KEY, &changed).unwrap_err().contains("byte 8"));
    }

    #[test]
    fn nothing_may_follow_the_end_and_the_end_comes_last() {
        let content = Content { seed: 1, bytes: 0 };
        let mut given = model();
        given.give_record(KEY, content).unwrap();
        assert!(given.take_end(KEY).unwrap_err().contains("has not ended"));
        given.give_end(KEY).unwrap();
        assert!(given.take_end(KEY).unwrap_err().contains("1 items are missing"));
        given.take_record(KEY, &[]).unwrap();
        given.take_end(KEY).unwrap();
        assert!(given.take_record(KEY, &[]).unwrap_err().contains("after End"));
    }

    #[test]
    fn priority_overtakes_and_is_never_overtaken() {
        let content = |seed| Content { seed, bytes: 4 };
        let mut given = model();
        given.give_record(KEY, content(1)).unwrap();
        given.give_event(KEY, content(2), true).unwrap();
        given.give_record(KEY, content(3)).unwrap();
        assert_eq!(given.take_event(KEY, &bytes(content(2)), true), Ok(true));
        given.take_record(KEY, &bytes(content(1))).unwrap();
        given.take_record(KEY, &bytes(content(3))).unwrap();

        let mut given = model();
        given.give_event(KEY, content(2), true).unwrap();
        given.give_record(KEY, content(3)).unwrap();
        let error = given.take_record(KEY, &bytes(content(3))).unwrap_err();
        assert!(error.contains("before the earlier priority event"), "{error}");
    }

    #[test]
    fn a_failure_needs_a_cause_of_its_kind() {
        let lost = Failure::new(FailureCode::LinkLost, "reset");
        let mut given = model();
        given.links.insert(ChannelKey { consumer: 0, ..KEY }, 7);
        assert!(given.take_failure(KEY, &lost).is_err());
        given.causes.links_lost.insert(7);
        assert!(given.take_failure(KEY, &Failure::new(FailureCode::Protocol, "")).is_err());
        given.take_failure(KEY, &lost).unwrap();
        assert!(given.take_end(KEY).is_err());
    }

    #[test]
    fn key_groups_are_those_of_the_published_rule() {
        // Murmur3 (x86, 32 bit, seed 0) of the four bytes 01 00 00 00 is 0xfbf1402a, whose absolute value is taken.
        assert_eq!(murmur(1), 0xfbf1_402a_u32.wrapping_neg());
        assert_eq!(murmur(0), 0x2362_f9de);
        assert!((0..64u32).map(|key| hash_target(&key.to_le_bytes(), 4)).all(|target| target < 4));
    }
}
