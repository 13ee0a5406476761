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
//! the same route, and when either shard gave it up. Why is remembered for a while, for a dialler that asks to go on.
//! A link that takes the place of another is held until the shard has closed the old one, for both have the same key.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use weir_flow::exchange::Name;
use weir_flow::ids::ProducerLife;

use crate::link::dial::Backoff;
use crate::shard::mailbox::{LinkKey, RingKey};

/// Links of peers that are over and whose reason is remembered.
const OVER_MAX: usize = 256;

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

/// One socket of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketName {
    /// The link: a random number other than 0, chosen by its dialler.
    pub(super) link: u64,
    /// 0 for its first socket; later ones have larger numbers, not all of which came about.
    pub(super) resumes: u32,
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

/// A link that a shard has.
#[derive(Debug)]
struct Link {
    id: u64,
    /// The life of the peer.
    epoch: u64,
    /// Number of its latest socket, or of the one that is being dialled.
    resumes: u32,
    /// Since when it has the socket that it has.
    since: Duration,
    backoff: Backoff,
}

impl Link {
    fn socket(&self) -> SocketName {
        SocketName { link: self.id, resumes: self.resumes }
    }
}

#[derive(Debug)]
struct Successor<S> {
    link: Link,
    socket: S,
}

#[derive(Debug)]
enum State<S> {
    /// This node is dialling it, or will soon.
    Dialling { socket: SocketName, backoff: Backoff },
    /// A shard has it, with a socket.
    Up(Link),
    /// A shard has it, without a socket. If this node dialled it, it is being dialled, or will be soon.
    Lost(Link),
    /// A shard is letting go of its socket, and will get this one then.
    Replacing { link: Link, socket: S },
    /// A shard is closing it for good; `successor` takes its place then.
    Closing { successor: Option<Successor<S>> },
}

impl<S> State<S> {
    /// The link, while its shard keeps it.
    fn link(&self) -> Option<&Link> {
        match self {
            Self::Up(link) | Self::Lost(link) | Self::Replacing { link, .. } => Some(link),
            Self::Dialling { .. } | Self::Closing { .. } => None,
        }
    }
}

/// A source of numbers for ids and waits. It gives every number once before it gives one again, so ids of one node's
/// life differ.
#[derive(Debug)]
struct Draws(u64);

impl Draws {
    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn new_link(&mut self) -> SocketName {
        let link = match self.next() {
            0 => self.next(),
            link => link,
        };
        SocketName { link, resumes: 0 }
    }
}

/// The table of data links.
#[derive(Debug)]
pub(super) struct DataLinks<S> {
    links: BTreeMap<LinkKey, State<S>>,
    waiters: BTreeMap<Route, BTreeSet<Waiter>>,
    /// Links that peers dialled and that are over, the latest last.
    over: VecDeque<(Name, u64, String)>,
    draws: Draws,
}

impl<S> DataLinks<S> {
    /// An empty table. `seed` decides ids and waits.
    pub(super) fn new(seed: u64) -> Self {
        Self { links: BTreeMap::new(), waiters: BTreeMap::new(), over: VecDeque::new(), draws: Draws(seed) }
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

    /// Whether a socket that was dialled is still wanted.
    #[must_use]
    pub(super) fn is_dialling(&self, route: &Route, socket: SocketName) -> bool {
        match self.links.get(&route.key(true)) {
            Some(State::Dialling { socket: wanted, .. }) => *wanted == socket,
            Some(State::Lost(link)) => link.socket() == socket,
            _ => false,
        }
    }

    /// A link that this node dialled has come up, or has another socket. `epoch` is the peer's life. Gives the socket
    /// back if it is wanted no more.
    pub(super) fn handle_dialled(
        &mut self,
        route: &Route,
        name: SocketName,
        socket: S,
        (epoch, now): (u64, Duration),
        steps: &mut Vec<Step<S>>,
    ) -> Option<S> {
        self.handle_epoch(&route.peer, epoch, steps);
        if !self.is_dialling(route, name) {
            return Some(socket);
        }
        let key = route.key(true);
        match self.links.remove(&key) {
            Some(State::Dialling { backoff, .. }) => {
                let link = Link { id: name.link, epoch, resumes: 0, since: now, backoff };
                self.add(key, Successor { link, socket }, steps);
            }
            Some(State::Lost(link)) => self.resume(key, Link { since: now, ..link }, socket, steps),
            // Ruled out by the check above.
            _ => return Some(socket),
        }
        None
    }

    /// Dialling has failed. It is tried again, if anybody still wants it.
    pub(super) fn handle_dial_failed(&mut self, route: Route, socket: SocketName, steps: &mut Vec<Step<S>>) {
        if !self.is_wanted(&route, socket) {
            return;
        }
        let next = match self.links.get_mut(&route.key(true)) {
            Some(State::Dialling { socket, backoff }) => {
                // What has become of the first try at the peer is not known: a second one must not look like it.
                *socket = self.draws.new_link();
                Some((*socket, backoff.next_wait(self.draws.next())))
            }
            Some(State::Lost(link)) => {
                link.resumes = link.resumes.saturating_add(1);
                Some((link.socket(), link.backoff.next_wait(self.draws.next())))
            }
            _ => None,
        };
        if let Some((socket, wait)) = next {
            steps.push(Step::DialLater { route, socket, wait });
        }
    }

    /// The time of a [`Step::DialLater`] is over.
    pub(super) fn handle_dial_due(&mut self, route: Route, socket: SocketName, steps: &mut Vec<Step<S>>) {
        if self.is_wanted(&route, socket) {
            steps.push(Step::Dial { route, socket });
        }
    }

    /// The peer says that the link which this node wants to go on with is over.
    pub(super) fn handle_refused(
        &mut self,
        route: Route,
        socket: SocketName,
        reason: String,
        steps: &mut Vec<Step<S>>,
    ) {
        let key = route.key(true);
        match self.links.get_mut(&key) {
            Some(state @ State::Lost(_)) if state.link().is_some_and(|link| link.socket() == socket) => {
                *state = State::Closing { successor: None };
                steps.push(Step::Close { key, reason });
            }
            _ => self.handle_dial_failed(route, socket, steps),
        }
    }

    /// A peer has dialled: a new link, or another socket for one.
    ///
    /// # Errors
    /// The peer wants to go on with a link that is over.
    pub(super) fn handle_accepted(
        &mut self,
        key: LinkKey,
        name: SocketName,
        socket: S,
        (epoch, now): (u64, Duration),
        steps: &mut Vec<Step<S>>,
    ) -> Result<(), Refusal<S>> {
        self.handle_epoch(&key.peer, epoch, steps);
        let mut links = self.links.iter().filter(|(of, _)| of.peer == key.peer);
        if links.any(|(_, state)| state.link().is_some_and(|link| link.epoch > epoch)) {
            let reason = "a later node of this name is linked; needed: a name for each".to_owned();
            return Err(Refusal { socket, reason });
        }
        if name.resumes > 0 {
            return self.accept_next(key, name, socket, now, steps);
        }
        let link = Link { id: name.link, epoch, resumes: 0, since: now, backoff: Backoff::default() };
        let new = Successor { link, socket };
        match self.links.get_mut(&key) {
            Some(State::Closing { successor }) => *successor = Some(new),
            Some(State::Up(_) | State::Lost(_) | State::Replacing { .. }) => {
                self.close(key, "its dialler has replaced it by a newer link".to_owned(), Some(new), steps);
            }
            None | Some(State::Dialling { .. }) => self.add(key, new, steps),
        }
        Ok(())
    }

    /// A peer has dialled another socket for one of its links.
    fn accept_next(
        &mut self,
        key: LinkKey,
        name: SocketName,
        socket: S,
        now: Duration,
        steps: &mut Vec<Step<S>>,
    ) -> Result<(), Refusal<S>> {
        match self.links.remove(&key) {
            Some(state) if state.link().is_some_and(|link| link.id == name.link) => {
                self.replace(key, state, name.resumes, (socket, now), steps);
                Ok(())
            }
            other => {
                // A link that waits for its place has not even used its first socket. Its dialler hears of the loss of
                // this one, and comes again.
                let is_next = matches!(&other, Some(State::Closing { successor: Some(next) })
                    if next.link.id == name.link);
                if let Some(state) = other {
                    self.links.insert(key.clone(), state);
                }
                if is_next {
                    return Ok(());
                }
                let reason = self.reason_of(&key.peer, name.link);
                Err(Refusal { socket, reason })
            }
        }
    }

    /// Another socket for the link in this state. An older one than the link has came late, and nobody holds its other
    /// end any more.
    fn replace(
        &mut self,
        key: LinkKey,
        state: State<S>,
        resumes: u32,
        (socket, now): (S, Duration),
        steps: &mut Vec<Step<S>>,
    ) {
        match state {
            State::Up(link) if resumes > link.resumes => {
                steps.push(Step::Suspend { key: key.clone() });
                let link = Link { resumes, since: now, ..link };
                self.links.insert(key, State::Replacing { link, socket });
            }
            State::Replacing { link, .. } if resumes > link.resumes => {
                let link = Link { resumes, since: now, ..link };
                self.links.insert(key, State::Replacing { link, socket });
            }
            State::Lost(link) if resumes > link.resumes => {
                self.resume(key, Link { resumes, since: now, ..link }, socket, steps);
            }
            other => {
                self.links.insert(key, other);
            }
        }
    }

    /// A shard says that a link has lost its socket, and keeps the link.
    pub(super) fn handle_lost(&mut self, key: &LinkKey, now: Duration, steps: &mut Vec<Step<S>>) {
        match self.links.remove(key) {
            Some(State::Up(link)) if key.dialled => {
                let link = self.dial_again(Route::of(key), link, now, steps);
                self.links.insert(key.clone(), State::Lost(link));
            }
            Some(State::Up(link)) => {
                self.links.insert(key.clone(), State::Lost(link));
            }
            Some(State::Replacing { link, socket }) => self.resume(key.clone(), link, socket, steps),
            Some(other) => {
                self.links.insert(key.clone(), other);
            }
            None => {}
        }
    }

    /// Dials a link again whose socket is gone: at once, unless that socket lived too short a time. A path that breaks
    /// each link as soon as it is up must not keep two nodes busy.
    fn dial_again(&mut self, route: Route, mut link: Link, now: Duration, steps: &mut Vec<Step<S>>) -> Link {
        link.resumes = link.resumes.saturating_add(1);
        let socket = link.socket();
        if now.saturating_sub(link.since) >= link.backoff.ceiling() {
            link.backoff.reset();
            steps.push(Step::Dial { route, socket });
        } else {
            let wait = link.backoff.next_wait(self.draws.next());
            steps.push(Step::DialLater { route, socket, wait });
        }
        link
    }

    /// A shard says that a link is over.
    pub(super) fn handle_closed(&mut self, key: &LinkKey, reason: &str, steps: &mut Vec<Step<S>>) {
        match self.links.remove(key) {
            Some(State::Closing { successor: Some(next) }) => {
                self.add(key.clone(), next, steps);
                return;
            }
            Some(state) => {
                if let Some(link) = state.link() {
                    self.remember(key, link.id, reason);
                }
            }
            None => {}
        }
        let route = Route::of(key);
        if self.waiters.contains_key(&route) {
            self.dial(route, steps);
        }
    }

    /// The peer's life is now known to be this one: links to an earlier life lead nowhere.
    pub(super) fn handle_epoch(&mut self, peer: &Name, epoch: u64, steps: &mut Vec<Step<S>>) {
        let mut old = Vec::new();
        for (key, state) in self.links.iter_mut().filter(|(key, _)| key.peer == *peer) {
            if state.link().is_some_and(|link| link.epoch < epoch) {
                old.push(key.clone());
            }
            if let State::Closing { successor } = state {
                successor.take_if(|next| next.link.epoch < epoch);
            }
        }
        for key in old {
            self.close(key, format!("node {peer} was started anew"), None, steps);
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

    /// How many links shards have to this peer that have a socket.
    #[must_use]
    pub(super) fn count(&self, peer: &Name) -> usize {
        let is_up = |state: &State<S>| matches!(state, State::Up(_) | State::Replacing { .. });
        self.links.iter().filter(|(key, state)| key.peer == *peer && is_up(state)).count()
    }

    fn usable(&self, route: &Route) -> Option<LinkKey> {
        [true, false]
            .into_iter()
            .map(|dialled| route.key(dialled))
            .find(|key| matches!(self.links.get(key), Some(State::Up(_))))
    }

    /// Whether this socket is to be dialled still. A new link for which nobody waits is forgotten.
    fn is_wanted(&mut self, route: &Route, socket: SocketName) -> bool {
        if !self.is_dialling(route, socket) {
            return false;
        }
        let key = route.key(true);
        if matches!(self.links.get(&key), Some(State::Dialling { .. })) && !self.waiters.contains_key(route) {
            self.links.remove(&key);
            return false;
        }
        true
    }

    fn dial(&mut self, route: Route, steps: &mut Vec<Step<S>>) {
        // A link that is closing is dialled anew when it is closed; one that is lost is being dialled, or will be over.
        if let Entry::Vacant(vacant) = self.links.entry(route.key(true)) {
            let socket = self.draws.new_link();
            vacant.insert(State::Dialling { socket, backoff: Backoff::default() });
            steps.push(Step::Dial { route, socket });
        }
    }

    fn add(&mut self, key: LinkKey, new: Successor<S>, steps: &mut Vec<Step<S>>) {
        self.links.insert(key.clone(), State::Up(new.link));
        steps.push(Step::Add { key: key.clone(), socket: new.socket });
        self.connect_waiters(key, steps);
    }

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

    /// Has a shard close a link that it has.
    fn close(
        &mut self,
        key: LinkKey,
        reason: String,
        successor: Option<Successor<S>>,
        steps: &mut Vec<Step<S>>,
    ) {
        let old = self.links.insert(key.clone(), State::Closing { successor });
        if let Some(link) = old.as_ref().and_then(State::link) {
            self.remember(&key, link.id, &reason);
        }
        steps.push(Step::Close { key, reason });
    }

    /// Remembers why a link is over, if the peer may ask.
    fn remember(&mut self, key: &LinkKey, id: u64, reason: &str) {
        if key.dialled {
            return;
        }
        if self.over.len() >= OVER_MAX {
            self.over.pop_front();
        }
        self.over.push_back((key.peer.clone(), id, reason.to_owned()));
    }

    fn reason_of(&self, peer: &Name, id: u64) -> String {
        let known = self.over.iter().rev().find(|(of, over, _)| of == peer && *over == id);
        known.map_or_else(
            || "the link is not known any more".to_owned(),
            |(_, _, reason)| format!("the link is over: {reason}"),
        )
    }
}

#[cfg(test)]
mod tests;
