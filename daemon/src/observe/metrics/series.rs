//! Which channels have series of their own, and what the others add up to.
//!
//! The number of series is bounded whatever is attached. A place is given to the channels that have carried the most when
//! they are first seen, and kept until the channel ends: a series that came and went with the rank of its channel would
//! show a counter that jumps. What has no place is added up. A sum of counters must not fall when one of them ends, or a
//! scraper would take it for a counter that began anew; so it keeps what ended ones had.

use std::collections::BTreeMap;

use super::collect::{self, COUNTERS};
use crate::control::snapshot::{ChannelRow, ChannelSide};

/// Values of all counters of one channel, or of many.
pub(super) type Counters = [u64; COUNTERS];

/// Which channel end. Its peer is not part of it: it is not known before the channel is connected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    side: ChannelSide,
    exchange: String,
    producer: u32,
    consumer: u32,
}

impl Key {
    fn of(row: &ChannelRow) -> Self {
        Self {
            side: row.side,
            exchange: row.exchange.clone(),
            producer: row.producer,
            consumer: row.consumer,
        }
    }
}

/// What is known of one channel from one scrape to the next.
#[derive(Debug)]
struct Known {
    has_place: bool,
    /// Its counters when it was last seen, if it has no place.
    last: Counters,
}

/// Counters of all channels of one side without a place, and how many of those there are now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Others {
    /// Of those that are there and those that have ended.
    pub(super) counters: Counters,
    /// Those that are there.
    pub(super) channels: usize,
}

impl Others {
    /// Whether there ever was one.
    pub(super) fn is_known(&self) -> bool {
        self.channels > 0 || self.counters.iter().any(|count| *count > 0)
    }
}

/// The memory of the exporter from one scrape to the next.
#[derive(Debug)]
pub(super) struct Series {
    places: usize,
    known: BTreeMap<Key, Known>,
    /// What channels without a place had counted when they were last seen, by side.
    counted: [Counters; 2],
}

/// The rows of one scrape, told apart.
pub(super) struct Told<'a> {
    /// Those with series of their own, in the order that they came in.
    pub(super) named: Vec<&'a ChannelRow>,
    /// Those without.
    pub(super) unnamed: Vec<&'a ChannelRow>,
    /// What the latter add up to, by side: sending, receiving.
    pub(super) others: [Others; 2],
}

impl Series {
    /// Nothing is known yet; at most `places` channel ends get series of their own.
    pub(super) fn new(places: usize) -> Self {
        Self { places, known: BTreeMap::new(), counted: [[0; COUNTERS]; 2] }
    }

    /// Tells apart the rows of a scrape. `are_all` says whether any channel may be missing in it: none is forgotten then,
    /// or a shard that did not answer once would have its channels begin anew.
    pub(super) fn tell<'a>(&mut self, rows: &'a [ChannelRow], are_all: bool) -> Told<'a> {
        let keys: Vec<Key> = rows.iter().map(Key::of).collect();
        if are_all {
            let there: std::collections::BTreeSet<&Key> = keys.iter().collect();
            self.known.retain(|key, _| there.contains(key));
        }
        self.give_places(rows, &keys);
        let mut told = Told { named: Vec::new(), unnamed: Vec::new(), others: [Others::default(); 2] };
        for (row, key) in rows.iter().zip(keys) {
            let Some(known) = self.known.get_mut(&key) else { continue };
            if known.has_place {
                told.named.push(row);
                continue;
            }
            told.unnamed.push(row);
            let side = row.side as usize;
            let now = collect::counters(row);
            if let (Some(counted), Some(others)) = (self.counted.get_mut(side), told.others.get_mut(side)) {
                add_growth(counted, &known.last, &now);
                others.channels += 1;
            }
            known.last = now;
        }
        for (others, counted) in told.others.iter_mut().zip(&self.counted) {
            others.counters = *counted;
        }
        told
    }

    /// Free places go to those that are new, those that have carried the most first.
    fn give_places(&mut self, rows: &[ChannelRow], keys: &[Key]) {
        let taken = self.known.values().filter(|known| known.has_place).count();
        let mut new: Vec<(u64, &Key)> = rows
            .iter()
            .zip(keys)
            .filter(|(_, key)| !self.known.contains_key(key))
            .map(|(row, key)| (row.bytes_total, key))
            .collect();
        new.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(b.1)));
        let mut free = self.places.saturating_sub(taken);
        for (_, key) in new {
            let has_place = free > 0;
            free = free.saturating_sub(1);
            self.known.insert(key.clone(), Known { has_place, last: [0; COUNTERS] });
        }
    }
}

/// Adds to `sums` by how much each counter grew. One that fell belongs to another channel of the same name, which began at
/// 0.
fn add_growth(sums: &mut Counters, before: &Counters, now: &Counters) {
    for ((sum, before), now) in sums.iter_mut().zip(before).zip(now) {
        *sum = sum.saturating_add(now.checked_sub(*before).unwrap_or(*now));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::row;
    use super::*;

    fn bytes(told: &Told<'_>) -> u64 {
        let named: u64 = told.named.iter().map(|row| row.bytes_total).sum();
        named + told.others.iter().map(|others| others.counters[0]).sum::<u64>()
    }

    fn named(told: &Told<'_>) -> Vec<u32> {
        told.named.iter().map(|row| row.consumer).collect()
    }

    #[test]
    fn those_that_carried_the_most_have_places_and_the_sum_is_that_of_all() {
        let mut series = Series::new(3);
        let rows: Vec<ChannelRow> =
            (0..10).map(|consumer| row("x", consumer, u64::from(consumer * 100))).collect();
        let told = series.tell(&rows, true);
        assert_eq!(named(&told), [7, 8, 9]);
        assert_eq!((bytes(&told), told.others[0].channels), (4500, 7));
    }

    #[test]
    fn a_place_is_kept_until_its_channel_ends_and_nobody_is_moved_into_it() {
        let mut series = Series::new(1);
        let mut rows = vec![row("x", 0, 10), row("x", 1, 5)];
        assert_eq!(named(&series.tell(&rows, true)), [0]);
        rows[1].bytes_total = 1_000_000;
        assert_eq!(named(&series.tell(&rows, true)), [0], "rank does not count any more");
        let rows = vec![rows.remove(1), row("x", 2, 1)];
        let told = series.tell(&rows, true);
        assert_eq!(named(&told), [2], "who comes new gets the place that is free");
        assert_eq!(told.others[0].counters[0], 1_000_000);
    }

    #[test]
    fn the_sum_of_the_others_never_falls() {
        let mut series = Series::new(0);
        let mut last = 0;
        let steps: [&[(u32, u64)]; 6] =
            [&[(0, 10), (1, 20)], &[(0, 15), (1, 20)], &[(1, 25)], &[(1, 3)], &[], &[(0, 1), (1, 4)]];
        let sums = [30, 35, 40, 43, 43, 48];
        for (step, wanted) in steps.into_iter().zip(sums) {
            let rows: Vec<ChannelRow> =
                step.iter().map(|(consumer, bytes)| row("x", *consumer, *bytes)).collect();
            let sum = bytes(&series.tell(&rows, true));
            assert!(sum >= last);
            assert_eq!(sum, wanted, "{step:?}");
            last = sum;
        }
    }

    #[test]
    fn channels_of_a_shard_that_does_not_answer_once_keep_their_places() {
        let mut series = Series::new(1);
        let rows = vec![row("x", 0, 10), row("x", 1, 5)];
        series.tell(&rows, true);
        assert_eq!(named(&series.tell(&rows[1..], false)), [] as [u32; 0]);
        let told = series.tell(&rows, true);
        assert_eq!((named(&told), bytes(&told)), (vec![0], 15));
    }
}
