//! Frames that happen once, as an analyser sees them: over all sockets of a link each of them takes effect once and in
//! order, and each is sent again until the other end has it.

use weir_flow::wire::{Header, Message, encode};

/// The frames of one end that happen once.
#[derive(Debug, Default)]
pub struct Once {
    /// Every frame that was sent whole, in order.
    log: Vec<Vec<u8>>,
    /// How many were sent, the one included that was sent in part.
    begun: usize,
    /// How many the other end has read whole.
    arrived: usize,
    /// Which one comes next on the socket; none until the other end has said how many it has.
    next: Option<usize>,
    /// The first socket is in use.
    is_first: bool,
}

impl Once {
    /// Whether the frame was sent before, at least in part, on an earlier socket.
    #[must_use]
    pub fn is_again(&self, header: &Header) -> bool {
        header.frame_type.happens_once() && self.next.is_some_and(|next| next < self.begun)
    }

    /// The first byte of a frame is sent. Whether it was sent before, on an earlier socket.
    pub fn begun(&mut self, header: &Header, is_resumed: bool) -> Result<bool, String> {
        if !is_resumed && !self.is_first {
            self.is_first = true;
            self.next = Some(0);
        }
        if header.frame_type.happens_once() && self.next.is_none() {
            return Err(format!(
                "wire: {} before the other end said how many such frames it has",
                header.frame_type
            ));
        }
        let again = self.is_again(header);
        if header.frame_type.happens_once() {
            self.begun = self.begun.max(self.next.unwrap_or_default() + 1);
        }
        Ok(again)
    }

    /// The last byte of a frame is sent. Whether it was sent before, on an earlier socket.
    pub fn sent(&mut self, header: &Header, message: &Message) -> Result<bool, String> {
        let Some(next) = self.next.as_mut().filter(|_| header.frame_type.happens_once()) else {
            return Ok(false);
        };
        let mut bytes = Vec::new();
        encode(message, &mut bytes);
        let number = *next;
        *next += 1;
        match self.log.get(number) {
            None => {
                self.log.push(bytes);
                Ok(false)
            }
            Some(before) if *before == bytes => Ok(true),
            Some(_) => {
                Err(format!("wire: {message:?} was sent again as number {number}, which was another frame"))
            }
        }
    }

    /// A frame was read whole.
    pub fn arrived(&mut self, header: &Header) {
        self.arrived += usize::from(header.frame_type.happens_once());
    }

    /// The other end says on the wire how many it has.
    pub fn check_received(&self, received: u64) -> Result<(), String> {
        if received == self.arrived as u64 {
            return Ok(());
        }
        Err(format!("wire: LinkResume says {received} frames arrived; it were {}", self.arrived))
    }

    /// The other end has said how many it has: the next ones are sent again.
    pub fn resume(&mut self, received: u64) {
        self.next = Some(received as usize);
    }

    /// The socket is gone.
    pub const fn lost(&mut self) {
        self.next = None;
        self.is_first = true;
    }

    /// How many are still to be sent again on the socket.
    #[must_use]
    pub fn to_send_again(&self) -> usize {
        self.next.map_or(0, |next| self.log.len().saturating_sub(next))
    }

    /// Whether the other end has all that was sent.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.arrived == self.log.len()
    }

    /// How many were sent and how many arrived.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.log.len(), self.arrived)
    }
}
