//! Reads frames off a byte stream, as a network analyser would: it sees the same bytes as the two ends and keeps its
//! own idea of where frames begin and end. It holds control bodies only; payload is counted, not kept.

use weir_flow::wire::{FrameType, HEADER_BYTES, Header, Message, decode};

/// What has passed a tap.
#[derive(Clone, Debug)]
pub enum Seen {
    /// A whole header.
    Begun(Header),
    /// Some payload bytes of a data frame.
    Payload(Header, u32),
    /// The last byte of a frame. Data frames have no message.
    Done(Header, Option<Message>),
}

/// The part of a frame that a byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Between two frames.
    Boundary,
    /// Inside a header.
    Header,
    /// Inside the body of a data frame.
    Payload,
    /// Inside the body of another frame.
    Body,
}

/// The state of one tap.
#[derive(Debug)]
pub struct Tap {
    segment_bytes: u32,
    header: Vec<u8>,
    frame: Option<Header>,
    left: u32,
    body: Vec<u8>,
}

impl Tap {
    /// A tap at the start of a stream.
    #[must_use]
    pub const fn new(segment_bytes: u32) -> Self {
        Self { segment_bytes, header: Vec::new(), frame: None, left: 0, body: Vec::new() }
    }

    /// Where in a frame the stream stands.
    #[must_use]
    pub const fn position(&self) -> Position {
        match &self.frame {
            Some(Header { frame_type: FrameType::Data, .. }) => Position::Payload,
            Some(_) => Position::Body,
            None if self.header.is_empty() => Position::Boundary,
            None => Position::Header,
        }
    }

    /// Takes the next bytes of the stream and adds what they complete to `seen`.
    pub fn feed(&mut self, mut bytes: &[u8], seen: &mut Vec<Seen>) -> Result<(), String> {
        while !bytes.is_empty() {
            bytes = match self.frame {
                None => self.feed_header(bytes, seen)?,
                Some(header) => self.feed_body(&header, bytes, seen)?,
            };
        }
        Ok(())
    }

    fn feed_header<'b>(&mut self, bytes: &'b [u8], seen: &mut Vec<Seen>) -> Result<&'b [u8], String> {
        let missing = HEADER_BYTES - self.header.len();
        let (part, rest) = bytes.split_at(missing.min(bytes.len()));
        self.header.extend_from_slice(part);
        let Ok(whole) = <[u8; HEADER_BYTES]>::try_from(self.header.as_slice()) else { return Ok(rest) };
        let header = Header::decode(&whole, self.segment_bytes).map_err(|error| format!("wire: {error}"))?;
        header.check_fields().map_err(|error| format!("wire: {error}"))?;
        seen.push(Seen::Begun(header));
        self.header.clear();
        self.left = header.length;
        self.frame = Some(header);
        self.finish(&header, seen)?;
        Ok(rest)
    }

    fn feed_body<'b>(
        &mut self,
        header: &Header,
        bytes: &'b [u8],
        seen: &mut Vec<Seen>,
    ) -> Result<&'b [u8], String> {
        let (part, rest) = bytes.split_at(bytes.len().min(self.left as usize));
        self.left -= part.len() as u32;
        if header.frame_type == FrameType::Data {
            seen.push(Seen::Payload(*header, part.len() as u32));
        } else {
            self.body.extend_from_slice(part);
        }
        self.finish(header, seen)?;
        Ok(rest)
    }

    fn finish(&mut self, header: &Header, seen: &mut Vec<Seen>) -> Result<(), String> {
        if self.left > 0 {
            return Ok(());
        }
        let message = match header.frame_type {
            FrameType::Data => None,
            _ => Some(decode(header, &self.body).map_err(|error| format!("wire: {error}"))?),
        };
        self.body.clear();
        self.frame = None;
        seen.push(Seen::Done(*header, message));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_flow::wire::encode;

    #[test]
    fn frames_are_found_however_the_stream_is_cut() {
        let mut stream = Vec::new();
        encode(&Message::Ping { token: 7 }, &mut stream);
        encode(&Message::Pong { token: 7 }, &mut stream);
        for cut in 1..stream.len() {
            let mut tap = Tap::new(4096);
            let mut seen = Vec::new();
            for piece in stream.chunks(cut) {
                tap.feed(piece, &mut seen).unwrap();
            }
            let done: Vec<_> = seen
                .iter()
                .filter_map(|seen| match seen {
                    Seen::Done(_, Some(message)) => Some(message.clone()),
                    _ => None,
                })
                .collect();
            assert_eq!(done, [Message::Ping { token: 7 }, Message::Pong { token: 7 }]);
            assert_eq!(tap.position(), Position::Boundary);
        }
    }

    #[test]
    fn a_broken_header_is_reported() {
        let mut stream = Vec::new();
        encode(&Message::Ping { token: 7 }, &mut stream);
        stream[9] ^= 1;
        assert!(Tap::new(4096).feed(&stream, &mut Vec::new()).unwrap_err().starts_with("wire: "));
    }
}
