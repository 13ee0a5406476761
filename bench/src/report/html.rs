//! The report as one page that needs nothing beside it: no script, no picture, no font from elsewhere.
//!
//! First what several cases have in common is compared, a chart per figure; then each case has its table, with every round
//! as a dot between the smallest and the largest.

use std::fmt::Write as _;

use super::{Case, Figure, Machine, Report, number};

/// Width of the plot of a chart and of a strip, in pixels.
const CHART: f64 = 420.0;
const STRIP: f64 = 160.0;

/// Colours that can be told apart on light and on dark paper, also where there is no style.
const BAR_COLOUR: &str = "#7fb2e5";
const DOT_COLOUR: &str = "#0b6bcb";
const LINE_COLOUR: &str = "#57606a";

/// Height of a bar with the space around it, in pixels.
const BAR: usize = 22;

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --faint: #d0d7de; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0d1117; --faint: #30363d; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 64rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; } h3 { font-size: 1rem; margin-bottom: .3rem; }
table { border-collapse: collapse; width: 100%; }
td, th { padding: .15rem .6rem .15rem 0; border-bottom: 1px solid var(--faint); text-align: left; font-weight: normal; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
svg { overflow: visible; } svg text { fill: currentColor; font: 13px system-ui, sans-serif; } .faint { opacity: .7; }
";

impl Report {
    /// The report as a page.
    #[must_use]
    pub fn html(&self) -> String {
        let mut page = String::from(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>Weir bench</title>\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n<style>",
        );
        page.push_str(STYLE);
        page.push_str("</style>\n</head>\n<body>\n<h1>Weir bench</h1>\n");
        page.push_str(&machine(&self.machine));
        let charts: Vec<String> = self.shared_figures().iter().map(|name| self.chart(name)).collect();
        if !charts.is_empty() {
            page.push_str("<h2>Cases compared</h2>\n");
            page.push_str(
                "<p class=\"faint\">Bars are medians, lines go from the smallest to the largest round.</p>\n",
            );
            page.extend(charts);
        }
        page.push_str("<h2>Every figure</h2>\n");
        for case in &self.cases {
            page.push_str(&table(case));
        }
        page.push_str("</body>\n</html>\n");
        page
    }

    /// Names of figures that more than one case has, in the order in which they come first.
    fn shared_figures(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for figure in self.cases.iter().flat_map(|case| &case.figures) {
            let cases = self.cases.iter().filter(|case| case.find(&figure.name).is_some());
            if !names.contains(&figure.name.as_str()) && cases.count() > 1 {
                names.push(&figure.name);
            }
        }
        names
    }

    /// A bar per case that has this figure.
    fn chart(&self, name: &str) -> String {
        let rows: Vec<(&str, &Figure)> =
            self.cases.iter().filter_map(|case| Some((case.name.as_str(), case.find(name)?))).collect();
        let least = rows.iter().map(|(_, figure)| figure.value.min).fold(0.0, f64::min);
        let most = rows.iter().map(|(_, figure)| figure.value.max).fold(0.0, f64::max);
        let scale = Scale { least, most, width: CHART };
        let (width, height) = (CHART + 110.0, rows.len() * 2 * BAR + 8);
        let mut svg = format!(
            "<h3>{}</h3>\n<svg width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"{}\">\n",
            title(name),
            escaped(name)
        );
        for (at, (case, Figure { value, .. })) in rows.iter().enumerate() {
            let (label, top) = (at * 2 * BAR + 14, at * 2 * BAR + 20);
            let (zero, median) = (scale.at(0.0), scale.at(value.median));
            let (x, length) = (zero.min(median), (median - zero).abs());
            let middle = top + 8;
            let _ = write!(
                svg,
                "<text x=\"0\" y=\"{label}\">{}</text>\n\
                 <rect class=\"bar\" fill=\"{BAR_COLOUR}\" x=\"{x:.1}\" y=\"{top}\" width=\"{length:.1}\" height=\"16\"/>\n\
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
}

/// Where a value lies in a plot.
struct Scale {
    least: f64,
    most: f64,
    width: f64,
}

impl Scale {
    /// From the left edge, in pixels.
    fn at(&self, value: f64) -> f64 {
        let range = self.most - self.least;
        if range > 0.0 { ((value - self.least) / range).clamp(0.0, 1.0) * self.width } else { 0.0 }
    }
}

fn machine(machine: &Machine) -> String {
    format!(
        "<p>Kernel {}, {} CPUs, congestion control {}, {} free hugepages; {} rounds of {} s, interleaved.</p>\n",
        escaped(&machine.kernel),
        machine.cpus,
        escaped(&machine.congestion),
        machine.hugepages_free,
        machine.rounds,
        machine.window_seconds
    )
}

fn table(case: &Case) -> String {
    let mut text = format!(
        "<h3>{}</h3>\n<table>\n<tr><th>figure</th><th class=\"number\">median</th><th class=\"number\">smallest</th>\
         <th class=\"number\">largest</th><th>rounds</th></tr>\n",
        escaped(&case.name)
    );
    for Figure { name, value, rounds } in &case.figures {
        let _ = writeln!(
            text,
            "<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
             <td>{}</td></tr>",
            title(name),
            number(value.median),
            number(value.min),
            number(value.max),
            strip(value.min, value.max, rounds)
        );
    }
    text.push_str("</table>\n");
    text
}

/// Every round as a dot, from the smallest on the left to the largest on the right.
fn strip(least: f64, most: f64, rounds: &[f64]) -> String {
    let scale = Scale { least, most, width: STRIP - 10.0 };
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

/// The name of a figure, for people.
fn title(name: &str) -> String {
    escaped(&name.replace('_', " "))
}

/// Text as it may stand in a page.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut cases: Vec<Case> = ["baseline", "weir <\"64\" & more>"].map(Case::new).into_iter().collect();
        cases[0].figure("gigabytes_per_second", [4.0, 2.0, 3.0]);
        cases[1].figure("gigabytes_per_second", [6.0, 6.0, 5.0]);
        cases[1].figure("percent_slower", [-7.0, 1.0, 2.0]);
        Report { schema_version: super::super::SCHEMA_VERSION, machine: Machine::here(3, 1.0, None), cases }
    }

    #[test]
    fn the_page_has_every_case_and_figure_and_needs_nothing_from_elsewhere() {
        let page = report().html();
        for needed in
            ["weir &lt;&quot;64&quot; &amp; more&gt;", "gigabytes per second", "percent slower", "-7.000"]
        {
            assert!(page.contains(needed), "{needed}");
        }
        for foreign in ["<script", "http:", "https:", "src=", "url(", "@import", "weir <"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert_eq!(page.matches("class=\"dot\"").count(), 9, "a dot per round");
        for tag in ["table", "svg", "h3", "td", "tr", "text", "body"] {
            let opened =
                page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }

    #[test]
    fn only_what_several_cases_have_is_compared() {
        let report = report();
        assert_eq!(report.shared_figures(), ["gigabytes_per_second"]);
        let chart = report.chart("gigabytes_per_second");
        // The largest round of all is at the right edge, and no bar is beyond it.
        assert!(chart.contains("width=\"420.0\"") && chart.contains("width=\"210.0\""), "{chart}");
    }

    #[test]
    fn values_below_zero_lie_left_of_it() {
        let scale = Scale { least: -5.0, most: 5.0, width: 100.0 };
        assert_eq!([-5.0, 0.0, 5.0, 50.0].map(|value| scale.at(value)), [0.0, 50.0, 100.0, 100.0]);
        assert_eq!(Scale { least: 0.0, most: 0.0, width: 100.0 }.at(0.0), 0.0);
    }
}
