//! Medians with their spread.

use serde::Serialize;

/// What several rounds measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The middle value.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// The spread of these values; zeros if there are none.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (values.first(), values.last()) else { return Self::default() };
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Self { median, min, max }
    }
}

/// The value that this share of all values does not exceed: 0.5 is the median, 1.0 the largest. 0 if there are none.
#[must_use]
pub fn percentile(values: &[u64], share: f64) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<u64> = (1..=200).rev().collect();
        let found = [0.0, 0.5, 0.99, 1.0].map(|share| percentile(&values, share));
        assert_eq!(found, [1, 100, 198, 200]);
        assert_eq!((percentile(&[7], 0.99), percentile(&[], 0.5)), (7, 0));
    }

    #[test]
    fn medians_of_odd_even_and_no_values() {
        let spread = |values: &[f64]| {
            let Spread { median, min, max } = Spread::of(values.iter().copied());
            [median, min, max]
        };
        assert_eq!(spread(&[3.0, 1.0, 2.0]), [2.0, 1.0, 3.0]);
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), [2.5, 1.0, 4.0]);
        assert_eq!(spread(&[]), [0.0, 0.0, 0.0]);
        assert_eq!(spread(&[f64::NAN, 5.0]), [5.0, 5.0, 5.0]);
    }
}
