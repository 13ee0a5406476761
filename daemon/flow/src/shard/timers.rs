//! What happens by time alone: signs of life on links, acknowledgements that waited for company, periods of debloating.

use super::{Notice, Shard};
use crate::ids::{LinkId, Time};
use crate::recv::grant::Urgency;

impl Shard {
    /// When [`Self::handle_timeout`] is due, and for what.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        let limit = self.delayed.front().map(|(deadline, _)| (*deadline, "limit"));
        let debloat = self.debloats.front().map(|(deadline, _)| (*deadline, "debloat period"));
        [limit, debloat, self.link_deadline].into_iter().flatten().min_by_key(|(deadline, _)| *deadline)
    }

    /// Time passed. May be called early or late.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some((deadline, key)) = self.delayed.front().copied() {
            if deadline > now {
                break;
            }
            self.delayed.pop_front();
            let Self { limits, gates, links, .. } = self;
            let Some(gate) = gates.get_mut(key.gate) else { continue };
            let ready = gate.ready(key.channel);
            let Some(channel) = gate.channel_mut(key.channel) else { continue };
            channel.is_limit_delayed = false;
            let urgency = channel.urgency(ready, limits.event_window, limits.segment_bytes);
            if urgency == Urgency::Nothing || channel.is_limit_due || !channel.is_connected() {
                continue;
            }
            let Some((link_id, _)) = channel.channel else { continue };
            if let Some(link) = links.get_mut(link_id) {
                channel.is_limit_due = true;
                link.limits.push_back(key);
            }
            links.list(link_id);
        }
        self.end_debloat_periods(now);
        if self.link_deadline.is_some_and(|(deadline, _)| deadline <= now) {
            self.expire_links(now);
            self.look_at_links(now);
        }
    }

    fn look_at_links(&mut self, now: Time) {
        let Self { limits, links, notices, .. } = self;
        for (id, link) in links.table.iter_mut() {
            if !link.has_socket() || link.is_timed_out || link.spec.is_local {
                continue;
            }
            let silent_ns = now.since_ns(link.last_received);
            let stuck_ns = if link.batch.is_in_flight { now.since_ns(link.batch.in_flight_since) } else { 0 };
            if silent_ns >= limits.peer_timeout_ns {
                link.is_timed_out = true;
                notices.push_back(Notice::LinkTimedOut { link: LinkId(id), silent_ns });
            } else if stuck_ns >= limits.peer_timeout_ns {
                // Its signs of life put off the timeout of TCP; the memory of what it does not take must come back.
                link.is_timed_out = true;
                notices.push_back(Notice::LinkStuck { link: LinkId(id), stuck_ns });
            } else if now.since_ns(link.last_ping) >= limits.ping_interval_ns {
                link.ping = Some(now.0);
                link.last_ping = now;
                if !link.is_listed && link.has_work() {
                    link.is_listed = true;
                    links.listed.push(LinkId(id));
                }
            }
        }
        self.update_link_deadline();
    }

    /// Looks up which link needs a look next. Links are few, and this runs when one came, went or was looked at.
    pub(super) fn update_link_deadline(&mut self) {
        let Self { limits, links, link_deadline, .. } = self;
        *link_deadline = links
            .table
            .iter()
            .filter(|(_, link)| {
                !link.spec.is_local && link.is_open() && !(link.has_socket() && link.is_timed_out)
            })
            .map(|(_, link)| {
                if !link.has_socket() {
                    return (link.last_heard.after_ns(link.grace_ns(limits.link_grace_ns)), "link grace");
                }
                let ping = (link.last_ping.after_ns(limits.ping_interval_ns), "ping");
                let lost = (link.last_received.after_ns(limits.peer_timeout_ns), "peer timeout");
                if ping.0 <= lost.0 { ping } else { lost }
            })
            .min();
    }
}
