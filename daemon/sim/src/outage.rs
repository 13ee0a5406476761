//! How sockets break, how the ends of a link learn of it, and how a link gets its next socket.
//!
//! The dialler tries again; the acceptor waits. An end that believes in its old socket leaves it when the next one
//! comes, with everything that it has not read. A link is over for good on an end when its grace has passed there, when
//! the other end does not know it any more, or when a newer link takes its place.

use weir_flow::ids::LinkId;
use weir_flow::wire::FrameType;

use crate::control::Message;
use crate::coverage::Mark;
use crate::faults::Sabotage;
use crate::plan::Timing;
use crate::tap::Position;
use crate::trace;
use crate::world::World;

/// How a connection breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Both ends are told, each in its time.
    Reset,
    /// This end is told, the other is not.
    HalfOpen(usize),
    /// Nobody is told.
    Silent,
}

impl World {
    /// Links that work.
    pub(crate) fn working_links(&self) -> Vec<usize> {
        (0..self.links.len()).filter(|link| self.links[*link].working().is_some()).collect()
    }

    /// Breaks the socket that both ends of a link use.
    pub(crate) fn cut(&mut self, link: usize, cut: Cut) {
        let Some(socket) = self.links[link].working() else { return };
        let Self { links, common, plan, .. } = self;
        let Some(broken) = links.get_mut(link) else { return };
        trace!(common.trace, format!("link {link}"), "socket {socket} breaks: {cut:?}");
        common.coverage.hit(match cut {
            Cut::Reset => Mark::CutReset,
            Cut::HalfOpen(_) => Mark::CutHalfOpen,
            Cut::Silent => Mark::CutSilent,
        });
        let at = &mut broken.sockets[socket];
        at.moves = false;
        at.cut_after = [None; 2];
        for end in 0..2 {
            let keep = common.rng.index(at.pipes[end].travelling() + 1);
            at.pipes[end].cut(if common.rng.chance(500) { keep } else { 0 });
            let is_told = match cut {
                Cut::Reset => true,
                Cut::HalfOpen(told) => told == end,
                Cut::Silent => false,
            };
            let delay = if common.rng.chance(500) { 0 } else { common.rng.small(200) };
            at.told[end] = is_told.then_some(common.step + delay);
            let in_flight = broken.ends[end].sending.is_some();
            common.coverage.hit_when(Mark::LinkLostInFlight, in_flight);
        }
        let outage = plan.outage(&mut common.rng);
        broken.reachable_at = common.now.after_ns(outage);
        self.note_recut(link, socket);
    }

    /// How far a socket that replaced another had come when it broke.
    fn note_recut(&mut self, link: usize, socket: usize) {
        let Self { links, common, .. } = self;
        let (link, at) = (&links[link], &links[link].sockets[socket]);
        if socket == 0 {
            return;
        }
        let coverage = &mut common.coverage;
        coverage.hit_when(Mark::RecutBeforeResume, at.resume_sent == [false; 2]);
        coverage.hit_when(Mark::RecutOneResume, at.resume_arrived[0] != at.resume_arrived[1]);
        for end in 0..2 {
            let flying = &at.pipes[end].flying;
            let lost = |frame| flying.iter().any(|flying| flying.frame == frame);
            coverage.hit_when(Mark::RecutLinkResume, lost(FrameType::LinkResume));
            coverage.hit_when(Mark::RecutResume, lost(FrameType::Resume));
            let again = flying.iter().any(|flying| flying.again) || link.once[end].to_send_again() > 0;
            coverage.hit_when(Mark::RecutControl, at.resume_arrived[1 - end] && again);
        }
    }

    /// An end closes a socket: the other end is told, or not if the network is gone.
    pub(crate) fn close_socket(&mut self, link: usize, socket: usize, by: usize) {
        let Self { links, common, plan, .. } = self;
        let Some(at) = links.get_mut(link).and_then(|link| link.sockets.get_mut(socket)) else { return };
        if !at.moves {
            return;
        }
        at.moves = false;
        let keep = common.rng.index(at.pipes[by].travelling() + 1);
        at.pipes[by].cut(keep);
        let blind = plan.timing == Timing::Quick && !common.healed && common.rng.chance(200);
        at.told[1 - by] = (!blind).then(|| common.step + common.rng.small(100));
    }

    /// The shell of an end leaves its socket; what was not read is lost.
    fn leave_socket(&mut self, link: usize, end: usize) {
        let Some(socket) = self.links[link].ends[end].socket.take() else { return };
        self.close_socket(link, socket, end);
        let Self { links, common, .. } = self;
        let at = &mut links[link];
        let coverage = &mut common.coverage;
        let pipe = &mut at.sockets[socket].pipes[1 - end];
        coverage.hit_when(Mark::OldBytesDiscarded, pipe.readable() > 0);
        coverage.hit(match pipe.read.position() {
            Position::Boundary => Mark::LostAtBoundary,
            Position::Header => Mark::LostInHeader,
            Position::Payload => Mark::LostInPayload,
            Position::Body => Mark::LostInBody,
        });
        for flying in &pipe.flying {
            let mark = match flying.frame {
                FrameType::OpenChannel => Mark::LostOpenChannel,
                FrameType::ChannelAccepted => Mark::LostChannelAccepted,
                FrameType::ChannelFailed => Mark::LostChannelFailed,
                FrameType::Cancel => Mark::LostCancel,
                FrameType::EndOfData => Mark::LostEndOfData,
                FrameType::EndAck => Mark::LostEndAck,
                FrameType::Backlog if flying.closes => Mark::LostClosed,
                FrameType::Limit => Mark::LostLimit,
                FrameType::BufferSize => Mark::LostBufferSize,
                FrameType::Event => Mark::LostEvent,
                FrameType::Goodbye => Mark::LostGoodbye,
                FrameType::Data => Mark::LostData,
                _ => continue,
            };
            coverage.hit(mark);
        }
        let unread = pipe.readable();
        pipe.read(unread, &mut at.ends[end].unread);
        pipe.reset();
        let other = &at.ends[1 - end];
        common.coverage.hit_when(Mark::LostApart, other.socket == Some(socket));
    }

    /// The result of a send that the kernel gives up.
    pub(crate) fn give_up_send(&mut self, link: usize, end: usize) {
        let Self { links, common, .. } = self;
        if let Some(sending) = &mut links[link].ends[end].sending
            && sending.result.is_none()
        {
            let (taken, left) = (sending.taken(), sending.left());
            common.coverage.hit_when(Mark::LostAfterShortWrite, taken > 0 && left > 0);
            sending.result = Some(taken);
        }
    }

    /// A shell tells its core that the socket of a link is gone, before or after it tells what became of the last send.
    pub(crate) fn report_lost(
        &mut self,
        node: usize,
        link: usize,
        end: usize,
        reason: &str,
    ) -> Result<(), String> {
        self.leave_socket(link, end);
        self.give_up_send(link, end);
        let Some(id) = self.links[link].ends[end].id else { return Ok(()) };
        trace!(self.common.trace, self.nodes[node], "link {link} lost its socket: {reason}");
        self.common.coverage.hit(Mark::LinkLost);
        self.nodes[node].ready_links.remove(&id);
        self.nodes[node].suspended.remove(&id);
        self.nodes[node].shard.handle_link_lost(id, reason, self.common.now);
        if self.links[link].ends[end].sending.is_some() {
            self.common.coverage.hit(Mark::LostBeforeSent);
            self.links[link].ends[end].is_losing = true;
            return Ok(());
        }
        self.finish_loss(node, link, end, id)
    }

    /// The core knows that the socket is gone and what became of the last send.
    pub(crate) fn finish_loss(
        &mut self,
        node: usize,
        link: usize,
        end: usize,
        id: LinkId,
    ) -> Result<(), String> {
        self.links[link].ends[end].is_losing = false;
        self.links[link].left(end);
        self.absorb(node)?;
        let draining = self.nodes[node].draining || self.links[link].ends[end].goodbye;
        let waits = self.nodes[node].suspended.contains(&id);
        if waits && draining {
            return Err(format!("{}: link {link} waits for a socket after Goodbye", self.nodes[node]));
        }
        if !self.links[link].ends[end].closed && !waits {
            // It is not to come back, which is only right if one end is stopping or there is no grace.
            if !draining && self.plan.limits.link_grace_ns > 0 {
                return Err(format!("{}: link {link} was closed with its socket", self.nodes[node]));
            }
            self.common.coverage.hit_when(Mark::LostAfterGoodbye, draining);
            self.over(link, end);
        }
        if end == 0 && !self.links[link].ends[0].closed {
            let delay = if self.common.rng.chance(500) { 0 } else { self.common.rng.small(50) };
            self.links[link].redial = Some(self.common.step + delay);
        }
        Ok(())
    }

    /// The link is over for good on this end, for a reason that was looked at.
    pub(crate) fn over(&mut self, link: usize, end: usize) {
        self.leave_socket(link, end);
        self.links[link].left(end);
        self.links[link].ends[end].is_losing = false;
        self.give_up_send(link, end);
        if let Some(socket) = self.links[link].ends[end].next_socket.take() {
            self.close_socket(link, socket, end);
        }
        self.common.model.causes.links_lost.insert(link);
        let at = &mut self.links[link].ends[end];
        at.closed = true;
        if let Some(id) = at.id {
            let node = &mut self.nodes[at.node];
            node.ready_links.remove(&id);
            if at.sending.is_none() {
                node.links.remove(&id);
            }
        }
    }

    /// A shell tells its core that a link is over for good.
    pub(crate) fn report_closed(&mut self, node: usize, link: usize, end: usize, reason: &str) {
        let at = &self.links[link].ends[end];
        let (Some(id), false) = (at.id, at.closed) else { return };
        trace!(self.common.trace, self.nodes[node], "link {link} is closed: {reason}");
        self.common.coverage.hit_when(Mark::ClosedBeforeSent, at.sending.is_some());
        self.common.coverage.hit_when(Mark::ClosedSuspended, at.socket.is_none());
        self.nodes[node].shard.handle_link_closed(id, reason, self.common.now);
        self.over(link, end);
    }

    /// The core says that the grace of a link has passed.
    pub(crate) fn expired(&mut self, node: usize, id: LinkId) -> Result<(), String> {
        let Some((link, end)) = self.nodes[node].links.get(&id).copied() else { return Ok(()) };
        let (at, other) = (&self.links[link].ends[end], &self.links[link].ends[1 - end]);
        let silent = self.common.now.since_ns(at.heard);
        let draining = self.nodes[node].draining || at.goodbye;
        if !draining && silent < self.plan.limits.link_grace_ns {
            return Err(format!(
                "{}: link {link} was given up {silent} ns after it was heard",
                self.nodes[node]
            ));
        }
        if !draining {
            let both = other.closed;
            let one = if end == 0 { Mark::DiallerExpired } else { Mark::AcceptorExpired };
            self.common.coverage.hit(if both { Mark::BothExpired } else { one });
        }
        self.over(link, end);
        Ok(())
    }

    /// No link waits for longer than its grace.
    pub(crate) fn check_grace(&self, node: usize) -> Result<(), String> {
        for (link, end) in self.nodes[node].links.values() {
            let at = &self.links[*link].ends[*end];
            let silent = self.common.now.since_ns(at.heard.max(at.connected));
            let waits = at.socket.is_none() && !at.is_losing && !at.closed;
            if waits && silent > self.plan.limits.link_grace_ns {
                return Err(format!(
                    "{}: link {link} waits {silent} ns after it was heard",
                    self.nodes[node]
                ));
            }
        }
        Ok(())
    }

    /// A shell gets a socket for a link. One that it still believes in is left first, with all that was not read.
    pub(crate) fn add_socket(&mut self, link: usize, end: usize, socket: usize) {
        if self.links[link].ends[end].closed || self.links[link].ends[end].id.is_none() {
            self.common.coverage.hit(Mark::ResumedTooLate);
            self.close_socket(link, socket, end);
            return;
        }
        if let Some(older) = self.links[link].ends[end].next_socket.replace(socket) {
            self.close_socket(link, older, end);
        }
        if let Some(old) = self.links[link].ends[end].socket {
            let at = &mut self.links[link].sockets[old];
            let believes = !at.is_told(end, self.common.step, self.common.healed);
            self.common.coverage.hit_when(Mark::Superseded, believes);
            let unread = at.pipes[1 - end].readable() > 0;
            self.common.coverage.hit_when(Mark::SupersededUnread, believes && unread);
            // The shell leaves it as soon as it has the result of its last send.
            at.moves = false;
            at.told[end] = Some(0);
        }
    }

    /// A shell gives a link its next socket.
    pub(crate) fn adopt(&mut self, node: usize, link: usize, end: usize) -> Result<(), String> {
        let at = &mut self.links[link].ends[end];
        let (Some(socket), Some(id)) = (at.next_socket.take(), at.id) else { return Ok(()) };
        let resumed = self.nodes[node].shard.handle_link_resumed(id, self.common.now);
        trace!(self.common.trace, self.nodes[node], "link {link} gets socket {socket}: {resumed}");
        if resumed {
            let at = &mut self.links[link].ends[end];
            (at.socket, at.connected) = (Some(socket), self.common.now);
            at.closes_first = self.common.rng.chance(300);
            let both =
                self.links[link].books.iter().all(|book| book.lines().any(|line| line.sent.payload > 0));
            self.common.coverage.hit_when(Mark::ResumedBothWays, both);
            return self.read_old(node, link, end, id);
        }
        self.common.coverage.hit(Mark::ResumedTooLate);
        self.close_socket(link, socket, end);
        self.absorb(node)?;
        if self.links[link].ends[end].closed {
            return Ok(());
        }
        Err(format!("{}: link {link} did not take a socket; it is not closed", self.nodes[node]))
    }

    /// The canary: what was left in the old socket is read after all.
    fn read_old(&mut self, node: usize, link: usize, end: usize, id: LinkId) -> Result<(), String> {
        let unread = std::mem::take(&mut self.links[link].ends[end].unread);
        if unread.is_empty() || !self.common.sabotage(Sabotage::ReadOldSocket) {
            return Ok(());
        }
        let shell = &mut self.nodes[node];
        let result = shell.shard.handle_received(id, &unread, &mut shell.regions, self.common.now);
        result.map_err(|error| format!("{shell}: link {link}: {error}"))
    }

    /// Diallers whose links have no socket try again.
    pub(crate) fn redial(&mut self) {
        for link in 0..self.links.len() {
            let Self { links, common, .. } = self;
            let at = &mut links[link];
            let Some(due) = at.redial.filter(|due| common.healed || *due <= common.step) else { continue };
            let dialler = &at.ends[0];
            if dialler.closed || dialler.socket.is_some() || dialler.next_socket.is_some() {
                at.redial = None;
                continue;
            }
            let unreachable = common.now < at.reachable_at && due != u64::MAX || common.rng.chance(100);
            let unborn = at.ends[1].id.is_none() && !at.ends[1].closed;
            if !common.healed && unreachable || unborn {
                at.redial = Some(common.step + common.rng.small(100));
                continue;
            }
            at.redial = None;
            // What the control thread knows of a shard's links is a little old.
            if at.ends[1].closed && (common.healed || common.rng.chance(800)) {
                common.coverage.hit(Mark::DialRefused);
                let node = at.ends[0].node;
                self.post(node, 0, Message::CloseLink(link, 0, "the peer does not know it any more"));
                continue;
            }
            self.dialled(link);
        }
    }

    /// A dial has succeeded: both ends get the socket, each in its time.
    fn dialled(&mut self, link: usize) {
        let Self { links, common, plan, .. } = self;
        let at = &mut links[link];
        let socket = at.connect();
        trace!(common.trace, format!("link {link}"), "socket {socket}");
        if !common.healed && common.rng.chance(plan.faults.recut) {
            let end = common.rng.index(2);
            at.sockets[socket].cut_after[end] = Some(common.rng.small(1_500) as u32);
        }
        // The connection breaks behind the handshake: the acceptor has it, the dialler not.
        let stillborn = !common.healed && common.rng.chance(plan.faults.recut / 4);
        let nodes = [at.ends[0].node, at.ends[1].node];
        let delays = [0, 1].map(|_| if common.rng.chance(500) { 0 } else { common.rng.small(100) });
        if stillborn {
            common.coverage.hit(Mark::Stillborn);
            at.sockets[socket].moves = false;
            at.sockets[socket].told[1] = Some(common.step + delays[1] + common.rng.small(100));
            at.redial = Some(common.step + common.rng.small(100));
        } else {
            self.post(nodes[0], delays[0], Message::AddSocket(link, 0, socket));
        }
        self.post(nodes[1], delays[1], Message::AddSocket(link, 1, socket));
    }

    /// A node is killed and started anew: everything of it is lost.
    pub(crate) fn restart(&mut self, number: u16) {
        let places: Vec<_> =
            (0..self.nodes.len()).filter(|node| self.nodes[*node].place.node == number).collect();
        if places.is_empty() {
            return;
        }
        self.common.coverage.hit(Mark::Restarted);
        trace!(self.common.trace, "control", "node {number} is started anew");
        for node in &places {
            self.restart_clients(*node);
            self.control.forget(*node);
            let place = self.nodes[*node].place;
            self.nodes[*node] = crate::node::Node::new(place, self.plan.limits.clone());
        }
        for link in 0..self.links.len() {
            for end in 0..2 {
                if !places.contains(&self.links[link].ends[end].node) {
                    continue;
                }
                let was_open = !self.links[link].ends[end].closed;
                self.leave_socket(link, end);
                let at = &mut self.links[link].ends[end];
                (at.id, at.sending, at.closed, at.is_losing) = (None, None, true, false);
                self.links[link].left(end);
                let at = &mut self.links[link].ends[end];
                if let Some(socket) = at.next_socket.take() {
                    self.close_socket(link, socket, end);
                }
                self.common.model.causes.links_lost.insert(link);
                let other = self.links[link].ends[1 - end].node;
                // The node's new epoch is heard of, or not before the grace is over.
                if was_open && !places.contains(&other) && self.common.rng.chance(600) {
                    self.common.coverage.hit(Mark::EpochHeard);
                    let delay = self.common.rng.small(300);
                    self.post(other, delay, Message::CloseLink(link, 1 - end, "the node was started anew"));
                }
            }
        }
    }
}
