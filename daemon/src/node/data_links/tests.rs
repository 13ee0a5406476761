use weir_flow::ids::{Incarnation, ProducerIndex};

use super::over::OVER_MAX;
use super::*;
use crate::link::dial::BACKOFF_MAX;
use crate::shard::mailbox::AttachmentId;

const LONG: Duration = Duration::from_secs(60);

/// That of every peer.
const GRACE: Duration = Duration::from_secs(7);

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn route(peer: &str) -> Route {
    Route { peer: name(peer), local_shard: 1, peer_shard: 2 }
}

fn waiter(ring: u32) -> Waiter {
    Waiter {
        ring: RingKey { attachment: AttachmentId(1), ring },
        life: ProducerLife { producer: ProducerIndex(0), incarnation: Incarnation(1) },
    }
}

/// A table, what it wants done, and the time.
struct Table {
    links: DataLinks<u32>,
    steps: Vec<Step<u32>>,
    now: Duration,
}

impl Table {
    fn new() -> Self {
        Self { links: DataLinks::new(7), steps: Vec::new(), now: LONG }
    }

    fn steps(&mut self) -> Vec<Step<u32>> {
        std::mem::take(&mut self.steps)
    }

    fn want(&mut self, ring: u32) {
        self.links.handle_wanted(route("b"), waiter(ring), &mut self.steps);
    }

    /// The only step: to dial `b`.
    fn dial(&mut self) -> SocketName {
        match &self.steps()[..] {
            [Step::Dial { route: to, socket }] if *to == route("b") => *socket,
            other => panic!("not a dial but {other:?}"),
        }
    }

    /// The only step: to dial `b` later.
    fn dial_later(&mut self) -> (SocketName, Duration) {
        match &self.steps()[..] {
            [Step::DialLater { route: to, socket, wait }] if *to == route("b") => (*socket, *wait),
            other => panic!("not a dial later but {other:?}"),
        }
    }

    fn arrival(&self, name: SocketName, number: u32, epoch: u64) -> Arrival<u32> {
        Arrival { socket: number, name, epoch, peer_grace: GRACE, at: self.now }
    }

    fn dialled(&mut self, socket: SocketName, number: u32) -> Option<u32> {
        let arrival = self.arrival(socket, number, 1);
        self.links.handle_dialled(&route("b"), arrival, &mut self.steps)
    }

    fn dial_failed(&mut self, socket: SocketName) {
        self.links.handle_dial_failed(route("b"), socket, &mut self.steps);
    }

    fn accepted(&mut self, link: u64, resumes: u32, number: u32) -> Result<(), Refusal<u32>> {
        let arrival = self.arrival(SocketName { link, resumes }, number, 1);
        self.links.handle_accepted(route("b").key(false), arrival, &mut self.steps)
    }

    fn lost(&mut self, dialled: bool) {
        self.links.handle_lost(&route("b").key(dialled), self.now, &mut self.steps);
    }

    fn closed(&mut self, dialled: bool, reason: &str) {
        self.links.handle_closed(&route("b").key(dialled), reason, false, &mut self.steps);
    }

    /// A link to `b` that this node dialled, with this socket.
    fn up(&mut self, number: u32) -> SocketName {
        self.want(1);
        let socket = self.dial();
        assert_eq!(self.dialled(socket, number), None);
        assert_eq!(self.steps(), [add(true, number), connect(1, true)]);
        socket
    }
}

fn add(dialled: bool, socket: u32) -> Step<u32> {
    Step::Add { key: route("b").key(dialled), socket, peer_grace: GRACE }
}

fn resume(dialled: bool, socket: u32) -> Step<u32> {
    Step::Resume { key: route("b").key(dialled), socket }
}

fn tell(socket: SocketName, reason: &str) -> Step<u32> {
    Step::Tell { route: route("b"), socket, reason: reason.to_owned() }
}

fn suspend(dialled: bool) -> Step<u32> {
    Step::Suspend { key: route("b").key(dialled) }
}

fn close(dialled: bool, reason: &str) -> Step<u32> {
    Step::Close { key: route("b").key(dialled), reason: reason.to_owned() }
}

fn connect(ring: u32, dialled: bool) -> Step<u32> {
    Step::Connect { waiter: waiter(ring), key: route("b").key(dialled) }
}

#[test]
fn one_dial_serves_all_who_wait_and_later_ones_use_the_link() {
    let mut table = Table::new();
    table.want(1);
    table.want(2);
    let socket = table.dial();
    assert_ne!(socket.link, 0);
    assert_eq!(socket.resumes, 0);
    assert_eq!(table.dialled(socket, 7), None);
    assert_eq!(table.steps(), [add(true, 7), connect(1, true), connect(2, true)]);
    table.want(3);
    assert_eq!(table.steps(), [connect(3, true)]);
    assert_eq!(table.links.count(&name("b")), 1);
}

#[test]
fn a_link_that_the_peer_dialled_serves_those_who_wait_and_both_of_two_stay() {
    let mut table = Table::new();
    table.want(1);
    let socket = table.dial();
    assert_eq!(table.accepted(5, 0, 7), Ok(()));
    assert_eq!(table.steps(), [add(false, 7), connect(1, false)]);
    assert_eq!(table.dialled(socket, 8), None);
    assert_eq!(table.steps(), [add(true, 8)]);
    table.closed(true, "garbage");
    table.want(2);
    assert_eq!(table.steps(), [connect(2, false)]);
}

/// Row 36 (PartitionRequestClientFactoryTest), adapted: many requests for one pair of shards make one dial, and a
/// failed one is not kept. In Flink all who wait see the failure and the caller counts its retries; here all go on
/// waiting and one new dial serves them, for as long as any of them is there.
#[test]
fn requests_for_one_route_share_one_dial_and_a_failed_one_is_not_kept() {
    let mut table = Table::new();
    for ring in 0..100 {
        table.want(ring);
    }
    let mut socket = table.dial();
    for _ in 0..3 {
        table.dial_failed(socket);
        let (next, _) = table.dial_later();
        assert_ne!(next.link, socket.link, "the peer may have taken the first for a link");
        // A newcomer joins those who wait, and another pair of shards has a dial of its own.
        table.want(100);
        assert_eq!(table.steps(), []);
        table.links.handle_dial_due(route("b"), next, &mut table.steps);
        assert_eq!(table.dial(), next);
        socket = next;
    }
    let other = Route { peer_shard: 3, ..route("b") };
    table.links.handle_wanted(other.clone(), waiter(1), &mut table.steps);
    assert!(matches!(&table.steps()[..], [Step::Dial { route, .. }] if *route == other));
    assert_eq!(table.dialled(socket, 7), None);
    let mut needed = vec![add(true, 7)];
    needed.extend((0..=100).map(|ring| connect(ring, true)));
    assert_eq!(table.steps(), needed, "each once");
}

#[test]
fn a_failed_dial_of_a_new_link_is_repeated_only_while_somebody_waits() {
    let mut table = Table::new();
    table.want(1);
    let first = table.dial();
    table.dial_failed(first);
    let (second, _) = table.dial_later();
    table.links.forget_ring(waiter(1).ring);
    table.links.handle_dial_due(route("b"), second, &mut table.steps);
    assert_eq!(table.steps(), []);
    table.want(2);
    let third = table.dial();
    // What was begun before concerns nobody.
    table.dial_failed(first);
    table.links.handle_dial_due(route("b"), second, &mut table.steps);
    assert_eq!(table.steps(), []);
    assert_eq!(table.dialled(first, 6), Some(6));
    assert_eq!(table.links.forget_waiters(&name("c"), |_| true), []);
    assert_eq!(table.links.forget_waiters(&name("b"), |_| true), [waiter(2)]);
    table.dial_failed(third);
    assert_eq!(table.steps(), []);
}

#[test]
fn a_lost_link_is_dialled_by_its_dialler_at_once_and_goes_on() {
    let mut table = Table::new();
    let first = table.up(7);
    for number in 1..=3 {
        table.now += LONG;
        table.lost(true);
        let socket = table.dial();
        assert_eq!(socket, SocketName { link: first.link, resumes: number });
        assert_eq!(table.links.count(&name("b")), 0);
        table.want(2);
        assert_eq!(table.steps(), [], "a channel waits for the next socket");
        assert_eq!(table.dialled(socket, 7 + number), None);
        assert_eq!(table.steps(), [resume(true, 7 + number), connect(2, true)]);
    }
}

#[test]
fn a_link_that_breaks_again_and_again_is_dialled_more_and_more_slowly() {
    let mut table = Table::new();
    let mut socket = table.up(7);
    table.now += LONG;
    table.lost(true);
    let mut waits = Vec::new();
    for _ in 0..40 {
        socket = SocketName { resumes: socket.resumes + 1, ..socket };
        // The first dial is at once. It succeeds, and the socket breaks in the same moment.
        let dialled = match waits.len() {
            0 => table.dial(),
            _ => {
                let (later, wait) = table.dial_later();
                waits.push(wait);
                table.links.handle_dial_due(route("b"), later, &mut table.steps);
                table.dial()
            }
        };
        if waits.is_empty() {
            waits.push(Duration::ZERO);
        }
        assert_eq!(dialled, socket);
        assert_eq!(table.dialled(socket, 8), None);
        assert_eq!(table.steps(), [resume(true, 8)]);
        table.lost(true);
    }
    let ceilings = [20, 40, 80, 160, 320, 640].map(Duration::from_millis);
    for (wait, ceiling) in waits[1..].iter().zip(ceilings) {
        assert!(*wait <= ceiling, "{waits:?}");
    }
    assert!(waits.iter().all(|wait| *wait <= BACKOFF_MAX), "{waits:?}");
    assert!(waits[10..].iter().any(|wait| *wait > Duration::from_millis(500)), "{waits:?}");
    // Drawn anew each time, so that two nodes do not dial in step.
    assert!(waits[10..].iter().any(|wait| *wait < Duration::from_millis(500)), "{waits:?}");
    // A socket that lives long makes an end of it.
    let (later, _) = table.dial_later();
    assert_eq!(table.dialled(later, 9), None);
    table.steps();
    table.now += BACKOFF_MAX;
    table.lost(true);
    assert_eq!(table.dial().resumes, later.resumes + 1);
}

#[test]
fn the_same_seed_draws_the_same_ids_and_waits_and_another_seed_others() {
    let draw = |seed| {
        let mut table = Table { links: DataLinks::new(seed), ..Table::new() };
        table.want(1);
        let first = table.dial();
        table.dial_failed(first);
        (first, table.dial_later())
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
    assert_ne!(draw(1).1.1, draw(2).1.1);
}

#[test]
fn a_dial_that_fails_is_repeated_until_the_shard_says_that_the_link_is_over() {
    let mut table = Table::new();
    let first = table.up(7);
    table.now += LONG;
    table.lost(true);
    let mut socket = table.dial();
    for number in 2..20 {
        table.dial_failed(socket);
        let (next, wait) = table.dial_later();
        assert_eq!(next, SocketName { link: first.link, resumes: number });
        assert!(wait <= BACKOFF_MAX);
        table.links.handle_dial_due(route("b"), next, &mut table.steps);
        assert_eq!(table.dial(), next);
        socket = next;
    }
    table.dial_failed(socket);
    let (late, _) = table.dial_later();
    table.closed(true, "it did not come back");
    assert_eq!(table.steps(), []);
    table.links.handle_dial_due(route("b"), late, &mut table.steps);
    assert_eq!(table.steps(), [], "dialled although it is over");
    assert_eq!(table.dialled(late, 9), Some(9), "its other end is to be told");
    table.dial_failed(late);
    assert_eq!(table.steps(), []);
    // Whoever wants a channel gets a new link.
    table.want(2);
    let next = table.dial();
    assert_ne!(next.link, first.link);
    assert_eq!(next.resumes, 0);
}

#[test]
fn a_channel_that_waited_for_a_lost_link_gets_a_new_one_when_it_is_over() {
    let mut table = Table::new();
    let first = table.up(7);
    table.now += LONG;
    table.lost(true);
    table.dial();
    table.want(2);
    table.closed(true, "it did not come back");
    let next = table.dial();
    assert_ne!(next.link, first.link);
    assert_eq!(table.dialled(next, 8), None);
    assert_eq!(table.steps(), [add(true, 8), connect(2, true)]);
}

#[test]
fn a_lost_link_of_the_peer_is_waited_for_and_found_by_its_id() {
    let mut table = Table::new();
    assert_eq!(table.accepted(5, 0, 1), Ok(()));
    assert_eq!(table.steps(), [add(false, 1)]);
    table.lost(false);
    assert_eq!(table.steps(), [], "only its dialler dials it");
    // The numbers between were tries that did not get through.
    assert_eq!(table.accepted(5, 4, 2), Ok(()));
    assert_eq!(table.steps(), [resume(false, 2)]);
    table.lost(false);
    let refusal = table.accepted(6, 1, 3).unwrap_err();
    assert_eq!(refusal, Refusal { socket: 3, reason: "the link is not known any more".to_owned() });
    assert_eq!(table.steps(), []);
    assert_eq!(table.accepted(5, 5, 4), Ok(()));
    assert_eq!(table.steps(), [resume(false, 4)]);
}

#[test]
fn a_socket_that_comes_late_does_not_take_the_place_of_a_newer_one() {
    let mut table = Table::new();
    assert_eq!(table.accepted(5, 0, 1), Ok(()));
    table.lost(false);
    assert_eq!(table.accepted(5, 2, 2), Ok(()));
    assert_eq!(table.steps(), [add(false, 1), resume(false, 2)]);
    for resumes in [1, 2] {
        assert_eq!(table.accepted(5, resumes, 3), Ok(()));
        assert_eq!(table.steps(), []);
    }
    table.lost(false);
    assert_eq!(table.accepted(5, 1, 4), Ok(()));
    assert_eq!(table.steps(), [], "the socket of an earlier try");
    assert_eq!(table.accepted(5, 3, 5), Ok(()));
    assert_eq!(table.steps(), [resume(false, 5)]);
}

#[test]
fn a_half_open_link_lets_go_of_its_old_socket_before_it_gets_the_new_one() {
    let mut table = Table::new();
    assert_eq!(table.accepted(5, 0, 1), Ok(()));
    table.steps();
    assert_eq!(table.accepted(5, 1, 2), Ok(()));
    assert_eq!(table.steps(), [suspend(false)]);
    // Its dialler has lost that one too.
    assert_eq!(table.accepted(5, 2, 3), Ok(()));
    assert_eq!(table.accepted(5, 1, 4), Ok(()), "late");
    assert_eq!(table.steps(), []);
    table.lost(false);
    assert_eq!(table.steps(), [resume(false, 3)]);
    table.lost(false);
    assert_eq!(table.accepted(5, 3, 5), Ok(()));
    assert_eq!(table.steps(), [resume(false, 5)]);
}

#[test]
fn a_half_open_link_that_turns_out_to_be_over_drops_the_new_socket_and_refuses_the_next() {
    let mut table = Table::new();
    assert_eq!(table.accepted(5, 0, 1), Ok(()));
    assert_eq!(table.accepted(5, 1, 2), Ok(()));
    table.steps();
    table.closed(false, "a frame of unknown type");
    assert_eq!(table.steps(), []);
    let refusal = table.accepted(5, 2, 3).unwrap_err();
    assert_eq!(refusal.reason, "the link is over: a frame of unknown type");
    assert_eq!(refusal.socket, 3);
}

#[test]
fn a_dialler_whose_shard_gave_a_link_up_tells_its_peer_with_a_number_that_no_socket_had() {
    for losses in 0..3 {
        let mut table = Table::new();
        let mut socket = table.up(7);
        for number in 0..losses {
            table.now += LONG;
            table.lost(true);
            socket = table.dial();
            assert_eq!(table.dialled(socket, 8 + number), None);
            assert_eq!(table.steps(), [resume(true, 8 + number)]);
        }
        table.want(2);
        table.steps();
        table.links.handle_closed(&route("b").key(true), "a frame too long", true, &mut table.steps);
        let next = SocketName { resumes: socket.resumes + 1, ..socket };
        assert_eq!(table.steps(), [tell(next, "a frame too long")]);
        // Whatever becomes of it concerns nobody, and the next link is another one.
        table.dial_failed(next);
        assert_eq!(table.steps(), []);
        table.want(3);
        assert_ne!(table.dial().link, socket.link);
    }
}

#[test]
fn nobody_is_told_of_the_end_of_a_link_who_knows_it_or_will_ask() {
    let gives_up = |table: &mut Table, dialled: bool, is_unsaid: bool| {
        table.steps();
        let key = route("b").key(dialled);
        table.links.handle_closed(&key, "why", is_unsaid, &mut table.steps);
        table.steps()
    };
    let mut table = Table::new();
    table.up(7);
    assert_eq!(gives_up(&mut table, true, false), [], "its grace is over, or the peer has said so");
    assert_eq!(table.accepted(5, 0, 1), Ok(()));
    assert_eq!(gives_up(&mut table, false, true), [], "its dialler asks");
    assert_eq!(table.accepted(5, 1, 2).unwrap_err().reason, "the link is over: why");
    let first = table.up(8);
    table.lost(true);
    assert_eq!(table.links.handle_life(&name("b"), 2, &mut table.steps), None);
    assert_eq!(gives_up(&mut table, true, true), [], "its life of the peer is over");
    assert!(!table.links.has(&route("b").key(true)), "{first:?}");
}

#[test]
fn the_far_end_of_a_link_of_a_node_to_itself_is_closed_with_the_near_one() {
    let mut table = Table::new();
    let near = Route { peer: name("own"), local_shard: 1, peer_shard: 2 };
    let far = near.far_end(&name("own"));
    assert_eq!((far.local_shard, far.peer_shard, far.dialled), (2, 1, false));
    let arrival = table.arrival(SocketName { link: 5, resumes: 0 }, 1, 1);
    assert_eq!(table.links.handle_accepted(far.clone(), arrival, &mut table.steps), Ok(()));
    table.steps();
    table.links.handle_told(far.clone(), 6, "another".to_owned(), &mut table.steps);
    assert_eq!(table.steps(), []);
    table.links.handle_told(far.clone(), 5, "why".to_owned(), &mut table.steps);
    assert_eq!(table.steps(), [Step::Close { key: far.clone(), reason: "why".to_owned() }]);
    table.links.handle_told(far, 5, "why".to_owned(), &mut table.steps);
    assert_eq!(table.steps(), []);
}

#[test]
fn links_of_a_shard_are_counted_while_it_has_or_closes_them() {
    let mut table = Table::new();
    table.want(1);
    let count = |table: &Table, shard| table.links.count_of_shard(shard, |_| true);
    assert_eq!(count(&table, 1), 0, "nothing is there of what is dialled");
    let socket = table.dial();
    assert_eq!(table.dialled(socket, 7), None);
    assert_eq!(table.accepted(5, 0, 1), Ok(()));
    assert_eq!((count(&table, 1), count(&table, 2)), (2, 0));
    assert_eq!(table.links.count_of_shard(1, |peer| peer.as_str() == "c"), 0);
    table.lost(true);
    assert_eq!(table.accepted(6, 0, 1), Ok(()), "the one before is being closed");
    assert_eq!(count(&table, 1), 2);
    table.closed(true, "over");
    table.closed(false, "over");
    assert_eq!(count(&table, 1), 1, "its successor");
    table.closed(false, "over");
    assert_eq!(count(&table, 1), 0);
}

#[test]
fn why_links_are_over_is_remembered_for_the_latest() {
    let mut table = Table::new();
    let count = u64::try_from(OVER_MAX).unwrap() + 1;
    for link in 1..=count {
        assert_eq!(table.accepted(link, 0, 1), Ok(()));
        table.closed(false, &format!("reason {link}"));
    }
    let mut reason = |link| table.accepted(link, 1, 2).unwrap_err().reason;
    assert_eq!(reason(1), "the link is not known any more");
    assert_eq!(reason(2), "the link is over: reason 2");
    assert_eq!(reason(count), format!("the link is over: reason {count}"));
    assert_eq!(table.links.over.len(), OVER_MAX);
}

#[test]
fn a_link_that_the_peer_has_given_up_is_closed_for_good_and_not_dialled_again() {
    let mut table = Table::new();
    let first = table.up(7);
    table.now += LONG;
    table.lost(true);
    let socket = table.dial();
    // A refusal of another socket than the one that is dialled concerns nobody.
    table.links.handle_refused(route("b"), first, "late".to_owned(), &mut table.steps);
    assert_eq!(table.steps(), []);
    table.links.handle_refused(route("b"), socket, "no".to_owned(), &mut table.steps);
    assert_eq!(table.steps(), [close(true, "no")]);
    table.want(2);
    assert_eq!(table.steps(), [], "dialled before the shard had closed the old one");
    table.lost(true);
    assert_eq!(table.steps(), []);
    table.closed(true, "no");
    assert_eq!(table.dial().resumes, 0);
}

#[test]
fn a_new_link_of_the_same_dialler_closes_the_older_for_good_in_whatever_state() {
    for state in ["up", "lost", "half-open"] {
        let mut table = Table::new();
        assert_eq!(table.accepted(5, 0, 1), Ok(()));
        match state {
            "lost" => table.lost(false),
            "half-open" => assert_eq!(table.accepted(5, 1, 9), Ok(())),
            _ => {}
        }
        table.steps();
        let reason = "its dialler has replaced it by a newer link";
        assert_eq!(table.accepted(6, 0, 2), Ok(()));
        assert_eq!(table.steps(), [close(false, reason)], "{state}");
        assert_eq!(table.accepted(7, 0, 3), Ok(()), "newer still");
        // One that waits for its place has used no socket yet: its dialler comes again.
        assert_eq!(table.accepted(7, 1, 4), Ok(()));
        table.lost(false);
        assert_eq!(table.steps(), []);
        table.closed(false, reason);
        assert_eq!(table.steps(), [add(false, 3)]);
        let refusal = table.accepted(5, 2, 5).unwrap_err();
        assert_eq!(refusal.reason, format!("the link is over: {reason}"));
        assert_eq!(table.steps(), []);
    }
}

#[test]
fn a_peer_that_was_started_anew_ends_its_links_in_whatever_state_and_those_who_wait_dial_anew() {
    // By its clock it was started later than before, or earlier: then the clock was set back.
    for (is_lost, epoch, later) in
        [(false, 2, None), (true, 2, None), (false, 0, Some(1)), (true, 0, Some(1))]
    {
        let mut table = Table::new();
        let first = table.up(1);
        assert_eq!(table.accepted(5, 0, 2), Ok(()));
        if is_lost {
            table.now += LONG;
            table.lost(true);
            table.lost(false);
        }
        table.steps();
        assert_eq!(table.links.handle_life(&name("b"), epoch, &mut table.steps), later);
        let reason = "node b was started anew";
        assert_eq!(table.steps(), [close(false, reason), close(true, reason)]);
        table.want(2);
        assert_eq!(table.steps(), [], "dialled before the shard had closed the old one");
        let old = SocketName { resumes: 1, ..first };
        assert_eq!(table.dialled(old, 3), Some(3), "of the life that is over");
        assert_eq!(table.accepted(5, 1, 4).unwrap_err().reason, format!("the link is over: {reason}"));
        table.closed(true, reason);
        assert_eq!(table.dial().resumes, 0);
    }
}

#[test]
fn a_link_that_waits_for_its_place_goes_with_the_life_of_its_peer_whichever_clock_that_has() {
    for epoch in [0, 1, 2] {
        let mut table = Table::new();
        assert_eq!(table.accepted(5, 0, 2), Ok(()));
        assert_eq!(table.accepted(6, 0, 3), Ok(()), "waits for its place");
        table.steps();
        assert_eq!(table.links.handle_life(&name("b"), epoch, &mut table.steps), None);
        table.closed(false, "replaced");
        let added = if epoch == 1 { vec![add(false, 3)] } else { Vec::new() };
        assert_eq!(table.steps(), added);
    }
}

#[test]
fn a_data_link_of_an_earlier_life_is_refused_with_both_and_ends_nothing() {
    let mut table = Table::new();
    assert_eq!(table.accepted(5, 0, 2), Ok(()));
    table.steps();
    let arrival = table.arrival(SocketName { link: 7, resumes: 0 }, 9, 0);
    let refusal = table.links.handle_accepted(route("b").key(false), arrival, &mut table.steps).unwrap_err();
    let words = ["started at 1 ns since 1970", "this one at 0;", "needed: a name for each, or a clock"];
    assert!(words.iter().all(|word| refusal.reason.contains(word)), "{}", refusal.reason);
    assert_eq!((refusal.socket, table.steps()), (9, Vec::new()));
}

#[test]
fn a_socket_of_another_life_of_the_peer_ends_the_links_of_the_one_before() {
    let mut table = Table::new();
    table.up(1);
    table.now += LONG;
    table.lost(true);
    let socket = table.dial();
    let arrival = table.arrival(socket, 8, 2);
    assert_eq!(table.links.handle_dialled(&route("b"), arrival, &mut table.steps), Some(8));
    assert_eq!(table.steps(), [close(true, "node b was started anew")]);
    table.closed(true, "node b was started anew");

    assert_eq!(table.accepted(5, 0, 2), Ok(()));
    assert_eq!(table.accepted(6, 0, 3), Ok(()), "waits for its place");
    table.steps();
    let arrival = table.arrival(SocketName { link: 7, resumes: 0 }, 9, 2);
    assert_eq!(table.links.handle_accepted(route("b").key(false), arrival, &mut table.steps), Ok(()));
    assert_eq!(table.steps(), []);
    table.closed(false, "replaced");
    assert_eq!(table.steps(), [add(false, 9)]);
}
