//! Which data links exist, and who waits for one. Pure: sockets pass through as `S`, time is handed in, what is to be
//! done comes out as [`Step`]s.
//!
//! A *route* is (peer, shard here, shard there). A channel may use any link of its route, whoever dialled it; only
//! when there is none, the consumer's node dials one. Two nodes that dial each other at the same moment get two links
//! on one route. Both stay: closing one after its handshake would fail channels that the other end had already put on
//! it, and new channels find either.
//!
//! A link outlives its sockets. Its dialler gives it a random id, and each of its sockets a number. When a shard says
//! that the socket of a link is gone, the end that dialled it dials again, at once and then with longer and longer
//! waits, and the other end waits to be dialled, until the shard says that the link is over. A socket for a link whose
//! old one is still believed in (its other end lost it first) waits until the shard has let go of the old one.
//!
//! A link is closed for good, and never goes on, when its peer was started anew, when its dialler has a newer one on
//! the same route, and when either shard gave it up. Why is remembered for a while, for a dialler that asks to go on. A
//! dialler whose shard gave a link up that still had its socket says so on another one: its peer cannot ask.
//! A link that takes the place of another is held until the shard has closed the old one, for both have the same key.
//!
//! | part | what it decides |
//! |---|---|
//! | this | which links there are, who waits for one, and who gets which |
//! | [`link`] | the states of one link |
//! | [`dialling`] | links that this node dials: when, how often, and what comes of it |
//! | [`accepting`] | links that peers dial: new ones, and further sockets |
//! | [`ending`] | links that lose their socket, and links that are over |
//! | [`over`] | why links are over that peers may ask for |

mod accepting;
mod dialling;
mod ending;
mod link;
mod over;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weir_flow::exchange::Name;
use weir_flow::ids::ProducerLife;

use self::link::{Draws, Link, State, Successor};
use self::over::Over;
use crate::link::dial::Backoff;
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

    /// For a link of `own` node to itself: the accepted end of what this route dials.
    #[must_use]
    pub(super) fn far_end(&self, own: &Name) -> LinkKey {
        LinkKey {
            peer: own.clone(),
            local_shard: self.peer_shard,
            peer_shard: self.local_shard,
            dialled: false,
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

/// One socket of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketName {
    /// The link: a random number other than 0, chosen by its dialler.
    pub(super) link: u64,
    /// 0 for its first socket; later ones have larger numbers, not all of which came about.
    pub(super) resumes: u32,
}

/// A socket of a link whose handshake is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival<S> {
    /// The socket.
    pub(super) socket: S,
    /// What it is.
    pub(super) name: SocketName,
    /// The life of the peer.
    pub(super) epoch: u64,
    /// For how long the peer keeps a link that is lost.
    pub(super) peer_grace: Duration,
    /// When it came, since the node started.
    pub(super) at: Duration,
}

/// What is to be done next, in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step<S> {
    /// Dial the peer, or make a pair when the peer is this node. Exactly one of [`DataLinks::handle_dialled`],
    /// [`DataLinks::handle_dial_failed`] and [`DataLinks::handle_refused`] must follow.
    Dial {
        /// Which shards it is to join.
        route: Route,
        /// What it is to be.
        socket: SocketName,
    },
    /// Call [`DataLinks::handle_dial_due`] after this time.
    DialLater {
        /// Which shards it is to join.
        route: Route,
        /// What it is to be.
        socket: SocketName,
        /// How long to wait.
        wait: Duration,
    },
    /// Give the shard this link.
    Add {
        /// Its key.
        key: LinkKey,
        /// Its first socket.
        socket: S,
        /// For how long the peer keeps it when it is lost.
        peer_grace: Duration,
    },
    /// Have the shard let go of the socket of this link, which is to have another.
    Suspend {
        /// Its key.
        key: LinkKey,
    },
    /// Give the shard another socket for this link, which has none.
    Resume {
        /// Its key.
        key: LinkKey,
        /// The socket.
        socket: S,
    },
    /// Have the shard close this link for good.
    Close {
        /// Its key.
        key: LinkKey,
        /// Why.
        reason: String,
    },
    /// Tell the peer, on a socket of its own, that a link which this node dialled is over. Nothing follows.
    Tell {
        /// Which shards it joined.
        route: Route,
        /// What the socket is to be.
        socket: SocketName,
        /// Why.
        reason: String,
    },
    /// Have the shard open a channel.
    Connect {
        /// For whom.
        waiter: Waiter,
        /// Over which link.
        key: LinkKey,
    },
}

/// Why a peer cannot have what it asks for. It must be told.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal<S> {
    /// Its socket.
    pub(super) socket: S,
    /// Why, in one line.
    pub(super) reason: String,
}

/// The table of data links.
#[derive(Debug)]
pub(super) struct DataLinks<S> {
    links: BTreeMap<LinkKey, State<S>>,
    waiters: BTreeMap<Route, BTreeSet<Waiter>>,
    over: Over,
    draws: Draws,
}

impl<S> DataLinks<S> {
    /// An empty table. `seed` decides ids and waits.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            links: BTreeMap::new(),
            waiters: BTreeMap::new(),
            over: Over::default(),
            draws: Draws::new(seed),
        }
    }

    /// A gate wants a channel over this route.
    pub(super) fn handle_wanted(&mut self, route: Route, waiter: Waiter, steps: &mut Vec<Step<S>>) {
        if let Some(key) = self.usable(&route) {
            steps.push(Step::Connect { waiter, key });
            return;
        }
        self.waiters.entry(route.clone()).or_default().insert(waiter);
        self.dial(route, steps);
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

    /// How many links shards have to this peer that have a socket.
    #[must_use]
    pub(super) fn count(&self, peer: &Name) -> usize {
        let is_up = |state: &State<S>| matches!(state, State::Up(_) | State::Replacing { .. });
        self.links.iter().filter(|(key, state)| key.peer == *peer && is_up(state)).count()
    }

    /// How many links a shard has, or is closing, to peers for whom `counts` holds.
    #[must_use]
    pub(super) fn count_of_shard(&self, local_shard: u16, counts: impl Fn(&Name) -> bool) -> usize {
        let of_shard = |(key, state): &(&LinkKey, &State<S>)| {
            key.local_shard == local_shard && !matches!(state, State::Dialling { .. }) && counts(&key.peer)
        };
        self.links.iter().filter(of_shard).count()
    }

    /// Whether there is a link of this key, in whatever state.
    #[must_use]
    pub(super) fn has(&self, key: &LinkKey) -> bool {
        self.links.contains_key(key)
    }

    fn usable(&self, route: &Route) -> Option<LinkKey> {
        [true, false]
            .into_iter()
            .map(|dialled| route.key(dialled))
            .find(|key| matches!(self.links.get(key), Some(State::Up(_))))
    }

    fn dial(&mut self, route: Route, steps: &mut Vec<Step<S>>) {
        // A link that is closing is dialled anew when it is closed; one that is lost is being dialled, or will be over.
        if let Entry::Vacant(vacant) = self.links.entry(route.key(true)) {
            let socket = self.draws.new_link();
            vacant.insert(State::Dialling { socket, backoff: Backoff::default() });
            steps.push(Step::Dial { route, socket });
        }
    }

    /// A shard gets a link.
    fn add(&mut self, key: LinkKey, new: Successor<S>, steps: &mut Vec<Step<S>>) {
        let Successor { link, socket, peer_grace } = new;
        self.links.insert(key.clone(), State::Up(link));
        steps.push(Step::Add { key: key.clone(), socket, peer_grace });
        self.connect_waiters(key, steps);
    }

    /// A link that had lost its socket gets another one.
    fn resume(&mut self, key: LinkKey, link: Link, socket: S, steps: &mut Vec<Step<S>>) {
        self.links.insert(key.clone(), State::Up(link));
        steps.push(Step::Resume { key: key.clone(), socket });
        self.connect_waiters(key, steps);
    }

    fn connect_waiters(&mut self, key: LinkKey, steps: &mut Vec<Step<S>>) {
        for waiter in self.waiters.remove(&Route::of(&key)).unwrap_or_default() {
            steps.push(Step::Connect { waiter, key: key.clone() });
        }
    }
}

#[cfg(test)]
mod tests;
