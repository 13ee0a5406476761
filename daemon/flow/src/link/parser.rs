//! Frames out of a byte stream that may be cut anywhere.
//!
//! The payload of a Data frame is never collected: the shard names its place when the header is there, and each piece
//! goes to that place as it arrives. Only headers and the bodies of control frames are buffered, up to
//! [`CONTROL_BYTES_MAX`](crate::wire::CONTROL_BYTES_MAX).

use alloc::vec::Vec;

use crate::ids::SegmentIndex;
use crate::link::ReceiveKey;
use crate::wire::{FrameType, HEADER_BYTES, Header, WireError};

/// Where the payload of the Data frame that is arriving goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) key: ReceiveKey,
    pub(crate) segment: SegmentIndex,
    pub(crate) offset: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Parser {
    head: [u8; HEADER_BYTES],
    head_bytes: usize,
    /// The frame whose header is complete and whose body is not.
    frame: Option<Header>,
    /// For a Data frame: none if its channel is gone and the payload is skipped.
    target: Option<Target>,
    done: u32,
    body: Vec<u8>,
}

/// What a piece of input led to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    /// All bytes are used up.
    Empty,
    /// The header of a Data frame is there; the shard says where its payload goes.
    DataBegins(Header),
    /// A piece of payload for this place.
    Payload { target: Target, bytes: &'a [u8], ends: Option<Header> },
    /// The payload of a frame whose channel is gone ended.
    Skipped(Header),
    /// A control frame whose body is all in the input.
    Whole(Header, &'a [u8]),
    /// A control frame whose body was collected; it is in [`Parser::body`].
    Collected(Header),
}

impl Parser {
    /// The next step. `data_bytes_max` is the segment size.
    pub(crate) fn step<'a>(
        &mut self,
        input: &mut &'a [u8],
        data_bytes_max: u32,
    ) -> Result<Step<'a>, WireError> {
        let Some(header) = self.frame else {
            return Ok(match self.take_header(input, data_bytes_max)? {
                None => Step::Empty,
                Some(header) => {
                    self.frame = Some(header);
                    self.done = 0;
                    self.target = None;
                    self.body.clear();
                    if header.frame_type == FrameType::Data {
                        Step::DataBegins(header)
                    } else {
                        self.step_body(header, input)
                    }
                }
            });
        };
        if header.frame_type == FrameType::Data {
            return Ok(self.step_payload(header, input));
        }
        Ok(self.step_body(header, input))
    }

    fn take_header(&mut self, input: &mut &[u8], data_bytes_max: u32) -> Result<Option<Header>, WireError> {
        if self.head_bytes == 0
            && let Some((head, rest)) = input.split_first_chunk::<HEADER_BYTES>()
        {
            *input = rest;
            return Header::decode(head, data_bytes_max).map(Some);
        }
        let count = (HEADER_BYTES - self.head_bytes).min(input.len());
        let (piece, rest) = input.split_at(count);
        if let Some(place) = self.head.get_mut(self.head_bytes..self.head_bytes + count) {
            place.copy_from_slice(piece);
        }
        *input = rest;
        self.head_bytes += count;
        if self.head_bytes < HEADER_BYTES {
            return Ok(None);
        }
        self.head_bytes = 0;
        Header::decode(&self.head, data_bytes_max).map(Some)
    }

    fn step_payload<'a>(&mut self, header: Header, input: &mut &'a [u8]) -> Step<'a> {
        let count = ((header.length - self.done) as usize).min(input.len());
        if count == 0 && self.done < header.length {
            return Step::Empty;
        }
        let (bytes, rest) = input.split_at(count);
        *input = rest;
        let before = self.done;
        self.done += count as u32;
        let ends = (self.done == header.length).then(|| {
            self.frame = None;
            header
        });
        match (self.target, ends) {
            (Some(Target { key, segment, offset }), ends) => {
                Step::Payload { target: Target { key, segment, offset: offset + before }, bytes, ends }
            }
            (None, Some(header)) => Step::Skipped(header),
            (None, None) => Step::Empty,
        }
    }

    fn step_body<'a>(&mut self, header: Header, input: &mut &'a [u8]) -> Step<'a> {
        let missing = header.length as usize - self.body.len();
        if self.body.is_empty() && input.len() >= missing {
            let (body, rest) = input.split_at(missing);
            *input = rest;
            self.frame = None;
            return Step::Whole(header, body);
        }
        let (piece, rest) = input.split_at(missing.min(input.len()));
        *input = rest;
        self.body.extend_from_slice(piece);
        if self.body.len() < header.length as usize {
            return Step::Empty;
        }
        self.frame = None;
        Step::Collected(header)
    }

    /// Where the payload that begins now goes.
    pub(crate) fn set_target(&mut self, target: Option<Target>) {
        self.target = target;
    }

    /// The channel is gone: what is still to come of its frame is skipped.
    pub(crate) fn forget(&mut self, key: ReceiveKey) {
        if self.target.is_some_and(|target| target.key == key) {
            self.target = None;
        }
    }

    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Forgets what arrived of a frame that is not whole. The place that was being filled, if any.
    pub(crate) fn reset(&mut self) -> Option<(Target, Header)> {
        let Self { frame, target, .. } = core::mem::take(self);
        frame.and_then(|header| Some((target?, header)))
    }

    /// The place that is being filled, and how much of the frame arrived.
    pub(crate) fn arriving(&self) -> Option<(Target, u32)> {
        self.frame.and(self.target).map(|target| (target, self.done))
    }
}
