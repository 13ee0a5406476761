//! Links that this node dials: when, how often, and what comes of it.

use std::time::Duration;

use super::link::{Link, State, Successor};
use super::{Arrival, DataLinks, Route, SocketName, Step};

impl<S> DataLinks<S> {
    /// Whether a socket that was dialled is still wanted.
    #[must_use]
    pub(in crate::node) fn is_dialling(&self, route: &Route, socket: SocketName) -> bool {
        match self.links.get(&route.key(true)) {
            Some(State::Dialling { socket: wanted, .. }) => *wanted == socket,
            Some(State::Lost(link)) => link.socket() == socket,
            _ => false,
        }
    }

    /// A link that this node dialled has come up, or has another socket. Gives the socket back if it is wanted no
    /// more.
    pub(in crate::node) fn handle_dialled(
        &mut self,
        route: &Route,
        arrival: Arrival<S>,
        steps: &mut Vec<Step<S>>,
    ) -> Option<S> {
        let Arrival { socket, name, epoch, peer_grace, at } = arrival;
        self.handle_epoch(&route.peer, epoch, steps);
        if !self.is_dialling(route, name) {
            return Some(socket);
        }
        let key = route.key(true);
        match self.links.remove(&key) {
            Some(State::Dialling { backoff, .. }) => {
                let link = Link { id: name.link, epoch, resumes: 0, since: at, backoff };
                self.add(key, Successor { link, socket, peer_grace }, steps);
            }
            Some(State::Lost(link)) => self.resume(key, Link { since: at, ..link }, socket, steps),
            // Ruled out by the check above.
            _ => return Some(socket),
        }
        None
    }

    /// Dialling has failed. It is tried again, if anybody still wants it.
    pub(in crate::node) fn handle_dial_failed(
        &mut self,
        route: Route,
        socket: SocketName,
        steps: &mut Vec<Step<S>>,
    ) {
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
                link.resumes = link.next_socket().resumes;
                Some((link.socket(), link.backoff.next_wait(self.draws.next())))
            }
            _ => None,
        };
        if let Some((socket, wait)) = next {
            steps.push(Step::DialLater { route, socket, wait });
        }
    }

    /// The time of a [`Step::DialLater`] is over.
    pub(in crate::node) fn handle_dial_due(
        &mut self,
        route: Route,
        socket: SocketName,
        steps: &mut Vec<Step<S>>,
    ) {
        if self.is_wanted(&route, socket) {
            steps.push(Step::Dial { route, socket });
        }
    }

    /// The peer says that the link which this node wants to go on with is over.
    pub(in crate::node) fn handle_refused(
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

    /// Dials a link again whose socket is gone: at once, unless that socket lived too short a time. A path that breaks
    /// each link as soon as it is up must not keep two nodes busy.
    pub(super) fn dial_again(
        &mut self,
        route: Route,
        mut link: Link,
        now: Duration,
        steps: &mut Vec<Step<S>>,
    ) -> Link {
        let socket = link.next_socket();
        link.resumes = socket.resumes;
        if now.saturating_sub(link.since) >= link.backoff.ceiling() {
            link.backoff.reset();
            steps.push(Step::Dial { route, socket });
        } else {
            let wait = link.backoff.next_wait(self.draws.next());
            steps.push(Step::DialLater { route, socket, wait });
        }
        link
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
}
