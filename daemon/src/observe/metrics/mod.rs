//! Metrics for Prometheus and what reads its text.
//!
//! [`registry`] says which there are, [`collect`] gives them values, [`series`] keeps their number within bounds, and
//! [`text`] writes them. Who asks gets a text of one moment; nothing is kept between but which channels have series of
//! their own.

mod collect;
mod gates;
mod registry;
mod series;
mod text;

#[cfg(test)]
mod tests;

use std::sync::{Mutex, PoisonError};

pub(crate) use collect::Facts;
pub(crate) use text::Format;

use series::Series;
use text::Exposition;

/// Makes texts of metrics. Shared by all who scrape.
#[derive(Debug)]
pub struct Exporter {
    series: Mutex<Series>,
}

impl Exporter {
    /// One that gives at most `channels_max` channel ends series of their own.
    #[must_use]
    pub fn new(channels_max: u32) -> Self {
        Self { series: Mutex::new(Series::new(channels_max as usize)) }
    }

    /// The text of these facts. Takes time in proportion to the channels: some milliseconds for ten thousand.
    pub(crate) fn expose(&self, facts: &Facts, format: Format) -> String {
        let mut text = Exposition::new(format);
        collect::node(&mut text, facts);
        let are_all = facts.channels.shards_missing.is_empty();
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        collect::channels(&mut text, &series.tell(&facts.channels.channels, are_all));
        text.finish()
    }
}
