//! For how long a link that has lost its socket waits for another one, when its two ends are set differently.

mod harness;

use harness::{any_life, gate_spec, limits, link_spec, shape};
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{GateId, LinkId, Time};
use weir_flow::limits::Limits;
use weir_flow::shard::{Delivery, LinkSpec, Notice, Shard};

const SECOND: u64 = 1_000_000_000;

/// A consumer whose producer is behind a link. Own grace and that of the peer in seconds.
fn consumer(own: u64, peer: u64) -> (Shard, LinkId, GateId) {
    let mut shard = Shard::new(Limits { link_grace_ns: own * SECOND, ..limits() });
    let spec = LinkSpec { peer_grace_ns: peer * SECOND, ..link_spec("peer") };
    let link = shard.handle_link(spec, Time(0));
    let gate = shard.handle_gate(gate_spec(shape(1, 1), 0, 4, 2), Time(0));
    shard.handle_producer(gate, any_life(0), link, Time(0));
    (shard, link, gate)
}

fn failure(shard: &mut Shard, gate: GateId) -> Option<Failure> {
    shard.check().expect("all adds up");
    match shard.poll_delivery(gate) {
        Some(Delivery::Failed { failure, .. }) => Some(failure),
        None => None,
        other => panic!("{other:?}"),
    }
}

fn notices(shard: &mut Shard) -> Vec<Notice> {
    std::iter::from_fn(|| shard.poll_notice()).collect()
}

#[test]
fn of_two_ends_the_one_that_waits_less_decides() {
    for (own, peer, grace, whose) in [
        (10, 20, 10, "within 10 s (link.grace)"),
        (20, 10, 10, "within 10 s (link.grace of node peer)"),
        (10, 10, 10, "within 10 s (link.grace)"),
        // Less than this end takes to notice a silence.
        (10, 2, 2, "within 2 s (link.grace of node peer)"),
    ] {
        let (mut shard, link, gate) = consumer(own, peer);
        shard.handle_link_lost(link, "reset by peer", Time(SECOND));
        assert!(notices(&mut shard).contains(&Notice::LinkSuspended(link)));
        let deadline = Time(grace * SECOND);
        assert_eq!(shard.poll_timeout(), Some((deadline, "link grace")), "{own} s here, {peer} s there");
        shard.handle_timeout(Time(deadline.0 - 1));
        assert_eq!(failure(&mut shard, gate), None);
        shard.handle_timeout(deadline);
        let failure = failure(&mut shard, gate).expect("the grace is over");
        assert_eq!(failure.code, FailureCode::LinkLost);
        assert!(failure.text.contains(whose), "{whose:?} is missing in: {failure}");
        assert!(notices(&mut shard).contains(&Notice::LinkExpired(link)));
    }
}

#[test]
fn when_one_end_does_not_wait_neither_does() {
    for (own, peer) in [(0, 10), (10, 0), (0, 0)] {
        let (mut shard, link, gate) = consumer(own, peer);
        shard.handle_link_lost(link, "reset by peer", Time(SECOND));
        let failure = failure(&mut shard, gate).expect("failed at once");
        assert_eq!(failure.code, FailureCode::LinkLost);
        assert!(!failure.text.contains("link.grace"), "nothing was waited for: {failure}");
        let notices = notices(&mut shard);
        assert!(!notices.contains(&Notice::LinkSuspended(link)), "{notices:?}");
        assert!(!shard.handle_link_resumed(link, Time(SECOND)), "{own} s here, {peer} s there");
    }
}
