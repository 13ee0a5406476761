//! What the sockets of the links say of an exchange that is held up, and what they do not say.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use weir_flow::wire::{SOCKET_STATE_NAMES, SocketSummary};

use super::{ArrivalFacts, Cause, ChannelFacts, ExchangeFacts, SECOND_MS, STALL_FROM_MS, View};

/// Most sockets that are told of at each end of an exchange.
const SOCKETS_MAX: usize = 2;

/// Most sentences about what is not known.
const LACKS_MAX: usize = 4;

/// Place of the time in which the peer's kernel had no room.
const RECEIVE_WINDOW: usize = 4;

/// Place of the time in which it had nothing to send.
const IDLE: usize = 0;

/// A peer's window that is full for at least so many milliseconds per second is most of what a socket waits for.
const WINDOW_FROM_MS: u32 = 500;

/// Whether sockets have to do with this cause.
pub(super) const fn concern(cause: Cause) -> bool {
    matches!(cause, Cause::Network | Cause::Shard | Cause::Unknown)
}

/// The channels that wait, the one that waits most first.
fn waiting(exchange: &ExchangeFacts) -> Vec<&ChannelFacts> {
    let stalled = |channel: &ChannelFacts| channel.send_total().max(channel.emit_total());
    let mut waiting: Vec<&ChannelFacts> =
        exchange.channels.iter().filter(|channel| stalled(channel) >= STALL_FROM_MS).collect();
    waiting.sort_by_key(|channel| Reverse(stalled(channel)));
    waiting
}

/// One line for each socket, those of the channels that wait most first.
pub(super) fn evidence(exchange: &ExchangeFacts) -> Vec<String> {
    let ends: BTreeMap<(u32, u32), &str> =
        exchange.arrivals.iter().map(|end| ((end.producer, end.consumer), end.node.as_str())).collect();
    let starts: BTreeMap<(u32, u32), &str> =
        exchange.channels.iter().map(|end| ((end.producer, end.consumer), end.node.as_str())).collect();
    let mut lines: Vec<String> = Vec::new();
    let mut told: BTreeSet<(&str, Option<&str>)> = BTreeSet::new();
    for channel in waiting(exchange) {
        let Some(socket) = channel.socket else { continue };
        let to = ends.get(&(channel.producer, channel.consumer)).copied();
        // Several channels are on one link.
        if told.len() < SOCKETS_MAX && told.insert((&channel.node, to)) {
            let to = to.map(|to| format!(" to {to}")).unwrap_or_default();
            lines.extend(sending(&socket).map(|what| line(&socket, &format!("{}{to}", channel.node), &what)));
        }
    }
    let mut arrivals: Vec<(&ArrivalFacts, SocketSummary)> =
        exchange.arrivals.iter().filter_map(|end| Some((end, end.socket?))).collect();
    arrivals.sort_by_key(|(_, socket)| Reverse((socket.residence_us, socket.receive_queue_bytes)));
    told.clear();
    for (end, socket) in arrivals {
        let from = starts.get(&(end.producer, end.consumer)).copied();
        if told.len() < SOCKETS_MAX && told.insert((&end.node, from)) {
            let from = from.map(|from| format!(" from {from}")).unwrap_or_default();
            lines.extend(receiving(&socket).map(|what| line(&socket, &format!("{}{from}", end.node), &what)));
        }
    }
    lines
}

fn line(socket: &SocketSummary, which: &str, what: &str) -> String {
    let approximate = if socket.is_approximate { ", approximate" } else { "" };
    format!("socket of {which}{approximate}: {what}")
}

/// What the sending side did, if anything of it is known.
fn sending(socket: &SocketSummary) -> Option<String> {
    let mut known: Vec<(u32, &str)> = SOCKET_STATE_NAMES
        .into_iter()
        .zip(socket.states)
        .filter_map(|(state, ms)| Some((u32::from(ms?).min(SECOND_MS), state)))
        .filter(|(ms, _)| *ms > 0)
        .collect();
    known.sort_by_key(|(ms, _)| Reverse(*ms));
    let states: Vec<String> = known.iter().map(|(ms, state)| format!("{state} {ms}")).collect();
    let mut parts: Vec<String> = Vec::new();
    if !states.is_empty() {
        parts.push(format!("{} ms/s", states.join(", ")));
    }
    parts.extend(socket.send_queue_bytes.map(|bytes| format!("send queue {}", size(bytes))));
    parts.extend(socket.retransmitted.map(|segments| format!("{segments} segments/s sent again")));
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// What was not read at once, if anything of it is known.
fn receiving(socket: &SocketSummary) -> Option<String> {
    let mut parts: Vec<String> = Vec::new();
    parts.extend(socket.residence_us.map(|us| {
        let waited = if us < 1000 { format!("{us} us") } else { format!("{:.1} ms", f64::from(us) / 1000.0) };
        format!("what was read had waited {waited} in it, the mean")
    }));
    parts.extend(socket.receive_queue_bytes.map(|bytes| format!("receive queue {}", size(bytes))));
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn size(bytes: u32) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", f64::from(bytes) / 1e3),
        _ => format!("{:.1} MB", f64::from(bytes) / 1e6),
    }
}

/// What the sockets do not say, with the reason: what the line `probes` of `weir status` says on that node.
pub(super) fn lacks(view: &View<'_>, exchange: &ExchangeFacts) -> Vec<String> {
    let mut lacks: BTreeSet<(&str, &str)> = BTreeSet::new();
    for channel in waiting(exchange) {
        match channel.socket {
            None => lacks.insert((&channel.node, "what its sockets wait for is not known")),
            Some(socket) if socket.is_approximate => {
                lacks.insert((&channel.node, "what its sockets wait for is known approximately"))
            }
            Some(socket) if socket.states.contains(&None) => {
                lacks.insert((&channel.node, "what its sockets did in the last second is not known"))
            }
            Some(_) => false,
        };
    }
    for end in &exchange.arrivals {
        // Of one that read nothing there is nothing to know.
        if end.socket.is_none_or(|socket| socket.residence_us.is_none()) && !has_probes(view, &end.node) {
            lacks.insert((&end.node, "how long what arrived waited to be read is not known"));
        }
    }
    let sentence = |(node, what): &(&str, &str)| {
        let probes = view.facts.probes.get(*node).map_or("", String::as_str);
        let probes = if probes.is_empty() { "not told" } else { probes };
        format!("node {node}: {what}; probes there: {probes}")
    };
    let mut sentences: Vec<String> = lacks.iter().take(LACKS_MAX).map(sentence).collect();
    if let Some(more) = lacks.len().checked_sub(LACKS_MAX).filter(|more| *more > 0) {
        sentences.push(format!("{more} more of the kind, of this and other nodes"));
    }
    sentences
}

fn has_probes(view: &View<'_>, node: &str) -> bool {
    view.facts.probes.get(node).is_some_and(|probes| probes.starts_with("OK"))
}

/// What the sockets say against the network as the cause.
pub(super) fn doubt(exchange: &ExchangeFacts) -> Option<String> {
    let socket = waiting(exchange).into_iter().find_map(|channel| channel.socket)?;
    let of = |place: usize| socket.states.get(place).copied().flatten().map_or(0, u32::from);
    let (window, idle) = (of(RECEIVE_WINDOW), of(IDLE));
    (window >= WINDOW_FROM_MS && window > idle).then(|| {
        format!(
            "the peer's kernel has no room for {window} ms/s: its daemon does not read, its receive buffer is too small for \
             the path, or something between holds bytes up"
        )
    })
}
