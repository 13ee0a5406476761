//! The regions of producers on the same node that a gate reads.
//!
//! The daemon puts each on the gate's region socket before the first slice that lies in it. It is looked for then, and
//! unmapped when its channel is over: until then its memory is charged to the producer, even if that is long dead.
//!
//! A producer is a process of the same user, and can change its region at any time, also what it has handed over. If it
//! takes pages away the kernel fills in zeros; if those were hugepages and none is free, this process gets SIGBUS.

use std::os::fd::OwnedFd;

use weir_flow::exchange::Shape;
use weir_flow::ids::{ConsumerIndex, ProducerIndex};
use weir_ipc::attach::socket::{AttachError, receive_region};
use weir_ipc::region::ReceiveMapping;

use crate::error::Error;

/// One channel's part.
enum Lent {
    /// Nothing was read of it.
    Nothing,
    /// This came for it, and nothing was read of it.
    Offered(OwnedFd),
    /// It is being read.
    Mapped(ReceiveMapping),
    /// It is over.
    Over,
}

/// The regions of a gate's producers, by channel.
pub(crate) struct LentRegions {
    socket: OwnedFd,
    shape: Shape,
    consumer: u32,
    channels: Vec<Lent>,
}

impl LentRegions {
    /// No region so far. `socket` is where they come.
    pub(crate) fn new(socket: OwnedFd, shape: Shape, consumer: u32, channels: u32) -> Self {
        Self { socket, shape, consumer, channels: (0..channels).map(|_| Lent::Nothing).collect() }
    }

    /// The region of a channel that was begun.
    #[inline]
    pub(crate) fn mapping(&self, channel: u32) -> Option<&ReceiveMapping> {
        match self.channels.get(channel as usize) {
            Some(Lent::Mapped(mapping)) => Some(mapping),
            _ => None,
        }
    }

    /// A slice of this channel was delivered. How many bytes its region has.
    pub(crate) fn begin(&mut self, channel: u32) -> Result<u64, Error> {
        if let Some(mapping) = self.mapping(channel) {
            return Ok(mapping.len());
        }
        self.receive()?;
        let missing =
            || Error::protocol(format!("a slice lies in the region of channel {channel}, which has none"));
        let lent = self.channels.get_mut(channel as usize).ok_or_else(missing)?;
        match std::mem::replace(lent, Lent::Nothing) {
            Lent::Offered(region) => {
                let mapping = ReceiveMapping::map(region, 1)
                    .map_err(|cause| Error::os("mapping the region of a producer", cause))?;
                let bytes = mapping.len();
                *lent = Lent::Mapped(mapping);
                Ok(bytes)
            }
            before => {
                *lent = before;
                Err(missing())
            }
        }
    }

    /// Takes what is there. Of several regions of one producer, lives that came to nothing went before.
    fn receive(&mut self) -> Result<(), Error> {
        loop {
            let (region, descriptor) = match receive_region(&self.socket) {
                Ok(received) => received,
                Err(AttachError::WouldBlock | AttachError::Closed) => return Ok(()),
                Err(error) => return Err(Error::protocol(error.to_string())),
            };
            let (producer, consumer) = (ProducerIndex(region.producer), ConsumerIndex(self.consumer));
            let channel = self.shape.channel(consumer, producer);
            let lent = channel.and_then(|channel| self.channels.get_mut(channel as usize));
            if let Some(lent @ (Lent::Nothing | Lent::Offered(_))) = lent {
                *lent = Lent::Offered(descriptor);
            }
        }
    }

    /// Nothing more is read of a channel.
    pub(crate) fn end(&mut self, channel: u32) {
        if let Some(lent) = self.channels.get_mut(channel as usize) {
            *lent = Lent::Over;
        }
    }
}
