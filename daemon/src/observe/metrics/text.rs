//! Writing metrics as text: the format of Prometheus (0.0.4) and that of OpenMetrics (1.0).
//!
//! The two differ in what a counter's family is called, in units, in the end mark, and in which characters of a help text
//! are escaped. Values, labels and histograms are the same.

use std::fmt::Write as _;

use super::registry::{Kind, Metric};

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Prometheus text, 0.0.4.
    Prometheus,
    /// OpenMetrics text, 1.0.
    OpenMetrics,
}

impl Format {
    /// The one that a request's `Accept` header asks for: OpenMetrics if it is named there, as scrapers that know it do.
    pub(crate) fn accepted(header: &str) -> Self {
        match header.split(',').any(|part| part.trim_start().starts_with("application/openmetrics-text")) {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }

    /// For the `Content-Type` header.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A number as it is written. Counts are exact.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    /// A count.
    Count(u64),
    /// Anything else. Never NaN or infinite: such a one is not written.
    Real(f64),
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<u32> for Value {
    fn from(count: u32) -> Self {
        Self::Count(u64::from(count))
    }
}

impl From<bool> for Value {
    fn from(is: bool) -> Self {
        Self::Count(u64::from(is))
    }
}

impl From<f64> for Value {
    fn from(real: f64) -> Self {
        Self::Real(real)
    }
}

/// A text of metrics, family by family.
pub(crate) struct Exposition {
    format: Format,
    text: String,
}

impl Exposition {
    /// An empty text.
    pub(crate) fn new(format: Format) -> Self {
        Self { format, text: String::new() }
    }

    /// Begins the family of `metric`. Its samples follow before another family begins.
    pub(crate) fn family<'a>(&'a mut self, metric: &'static Metric) -> Family<'a> {
        Family { exposition: self, metric, has_begun: false }
    }

    /// The whole text.
    pub(crate) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    fn begin(&mut self, metric: &Metric) {
        let Metric { name, kind, unit, help, .. } = metric;
        let family = match self.format {
            Format::Prometheus => name,
            Format::OpenMetrics => name.strip_suffix("_total").unwrap_or(name),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "# TYPE {family} {}", kind.as_str());
        if let (Format::OpenMetrics, Some(unit)) = (self.format, unit) {
            let _ = writeln!(self.text, "# UNIT {family} {unit}");
        }
        let _ = write!(self.text, "# HELP {family} ");
        escape(&mut self.text, help, self.format == Format::OpenMetrics);
        self.text.push('\n');
    }

    fn labels<'a>(&mut self, labels: impl Iterator<Item = (&'a str, &'a str)>) {
        let mut opening = '{';
        for (name, value) in labels.filter(|(_, value)| !value.is_empty()) {
            self.text.push(opening);
            opening = ',';
            self.text.push_str(name);
            self.text.push_str("=\"");
            escape(&mut self.text, value, true);
            self.text.push('"');
        }
        if opening == ',' {
            self.text.push('}');
        }
    }

    fn value(&mut self, value: Value) {
        let _ = match value {
            Value::Count(count) => writeln!(self.text, " {count}"),
            Value::Real(real) => writeln!(self.text, " {real}"),
        };
    }
}

/// One metric that is being written. It is not in the text if it has no samples.
pub(crate) struct Family<'a> {
    exposition: &'a mut Exposition,
    metric: &'static Metric,
    has_begun: bool,
}

impl Family<'_> {
    /// One sample. `values` are those of the metric's labels, in their order; an empty one is left out, as is a label
    /// without a value.
    pub(crate) fn sample(&mut self, values: &[&str], value: impl Into<Value>) {
        let value = value.into();
        if matches!(value, Value::Real(real) if !real.is_finite()) {
            return;
        }
        self.begin();
        let exposition = &mut *self.exposition;
        exposition.text.push_str(self.metric.name);
        exposition.labels(self.metric.labels.iter().copied().zip(values.iter().copied()));
        exposition.value(value);
    }

    /// One histogram: how many values were at most each bound and above the one before, beyond the last bound behind
    /// them, and the sum of all values. Bounds are ascending.
    pub(crate) fn histogram(&mut self, values: &[&str], buckets: &[(f64, u64)], beyond: u64, sum: f64) {
        if self.metric.kind != Kind::Histogram || !sum.is_finite() {
            return;
        }
        self.begin();
        let name = self.metric.name;
        let labels = || self.metric.labels.iter().copied().zip(values.iter().copied());
        let mut count = 0_u64;
        let bounds = buckets.iter().map(|(bound, values)| (bound.to_string(), *values));
        for (bound, values) in bounds.chain([("+Inf".to_owned(), beyond)]) {
            count = count.saturating_add(values);
            let _ = write!(self.exposition.text, "{name}_bucket");
            self.exposition.labels(labels().chain([("le", bound.as_str())]));
            self.exposition.value(Value::Count(count));
        }
        for (suffix, value) in [("count", Value::Count(count)), ("sum", Value::Real(sum))] {
            let _ = write!(self.exposition.text, "{name}_{suffix}");
            self.exposition.labels(labels());
            self.exposition.value(value);
        }
    }

    fn begin(&mut self) {
        if !self.has_begun {
            self.has_begun = true;
            self.exposition.begin(self.metric);
        }
    }
}

/// Appends `text` with what would end its line, or what it stands in, escaped.
fn escape(into: &mut String, text: &str, quotes: bool) {
    for character in text.chars() {
        match character {
            '\\' => into.push_str("\\\\"),
            '\n' => into.push_str("\\n"),
            '"' if quotes => into.push_str("\\\""),
            other => into.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static BYTES: Metric = Metric {
        name: "weir_test_bytes_total",
        kind: Kind::Counter,
        unit: Some("bytes"),
        labels: &["exchange", "side"],
        help: "A \"quoted\" help\\.",
    };
    static LENGTHS: Metric = Metric {
        name: "weir_test_seconds",
        kind: Kind::Histogram,
        unit: Some("seconds"),
        labels: &["cause"],
        help: "Lengths.",
    };

    fn written(format: Format) -> String {
        let mut exposition = Exposition::new(format);
        let mut family = exposition.family(&BYTES);
        family.sample(&["a\"b\\c\nd\u{1f980}", "send"], u64::MAX);
        family.sample(&["other", ""], 1.5);
        family.sample(&["not a number", "send"], f64::NAN);
        exposition.family(&LENGTHS).histogram(&["pool"], &[(0.25, 2), (0.5, 0)], 3, 7.25);
        let _ = exposition.family(&BYTES);
        exposition.finish()
    }

    #[test]
    fn prometheus_text_is_as_its_format_says() {
        assert_eq!(
            written(Format::Prometheus),
            "# TYPE weir_test_bytes_total counter\n\
             # HELP weir_test_bytes_total A \"quoted\" help\\\\.\n\
             weir_test_bytes_total{exchange=\"a\\\"b\\\\c\\nd\u{1f980}\",side=\"send\"} 18446744073709551615\n\
             weir_test_bytes_total{exchange=\"other\"} 1.5\n\
             # TYPE weir_test_seconds histogram\n\
             # HELP weir_test_seconds Lengths.\n\
             weir_test_seconds_bucket{cause=\"pool\",le=\"0.25\"} 2\n\
             weir_test_seconds_bucket{cause=\"pool\",le=\"0.5\"} 2\n\
             weir_test_seconds_bucket{cause=\"pool\",le=\"+Inf\"} 5\n\
             weir_test_seconds_count{cause=\"pool\"} 5\n\
             weir_test_seconds_sum{cause=\"pool\"} 7.25\n"
        );
    }

    #[test]
    fn openmetrics_names_families_units_and_the_end() {
        let text = written(Format::OpenMetrics);
        let heads: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
        assert_eq!(
            heads,
            [
                "# TYPE weir_test_bytes counter",
                "# UNIT weir_test_bytes bytes",
                "# HELP weir_test_bytes A \\\"quoted\\\" help\\\\.",
                "# TYPE weir_test_seconds histogram",
                "# UNIT weir_test_seconds seconds",
                "# HELP weir_test_seconds Lengths.",
                "# EOF",
            ]
        );
        assert!(text.contains("\nweir_test_bytes_total{exchange=\"other\"} 1.5\n"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn the_format_is_the_one_that_was_asked_for() {
        for (header, format) in [
            ("", Format::Prometheus),
            ("*/*", Format::Prometheus),
            ("text/plain;version=0.0.4", Format::Prometheus),
            ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", Format::OpenMetrics),
            ("text/plain;q=0.5, application/openmetrics-text; version=1.0.0", Format::OpenMetrics),
        ] {
            assert_eq!(Format::accepted(header), format, "{header}");
        }
    }
}
