//! The work of the scenario `skew`, without Weir: page views with one hot page, counts of them, and partial counts that
//! are merged.

use std::collections::BTreeMap;

use crate::corpus;

/// The hot key.
pub(crate) const HOT: &str = "home";

/// Of ten records, how many have the hot key, but for chance.
const HOT_IN_TEN: u64 = 8;

/// How many other keys there are.
const OTHER_KEYS: u64 = 40;

/// Length of a record, in bytes, so that a few fill a segment and a consumer that is behind is soon felt.
const VIEW_BYTES: usize = 8000;

/// How often each key came.
pub(crate) type Counts = BTreeMap<Vec<u8>, u64>;

/// So many page views, the same in every run. Each begins with its key.
pub(crate) fn make(count: u64) -> Vec<Vec<u8>> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let view = |number: u64| {
        let is_hot = corpus::next(&mut state) % 10 < HOT_IN_TEN;
        let other = corpus::next(&mut state) % OTHER_KEYS;
        let key = if is_hot { HOT.to_owned() } else { format!("page-{other:02}") };
        let mut view = format!("{key} view {number}").into_bytes();
        while view.len() < VIEW_BYTES {
            view.push(b' ');
            view.extend_from_slice(corpus::word(&mut state).as_bytes());
        }
        view
    };
    (0..count).map(view).collect()
}

/// The key of a record: its first word.
pub(crate) fn key_of(record: &[u8]) -> &[u8] {
    record.split(|byte| *byte == b' ').next().unwrap_or_default()
}

/// Counts a record.
pub(crate) fn count(counts: &mut Counts, record: &[u8]) {
    *counts.entry(key_of(record).to_vec()).or_default() += 1;
}

/// The counts, computed in this process.
pub(crate) fn baseline(views: &[Vec<u8>]) -> Counts {
    let mut counts = Counts::new();
    views.iter().for_each(|view| count(&mut counts, view));
    counts
}

/// A partial count as a record: the key and how often it was seen.
pub(crate) fn partial(key: &[u8], count: u64) -> Vec<u8> {
    [key, b" ", count.to_string().as_bytes()].concat()
}

/// Partial counts of one key, merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Merged {
    /// Their sum.
    pub(crate) count: u64,
    /// How many there were.
    pub(crate) parts: u64,
}

/// Merges partial counts by their keys.
///
/// # Errors
/// One line: what is no partial count, or a sum that is out of range.
pub(crate) fn merge(partials: &[Vec<u8>]) -> Result<BTreeMap<Vec<u8>, Merged>, String> {
    let mut merged: BTreeMap<Vec<u8>, Merged> = BTreeMap::new();
    for partial in partials {
        let wrong = || format!("{:?} is no partial count", String::from_utf8_lossy(partial));
        let text = std::str::from_utf8(partial).map_err(|_| wrong())?;
        let (key, count) = text.split_once(' ').ok_or_else(wrong)?;
        let count: u64 = count.parse().map_err(|_| wrong())?;
        let entry = merged.entry(key.as_bytes().to_vec()).or_default();
        entry.count = entry.count.checked_add(count).ok_or_else(wrong)?;
        entry.parts += 1;
    }
    Ok(merged)
}

/// Compares merged counts with the baseline.
///
/// # Errors
/// One line that names the first key that differs.
pub(crate) fn compare(merged: &BTreeMap<Vec<u8>, Merged>, baseline: &Counts) -> Result<(), String> {
    for key in merged.keys().chain(baseline.keys()) {
        let (found, wanted) = (merged.get(key).map(|merged| merged.count), baseline.get(key).copied());
        if found != wanted {
            let name = String::from_utf8_lossy(key).into_owned();
            let text = |count: Option<u64>| count.map_or("none".to_owned(), |count| count.to_string());
            return Err(format!("the count of {name} is {}; the baseline has {}", text(found), text(wanted)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each of `ways` counters would emit if record i went to counter `to(i)`.
    fn partials(views: &[Vec<u8>], ways: usize, to: impl Fn(usize) -> usize) -> Vec<Vec<u8>> {
        let mut counters = vec![Counts::new(); ways];
        for (at, view) in views.iter().enumerate() {
            count(&mut counters[to(at)], view);
        }
        counters.iter().flatten().map(|(key, count)| partial(key, *count)).collect()
    }

    #[test]
    fn partial_counts_merge_to_the_baseline_however_records_were_spread() {
        let views = make(400);
        let wanted = baseline(&views);
        assert_eq!(wanted.values().sum::<u64>(), 400);
        for ways in [1, 2, 3, 8] {
            for spread in [1, 7, 13] {
                let mut parts = partials(&views, ways, |at| at * spread % ways);
                assert_eq!(compare(&merge(&parts).unwrap(), &wanted), Ok(()), "{ways} ways");
                parts.reverse();
                let merged = merge(&parts).unwrap();
                assert_eq!(compare(&merged, &wanted), Ok(()), "{ways} ways, reversed");
                assert_eq!(merged[HOT.as_bytes()].parts, ways as u64);
            }
        }
    }

    #[test]
    fn a_partial_count_that_is_lost_repeated_or_changed_is_found() {
        let views = make(400);
        let wanted = baseline(&views);
        let parts = partials(&views, 4, |at| at % 4);
        for at in 0..parts.len() {
            let mut lost = parts.clone();
            lost.remove(at);
            assert!(compare(&merge(&lost).unwrap(), &wanted).is_err());
            let mut twice = parts.clone();
            twice.push(parts[at].clone());
            assert!(compare(&merge(&twice).unwrap(), &wanted).is_err());
            let mut changed = parts.clone();
            changed[at][0] ^= 1;
            assert!(compare(&merge(&changed).unwrap(), &wanted).is_err());
        }
        assert!(compare(&BTreeMap::new(), &wanted).is_err());
    }

    #[test]
    fn what_is_no_partial_count_is_an_error() {
        let cases: [&[u8]; 6] = [b"", b"home", b"home ", b"home many", b"home -1", b"\xff 1"];
        for case in cases {
            assert!(merge(&[case.to_vec()]).is_err(), "{case:?}");
        }
        let (most, one) = (partial(b"home", u64::MAX), partial(b"home", 1));
        assert!(merge(&[most, one]).is_err());
    }

    #[test]
    fn the_hot_key_has_most_records_and_the_others_have_some() {
        let views = make(1000);
        assert_eq!(views, make(1000));
        let counts = baseline(&views);
        let hot = counts[HOT.as_bytes()];
        assert!((700..900).contains(&hot), "{hot}");
        // Chance may leave some out.
        assert!(counts.len() as u64 > OTHER_KEYS / 2, "{counts:?}");
    }
}
