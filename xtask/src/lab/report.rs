//! What the guest has reported, and whether it is what it should be.

use std::collections::BTreeMap;

use serde_json::Value;

use super::machine::Told;

/// A line that begins a section begins like this.
const SECTION: &str = "@@ ";

/// The section that ends a report.
const END: &str = "end";

/// A place that is the entry of a function begins like this.
const FUNCTION: &str = "fentry/";

/// Lines of the console, and of the log of a daemon, that are shown when something went wrong.
const LINES: usize = 5;

/// What must be idle of the time in which next to nothing was sent. Without the hook of sends it would be time in flight.
const IDLE_SHARE_MIN: f64 = 0.7;

/// What the peer's window must be found to hold back, as a share of the time in which the peer stood still: the time until
/// its buffer is full is not part of it.
const LIMITED_SHARE_MIN: f64 = 0.5;

/// The most that it may be found to hold back while the peer reads.
const LIMITED_SHARE_MAX: f64 = 0.1;

/// What arrived must be found to have waited this long, at the longest, as a share of that time.
const RESIDENCE_SHARE_MIN: f64 = 0.5;

/// What of the waits of the channel with the slow consumer must be the consumer's.
const CONSUMER_SHARE_MIN: f64 = 0.5;

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    pub(super) what: String,
    /// What was found.
    pub(super) found: String,
    pub(super) is_ok: bool,
}

/// One hook of the probes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hook {
    pub(super) event: String,
    /// Where the program stands, or what is missing.
    pub(super) place: String,
    /// Instructions that the verifier walked.
    pub(super) verified: Option<u64>,
    /// How often the program has run in each of the two daemons.
    pub(super) runs: Option<[u64; 2]>,
    pub(super) is_attached: bool,
}

impl Hook {
    /// Why it is not as it should be.
    pub(super) fn fault(&self) -> Option<&'static str> {
        match self.runs {
            _ if !self.is_attached => Some("not attached"),
            None => Some("no daemon has it attached"),
            Some([sender, receiver]) if sender == 0 || receiver == 0 => Some("never ran"),
            Some(_) => None,
        }
    }
}

/// All that one kernel has shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// What the kernel calls itself.
    pub(super) kernel: String,
    pub(super) hooks: Vec<Hook>,
    pub(super) checks: Vec<Check>,
}

impl Report {
    /// Judges what a machine has said.
    pub(super) fn of(told: &Told) -> Self {
        let sections = sections(&told.report);
        let text = |name: &str| sections.get(name).map_or("", String::as_str);
        let json = |name: &str| serde_json::from_str::<Value>(text(name)).unwrap_or(Value::Null);
        let hooks = hooks(&json("probes"), &[runs(text("hooks-a")), runs(text("hooks-b"))]);
        let [read_begins, read_ends, slow_ends] = ["read-begins", "read-ends", "slow-ends"].map(json);
        let [last, peer] = ["last", "peer"].map(json);
        let stood_still = text("stood-still").trim().parse::<f64>().map(|hundredths| hundredths / 100.0).ok();
        let checks = vec![
            ended(told, sections.contains_key(END)),
            daemon("a", &last, text("log-a")),
            daemon("b", &peer, text("log-b")),
            untraced(&hooks, &json("untraced")),
            idle(&json("quiet-begins"), &json("quiet-ends")),
            not_limited(&read_begins, &read_ends),
            limited(&read_ends, &slow_ends, stood_still),
            read(&peer, stood_still),
            sent_again(&slow_ends, &last),
            consumer(&json("stalls")),
        ];
        Self { kernel: text("kernel").trim().to_owned(), hooks, checks }
    }

    /// How many hooks and other things are not as they should be.
    pub(super) fn faults(&self) -> usize {
        let hooks = self.hooks.iter().filter(|hook| hook.fault().is_some()).count();
        // Without a single hook there is nothing to count.
        hooks + self.checks.iter().filter(|check| !check.is_ok).count() + usize::from(self.hooks.is_empty())
    }
}

/// The sections of a report by name.
pub(super) fn sections(report: &str) -> BTreeMap<String, String> {
    let mut sections = BTreeMap::<String, String>::new();
    let mut name = None;
    for line in report.lines() {
        let line = line.trim_end_matches('\r');
        if let Some(begun) = line.strip_prefix(SECTION) {
            sections.insert(begun.to_owned(), String::new());
            name = Some(begun);
        } else if let Some(section) = name.and_then(|name| sections.get_mut(name)) {
            section.push_str(line);
            section.push('\n');
        }
    }
    sections
}

/// How often the program at each place has run, from what the kernel tells of the descriptors of a daemon. A program at
/// the entry of a function goes by the name of its kind: the kernel tells the function as a number only.
fn runs(descriptors: &str) -> BTreeMap<String, u64> {
    let blocks: Vec<BTreeMap<&str, &str>> = descriptors
        .split("--\n")
        .map(|block| block.lines().filter_map(|line| line.split_once(':')).collect::<BTreeMap<_, _>>())
        .map(|block| block.into_iter().map(|(name, value)| (name, value.trim())).collect())
        .collect();
    let number = |block: &BTreeMap<&str, &str>, name: &str| block.get(name)?.parse::<u64>().ok();
    let programs: BTreeMap<u64, u64> = blocks
        .iter()
        .filter_map(|block| Some((number(block, "prog_id")?, number(block, "run_cnt")?)))
        .collect();
    let places = blocks.iter().filter_map(|block| {
        let place = match *block.get("link_type")? {
            "raw_tracepoint" => format!("tp_btf/{}", block.get("tp_name")?),
            "tracing" => "fentry".to_owned(),
            _ => return None,
        };
        Some((place, *programs.get(&number(block, "prog_id")?)?))
    });
    places.collect()
}

/// Each hook with its runs in both daemons.
fn hooks(probes: &Value, runs: &[BTreeMap<String, u64>; 2]) -> Vec<Hook> {
    let rows = probes["hooks"].as_array().map_or(&[][..], Vec::as_slice);
    let hook = |row: &Value| {
        let text = |name: &str| row[name].as_str().map(str::to_owned);
        let place = text("point");
        let key = place.as_deref().map(|place| if place.starts_with(FUNCTION) { "fentry" } else { place });
        let count = |node: usize| runs.get(node)?.get(key?).copied();
        Hook {
            event: text("event").unwrap_or_default(),
            verified: row["verified_instructions"].as_u64(),
            runs: count(0).zip(count(1)).map(<[u64; 2]>::from),
            is_attached: row["is_attached"] == true,
            place: place.or_else(|| text("missing")).unwrap_or_default(),
        }
    };
    rows.iter().map(hook).collect()
}

fn check(what: &str, is_ok: bool, found: String) -> Check {
    Check { what: what.to_owned(), found, is_ok }
}

fn ended(told: &Told, is_whole: bool) -> Check {
    let found = match (told.has_ended, is_whole) {
        (true, true) => format!("after {} s", told.took.as_secs()),
        (false, _) => {
            format!("killed after {} s; its console: {}", told.took.as_secs(), last_lines(&told.console))
        }
        (true, false) => format!("its report has no end; its console: {}", last_lines(&told.console)),
    };
    check("the guest comes to its end", told.has_ended && is_whole, found)
}

/// A daemon that was told to require probes runs, and all that it says about them is well.
fn daemon(node: &str, status: &Value, log: &str) -> Check {
    let subsystems = status["subsystems"].as_array().map_or(&[][..], Vec::as_slice);
    let line = subsystems.iter().find(|line| line["name"] == "probes");
    let is_ok = line.is_some_and(|line| line["state"] == "ok");
    let found = line.map_or_else(
        || format!("no answer; its log: {}", last_lines(log)),
        |line| {
            let texts = ["state", "detail", "reason"].map(|name| line[name].as_str().unwrap_or_default());
            texts.join(" ").trim().to_owned()
        },
    );
    check(&format!("daemon {node} runs with probes required"), is_ok, found)
}

/// Hooks at functions are told to be missing where the kernel would attach their programs and not run them.
fn untraced(hooks: &[Hook], probes: &Value) -> Check {
    let what = "functions that are not traced are told to be missing";
    let rows = probes["hooks"].as_array().map_or(&[][..], Vec::as_slice);
    let at_functions = hooks.iter().zip(rows).filter(|(hook, _)| hook.place.starts_with(FUNCTION));
    let attached = at_functions.clone().filter(|(_, row)| row["is_attached"] != false).count();
    let found = format!("{attached} of {} attached", at_functions.count());
    check(what, attached == 0 && !rows.is_empty() && rows.len() == hooks.len(), found)
}

/// A number that a daemon tells of the socket of its one data link, if it comes from the probes.
fn told_of_socket(status: &Value, name: &str) -> Option<f64> {
    let socket = &status["links"][0]["socket"];
    socket[name].as_f64().filter(|_| socket["approximate"] == false)
}

/// By how much it has grown.
fn grown(before: &Value, after: &Value, name: &str) -> Option<f64> {
    Some(told_of_socket(after, name)? - told_of_socket(before, name)?)
}

/// A check of what may not have been told at all.
fn check_told(what: &str, found: Option<(bool, String)>) -> Check {
    let (is_ok, found) = found.unwrap_or((false, "not told, or marked as approximate".to_owned()));
    check(what, is_ok, found)
}

/// Next to nothing was sent, and the socket was found to have nothing to send.
fn idle(before: &Value, after: &Value) -> Check {
    let judge = || {
        let (idle, all) =
            (grown(before, after, "idle_seconds_total")?, grown(before, after, "watched_seconds_total")?);
        Some((all > 0.0 && idle >= all * IDLE_SHARE_MIN, format!("{idle:.2} s of {all:.2} s")))
    };
    check_told("a socket with little to send is idle", judge())
}

/// The peer read what it was sent, and its window did not hold the sender back.
fn not_limited(before: &Value, after: &Value) -> Check {
    let judge = || {
        let limited = grown(before, after, "receive_window_seconds_total")?;
        let all = grown(before, after, "watched_seconds_total")?;
        Some((all > 0.0 && limited <= all * LIMITED_SHARE_MAX, format!("{limited:.2} s of {all:.2} s")))
    };
    check_told("a reader that reads does not hold the sender back", judge())
}

/// The peer stood still, and that is what the sender's time went to.
fn limited(before: &Value, after: &Value, stood_still: Option<f64>) -> Check {
    let judge = || {
        let (added, stood_still) = (grown(before, after, "receive_window_seconds_total")?, stood_still?);
        let is_ok = stood_still > 0.0 && added >= stood_still * LIMITED_SHARE_MIN;
        Some((is_ok, format!("{added:.2} s, while the reader stood still for {stood_still:.2} s")))
    };
    check_told("a slow reader's receive window holds the sender back", judge())
}

/// What arrived at the peer was read, and the time until then is known.
fn read(peer: &Value, stood_still: Option<f64>) -> Check {
    let judge = || {
        let longest = told_of_socket(peer, "residence_max_seconds")?;
        let arrivals = told_of_socket(peer, "arrivals_read_total")?;
        let is_ok = arrivals > 0.0 && longest > 0.0 && longest >= stood_still? * RESIDENCE_SHARE_MIN;
        Some((is_ok, format!("{arrivals} arrivals, the longest {longest:.2} s")))
    };
    check_told("what arrives at the slow reader waits to be read", judge())
}

/// What was not acknowledged was sent again.
fn sent_again(before: &Value, after: &Value) -> Check {
    let judge = || {
        let added = grown(before, after, "retransmitted_segments_total")?;
        Some((added > 0.0, format!("{added} segments")))
    };
    check_told("segments are sent again after an outage", judge())
}

/// A consumer that reads slowly is named as the cause of its producer's waits.
fn consumer(stalls: &Value) -> Check {
    let judge = || {
        let waits = &stalls["channels"].as_array()?.iter().find(|row| row["exchange"] == "slow")?["send"];
        let all = waits["seconds_total"].as_f64()?;
        let consumer = waits["by_cause"]["consumer"]["seconds_total"].as_f64().unwrap_or(0.0);
        let is_ok = all > 0.0 && consumer >= all * CONSUMER_SHARE_MIN;
        Some((is_ok, format!("{consumer:.2} s of {all:.2} s")))
    };
    check_told("a slow consumer is the cause of its channel's waits", judge())
}

/// The last lines of a text, in one.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let from = lines.len().saturating_sub(LINES);
    let last = lines.get(from..).unwrap_or_default();
    if last.is_empty() { "nothing".to_owned() } else { last.join(" | ") }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// What a guest says when all is well, in short.
    const WELL: &str = r#"@@ kernel
6.1.0-57-cloud-amd64
@@ probes
{"hooks":[{"event":"segment arrives","is_attached":true,"point":"tp_btf/tcp_probe","verified_instructions":3491,"missing":null},{"event":"send begins","is_attached":true,"point":"fentry/tcp_sendmsg_locked","verified_instructions":null,"missing":null}]}
@@ untraced
{"hooks":[{"event":"segment arrives","is_attached":true,"point":"tp_btf/tcp_probe"},{"event":"send begins","is_attached":false,"point":null}]}
@@ quiet-begins
{"links":[{"socket":{"approximate":false,"idle_seconds_total":1.0,"watched_seconds_total":1.5}}]}
@@ quiet-ends
{"links":[{"socket":{"approximate":false,"idle_seconds_total":5.8,"watched_seconds_total":6.5}}]}
@@ read-begins
{"links":[{"socket":{"approximate":false,"receive_window_seconds_total":0.3,"watched_seconds_total":6.0}}]}
@@ read-ends
{"links":[{"socket":{"approximate":false,"receive_window_seconds_total":0.5,"watched_seconds_total":10.0}}]}
@@ slow-ends
{"links":[{"socket":{"approximate":false,"receive_window_seconds_total":4.5,"retransmitted_segments_total":3}}]}
@@ stood-still
412
@@ last
{"subsystems":[{"name":"probes","state":"ok","detail":"2 of 2 hooks attached"}],"links":[{"socket":{"approximate":false,"retransmitted_segments_total":7}}]}
@@ stalls
{"channels":[{"exchange":"many","send":{"seconds_total":9.0}},{"exchange":"slow","send":{"seconds_total":16.0,"by_cause":{"consumer":{"seconds_total":15.0},"network":{"seconds_total":1.0}}}}]}
@@ peer
{"subsystems":[{"name":"memory"},{"name":"probes","state":"ok","detail":"2 of 2 hooks attached"}],"links":[{"socket":{"approximate":false,"arrivals_read_total":30,"residence_max_seconds":4.05}}]}
@@ hooks-b
--
pos:	0
prog_type:	26
prog_id:	18
run_cnt:	170
--
link_type:	raw_tracepoint
prog_id:	18
tp_name:	tcp_probe
--
link_type:	tracing
prog_id:	21
attach_type:	24
--
prog_type:	26
prog_id:	21
run_cnt:	60
@@ hooks-a
--
prog_type:	26
prog_id:	8
run_cnt:	71
--
link_type:	raw_tracepoint
prog_id:	8
tp_name:	tcp_probe
--
prog_type:	26
prog_id:	9
run_cnt:	33
--
link_type:	tracing
prog_id:	9
attach_type:	24
@@ log-a
ready
@@ log-b
ready
@@ end
"#;

    fn told(report: String) -> Told {
        let console = "first\n\nlast".to_owned();
        Told { console, report, has_ended: true, took: Duration::from_secs(44) }
    }

    /// The names of what is not as it should be.
    fn faults(told: &Told) -> Vec<String> {
        let report = Report::of(told);
        let hooks = report.hooks.iter().filter(|hook| hook.fault().is_some()).map(|hook| hook.event.clone());
        let checks = report.checks.iter().filter(|check| !check.is_ok).map(|check| check.what.clone());
        let all: Vec<String> = hooks.chain(checks).collect();
        assert_eq!(report.faults(), all.len());
        all
    }

    #[test]
    fn hooks_are_told_with_their_place_and_their_runs_in_both_daemons() {
        // As it comes over a serial line.
        let report = Report::of(&told(WELL.replace('\n', "\r\n")));
        assert_eq!((report.faults(), report.kernel.as_str()), (0, "6.1.0-57-cloud-amd64"), "{report:?}");
        let hooks: Vec<_> =
            report.hooks.iter().map(|hook| (hook.place.as_str(), hook.verified, hook.runs)).collect();
        assert_eq!(
            hooks,
            [
                ("tp_btf/tcp_probe", Some(3491), Some([71, 170])),
                ("fentry/tcp_sendmsg_locked", None, Some([33, 60])),
            ]
        );
        let found: Vec<&str> = report.checks.iter().map(|check| check.found.as_str()).collect();
        assert_eq!(
            found,
            [
                "after 44 s",
                "ok 2 of 2 hooks attached",
                "ok 2 of 2 hooks attached",
                "0 of 1 attached",
                "4.80 s of 5.00 s",
                "0.20 s of 4.00 s",
                "4.00 s, while the reader stood still for 4.12 s",
                "30 arrivals, the longest 4.05 s",
                "4 segments",
                "15.00 s of 16.00 s",
            ]
        );
    }

    #[test]
    fn each_thing_that_is_wrong_is_found_and_nothing_else() {
        const LIMITED: &str = "a slow reader's receive window holds the sender back";
        const NOT_LIMITED: &str = "a reader that reads does not hold the sender back";
        const UNTRACED: &str = "functions that are not traced are told to be missing";
        const READ: &str = "what arrives at the slow reader waits to be read";
        const IDLE: &str = "a socket with little to send is idle";
        const CONSUMER: &str = "a slow consumer is the cause of its channel's waits";
        const AGAIN: &str = "segments are sent again after an outage";
        let cases = [
            ("run_cnt:\t33", "run_cnt:\t0", "send begins"),
            ("run_cnt:\t170", "run_cnt:\t0", "segment arrives"),
            // One of the daemons has no program there.
            (
                "tp_name:\ttcp_probe\n--\nprog_type:\t26\nprog_id:\t9",
                "tp_name:\tother\n--\nprog_type:\t26\nprog_id:\t9",
                "segment arrives",
            ),
            ("true,\"point\":\"fentry/tcp_sendmsg_locked\"", "false,\"point\":null", "send begins"),
            ("\"send begins\",\"is_attached\":false", "\"send begins\",\"is_attached\":true", UNTRACED),
            ("\"idle_seconds_total\":5.8", "\"idle_seconds_total\":3.0", IDLE),
            ("\"receive_window_seconds_total\":4.5", "\"receive_window_seconds_total\":0.5", LIMITED),
            ("\"receive_window_seconds_total\":4.5", "\"receive_window_seconds_total\":null", LIMITED),
            ("\"watched_seconds_total\":10.0", "\"watched_seconds_total\":7.0", NOT_LIMITED),
            ("\"residence_max_seconds\":4.05", "\"residence_max_seconds\":0.01", READ),
            ("false,\"arrivals_read_total\":30", "true,\"arrivals_read_total\":30", READ),
            ("\"retransmitted_segments_total\":7", "\"retransmitted_segments_total\":3", AGAIN),
            ("\"consumer\":{\"seconds_total\":15.0}", "\"consumer\":{\"seconds_total\":1.0}", CONSUMER),
            ("\"exchange\":\"slow\"", "\"exchange\":\"fast\"", CONSUMER),
            (
                "{\"subsystems\":[{\"name\":\"probes\",\"state\":\"ok\"",
                "{\"subsystems\":[{\"name\":\"probes\",\"state\":\"degraded\"",
                "daemon a runs with probes required",
            ),
            ("@@ end\n", "", "the guest comes to its end"),
        ];
        for (right, wrong, expected) in cases {
            assert!(WELL.contains(right), "{right}");
            assert_eq!(faults(&told(WELL.replacen(right, wrong, 1))), [expected], "{wrong}");
        }
    }

    #[test]
    fn a_guest_that_says_nothing_or_is_killed_fails_with_what_its_console_said() {
        let silent = told(String::new());
        let report = Report::of(&silent);
        // Every check, and that there is no hook.
        assert_eq!(report.faults(), report.checks.len() + 1);
        assert_eq!(report.checks[0].found, "its report has no end; its console: first | last");
        let killed = Told { has_ended: false, ..told(WELL.to_owned()) };
        let report = Report::of(&killed);
        assert_eq!(report.faults(), 1);
        assert_eq!(report.checks[0].found, "killed after 44 s; its console: first | last");
    }
}
