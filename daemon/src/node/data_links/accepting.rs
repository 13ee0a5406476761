//! Links that peers dial: new ones, and further sockets of those that are there.

use std::time::Duration;

use super::link::{Link, State, Successor};
use super::{Arrival, DataLinks, Refusal, Step};
use crate::link::dial::Backoff;
use crate::shard::mailbox::LinkKey;

impl<S> DataLinks<S> {
    /// A peer has dialled: a new link, or another socket for one.
    ///
    /// # Errors
    /// The peer wants to go on with a link that is over, or another node of its name was started later.
    pub(in crate::node) fn handle_accepted(
        &mut self,
        key: LinkKey,
        arrival: Arrival<S>,
        steps: &mut Vec<Step<S>>,
    ) -> Result<(), Refusal<S>> {
        self.handle_epoch(&key.peer, arrival.epoch, steps);
        let links = self.links.iter().filter(|(of, _)| of.peer == key.peer);
        let later = links.filter_map(|(_, state)| state.link()).map(|link| link.epoch).max();
        if let Some(later) = later.filter(|later| *later > arrival.epoch) {
            let reason = format!(
                "a later node of this name is linked, started at {later} ns since 1970, this one at {}; needed: a name \
                 for each, or a clock that is not set back",
                arrival.epoch
            );
            return Err(Refusal { socket: arrival.socket, reason });
        }
        if arrival.name.resumes > 0 {
            return self.accept_next(key, arrival, steps);
        }
        self.accept_new(key, arrival, steps);
        Ok(())
    }

    /// A peer has dialled a new link. It takes the place of an older one that the same end dialled.
    fn accept_new(&mut self, key: LinkKey, arrival: Arrival<S>, steps: &mut Vec<Step<S>>) {
        let Arrival { socket, name, epoch, peer_grace, at } = arrival;
        let link = Link { id: name.link, epoch, resumes: 0, since: at, backoff: Backoff::default() };
        let new = Successor { link, socket, peer_grace };
        match self.links.get_mut(&key) {
            Some(State::Closing { successor }) => *successor = Some(new),
            Some(State::Up(_) | State::Lost(_) | State::Replacing { .. }) => {
                self.close(key, "its dialler has replaced it by a newer link".to_owned(), Some(new), steps);
            }
            None | Some(State::Dialling { .. }) => self.add(key, new, steps),
        }
    }

    /// A peer has dialled another socket for one of its links.
    fn accept_next(
        &mut self,
        key: LinkKey,
        arrival: Arrival<S>,
        steps: &mut Vec<Step<S>>,
    ) -> Result<(), Refusal<S>> {
        let Arrival { socket, name, at, .. } = arrival;
        match self.links.remove(&key) {
            Some(state) if state.is(name.link) => {
                self.replace(key, state, name.resumes, (socket, at), steps);
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
                let reason = self.over.reason(&key.peer, name.link);
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
        (socket, at): (S, Duration),
        steps: &mut Vec<Step<S>>,
    ) {
        match state {
            State::Up(link) if resumes > link.resumes => {
                steps.push(Step::Suspend { key: key.clone() });
                let link = Link { resumes, since: at, ..link };
                self.links.insert(key, State::Replacing { link, socket });
            }
            State::Replacing { link, .. } if resumes > link.resumes => {
                let link = Link { resumes, since: at, ..link };
                self.links.insert(key, State::Replacing { link, socket });
            }
            State::Lost(link) if resumes > link.resumes => {
                self.resume(key, Link { resumes, since: at, ..link }, socket, steps);
            }
            other => {
                self.links.insert(key, other);
            }
        }
    }
}
