//! `weir channels`: one row per channel end on a node.

use clap::Args;

use super::RunDirArgs;
use super::output::{self, Align, Output};
use crate::control::client;
use crate::control::snapshot::{self, ChannelRow, ChannelSide, ChannelsReport};
use crate::exit::{Exit, Problem};

/// Show every channel that begins or ends on this node.
///
/// A channel with a backlog and no credit waits for its consumer. `waited` is the time in which data
/// waited for credit; `weir stalls` has all waits, with their causes.
/// What only the other end of a channel knows is 0 here; ask the daemon there. With --wide, `in_flight_bytes` is what was
/// sent and not consumed, and `in_flight_seconds`, at the end of a consumer with debloating, how long it takes to consume
/// what is in flight to it.
///
/// Exit codes: 0 all are shown, 3 a shard does not answer and its channels are missing, 4 no daemon answers.
#[derive(Args, Debug)]
pub(super) struct ChannelsArgs {
    #[command(flatten)]
    daemon: RunDirArgs,
    /// Show only channels of this exchange.
    #[arg(long, value_name = "NAME")]
    exchange: Option<String>,
    /// Show all columns of the table, with the names that they have in JSON.
    #[arg(long)]
    wide: bool,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn run(arguments: &ChannelsArgs) -> Result<Exit, Problem> {
    let mut report: ChannelsReport = client::get(&arguments.daemon.run_dir, "/v1/channels")?;
    if let Some(exchange) = &arguments.exchange {
        report.channels.retain(|row| row.exchange == *exchange);
    }
    match arguments.output {
        Output::Json => output::print_json(&report)?,
        Output::Table if arguments.wide => output::print(&text(&report, WIDE))?,
        Output::Table => output::print(&text(&report, NARROW))?,
    }
    Ok(exit(&report))
}

fn exit(report: &ChannelsReport) -> Exit {
    if report.shards_missing.is_empty() { Exit::Ok } else { Exit::Degraded }
}

/// One column: its name, how it is set, and its cell of a row.
type Column = (&'static str, Align, fn(&ChannelRow) -> String);

/// What tells who waits, within 80 columns for names of usual length.
const NARROW: &[Column] = &[
    ("exchange", Align::Left, |row| row.exchange.clone()),
    ("side", Align::Left, side),
    ("producer", Align::Right, producer),
    ("consumer", Align::Right, consumer),
    ("peer", Align::Left, peer),
    ("credit", Align::Right, |row| row.credit.to_string()),
    ("backlog", Align::Right, |row| row.backlog.to_string()),
    ("waited", Align::Right, |row| format!("{:.1} s", row.send_stalled_seconds_total)),
    ("state", Align::Left, |row| row.state.clone()),
];

/// Everything, named as in the JSON.
const WIDE: &[Column] = &[
    ("exchange", Align::Left, |row| row.exchange.clone()),
    ("side", Align::Left, side),
    ("producer", Align::Right, producer),
    ("consumer", Align::Right, consumer),
    ("peer", Align::Left, peer),
    ("strategy", Align::Left, |row| row.strategy.clone()),
    ("credit", Align::Right, |row| row.credit.to_string()),
    ("backlog", Align::Right, |row| row.backlog.to_string()),
    ("queued_bytes", Align::Right, |row| row.queued_bytes.to_string()),
    ("unacked_bytes", Align::Right, |row| row.unacked_bytes.to_string()),
    ("in_flight_bytes", Align::Right, |row| row.in_flight_bytes.to_string()),
    ("in_flight_seconds", Align::Right, |row| known(row.in_flight_seconds.map(|it| format!("{it:.3}")))),
    ("buffer_bytes", Align::Right, |row| known(row.buffer_bytes)),
    ("receiver_ready", Align::Right, |row| row.receiver_ready.to_string()),
    ("receiver_held", Align::Right, |row| row.receiver_held.to_string()),
    ("bytes_total", Align::Right, |row| row.bytes_total.to_string()),
    ("buffers_total", Align::Right, |row| row.buffers_total.to_string()),
    ("records_total", Align::Right, |row| row.records_total.to_string()),
    ("state", Align::Left, |row| row.state.clone()),
    ("send_stalled_seconds_total", Align::Right, |row| format!("{:.3}", row.send_stalled_seconds_total)),
];

/// What is not known, or not there, is a dash.
fn known(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn side(row: &ChannelRow) -> String {
    match row.side {
        ChannelSide::Send => "send".to_owned(),
        ChannelSide::Receive => "receive".to_owned(),
    }
}

fn producer(row: &ChannelRow) -> String {
    format!("{}/{}", row.producer, row.producers)
}

fn consumer(row: &ChannelRow) -> String {
    format!("{}/{}", row.consumer, row.consumers)
}

fn peer(row: &ChannelRow) -> String {
    if row.peer.is_empty() { "-".to_owned() } else { row.peer.clone() }
}

fn text(report: &ChannelsReport, columns: &[Column]) -> String {
    let ChannelsReport { channels, shards_missing, .. } = report;
    let missing = snapshot::unanswered(shards_missing);
    let mut text = if channels.is_empty() {
        let of = if missing.is_some() { " of the shards that answered" } else { "" };
        format!("no channels{of}\n")
    } else {
        let head: Vec<(&str, Align)> = columns.iter().map(|(name, align, _)| (*name, *align)).collect();
        let rows: Vec<Vec<String>> =
            channels.iter().map(|row| columns.iter().map(|(_, _, cell)| cell(row)).collect()).collect();
        output::table(&head, &rows)
    };
    if let Some(missing) = missing {
        text.push_str(&format!("{missing} channels are not shown\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::snapshot::SCHEMA_VERSION;

    fn report(channels: Vec<ChannelRow>, shards_missing: Vec<u16>) -> ChannelsReport {
        ChannelsReport {
            schema_version: SCHEMA_VERSION,
            node: "a".into(),
            channels,
            gates: Vec::new(),
            shards_missing,
        }
    }

    #[test]
    fn channels_of_a_shard_that_does_not_answer_are_said_to_be_missing() {
        let whole = report(Vec::new(), Vec::new());
        assert_eq!((text(&whole, NARROW).as_str(), exit(&whole)), ("no channels\n", Exit::Ok));
        let one = report(Vec::new(), vec![1]);
        let told = "no channels of the shards that answered\n\
                    shard 1 did not answer within 2s: its channels are not shown\n";
        assert_eq!((text(&one, NARROW).as_str(), exit(&one)), (told, Exit::Degraded));
        let some = report(vec![row()], vec![0, 2]);
        let told = text(&some, WIDE);
        assert!(told.contains("edge"), "{told}");
        assert!(
            told.ends_with("\nshards 0, 2 did not answer within 2s: their channels are not shown\n"),
            "{told}"
        );
        assert_eq!(exit(&some), Exit::Degraded);
    }

    #[test]
    fn every_column_has_its_place() {
        let narrow = text(&report(vec![row()], Vec::new()), NARROW);
        assert!(narrow.lines().all(|line| line.len() <= 80), "{narrow}");
        assert!(narrow.contains("1.2 s") && !narrow.contains("rebalance"), "{narrow}");
        let text = text(&report(vec![row()], Vec::new()), WIDE);
        let lines: Vec<&str> = text.lines().collect();
        let heads: Vec<&str> = lines[0].split_whitespace().collect();
        let cells: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(heads.len(), WIDE.len());
        let cell_of = |head: &str| cells[heads.iter().position(|h| *h == head).unwrap()];
        assert_eq!(cell_of("CONSUMER"), "2/4");
        assert_eq!(cell_of("BACKLOG"), "5");
        assert_eq!(cell_of("STATE"), "open");
        assert_eq!((cell_of("IN_FLIGHT_BYTES"), cell_of("IN_FLIGHT_SECONDS")), ("1234567", "-"));
        assert_eq!(cell_of("BUFFER_BYTES"), "65536");
        assert_eq!(cell_of("SEND_STALLED_SECONDS_TOTAL"), "1.250");
    }

    fn row() -> ChannelRow {
        ChannelRow {
            exchange: "edge".into(),
            side: ChannelSide::Send,
            producer: 0,
            producers: 1,
            consumer: 2,
            consumers: 4,
            peer: "b".into(),
            strategy: "rebalance".into(),
            shard: 0,
            state: "open".into(),
            credit: 3,
            backlog: 5,
            queued_bytes: 163_840,
            unacked_bytes: 32_768,
            in_flight_bytes: 1_234_567,
            in_flight_seconds: None,
            buffer_bytes: Some(65_536),
            receiver_ready: 0,
            receiver_held: 0,
            bytes_total: 1_000_000,
            buffers_total: 31,
            records_total: 9_000,
            send_stalled_seconds_total: 1.25,
            send_stalls: None,
            emit_stalls: None,
        }
    }
}
