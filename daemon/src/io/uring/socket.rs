//! The table of sockets.

use std::os::fd::{AsRawFd, OwnedFd};

use super::queue::Queue;
use crate::io::{Errno, RingError, SendBatch, SocketSlot};

/// Whether and how a socket receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiving {
    /// Not asked for.
    Off,
    /// The kernel has an entry for it.
    Armed,
    /// It waits until there is memory to receive into.
    Starved,
    /// It waits until its last chunk is released.
    Held,
    /// The stream has ended, or failed.
    Ended,
}

/// What the kernel reads to know what to send. It must not move while a send is in flight.
pub(super) struct Message {
    pub(super) header: libc::msghdr,
    pub(super) parts: Vec<libc::iovec>,
}

/// One socket, or a free place.
pub(super) struct Socket {
    generation: u16,
    /// None: the place is free.
    pub(super) descriptor: Option<OwnedFd>,
    pub(super) closing: bool,
    pub(super) message: Box<Message>,
    /// The batch in flight.
    pub(super) batch: Option<SendBatch>,
    /// The place that is kept for it among those that the kernel may go on reading, if it is sent without a copy.
    pub(super) hold: Option<u32>,
    pub(super) receiving: Receiving,
    /// Where it receives into, if that is its own.
    pub(super) staging: Option<u32>,
    /// Cancellations in flight.
    pub(super) cancellations: u32,
}

impl Socket {
    fn new() -> Self {
        // SAFETY: all zeroes is a msghdr without name, vectors and control data.
        let header = unsafe { std::mem::zeroed() };
        Self {
            generation: 0,
            descriptor: None,
            closing: false,
            message: Box::new(Message { header, parts: Vec::new() }),
            batch: None,
            hold: None,
            receiving: Receiving::Off,
            staging: None,
            cancellations: 0,
        }
    }

    /// Whether the kernel has an entry for it.
    pub(super) fn is_busy(&self) -> bool {
        self.batch.is_some() || self.receiving == Receiving::Armed || self.cancellations > 0
    }
}

/// All sockets of a ring. A socket's place is also its index in the kernel's table of fixed files.
#[derive(Default)]
pub(super) struct Sockets {
    table: Vec<Socket>,
    free: Vec<u16>,
    limit: u16,
}

impl Sockets {
    pub(super) fn new(limit: u16) -> Self {
        Self { table: Vec::new(), free: Vec::new(), limit }
    }

    pub(super) fn add(&mut self, queue: &mut Queue, descriptor: OwnedFd) -> Result<SocketSlot, RingError> {
        let place = match self.free.pop() {
            Some(place) => place,
            None => self.grow()?,
        };
        if let Err(errno) = queue.set_file(place, descriptor.as_raw_fd()) {
            self.free.push(place);
            return Err(RingError::socket("io_uring_register(FILES_UPDATE)", errno));
        }
        let Some(socket) = self.table.get_mut(usize::from(place)) else {
            return Err(RingError::socket("table of sockets", Errno(libc::EMFILE)));
        };
        socket.descriptor = Some(descriptor);
        socket.closing = false;
        socket.receiving = Receiving::Off;
        Ok(SocketSlot::new(place, socket.generation))
    }

    fn grow(&mut self) -> Result<u16, RingError> {
        match u16::try_from(self.table.len()) {
            Ok(place) if place < self.limit => {
                self.table.push(Socket::new());
                Ok(place)
            }
            _ => {
                let text = format!("table of sockets: {} are open, which is all it has room for", self.limit);
                Err(RingError::socket(text, Errno(libc::EMFILE)))
            }
        }
    }

    /// The socket that this slot names, closing or not.
    pub(super) fn get_mut(&mut self, slot: SocketSlot) -> Option<&mut Socket> {
        let socket = self.table.get_mut(slot.index())?;
        (socket.descriptor.is_some() && socket.generation == slot.generation()).then_some(socket)
    }

    /// The socket in this place, with its slot.
    pub(super) fn at_mut(&mut self, place: u16) -> Option<(SocketSlot, &mut Socket)> {
        let socket = self.table.get_mut(usize::from(place))?;
        let slot = SocketSlot::new(place, socket.generation);
        socket.descriptor.is_some().then_some((slot, socket))
    }

    /// Slots of all sockets that are open or closing.
    pub(super) fn slots(&self) -> Vec<SocketSlot> {
        let named = |(place, socket): (usize, &Socket)| {
            let place = u16::try_from(place).ok()?;
            socket.descriptor.as_ref().map(|_| SocketSlot::new(place, socket.generation))
        };
        self.table.iter().enumerate().filter_map(named).collect()
    }

    /// Closes the descriptor and frees the place. Only for a socket that is not busy.
    pub(super) fn remove(&mut self, queue: &Queue, slot: SocketSlot) {
        let Some(socket) = self.get_mut(slot) else {
            return;
        };
        socket.generation = socket.generation.wrapping_add(1);
        socket.descriptor = None;
        let place = slot.index() as u16;
        // A place that the kernel does not free cannot be used again.
        if queue.set_file(place, -1).is_ok() {
            self.free.push(place);
        }
    }
}
