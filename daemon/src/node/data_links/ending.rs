//! Links that lose their socket, and links that are over.

use std::time::Duration;

use weir_flow::exchange::Name;

use super::link::{State, Successor};
use super::{DataLinks, Route, Step};
use crate::shard::mailbox::LinkKey;

impl<S> DataLinks<S> {
    /// A shard says that a link has lost its socket, and keeps the link.
    pub(in crate::node) fn handle_lost(&mut self, key: &LinkKey, now: Duration, steps: &mut Vec<Step<S>>) {
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

    /// A shard says that a link is over. `is_unsaid`: it gave the link up for what came on its socket, or for want of
    /// something here, and so its other end knows nothing of it.
    pub(in crate::node) fn handle_closed(
        &mut self,
        key: &LinkKey,
        reason: &str,
        is_unsaid: bool,
        steps: &mut Vec<Step<S>>,
    ) {
        match self.links.remove(key) {
            Some(State::Closing { successor: Some(next) }) => {
                self.add(key.clone(), next, steps);
                return;
            }
            Some(state) => self.end(key, &state, reason, is_unsaid, steps),
            None => {}
        }
        let route = Route::of(key);
        if self.waiters.contains_key(&route) {
            self.dial(route, steps);
        }
    }

    /// A link is over that its shard had kept until then. The peer that dialled it hears of that when it dials again.
    fn end(
        &mut self,
        key: &LinkKey,
        state: &State<S>,
        reason: &str,
        is_unsaid: bool,
        steps: &mut Vec<Step<S>>,
    ) {
        let Some(link) = state.link() else { return };
        if !key.dialled {
            self.over.remember(&key.peer, link.id, reason);
        } else if is_unsaid {
            let (route, socket) = (Route::of(key), link.next_socket());
            steps.push(Step::Tell { route, socket, reason: reason.to_owned() });
        }
    }

    /// The end of this node that dialled a link to itself is over: so is the other.
    pub(in crate::node) fn handle_told(
        &mut self,
        key: LinkKey,
        id: u64,
        reason: String,
        steps: &mut Vec<Step<S>>,
    ) {
        if self.links.get(&key).is_some_and(|state| state.is(id)) {
            self.close(key, reason, None, steps);
        }
    }

    /// A control link shows that the peer's life is this one: links to any other lead nowhere. The latest of those that
    /// were later, by the peer's clock, than this one.
    pub(in crate::node) fn handle_life(
        &mut self,
        peer: &Name,
        epoch: u64,
        steps: &mut Vec<Step<S>>,
    ) -> Option<u64> {
        let epochs = self.links.iter().filter(|(key, _)| key.peer == *peer);
        let later = epochs.filter_map(|(_, state)| state.link()).map(|link| link.epoch).max();
        self.close_lives(peer, |other| other != epoch, steps);
        later.filter(|later| *later > epoch)
    }

    /// A data link shows a life of the peer: links to an earlier one lead nowhere. Of a later one this knows nothing.
    pub(super) fn handle_epoch(&mut self, peer: &Name, epoch: u64, steps: &mut Vec<Step<S>>) {
        self.close_lives(peer, |other| other < epoch, steps);
    }

    /// Closes the links to lives of a peer that are over.
    fn close_lives(&mut self, peer: &Name, is_over: impl Fn(u64) -> bool, steps: &mut Vec<Step<S>>) {
        let mut old = Vec::new();
        for (key, state) in self.links.iter_mut().filter(|(key, _)| key.peer == *peer) {
            if state.link().is_some_and(|link| is_over(link.epoch)) {
                old.push(key.clone());
            }
            if let State::Closing { successor } = state {
                successor.take_if(|next| is_over(next.link.epoch));
            }
        }
        for key in old {
            self.close(key, format!("node {peer} was started anew"), None, steps);
        }
    }

    /// Has a shard close a link that it has.
    pub(super) fn close(
        &mut self,
        key: LinkKey,
        reason: String,
        successor: Option<Successor<S>>,
        steps: &mut Vec<Step<S>>,
    ) {
        let old = self.links.insert(key.clone(), State::Closing { successor });
        if let Some(link) = old.as_ref().and_then(State::link)
            && !key.dialled
        {
            self.over.remember(&key.peer, link.id, &reason);
        }
        steps.push(Step::Close { key, reason });
    }
}
