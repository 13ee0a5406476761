//! What clients say of their waits, from shared memory to the core.
//!
//! The shard looks at a partition whenever it serves it: when its client has submitted something, as it does before and
//! after a wait, and when something is published to it, as what ends a wait always is. In between the channel has mostly
//! one cause to wait, and the wait goes to that. Of the subpartitions only those are looked at that the client has
//! waited for since; all of them when somebody asks for the state of the shard.

use weir_flow::ids::{PartitionId, SubpartitionIndex, Time};
use weir_flow::shard::Shard;
use weir_flow::stall::emit::{EmitClaims, WaitCount, WaitKind};
use weir_ipc::IpcFault;
use weir_ipc::wait_cell::{self, WaitTotal, Waits};

use super::rings::PartitionRing;
use super::run::ShardLoop;
use crate::io::Ring;

/// What was seen of the waits of a partition's client.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SeenWaits {
    /// Number of the last change that was looked at.
    sequence: u64,
    /// A wait went on then.
    is_waiting: bool,
}

impl<R: Ring> ShardLoop<R> {
    /// Looks at the waits of every client, and at all their subpartitions.
    pub(super) fn look_at_all_waits(&mut self, now: Time) {
        let mut distrusted = Vec::new();
        for (id, partition) in &mut self.rings.partitions {
            if !partition.is_open {
                continue;
            }
            let looked = look(&mut self.core, *id, partition, now).and_then(|()| {
                (0..partition.builders)
                    .try_for_each(|builder| look_at(&mut self.core, *id, partition, builder, now).map(drop))
            });
            distrusted.extend(looked.err().map(|fault| (partition.key, fault)));
        }
        for (key, fault) in distrusted {
            self.distrust(key.attachment, fault.to_string(), now);
        }
    }
}

/// Looks at the waits of a partition's client, if anything has changed since the last time or a wait goes on.
///
/// # Errors
/// What the client says cannot be: detach it.
pub(super) fn look(
    core: &mut Shard,
    id: PartitionId,
    partition: &mut PartitionRing,
    now: Time,
) -> Result<(), IpcFault> {
    let sequence = partition.endpoint.waits().sequence();
    if sequence == partition.waits.sequence && !partition.waits.is_waiting {
        return Ok(());
    }
    let before = core.waiting_builder(id).map_or(0, |builder| builder.0);
    let Some(seen) = look_at(core, id, partition, before, now)? else { return Ok(()) };
    let open = seen.open.and_then(|(kind, _)| kind.subpartition());
    for builder in open.into_iter().chain([seen.last]) {
        if builder != before {
            look_at(core, id, partition, builder, now)?;
        }
    }
    partition.waits = SeenWaits { sequence, is_waiting: seen.open.is_some() };
    Ok(())
}

/// Hands the core what the client says, with the numbers of this builder.
fn look_at(
    core: &mut Shard,
    id: PartitionId,
    partition: &PartitionRing,
    builder: u32,
    now: Time,
) -> Result<Option<Waits>, IpcFault> {
    let Some(waits) = partition.endpoint.waits().read(builder)? else { return Ok(None) };
    core.handle_emit_claims(id, SubpartitionIndex(builder), &claims(&waits), now);
    Ok(Some(waits))
}

fn claims(waits: &Waits) -> EmitClaims {
    let open = waits.open.map(|(kind, since_ns)| (kind_of(kind), Time(since_ns)));
    EmitClaims {
        open,
        pool: count(waits.pool),
        any: count(waits.any),
        ring: count(waits.ring),
        quota: count(waits.quota),
        event: count(waits.event),
    }
}

fn count(total: WaitTotal) -> WaitCount {
    WaitCount { ns: total.ns, count: total.count }
}

fn kind_of(kind: wait_cell::WaitKind) -> WaitKind {
    match kind {
        wait_cell::WaitKind::Pool => WaitKind::Pool,
        wait_cell::WaitKind::Any => WaitKind::Any,
        wait_cell::WaitKind::Ring => WaitKind::Ring,
        wait_cell::WaitKind::Quota(subpartition) => WaitKind::Quota(SubpartitionIndex(subpartition)),
        wait_cell::WaitKind::Event(subpartition) => WaitKind::Event(SubpartitionIndex(subpartition)),
    }
}
