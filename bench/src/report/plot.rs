//! Plots as SVG: bars for cases that differ by name, lines for cases that differ by numbers, a strip for the rounds of one
//! figure.

use std::fmt::Write as _;

use super::html::escaped;
use super::{Figure, number};
use crate::statistics::Spread;

/// Width of the bars of a chart and of a strip, in pixels.
pub(super) const CHART: f64 = 420.0;
const STRIP: f64 = 160.0;

/// Colours that can be told apart on light and on dark paper, also where there is no style.
const BAR_COLOUR: &str = "#7fb2e5";
const OWN_COLOUR: &str = "#e5a26f";
const DOT_COLOUR: &str = "#0b6bcb";
const LINE_COLOUR: &str = "#57606a";
const SERIES_COLOURS: [&str; 5] = ["#0b6bcb", "#d1662b", "#2a9d5c", "#8957c9", "#b8912c"];

/// Height of a bar with the space around it, in pixels.
const BAR: usize = 22;

/// The area of a line chart within its margins, in pixels.
const LINES: (f64, f64) = (460.0, 220.0);
const MARGIN_LEFT: f64 = 70.0;
const MARGIN_TOP: f64 = 12.0;
const MARGIN_BOTTOM: f64 = 46.0;

/// Width of the name of a line, with the space around it, in pixels.
const LEGEND: f64 = 118.0;

/// Values further apart than this are drawn on a logarithmic scale.
const LOGARITHMIC_BEYOND: f64 = 30.0;

/// A bar per case, each with its name above it. Those of Weir have a colour of their own if others are among them.
pub(super) fn bars(title: &str, rows: &[(String, &Figure)]) -> String {
    let least = rows.iter().map(|(_, figure)| figure.value.min).fold(0.0, f64::min);
    let most = rows.iter().map(|(_, figure)| figure.value.max).fold(0.0, f64::max);
    let scale = Scale { least, most, width: CHART, is_logarithmic: false };
    let is_own = |name: &str| name.starts_with("weir");
    let is_mixed = rows.iter().any(|(name, _)| is_own(name)) && !rows.iter().all(|(name, _)| is_own(name));
    let (width, height) = (CHART + 110.0, rows.len() * 2 * BAR + 8);
    let mut svg = format!(
        "<svg width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"{}\">\n",
        escaped(title)
    );
    for (at, (case, Figure { value, .. })) in rows.iter().enumerate() {
        let (label, top) = (at * 2 * BAR + 14, at * 2 * BAR + 20);
        let (zero, median) = (scale.at(0.0), scale.at(value.median));
        let (x, length) = (zero.min(median), (median - zero).abs());
        let middle = top + 8;
        let colour = if is_mixed && is_own(case) { OWN_COLOUR } else { BAR_COLOUR };
        let _ = write!(
            svg,
            "<text x=\"0\" y=\"{label}\">{}</text>\n\
             <rect class=\"bar\" fill=\"{colour}\" x=\"{x:.1}\" y=\"{top}\" width=\"{length:.1}\" height=\"16\"/>\n\
             <line stroke=\"{LINE_COLOUR}\" stroke-width=\"1.5\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle}\" y2=\"{middle}\"/>\n\
             <text x=\"{:.1}\" y=\"{}\">{}</text>\n",
            escaped(case),
            scale.at(value.min),
            scale.at(value.max),
            CHART + 8.0,
            top + 13,
            number(value.median)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// A line of a line chart: its name, and its points from left to right.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, Spread)>,
}

/// A line per series over a logarithmic axis, with a line from the smallest to the largest round through each point.
pub(super) fn lines(title: &str, axis: &str, series: &[Line]) -> String {
    let points = || series.iter().flat_map(|line| &line.points);
    let mut places: Vec<f64> = points().map(|(place, _)| *place).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let (Some(first), Some(last)) = (places.first(), places.last()) else { return String::new() };
    let across = Scale { least: *first, most: *last, width: LINES.0, is_logarithmic: true };
    let most = points().map(|(_, value)| value.max).fold(0.0, f64::max);
    let least = points().map(|(_, value)| value.min).fold(most, f64::min);
    let is_logarithmic = least > 0.0 && most / least > LOGARITHMIC_BEYOND;
    let up = Scale {
        least: if is_logarithmic { least } else { least.min(0.0) },
        most,
        width: LINES.1,
        is_logarithmic,
    };
    let (bottom, legend) = (MARGIN_TOP + LINES.1, if series.len() > 1 { 22 } else { 0 });
    let (width, height) = (MARGIN_LEFT + LINES.0 + 30.0, bottom + MARGIN_BOTTOM + legend as f64);
    let mut svg = format!(
        "<svg width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"{}\">\n",
        escaped(title)
    );
    for value in up.ticks() {
        let y = bottom - up.at(value);
        let _ = write!(
            svg,
            "<line stroke=\"{LINE_COLOUR}\" stroke-opacity=\"0.25\" x1=\"{MARGIN_LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\n\
             <text text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
            MARGIN_LEFT + LINES.0,
            MARGIN_LEFT - 8.0,
            y + 4.0,
            short(value)
        );
    }
    for place in &places {
        let (x, y) = (MARGIN_LEFT + across.at(*place), bottom + 18.0);
        let _ = writeln!(svg, "<text text-anchor=\"middle\" x=\"{x:.1}\" y=\"{y:.1}\">{place}</text>");
    }
    let (x, y) = (MARGIN_LEFT + LINES.0 / 2.0, bottom + 38.0);
    let _ = writeln!(svg, "<text text-anchor=\"middle\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(axis));
    for (at, line) in series.iter().enumerate() {
        let colour = SERIES_COLOURS[at % SERIES_COLOURS.len()];
        draw(&mut svg, line, colour, &across, &up, bottom);
        if series.len() > 1 {
            let (x, y) = (MARGIN_LEFT + at as f64 * LEGEND, bottom + MARGIN_BOTTOM + 10.0);
            let _ = write!(
                svg,
                "<rect fill=\"{colour}\" x=\"{x}\" y=\"{:.1}\" width=\"14\" height=\"4\"/>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
                y - 2.0,
                x + 20.0,
                y + 4.0,
                escaped(&line.name)
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw(svg: &mut String, line: &Line, colour: &str, across: &Scale, up: &Scale, bottom: f64) {
    let mut path = String::new();
    for (place, Spread { median, min, max }) in &line.points {
        let (x, y) = (MARGIN_LEFT + across.at(*place), bottom - up.at(*median));
        let _ = write!(path, "{}{x:.1} {y:.1}", if path.is_empty() { "M" } else { " L" });
        let _ = write!(
            svg,
            "<line stroke=\"{colour}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>\n\
             <circle fill=\"{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>\n",
            bottom - up.at(*min),
            bottom - up.at(*max)
        );
    }
    let _ = writeln!(svg, "<path fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" d=\"{path}\"/>");
}

/// Every round as a dot, from the smallest on the left to the largest on the right.
pub(super) fn strip(least: f64, most: f64, rounds: &[f64]) -> String {
    let scale = Scale { least, most, width: STRIP - 10.0, is_logarithmic: false };
    let mut svg = format!(
        "<svg width=\"{STRIP}\" height=\"12\"><line stroke=\"{LINE_COLOUR}\" stroke-opacity=\"0.4\" x1=\"5\" x2=\"{}\" y1=\"6\" y2=\"6\"/>",
        STRIP - 5.0
    );
    for value in rounds {
        let _ = write!(
            svg,
            "<circle class=\"dot\" fill=\"{DOT_COLOUR}\" fill-opacity=\"0.6\" cx=\"{:.1}\" cy=\"6\" r=\"4\"/>",
            5.0 + scale.at(*value)
        );
    }
    svg.push_str("</svg>");
    svg
}

/// A round number without zeros behind its point.
fn short(value: f64) -> String {
    let text = number(value);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Where a value lies in a plot.
struct Scale {
    least: f64,
    most: f64,
    width: f64,
    /// Then both ends are more than 0.
    is_logarithmic: bool,
}

impl Scale {
    /// From the edge of the smallest, in pixels.
    fn at(&self, value: f64) -> f64 {
        let place = |value: f64| if self.is_logarithmic { value.max(f64::MIN_POSITIVE).ln() } else { value };
        let range = place(self.most) - place(self.least);
        let share = (place(value) - place(self.least)) / range;
        if range > 0.0 { share.clamp(0.0, 1.0) * self.width } else { 0.0 }
    }

    /// Values to be told beside it.
    fn ticks(&self) -> Vec<f64> {
        if self.is_logarithmic {
            let decades = self.least.log10().ceil() as i32..=self.most.log10().floor() as i32;
            return decades.map(|power| 10_f64.powi(power)).collect();
        }
        let range = self.most - self.least;
        if range <= 0.0 {
            return vec![self.least];
        }
        let decade = 10_f64.powf((range / 4.0).log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * decade).find(|step| range / step <= 5.0);
        let step = step.unwrap_or(range);
        let first = (self.least / step).ceil() as i64;
        (first..).map(|count| count as f64 * step).take_while(|value| *value <= self.most).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_below_zero_lie_left_of_it() {
        let scale = Scale { least: -5.0, most: 5.0, width: 100.0, is_logarithmic: false };
        assert_eq!([-5.0, 0.0, 5.0, 50.0].map(|value| scale.at(value)), [0.0, 50.0, 100.0, 100.0]);
        let empty = Scale { least: 0.0, most: 0.0, width: 100.0, is_logarithmic: false };
        assert_eq!((empty.at(0.0), empty.ticks()), (0.0, vec![0.0]));
    }

    #[test]
    fn ticks_are_round_numbers_within_the_scale() {
        let scale = |least, most, is_logarithmic| Scale { least, most, width: 100.0, is_logarithmic };
        assert_eq!(scale(0.0, 3.7, false).ticks(), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(scale(-3.0, 3.0, false).ticks(), [-2.0, 0.0, 2.0]);
        let logarithmic = scale(2.0, 2000.0, true);
        assert_eq!(logarithmic.ticks(), [10.0, 100.0, 1000.0]);
        assert!((logarithmic.at(20.0) - 100.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn round_numbers_are_short() {
        assert_eq!([0.0, 0.5, 2.0, 40.0, 1000.0, -0.25].map(short), ["0", "0.5", "2", "40", "1000", "-0.25"]);
    }

    #[test]
    fn lines_begin_and_end_at_the_edges() {
        let point = |place, value| (place, Spread { median: value, min: value, max: value });
        let one = Line { name: "64 B".to_owned(), points: vec![point(1.0, 0.0), point(1000.0, 5.0)] };
        let other = Line { name: "1 <KiB>".to_owned(), points: vec![point(1.0, 2.0)] };
        let svg = lines("rate", "channels", &[one, other]);
        assert!(svg.contains("d=\"M70.0 232.0 L530.0 12.0\""), "{svg}");
        assert!(svg.contains("1 &lt;KiB&gt;") && svg.contains(">1000</text>"), "{svg}");
        assert!(lines("rate", "channels", &[]).is_empty());
    }
}
