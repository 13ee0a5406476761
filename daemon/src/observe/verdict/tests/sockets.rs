//! What the kernel tells of the links that carry an exchange.

use super::*;

/// What the socket of a link did, of 1,000 ms.
fn socket(states: [u16; 6], is_approximate: bool) -> Option<SocketSummary> {
    Some(SocketSummary {
        is_approximate,
        states: states.map(Some),
        retransmitted: Some(12),
        send_queue_bytes: Some(2_621_440),
        receive_queue_bytes: Some(0),
        residence_us: None,
    })
}

/// As [`carried`] over a slow network, with what the sockets of the link from `a` to `b` tell at both ends, and what the two
/// nodes say of their probes.
fn over_sockets(
    sending: Option<SocketSummary>,
    receiving: Option<SocketSummary>,
    probes: [&str; 2],
) -> Graph {
    let mut graph = carried(channel(0, 10, &[(Stall::Network, 900)], &[(Stall::Network, 880)]), Does(90, 0));
    graph.0.exchanges[1].channels[0].socket = sending;
    let node = "b".to_owned();
    graph.0.exchanges[1].arrivals = vec![ArrivalFacts { node, socket: receiving, ..ArrivalFacts::default() }];
    let probes = ["a", "b"].into_iter().zip(probes);
    graph.0.probes = probes.map(|(node, probes)| (node.to_owned(), probes.to_owned())).collect();
    graph
}

fn sockets_of(found: &Bottleneck) -> Vec<&str> {
    let lines = found.evidence.iter().map(String::as_str);
    lines.filter(|line| line.starts_with("socket of ")).collect()
}

#[test]
fn the_kernel_s_word_on_a_link_is_evidence_for_a_slow_network() {
    let read = SocketSummary {
        residence_us: Some(1_500),
        receive_queue_bytes: Some(70),
        ..SocketSummary::default()
    };
    let sending = socket([30, 150, 0, 820, 0, 0], false);
    let found = only(over_sockets(sending, Some(read), ["OK", "OK"]));
    assert_eq!(found.cause, Cause::Network);
    let needed = [
        "socket of a to b: congestion_window 820, flight 150, idle 30 ms/s; send queue 2.6 MB; 12 segments/s sent again",
        "socket of b from a: what was read had waited 1.5 ms in it, the mean; receive queue 70 B",
    ];
    assert_eq!(sockets_of(&found), needed);
    assert_eq!((found.lacks.as_slice(), found.confidence), (&[][..], Confidence::High), "{found:?}");

    let quick = SocketSummary { residence_us: Some(999), ..SocketSummary::default() };
    let found = only(over_sockets(sending, Some(quick), ["OK", "OK"]));
    assert_eq!(sockets_of(&found)[1], "socket of b from a: what was read had waited 999 us in it, the mean");

    // Only a moment ago something was heard of it: there are no shares yet, and what is not known is not 0.
    let young = SocketSummary { send_queue_bytes: Some(1_500), ..SocketSummary::default() };
    let found = only(over_sockets(Some(young), None, ["OK", "OK"]));
    assert_eq!(sockets_of(&found), ["socket of a to b: send queue 1.5 kB"]);
    assert_eq!(
        found.lacks,
        ["node a: what its sockets did in the last second is not known; probes there: OK"]
    );
}

#[test]
fn samples_are_marked_and_what_they_do_not_tell_is_said_with_the_state_of_the_probes() {
    let off = "OFF: switched off: observe.probes = \"off\"";
    let found = only(over_sockets(socket([0, 0, 0, 0, 100, 900], true), None, [off, "DEGRADED: no CAP_BPF"]));
    assert_eq!(
        sockets_of(&found),
        [
            "socket of a to b, approximate: send_buffer 900, receive_window 100 ms/s; send queue 2.6 MB; 12 segments/s sent again"
        ]
    );
    let needed = [
        format!("node a: what its sockets wait for is known approximately; probes there: {off}"),
        "node b: how long what arrived waited to be read is not known; probes there: DEGRADED: no CAP_BPF"
            .to_owned(),
    ];
    assert_eq!(found.lacks, needed);

    let found = only(over_sockets(None, None, ["", "OK"]));
    assert_eq!(sockets_of(&found), [] as [&str; 0]);
    assert_eq!(found.lacks, ["node a: what its sockets wait for is not known; probes there: not told"]);
}

#[test]
fn a_window_that_the_peer_s_kernel_closes_is_a_doubt_about_the_network() {
    let of = |states| only(over_sockets(socket(states, false), None, ["OK", "OK"]));
    let found = of([100, 0, 0, 160, 740, 0]);
    assert_eq!((found.cause, found.confidence), (Cause::Network, Confidence::Medium));
    assert!(found.confidence_reason.contains("no room for 740 ms/s"), "{}", found.confidence_reason);
    for states in [[100, 0, 0, 740, 160, 0], [550, 0, 0, 0, 450, 0], [510, 0, 0, 0, 510, 0]] {
        assert_eq!(of(states).confidence, Confidence::High, "{states:?}");
    }
}

#[test]
fn sockets_are_told_of_exchanges_only_and_few_of_them() {
    // Where a task is what is slow, or the pool, the links have nothing to do with it.
    let mut graph = chain(Does(990, 0), Computes);
    for exchange in &mut graph.0.exchanges {
        let stalled =
            ChannelFacts { socket: socket([0, 0, 0, 0, 1000, 0], false), ..channel(0, 9, &[], &[]) };
        exchange.channels = vec![ChannelFacts { send_stalled: [900; CAUSES], ..stalled }];
    }
    let found = only(graph);
    assert_eq!((sockets_of(&found), found.lacks.len()), (Vec::new(), 0), "{found:?}");
    let mut graph = carried(channel(0, 10, &[], &[(Stall::Pool, 880)]), Does(120, 0));
    graph.0.exchanges[1].channels[0].socket = socket([0, 0, 0, 0, 1000, 0], true);
    let found = only(graph);
    assert_eq!((found.cause, sockets_of(&found), found.lacks.len()), (Cause::Pool, Vec::new(), 0));

    // Of the channels of one exchange, those that wait.
    let mut graph = over_sockets(socket([0, 0, 0, 1000, 0, 0], false), None, ["OK", "OK"]);
    let idle = ChannelFacts { node: "c".to_owned(), socket: None, ..channel(1, 10, &[], &[]) };
    let flowing = ChannelFacts { socket: socket([1000, 0, 0, 0, 0, 0], true), ..idle.clone() };
    graph.0.exchanges[1].channels.extend([idle, flowing]);
    let found = only(graph);
    assert_eq!((sockets_of(&found).len(), found.lacks.len()), (1, 0), "{found:?}");

    // Hundreds of channels between dozens of nodes: those that wait most, each link once.
    let mut graph = over_sockets(None, None, ["", ""]);
    let exchange = &mut graph.0.exchanges[1];
    (exchange.channels, exchange.arrivals) = (Vec::new(), Vec::new());
    for consumer in 0..400_u32 {
        let waits = 100 + consumer;
        let node = format!("s{}", consumer / 100);
        let socket = socket([0, (consumer / 100) as u16, 0, 0, 0, 0], true);
        let stalls = [(Stall::Network, waits)];
        exchange.channels.push(ChannelFacts { node, socket, ..channel(consumer, 1, &stalls, &stalls) });
        let node = format!("r{}", consumer / 50);
        exchange.arrivals.push(ArrivalFacts { consumer, node, socket, ..ArrivalFacts::default() });
    }
    let found = only(graph);
    let sockets = sockets_of(&found);
    assert_eq!(sockets.len(), 4, "{sockets:?}");
    assert!(sockets[0].starts_with("socket of s3 to r7, approximate: flight 3 ms/s"), "{sockets:?}");
    assert!(sockets[1].starts_with("socket of s3 to r6, approximate: flight 3 ms/s"), "{sockets:?}");
    assert_eq!(found.lacks.len(), 5, "{:?}", found.lacks);
    // Four senders whose sockets are sampled, eight receivers that do not say how long they leave what arrives.
    assert_eq!(found.lacks[4], "8 more of the kind, of this and other nodes");
}
