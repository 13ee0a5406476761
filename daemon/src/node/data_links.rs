//! Which data links exist, and who waits for one. Pure: sockets pass through as `S`, what is to be done comes out as
//! [`Step`]s.
//!
//! A *route* is (peer, shard here, shard there). A channel may use any link of its route, whoever dialled it; only
//! when there is none, the consumer's node dials one. Two nodes that dial each other at the same moment get two links
//! on one route. Both stay: closing one after its handshake would fail channels that the other end had already put on
//! it, and new channels find either.
//!
//! A link that is replaced (the peer lost the old one first, or was restarted) is closed by its shard before the shard
//! gets the new one, for both have the same key: [`DataLinks::handle_up`] holds the new socket until
//! [`DataLinks::handle_closed`] says that the old one is gone.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use weir_flow::exchange::Name;
use weir_flow::ids::ProducerLife;

use crate::shard::mailbox::{LinkKey, RingKey};

/// A pair of shards, one of them here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Route {
    /// The peer; this node's own name for channels whose both ends are here.
    pub(super) peer: Name,
    /// The shard of this node.
    pub(super) local_shard: u16,
    /// The shard of the peer.
    pub(super) peer_shard: u16,
}

impl Route {
    /// The link of this route that this node dialled, or accepted.
    #[must_use]
    pub(super) fn key(&self, dialled: bool) -> LinkKey {
        LinkKey {
            peer: self.peer.clone(),
            local_shard: self.local_shard,
            peer_shard: self.peer_shard,
            dialled,
        }
    }

    /// The route of a link.
    #[must_use]
    pub(super) fn of(key: &LinkKey) -> Self {
        Self { peer: key.peer.clone(), local_shard: key.local_shard, peer_shard: key.peer_shard }
    }
}

/// A gate that waits for a link to one of its producers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Waiter {
    /// The gate.
    pub(super) ring: RingKey,
    /// The producer, and which of its lives the gate is bound to.
    pub(super) life: ProducerLife,
}

/// What is to be done next, in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step<S> {
    /// Dial the peer, or make a pair when the peer is this node. Exactly one of [`DataLinks::handle_up`] with
    /// `dialled`, and [`DataLinks::handle_dial_failed`], must follow.
    Dial(Route),
    /// Give the shard this link.
    Add {
        /// Its key.
        key: LinkKey,
        /// Its socket.
        socket: S,
    },
    /// Have the shard close this link.
    Close {
        /// Its key.
        key: LinkKey,
        /// Why.
        reason: &'static str,
    },
    /// Have the shard open a channel.
    Connect {
        /// For whom.
        waiter: Waiter,
        /// Over which link.
        key: LinkKey,
    },
}

#[derive(Debug)]
enum State<S> {
    /// This node is dialling it.
    Dialling,
    /// A shard has it.
    Up { epoch: u64 },
    /// A shard is closing it; `successor` takes its place then.
    Closing { successor: Option<(S, u64)> },
}

/// The table of data links.
#[derive(Debug)]
pub(super) struct DataLinks<S> {
    links: BTreeMap<LinkKey, State<S>>,
    waiters: BTreeMap<Route, BTreeSet<Waiter>>,
}

impl<S> Default for DataLinks<S> {
    fn default() -> Self {
        Self { links: BTreeMap::new(), waiters: BTreeMap::new() }
    }
}

impl<S> DataLinks<S> {
    /// A gate wants a channel over this route.
    pub(super) fn handle_wanted(&mut self, route: Route, waiter: Waiter, steps: &mut Vec<Step<S>>) {
        if let Some(key) = self.usable(&route) {
            steps.push(Step::Connect { waiter, key });
            return;
        }
        self.waiters.entry(route.clone()).or_default().insert(waiter);
        self.dial(route, steps);
    }

    /// A link has come up, by whichever end dialled it. `epoch` is the peer's life.
    pub(super) fn handle_up(&mut self, key: LinkKey, socket: S, epoch: u64, steps: &mut Vec<Step<S>>) {
        self.handle_epoch(&key.peer, epoch, steps);
        match self.links.get_mut(&key) {
            None | Some(State::Dialling) => self.add(key, socket, epoch, steps),
            Some(State::Closing { successor }) => *successor = Some((socket, epoch)),
            Some(state @ State::Up { .. }) => {
                *state = State::Closing { successor: Some((socket, epoch)) };
                steps.push(Step::Close { key, reason: "replaced by a newer link of the peer" });
            }
        }
    }

    /// Dialling has failed. Says whether anybody still waits; then the caller dials again, later, and this link
    /// still counts as being dialled.
    pub(super) fn handle_dial_failed(&mut self, route: &Route) -> bool {
        if self.waiters.contains_key(route) {
            return true;
        }
        let key = route.key(true);
        if matches!(self.links.get(&key), Some(State::Dialling)) {
            self.links.remove(&key);
        }
        false
    }

    /// A shard says that a link has ended.
    pub(super) fn handle_closed(&mut self, key: &LinkKey, steps: &mut Vec<Step<S>>) {
        if let Some(State::Closing { successor: Some((socket, epoch)) }) = self.links.remove(key) {
            self.add(key.clone(), socket, epoch, steps);
            return;
        }
        let route = Route::of(key);
        if self.waiters.contains_key(&route) {
            self.dial(route, steps);
        }
    }

    /// The peer's life is now known to be this one: links to an earlier life lead nowhere.
    pub(super) fn handle_epoch(&mut self, peer: &Name, epoch: u64, steps: &mut Vec<Step<S>>) {
        for (key, state) in &mut self.links {
            if key.peer == *peer && matches!(state, State::Up { epoch: old } if *old != epoch) {
                *state = State::Closing { successor: None };
                steps.push(Step::Close { key: key.clone(), reason: "the peer was restarted" });
            }
        }
    }

    /// A gate is gone: it waits no more.
    pub(super) fn forget_ring(&mut self, ring: RingKey) {
        self.waiters.retain(|_, waiters| {
            waiters.retain(|waiter| waiter.ring != ring);
            !waiters.is_empty()
        });
    }

    /// Those of a peer for whom `is_over` holds wait no more. Returns them.
    pub(super) fn forget_waiters(
        &mut self,
        peer: &Name,
        mut is_over: impl FnMut(&Waiter) -> bool,
    ) -> Vec<Waiter> {
        let mut forgotten = Vec::new();
        self.waiters.retain(|route, waiters| {
            if route.peer == *peer {
                forgotten.extend(waiters.extract_if(.., |waiter| is_over(waiter)));
            }
            !waiters.is_empty()
        });
        forgotten
    }

    /// How many links shards have to this peer.
    #[must_use]
    pub(super) fn count(&self, peer: &Name) -> usize {
        self.links
            .iter()
            .filter(|(key, state)| key.peer == *peer && matches!(state, State::Up { .. }))
            .count()
    }

    fn usable(&self, route: &Route) -> Option<LinkKey> {
        [true, false]
            .into_iter()
            .map(|dialled| route.key(dialled))
            .find(|key| matches!(self.links.get(key), Some(State::Up { .. })))
    }

    fn dial(&mut self, route: Route, steps: &mut Vec<Step<S>>) {
        let key = route.key(true);
        // A link that is closing is dialled anew when it is closed.
        if let Entry::Vacant(vacant) = self.links.entry(key) {
            vacant.insert(State::Dialling);
            steps.push(Step::Dial(route));
        }
    }

    fn add(&mut self, key: LinkKey, socket: S, epoch: u64, steps: &mut Vec<Step<S>>) {
        self.links.insert(key.clone(), State::Up { epoch });
        steps.push(Step::Add { key: key.clone(), socket });
        for waiter in self.waiters.remove(&Route::of(&key)).unwrap_or_default() {
            steps.push(Step::Connect { waiter, key: key.clone() });
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_flow::ids::{Incarnation, ProducerIndex};

    use super::*;
    use crate::shard::mailbox::AttachmentId;

    fn route(peer: &str) -> Route {
        Route { peer: peer.parse().unwrap(), local_shard: 1, peer_shard: 2 }
    }

    fn waiter(ring: u32) -> Waiter {
        Waiter {
            ring: RingKey { attachment: AttachmentId(1), ring },
            life: ProducerLife { producer: ProducerIndex(0), incarnation: Incarnation(1) },
        }
    }

    fn drained(steps: &mut Vec<Step<u32>>) -> Vec<Step<u32>> {
        std::mem::take(steps)
    }

    #[test]
    fn one_dial_serves_all_who_wait_and_later_ones_use_the_link() {
        let (mut links, mut steps) = (DataLinks::default(), Vec::new());
        links.handle_wanted(route("b"), waiter(1), &mut steps);
        links.handle_wanted(route("b"), waiter(2), &mut steps);
        assert_eq!(drained(&mut steps), [Step::Dial(route("b"))]);
        let key = route("b").key(true);
        links.handle_up(key.clone(), 7, 1, &mut steps);
        let connect = |ring| Step::Connect { waiter: waiter(ring), key: key.clone() };
        assert_eq!(drained(&mut steps), [Step::Add { key: key.clone(), socket: 7 }, connect(1), connect(2)]);
        links.handle_wanted(route("b"), waiter(3), &mut steps);
        assert_eq!(drained(&mut steps), [connect(3)]);
        assert_eq!(links.count(&"b".parse().unwrap()), 1);
    }

    #[test]
    fn a_link_that_the_peer_dialled_serves_those_who_wait_and_both_of_two_stay() {
        let (mut links, mut steps) = (DataLinks::default(), Vec::new());
        links.handle_wanted(route("b"), waiter(1), &mut steps);
        drained(&mut steps);
        let (accepted, dialled) = (route("b").key(false), route("b").key(true));
        links.handle_up(accepted.clone(), 7, 1, &mut steps);
        assert_eq!(
            drained(&mut steps),
            [
                Step::Add { key: accepted.clone(), socket: 7 },
                Step::Connect { waiter: waiter(1), key: accepted.clone() }
            ]
        );
        links.handle_up(dialled.clone(), 8, 1, &mut steps);
        assert_eq!(drained(&mut steps), [Step::Add { key: dialled.clone(), socket: 8 }]);
        links.handle_closed(&dialled, &mut steps);
        links.handle_wanted(route("b"), waiter(2), &mut steps);
        assert_eq!(drained(&mut steps), [Step::Connect { waiter: waiter(2), key: accepted }]);
    }

    #[test]
    fn a_replaced_link_is_closed_before_its_successor_is_added() {
        let (mut links, mut steps) = (DataLinks::default(), Vec::new());
        let key = route("b").key(false);
        links.handle_up(key.clone(), 1, 1, &mut steps);
        drained(&mut steps);
        links.handle_up(key.clone(), 2, 1, &mut steps);
        assert!(matches!(&drained(&mut steps)[..], [Step::Close { key: closed, .. }] if *closed == key));
        links.handle_up(key.clone(), 3, 1, &mut steps);
        assert_eq!(drained(&mut steps), []);
        links.handle_closed(&key, &mut steps);
        assert_eq!(drained(&mut steps), [Step::Add { key, socket: 3 }]);
    }

    #[test]
    fn a_restarted_peer_closes_its_old_links_and_those_who_wait_dial_anew() {
        let (mut links, mut steps) = (DataLinks::default(), Vec::new());
        let key = route("b").key(true);
        links.handle_wanted(route("b"), waiter(1), &mut steps);
        links.handle_up(key.clone(), 1, 1, &mut steps);
        drained(&mut steps);
        links.handle_epoch(&"b".parse().unwrap(), 2, &mut steps);
        assert!(matches!(&drained(&mut steps)[..], [Step::Close { .. }]));
        links.handle_wanted(route("b"), waiter(2), &mut steps);
        assert_eq!(drained(&mut steps), [], "dialled before the shard had closed the old one");
        links.handle_closed(&key, &mut steps);
        assert_eq!(drained(&mut steps), [Step::Dial(route("b"))]);
    }

    /// Row 36 (PartitionRequestClientFactoryTest), adapted: many requests for one pair of shards make one dial, and a
    /// failed one is not kept. In Flink all who wait see the failure and the caller counts its retries; here all go on
    /// waiting and one new dial serves them, for as long as any of them is there.
    #[test]
    fn requests_for_one_route_share_one_dial_and_a_failed_one_is_not_kept() {
        let (mut links, mut steps) = (DataLinks::default(), Vec::new());
        for ring in 0..100 {
            links.handle_wanted(route("b"), waiter(ring), &mut steps);
        }
        assert_eq!(drained(&mut steps), [Step::Dial(route("b"))]);
        for _ in 0..3 {
            assert!(links.handle_dial_failed(&route("b")), "all still wait: the caller is to dial again");
            assert_eq!(drained(&mut steps), [], "nobody was connected or forgotten");
            // A newcomer joins those who wait, and another pair of shards has a dial of its own.
            links.handle_wanted(route("b"), waiter(100), &mut steps);
            assert_eq!(drained(&mut steps), []);
        }
        let other = Route { peer_shard: 3, ..route("b") };
        links.handle_wanted(other.clone(), waiter(1), &mut steps);
        assert_eq!(drained(&mut steps), [Step::Dial(other)]);
        let key = route("b").key(true);
        links.handle_up(key.clone(), 7, 1, &mut steps);
        let mut needed = vec![Step::Add { key: key.clone(), socket: 7 }];
        needed.extend((0..=100).map(|ring| Step::Connect { waiter: waiter(ring), key: key.clone() }));
        assert_eq!(drained(&mut steps), needed, "each once");
    }

    #[test]
    fn a_failed_dial_is_repeated_only_while_somebody_waits() {
        let (mut links, mut steps) = (DataLinks::default(), Vec::new());
        links.handle_wanted(route("b"), waiter(1), &mut steps);
        drained(&mut steps);
        assert!(links.handle_dial_failed(&route("b")));
        links.forget_ring(waiter(1).ring);
        assert!(!links.handle_dial_failed(&route("b")));
        links.handle_wanted(route("b"), waiter(2), &mut steps);
        assert_eq!(drained(&mut steps), [Step::Dial(route("b"))]);
        assert_eq!(links.forget_waiters(&"c".parse().unwrap(), |_| true), []);
        assert_eq!(links.forget_waiters(&"b".parse().unwrap(), |_| true), [waiter(2)]);
        assert!(!links.handle_dial_failed(&route("b")));
    }
}
