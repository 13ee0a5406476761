//! The report as one page that needs nothing beside it: no script, no picture, no font from elsewhere.
//!
//! A section per scenario: first what its cases have in common, a plot per figure; then, folded away, every figure of each
//! case with every round as a dot between the smallest and the largest.

use std::fmt::Write as _;

use super::plot::{self, Line};
use super::{Axis, Case, Figure, Report, number};
use crate::scenario::Scenario;

/// Figures that are in the tables only: they say how good others are, or the same in another unit.
const NOT_PLOTTED: [&str; 4] = ["foreign_cores", "_count", "_max", "_p999"];

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --faint: #d0d7de; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0d1117; --faint: #30363d; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 76rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.25rem; margin-top: 3rem; border-top: 2px solid var(--faint); padding-top: .8rem; } h3 { font-size: 1rem; margin-bottom: .3rem; }
table { border-collapse: collapse; width: 100%; }
td, th { padding: .15rem .6rem .15rem 0; border-bottom: 1px solid var(--faint); text-align: left; font-weight: normal; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.plots { display: flex; flex-wrap: wrap; gap: .5rem 3rem; } summary { cursor: pointer; margin-top: 1rem; }
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
        let _ = writeln!(page, "<p>{}.</p>", escaped(&self.machine.line()));
        page.push_str(
            "<p class=\"faint\">Bars and points are medians over the rounds that count; lines through them go from the \
             smallest to the largest. Read ratios and CPU time per gigabyte before gigabytes per second.</p>\n",
        );
        page.push_str(&self.remarks());
        for scenario in self.scenarios() {
            let cases: Vec<&Case> = self.cases.iter().filter(|case| case.scenario == scenario).collect();
            page.push_str(&section(scenario, &cases));
        }
        page.push_str(&self.rounds());
        page.push_str("</body>\n</html>\n");
        page
    }

    /// Names of the scenarios in their order.
    fn scenarios(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for case in &self.cases {
            if !names.contains(&case.scenario.as_str()) {
                names.push(&case.scenario);
            }
        }
        names
    }

    /// What is to be known before the figures.
    fn remarks(&self) -> String {
        let mut items: Vec<String> = self.remarks.clone();
        items.extend(self.not_run.iter().map(|what| format!("Not run here: {what}")));
        if items.is_empty() {
            return String::new();
        }
        let items: String = items.iter().map(|item| format!("<li>{}</li>\n", escaped(item))).collect();
        format!("<ul>\n{items}</ul>\n")
    }

    /// What became of the rounds.
    fn rounds(&self) -> String {
        if self.rounds.is_empty() {
            return String::new();
        }
        let mut text = String::from(
            "<h2>Rounds</h2>\n<table>\n<tr><th>part</th><th class=\"number\">rounds</th><th class=\"number\">dropped as \
             noisy</th><th class=\"number\">noisy, but counted</th><th class=\"number\">cores that others took</th>\
             <th class=\"number\">seconds</th></tr>\n",
        );
        for rounds in &self.rounds {
            let cells = [
                rounds.run.to_string(),
                rounds.dropped.to_string(),
                rounds.kept_noisy.to_string(),
                format!("{:.2} .. {:.2}", rounds.foreign_cores.min, rounds.foreign_cores.max),
                format!("{:.0}", rounds.seconds),
            ];
            let cells: String =
                cells.iter().map(|cell| format!("<td class=\"number\">{cell}</td>")).collect();
            let _ = writeln!(text, "<tr><td>{}</td>{cells}</tr>", escaped(&rounds.name));
        }
        text.push_str("</table>\n");
        text
    }
}

/// A scenario: plots, then tables.
fn section(scenario: &str, cases: &[&Case]) -> String {
    let mut text = format!("<h2>{}</h2>\n", escaped(scenario));
    if let Some(known) = Scenario::named(scenario) {
        let _ = writeln!(text, "<p>{}.</p>", escaped(known.about));
    }
    let (by_number, by_name): (Vec<&Case>, Vec<&Case>) = cases.iter().partition(|case| !case.axes.is_empty());
    text.push_str("<div class=\"plots\">\n");
    for name in shared_figures(&by_number) {
        let _ = write!(text, "<div>\n<h3>{}</h3>\n{}</div>\n", title(name), line_chart(name, &by_number));
    }
    for group in groups(&by_name) {
        let members: Vec<&Case> = by_name.iter().filter(|case| case.group == group).copied().collect();
        for name in shared_figures(&members) {
            let rows: Vec<(String, &Figure)> = members
                .iter()
                .filter_map(|case| Some((short_name(scenario, case), case.find(name)?)))
                .collect();
            let heading =
                if group.is_empty() { title(name) } else { format!("{}, {}", escaped(group), title(name)) };
            let _ = write!(text, "<div>\n<h3>{heading}</h3>\n{}</div>\n", plot::bars(name, &rows));
        }
    }
    text.push_str("</div>\n<details>\n<summary>Every figure</summary>\n");
    for case in cases {
        text.push_str(&table(case));
    }
    text.push_str("</details>\n");
    text
}

/// Groups in the order in which they come first.
fn groups<'a>(cases: &[&'a Case]) -> Vec<&'a str> {
    let mut groups: Vec<&str> = Vec::new();
    for case in cases {
        if !groups.contains(&case.group.as_str()) {
            groups.push(&case.group);
        }
    }
    groups
}

/// Names of figures that more than one case has and that are worth a plot, in the order in which they come first.
fn shared_figures<'a>(cases: &[&'a Case]) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for figure in cases.iter().flat_map(|case| &case.figures) {
        let name = figure.name.as_str();
        let is_known = names.contains(&name) || NOT_PLOTTED.iter().any(|part| name.contains(part));
        // Of cases with records of one length it says nothing new.
        let says_the_same = name == "records_per_second"
            && cases.iter().all(|case| case.axes.len() < 2 && case.find("gigabytes_per_second").is_some());
        if !is_known && !says_the_same && cases.iter().filter(|case| case.find(name).is_some()).count() > 1 {
            names.push(name);
        }
    }
    names
}

/// What a case is called among those of its group; the settings behind its name are in the tables.
fn short_name(scenario: &str, case: &Case) -> String {
    let name = case.name.strip_prefix(scenario).and_then(|rest| rest.strip_prefix(": "));
    let name = name.unwrap_or(&case.name);
    let member = name.split_once(": ").filter(|_| !case.group.is_empty());
    member.map_or(name, |(_, member)| member.split(", ").next().unwrap_or(member)).to_owned()
}

/// What a line is called.
fn axis_name(Axis { name, value }: &Axis) -> String {
    match name.strip_suffix("_bytes") {
        Some(of) if *value >= 1048576.0 => format!("{of} {} MiB", value / 1048576.0),
        Some(of) if *value >= 1024.0 => format!("{of} {} KiB", value / 1024.0),
        Some(of) => format!("{of} {value} B"),
        None => format!("{} {value}", name.replace('_', " ")),
    }
}

/// A figure over the first number by which cases differ, a line for each value of the second.
fn line_chart(name: &str, cases: &[&Case]) -> String {
    let mut lines: Vec<Line> = Vec::new();
    for case in cases {
        let (Some(place), Some(figure)) = (case.axes.first(), case.find(name)) else { continue };
        let of_line = case.axes.get(1).map_or_else(String::new, axis_name);
        let point = (place.value, figure.value);
        match lines.iter_mut().find(|line| line.name == of_line) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name: of_line, points: vec![point] }),
        }
    }
    let axis = cases.first().and_then(|case| case.axes.first()).map_or("", |axis| &axis.name);
    plot::lines(name, axis, &lines)
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
            plot::strip(value.min, value.max, rounds)
        );
    }
    text.push_str("</table>\n");
    text
}

/// The name of a figure, for people.
fn title(name: &str) -> String {
    escaped(&name.replace('_', " "))
}

/// Text as it may stand in a page.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::Machine;
    use super::*;

    fn report() -> Report {
        let mut cases: Vec<Case> =
            ["baseline", "idle: weir <\"64\" & more>"].map(Case::new).into_iter().collect();
        cases[0].figure("gigabytes_per_second", [4.0, 2.0, 3.0]);
        cases[1].figure("gigabytes_per_second", [6.0, 6.0, 5.0]);
        cases[1].figure("percent_slower", [-7.0, 1.0, 2.0]);
        for (channels, bytes, rate) in
            [(1.0, 64.0, 1.0), (16.0, 64.0, 2.0), (1.0, 1024.0, 3.0), (16.0, 1024.0, 4.0)]
        {
            let mut case = Case::new("cell").at("channels", channels).at("record_bytes", bytes);
            case.figure("records_per_second", [rate]);
            cases.push(case);
        }
        for case in &mut cases {
            "idle".clone_into(&mut case.scenario);
        }
        Report {
            schema_version: super::super::SCHEMA_VERSION,
            machine: Machine::here(None),
            rounds: Vec::new(),
            took: Vec::new(),
            not_run: vec!["a <peer>".to_owned()],
            remarks: Vec::new(),
            cases,
        }
    }

    #[test]
    fn the_page_has_every_case_and_figure_and_needs_nothing_from_elsewhere() {
        let page = report().html();
        for needed in [
            "weir &lt;&quot;64&quot; &amp; more&gt;",
            "gigabytes per second",
            "percent slower",
            "-7.000",
            "Not run here: a &lt;peer&gt;",
            "record 1 KiB",
        ] {
            assert!(page.contains(needed), "{needed}");
        }
        for foreign in ["<script", "http:", "https:", "src=", "url(", "@import", "weir <"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert_eq!(page.matches("class=\"dot\"").count(), 13, "a dot per round");
        for tag in ["table", "svg", "h3", "td", "tr", "text", "body", "div", "details", "ul", "li"] {
            let opened =
                page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }

    #[test]
    fn only_what_several_cases_have_is_compared() {
        let report = report();
        let named: Vec<&Case> = report.cases.iter().filter(|case| case.axes.is_empty()).collect();
        assert_eq!(shared_figures(&named), ["gigabytes_per_second"]);
        let rows: Vec<(String, &Figure)> = named
            .iter()
            .filter_map(|case| Some((short_name("idle", case), case.find("gigabytes_per_second")?)))
            .collect();
        assert_eq!(rows[1].0, "weir <\"64\" & more>");
        let chart = plot::bars("rate", &rows);
        // The largest round of all is at the right edge, and no bar is beyond it.
        assert!(chart.contains("width=\"420.0\"") && chart.contains("width=\"210.0\""), "{chart}");
    }

    #[test]
    fn a_member_of_a_group_goes_without_what_all_of_it_have() {
        let case = Case::new("peers: 64 streams: h2, one connection").in_group("64 streams");
        assert_eq!(short_name("peers", &case), "h2");
    }
}
