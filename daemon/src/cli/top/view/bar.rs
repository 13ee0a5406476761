//! How a task spends its time, as a bar and in numbers.
//!
//! The colours are those of Flink's job graph: idle blue, busy red, backpressured black. Black cannot be seen on a black
//! screen, so it is grey here; and each part has a pattern of its own, for screens without colours.

use ratatui::style::Color;
use ratatui::text::Span;

use crate::control::tasks::{InstanceRow, TimesRow};

/// Parts of a bar: pattern, colour.
const PARTS: [(char, Color); 3] =
    [('\u{2591}', Color::Blue), ('\u{2588}', Color::Red), ('\u{2592}', Color::DarkGray)];

/// Milliseconds of each second: idle, busy, backpressured.
pub(super) type Parts = [u32; 3];

/// What an instance did in the last second; before it has one, in the longest window that there is.
pub(super) fn parts(instance: &InstanceRow) -> Option<Parts> {
    let InstanceRow { last_1_s, last_10_s, last_60_s, .. } = instance;
    let TimesRow {
        idle_ms_per_second: idle,
        busy_ms_per_second: busy,
        soft_backpressured_ms_per_second: soft,
        hard_backpressured_ms_per_second: hard,
    } = (*last_1_s).or(*last_10_s).or(*last_60_s)?;
    Some([idle, busy, soft.saturating_add(hard)])
}

/// The mean of those that are known.
pub(super) fn mean(all: &[Parts]) -> Option<Parts> {
    let count = u32::try_from(all.len()).ok().filter(|count| *count > 0)?;
    Some([0, 1, 2].map(|part| {
        let of_part = all.iter().filter_map(|parts| parts.get(part)).copied();
        of_part.fold(0, u32::saturating_add) / count
    }))
}

/// `width` cells, shared out by the parts. The rounding goes to the largest part.
pub(super) fn bar(parts: Parts, width: usize) -> Vec<Span<'static>> {
    let total = parts.iter().map(|part| u64::from(*part)).sum::<u64>().max(1);
    let mut cells = parts.map(|part| (u64::from(part) * width as u64 / total) as usize);
    let rest = width.saturating_sub(cells.iter().sum());
    let largest = (0..parts.len()).max_by_key(|part| parts.get(*part)).unwrap_or(0);
    if let Some(cells) = cells.get_mut(largest) {
        *cells += rest;
    }
    let shown = PARTS.into_iter().zip(cells).filter(|(_, cells)| *cells > 0);
    shown.map(|((pattern, colour), cells)| Span::styled(pattern.to_string().repeat(cells), colour)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_wide_as_it_is_told_and_its_parts_are_their_share() {
        let shown =
            |parts, width| bar(parts, width).iter().map(|span| span.content.to_string()).collect::<String>();
        assert_eq!(
            shown([500, 250, 250], 8),
            "\u{2591}\u{2591}\u{2591}\u{2591}\u{2588}\u{2588}\u{2592}\u{2592}"
        );
        assert_eq!(shown([0, 999, 1], 4), "\u{2588}".repeat(4));
        for parts in [[333, 333, 334], [0, 0, 0], [1, 1, 1], [u32::MAX, u32::MAX, u32::MAX], [0, 0, 1000]] {
            for width in [0, 1, 7, 20] {
                assert_eq!(shown(parts, width).chars().count(), width, "{parts:?} {width}");
            }
        }
    }

    #[test]
    fn the_mean_of_instances_is_that_of_each_part() {
        assert_eq!(mean(&[[1000, 0, 0], [0, 500, 500]]), Some([500, 250, 250]));
        assert_eq!(mean(&[]), None);
    }
}
