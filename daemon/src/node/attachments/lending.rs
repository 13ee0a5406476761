//! Which gate gets the region of which partition to read.

use std::os::fd::OwnedFd;

use super::{Attachment, Attachments, Place};
use crate::attach::create::Lending;
use crate::shard::mailbox::RingKey;

impl Attachments {
    /// What lends the region of the partition in this place to the gate of this ring, and the socket by which the gate's
    /// client gets it. None unless both clients are of one user: to anybody else the region would show what the producer
    /// has not handed over.
    pub(in crate::node) fn lend(&self, producer: &Place, gate: RingKey) -> Option<(&OwnedFd, &OwnedFd)> {
        let (lender, key) = self.holder(producer)?;
        let borrower = self.by_id.get(&gate.attachment)?;
        match (lender.lending(key.ring)?, borrower.lending(gate.ring)?) {
            (Lending::Region(Some(region)), Lending::Socket(socket))
                if lender.credentials.uid == borrower.credentials.uid =>
            {
                Some((region, socket))
            }
            _ => None,
        }
    }
}

impl Attachment {
    fn lending(&self, ring: u32) -> Option<&Lending> {
        self.rings.get(&ring)?.memory.as_ref()?.lending.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::fd::AsFd;

    use weir_flow::catalog::{GateKey, PartitionKey};
    use weir_flow::exchange::Name;
    use weir_flow::ids::{ConsumerIndex, ProducerIndex};
    use weir_ipc::attach::socket::region_pair;

    use super::super::RingMemory;
    use super::super::tasks::Tasks;
    use super::*;
    use crate::attach::listener::Credentials;
    use crate::memory::Backing;
    use crate::shard::mailbox::AttachmentId;

    /// A client of this user with one ring that has memory.
    fn attach(attachments: &mut Attachments, id: u64, uid: u32, place: &Place, lending: Lending) -> RingKey {
        let key = RingKey { attachment: AttachmentId(id), ring: 0 };
        let client = Attachment {
            credentials: Credentials { pid: None, uid },
            process_name: String::new(),
            shard: Some(0),
            answers: None,
            tasks: Tasks::default(),
            cells: None,
            rings: BTreeMap::new(),
        };
        attachments.by_id.insert(key.attachment, client);
        attachments.insert_ring(key, (1, 0), place.clone(), None);
        let memory = RingMemory {
            reservation: weir_flow::pool::budget::NodeBudget::new(1).reserve("test".into(), 1).unwrap(),
            backing: Backing::Ordinary,
            nodes: Default::default(),
            watch: None,
            lending: Some(lending),
        };
        attachments.ring_mut(key).unwrap().memory = Some(memory);
        key
    }

    #[test]
    fn a_region_is_lent_to_processes_of_its_own_user_only() {
        let exchange: Name = "x".parse().unwrap();
        let producer =
            Place::Partition(PartitionKey { exchange: exchange.clone(), producer: ProducerIndex(0) });
        let mut attachments = Attachments::default();
        let region = || Lending::Region(Some(std::fs::File::open("/dev/null").unwrap().into()));
        attach(&mut attachments, 1, 1000, &producer, region());
        for (id, uid, is_lent) in [(2, 1000, true), (3, 1001, false), (4, 0, false)] {
            let place =
                Place::Gate(GateKey { exchange: exchange.clone(), consumer: ConsumerIndex(id as u32) });
            let gate = attach(&mut attachments, id, uid, &place, Lending::Socket(region_pair().unwrap().0));
            let lent = attachments.lend(&producer, gate);
            assert_eq!(
                lent.map(|(region, _)| region.as_fd().try_clone_to_owned().is_ok()),
                is_lent.then_some(true)
            );
        }
        // Where the region could not be opened again there is nothing to lend.
        let other = Place::Partition(PartitionKey { exchange, producer: ProducerIndex(1) });
        attach(&mut attachments, 5, 1000, &other, Lending::Region(None));
        assert!(attachments.lend(&other, RingKey { attachment: AttachmentId(2), ring: 0 }).is_none());
    }
}
