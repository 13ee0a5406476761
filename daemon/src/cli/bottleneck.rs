//! `weir bottleneck`: what holds the pipelines up that run on this node and those that it is linked with.

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;

use super::RunDirArgs;
use super::output::{self, Output};
use crate::control::bottleneck::BottleneckReport;
use crate::control::client;
use crate::exit::{Exit, Problem};
use crate::observe::verdict::{Bottleneck, VerdictKind};

/// Widest line, in characters. Names are not cut, so that a line with a long one can be wider.
const COLUMNS: usize = 80;

/// Time between two looks of `--watch`: a new reading comes every second.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Show which task or exchange holds a pipeline up, why, and what helps.
///
/// A task that waits for room is a victim of what is further downstream; the bottleneck is the last task that is busy while
/// those upstream of it wait, or an exchange whose producers wait while its consumers are idle. All tasks are looked at that
/// are attached to this node and to those that it is linked with.
///
/// Exit codes: 0 the tasks of all nodes were looked at, whatever the verdict; 3 those of some are missing, 4 no daemon answers.
#[derive(Args, Debug)]
pub(super) struct BottleneckArgs {
    #[command(flatten)]
    daemon: RunDirArgs,
    /// Look again every second, until interrupted.
    #[arg(long)]
    watch: bool,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn run(arguments: &BottleneckArgs) -> Result<Exit, Problem> {
    loop {
        let report: BottleneckReport = client::get(&arguments.daemon.run_dir, "/v1/bottleneck")?;
        match arguments.output {
            Output::Json => output::print_json(&report)?,
            Output::Table if arguments.watch => output::print(&format!("{}{}", clear(), text(&report)))?,
            Output::Table => output::print(&text(&report))?,
        }
        if !arguments.watch {
            return Ok(if report.is_incomplete() { Exit::Degraded } else { Exit::Ok });
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Between two looks: on a terminal the second is drawn over the first.
fn clear() -> &'static str {
    if std::io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "\n" }
}

fn text(report: &BottleneckReport) -> String {
    let verdict = &report.verdict;
    let mut text = Text::default();
    match verdict.verdict {
        VerdictKind::Bottleneck if verdict.bottlenecks.len() > 1 => {
            let count = verdict.bottlenecks.len();
            text.wrapped("", &format!("{count} bottlenecks, the worst first."));
            for (number, found) in verdict.bottlenecks.iter().enumerate() {
                text.empty();
                text.wrapped("", &format!("{}. {}", number + 1, found.summary));
                text.bottleneck(found);
            }
        }
        VerdictKind::Bottleneck => {
            text.wrapped("", &verdict.summary);
            verdict.bottlenecks.iter().for_each(|found| text.bottleneck(found));
        }
        VerdictKind::NoBottleneck | VerdictKind::NotEnoughData => text.wrapped("", &verdict.summary),
    }
    text.empty();
    for (label, names) in [("victims", &verdict.victims), ("starved", &verdict.starved)] {
        if !names.is_empty() {
            text.labelled(label, &names.join(", "));
        }
    }
    verdict.lacks.iter().for_each(|lack| text.labelled("lacks", lack));
    text.labelled("nodes", &report.included.join(", "));
    text.0
}

/// Lines that are broken between words.
#[derive(Default)]
struct Text(String);

impl Text {
    fn bottleneck(&mut self, found: &Bottleneck) {
        self.empty();
        let mut what = format!("{}, held up {} ms/s", found.cause.as_str(), found.held_up_ms_per_second);
        if !found.nodes.is_empty() {
            what.push_str(&format!(", on {}", found.nodes.join(", ")));
        }
        self.labelled("cause", &what);
        found.evidence.iter().for_each(|line| self.labelled("seen", line));
        found.lacks.iter().for_each(|line| self.labelled("lacks", line));
        let confidence = format!("{}: {}", found.confidence.as_str(), found.confidence_reason);
        self.labelled("confidence", &confidence);
        self.labelled("helps", &found.remedy);
        found.would_not_help.iter().for_each(|line| self.labelled("does not", line));
    }

    fn empty(&mut self) {
        self.0.push('\n');
    }

    fn labelled(&mut self, label: &str, text: &str) {
        self.wrapped(&format!("  {label:<11} "), text);
    }

    /// Text behind `indent`, further lines indented as far. A word that does not fit into a line has one of its own.
    fn wrapped(&mut self, indent: &str, text: &str) {
        let further = " ".repeat(indent.chars().count());
        let (mut line, mut is_empty) = (indent.to_owned(), true);
        for word in text.split_whitespace() {
            if !is_empty && line.chars().count() + 1 + word.chars().count() > COLUMNS {
                self.0.push_str(line.trim_end());
                self.0.push('\n');
                (line, is_empty) = (further.clone(), true);
            }
            if !is_empty {
                line.push(' ');
            }
            line.push_str(word);
            is_empty = false;
        }
        self.0.push_str(line.trim_end());
        self.0.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use weir_flow::stall::Cause as StallCause;
    use weir_flow::wire::SocketSummary;

    use super::*;
    use crate::control::plan::MissingNode;
    use crate::control::snapshot::SCHEMA_VERSION;
    use crate::observe::times::Shares;
    use crate::observe::verdict::{
        ArrivalFacts, Cause, ChannelFacts, Confidence, ExchangeFacts, Facts, InstanceFacts, ProcessFacts,
        TaskFacts, Verdict, decide,
    };

    fn found(task: &str) -> Bottleneck {
        Bottleneck {
            task: Some(task.to_owned()),
            exchange: None,
            instance: None,
            nodes: vec!["b".to_owned()],
            cause: Cause::Cpu,
            summary: format!("{task} is the bottleneck: it computes all the time."),
            held_up_ms_per_second: 981,
            holds_up: vec!["second".to_owned()],
            evidence: vec![
                "third on b: busy 994, idle 6, backpressured 0 ms/s (mean of 10 s)".to_owned(),
                "upstream, second waits for room 981 ms/s, HIGH".to_owned(),
            ],
            lacks: Vec::new(),
            confidence: Confidence::High,
            confidence_reason: "its times and the processor time of its process say the same".to_owned(),
            remedy: "More instances of third (a higher parallelism), on free processors; or less work for each record."
                .to_owned(),
            would_not_help: vec!["more instances of other tasks: they wait already".to_owned()],
        }
    }

    fn report(verdict: VerdictKind, bottlenecks: Vec<Bottleneck>) -> BottleneckReport {
        let summary = bottlenecks.first().map_or("No bottleneck.".to_owned(), |found| found.summary.clone());
        BottleneckReport {
            schema_version: SCHEMA_VERSION,
            node: "a".to_owned(),
            verdict: Verdict {
                verdict,
                summary,
                wait_seconds: None,
                window_seconds: 10,
                bottlenecks,
                victims: vec!["first".to_owned(), "second".to_owned()],
                starved: vec!["fourth".to_owned()],
                lacks: Vec::new(),
            },
            included: vec!["a".to_owned(), "b".to_owned()],
            missing: Vec::new(),
            missing_unnamed: 0,
            stale: Vec::new(),
        }
    }

    #[test]
    fn a_bottleneck_reads_from_top_to_bottom_within_80_columns() {
        let text = text(&report(VerdictKind::Bottleneck, vec![found("third")]));
        assert_eq!(
            text,
            "third is the bottleneck: it computes all the time.\n\
             \n\
             \x20 cause       cpu, held up 981 ms/s, on b\n\
             \x20 seen        third on b: busy 994, idle 6, backpressured 0 ms/s (mean of 10 s)\n\
             \x20 seen        upstream, second waits for room 981 ms/s, HIGH\n\
             \x20 confidence  high: its times and the processor time of its process say the same\n\
             \x20 helps       More instances of third (a higher parallelism), on free\n\
             \x20             processors; or less work for each record.\n\
             \x20 does not    more instances of other tasks: they wait already\n\
             \n\
             \x20 victims     first, second\n\
             \x20 starved     fourth\n\
             \x20 nodes       a, b\n"
        );
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
    }

    /// A task with one instance on this node, which was watched for a second.
    fn task(name: &str, node: &str, busy: u32, waits: u32) -> TaskFacts {
        let shares = Shares { idle: 1000 - busy - waits, busy, soft: 0, hard: waits };
        let instance = InstanceFacts {
            node: node.to_owned(),
            index: Some(0),
            windows: [Some(shares), None, None],
            process: ProcessFacts { ran: Some(948), waited: Some(52), busy },
        };
        TaskFacts { name: name.to_owned(), parallelism: 1, instances: vec![instance] }
    }

    /// The chain of the demo: A and B on a, C and D on b, with this done by B and C.
    fn chain(second: (u32, u32), third: u32) -> Facts {
        let exchange = |name: &str, writer: usize| ExchangeFacts {
            name: name.to_owned(),
            strategy: Some("FORWARD".to_owned()),
            writers: vec![writer],
            readers: vec![writer + 1],
            ..ExchangeFacts::default()
        };
        Facts {
            tasks: vec![
                task("A", "a", 4, 990),
                task("B", "a", second.0, second.1),
                task("C", "b", third, 0),
                task("D", "b", 9, 0),
            ],
            exchanges: vec![exchange("ab", 0), exchange("bc", 1), exchange("cd", 2)],
            ..Facts::default()
        }
    }

    fn printed(facts: &Facts) -> String {
        let empty = report(VerdictKind::NoBottleneck, Vec::new());
        text(&BottleneckReport { verdict: decide(facts), ..empty })
    }

    /// The numbers are those of two runs of the demo; the words are what is printed with them now.
    #[test]
    fn the_samples_of_the_page_are_what_is_printed() {
        const PAGE: &str = include_str!("../../../docs/operations.md");
        let computes = printed(&chain((5, 995), 1000));
        assert!(PAGE.contains(&computes), "{computes}");

        let mut facts = chain((2, 998), 2);
        let probes = "DEGRADED: no CAP_BPF: the daemon may not use bpf()".to_owned();
        facts.probes = ["a", "b"].into_iter().map(|node| (node.to_owned(), probes.clone())).collect();
        let mut channel = ChannelFacts { node: "a".to_owned(), bytes: 2_000_000, ..ChannelFacts::default() };
        channel.send_stalled[StallCause::Socket.index()] = 1000;
        channel.emit_stalled[StallCause::Socket.index()] = 998;
        channel.socket = Some(SocketSummary {
            is_approximate: true,
            states: [5, 0, 0, 0, 995, 0].map(Some),
            retransmitted: Some(0),
            send_queue_bytes: Some(80_000),
            ..SocketSummary::default()
        });
        let arriving =
            SocketSummary { is_approximate: true, receive_queue_bytes: Some(0), ..SocketSummary::default() };
        let arrival =
            ArrivalFacts { node: "b".to_owned(), socket: Some(arriving), ..ArrivalFacts::default() };
        (facts.exchanges[1].channels, facts.exchanges[1].arrivals) = (vec![channel], vec![arrival]);
        let network = printed(&facts);
        assert!(PAGE.contains(&network), "{network}");
    }

    #[test]
    fn several_are_numbered_and_what_is_missing_is_degraded() {
        let mut report = report(VerdictKind::Bottleneck, vec![found("third"), found("fifth")]);
        report.missing = vec![MissingNode { node: "c".to_owned(), reason: "refused".to_owned() }];
        report.verdict.lacks = vec!["node c is not linked: refused".to_owned()];
        let text = text(&report);
        assert!(text.starts_with("2 bottlenecks, the worst first.\n\n1. third"), "{text}");
        assert!(
            text.contains("\n\n2. fifth") && text.contains("\n  lacks       node c is not linked"),
            "{text}"
        );
        assert!(report.is_incomplete());
        report.missing.clear();
        assert!(!report.is_incomplete());
        report.stale = vec!["b".to_owned()];
        assert!(report.is_incomplete());
    }

    #[test]
    fn a_name_as_long_as_names_can_be_is_not_cut() {
        let mut report = report(VerdictKind::NoBottleneck, Vec::new());
        report.verdict.victims = vec!["x".repeat(64), "y".repeat(64)];
        let text = text(&report);
        assert!(text.starts_with("No bottleneck.\n"), "{text}");
        assert!(text.contains(&"x".repeat(64)) && text.contains(&"y".repeat(64)), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
    }
}
