//! The work of the scenario `fix`, without Weir: documents, what the map makes of one, and the output that any plan must
//! come to.

use std::collections::BTreeMap;

use crate::corpus;

/// Length of a document, in bytes; at least this, up to the end of a word. Eight of them fill a segment.
const DOCUMENT_BYTES: usize = 4000;

/// So many documents, the same in every run. Each begins with its number.
pub(crate) fn make(count: u64) -> Vec<Vec<u8>> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let document = |number: u64| {
        let mut document = format!("{number:07}").into_bytes();
        while document.len() < DOCUMENT_BYTES {
            document.push(b' ');
            document.extend_from_slice(corpus::word(&mut state).as_bytes());
        }
        document
    };
    (0..count).map(document).collect()
}

/// What the map makes of a document: its number, how many words it has, and which of them it has most often.
pub(crate) fn summarize(document: &[u8]) -> Vec<u8> {
    let mut words = document.split(|byte| *byte == b' ');
    let number = words.next().unwrap_or_default();
    let mut counts: BTreeMap<&[u8], u64> = BTreeMap::new();
    words.for_each(|word| *counts.entry(word).or_default() += 1);
    let total: u64 = counts.values().sum();
    // Of equals the first in the alphabet, so that there is one answer.
    let most = counts.iter().rev().max_by_key(|(_, count)| **count);
    let (word, count) = most.map_or((&b"-"[..], 0), |(word, count)| (*word, *count));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{} words {total} most {} {count}", text(number), text(word)).into_bytes()
}

/// The sorted output, computed in this process.
pub(crate) fn baseline(documents: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut output: Vec<Vec<u8>> = documents.iter().map(|document| summarize(document)).collect();
    output.sort_unstable();
    output
}

/// Compares sorted output with the baseline.
///
/// # Errors
/// One line that names the first difference.
pub(crate) fn compare(sorted: &[Vec<u8>], baseline: &[Vec<u8>]) -> Result<(), String> {
    let differ = |(at, (found, wanted)): (usize, (&Vec<u8>, &Vec<u8>))| {
        (found != wanted).then(|| {
            let text = |line: &[u8]| String::from_utf8_lossy(line).into_owned();
            format!(
                "line {at} of the sorted output is {:?}; the baseline has {:?}",
                text(found),
                text(wanted)
            )
        })
    };
    if let Some(difference) = sorted.iter().zip(baseline).enumerate().find_map(differ) {
        return Err(difference);
    }
    if sorted.len() != baseline.len() {
        return Err(format!("the output has {} lines; the baseline has {}", sorted.len(), baseline.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_the_number_the_words_and_the_commonest() {
        let cases: [(&str, &str); 4] = [
            ("0000007 a weir a gate", "0000007 words 4 most a 2"),
            ("0000008 weir gate weir gate mill", "0000008 words 5 most gate 2"),
            ("0000009 one", "0000009 words 1 most one 1"),
            ("0000010", "0000010 words 0 most - 0"),
        ];
        for (document, summary) in cases {
            assert_eq!(String::from_utf8(summarize(document.as_bytes())).unwrap(), summary);
        }
    }

    #[test]
    fn documents_are_the_same_in_every_run_and_differ_from_each_other() {
        let documents = make(50);
        assert_eq!(documents, make(50));
        assert_eq!(documents.len(), 50);
        let baseline = baseline(&documents);
        assert!(baseline.is_sorted());
        assert!(baseline.windows(2).all(|pair| pair[0] != pair[1]));
        let bodies = |document: &Vec<u8>| document[7..].to_vec();
        assert_ne!(bodies(&documents[0]), bodies(&documents[1]));
        assert!(
            documents.iter().all(|document| (DOCUMENT_BYTES..DOCUMENT_BYTES + 16).contains(&document.len()))
        );
    }

    #[test]
    fn the_order_of_the_output_does_not_matter_and_everything_else_does() {
        let documents = make(20);
        let wanted = baseline(&documents);
        let sorted = |mut output: Vec<Vec<u8>>| {
            output.sort_unstable();
            output
        };
        let reversed: Vec<Vec<u8>> = documents.iter().rev().map(|document| summarize(document)).collect();
        assert_eq!(compare(&sorted(reversed.clone()), &wanted), Ok(()));
        type Change = fn(&mut Vec<Vec<u8>>);
        let changes: [(&str, Change); 5] = [
            ("lost at the end", |output| drop(output.pop())),
            ("lost", |output| drop(output.remove(3))),
            ("twice", |output| output.push(output[0].clone())),
            ("one for another", |output| output[0] = output[1].clone()),
            ("changed", |output| output[5][10] ^= 1),
        ];
        for (what, change) in changes {
            let mut output = reversed.clone();
            change(&mut output);
            assert!(compare(&sorted(output), &wanted).is_err(), "{what}");
        }
        assert!(compare(&[], &wanted).is_err());
    }
}
