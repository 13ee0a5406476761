//! What a consumer states of its exchange before it knows what the producers state.

use alloc::string::String;
use core::fmt;
use core::fmt::Write as _;

use crate::exchange::{Shape, Strategy, UnequalForward};

/// What a consumer states of its exchange. What it leaves open is the producers' to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateWants {
    /// Consumer parallelism.
    pub consumers: u32,
    /// Producer parallelism.
    pub producers: Option<u32>,
    /// Ship strategy.
    pub strategy: Option<Strategy>,
    /// The node's segment size, in bytes.
    pub segment_bytes: u32,
    /// Whether records carry checksums.
    pub checksum: Option<bool>,
}

impl GateWants {
    /// Everything of this shape.
    #[must_use]
    pub const fn all_of(shape: &Shape) -> Self {
        Self {
            consumers: shape.consumers,
            producers: Some(shape.producers),
            strategy: Some(shape.strategy),
            segment_bytes: shape.segment_bytes,
            checksum: Some(shape.checksum),
        }
    }

    /// The shape, if nothing is left open.
    #[must_use]
    pub fn shape(&self) -> Option<Shape> {
        Some(Shape {
            producers: self.producers?,
            consumers: self.consumers,
            strategy: self.strategy?,
            segment_bytes: self.segment_bytes,
            checksum: self.checksum?,
        })
    }

    /// The `forward` exchange of unequal sides that this and `other` would make together, if the one states `forward` and
    /// the other another parallelism.
    #[must_use]
    pub fn unequal_forward(&self, other: &Self) -> Option<UnequalForward> {
        let stated = [(self, other), (other, self)];
        let (forward, other) = stated.into_iter().find(|(one, _)| one.strategy == Some(Strategy::Forward))?;
        let (producers, consumers) = (forward.producers.unwrap_or(forward.consumers), other.consumers);
        (producers != consumers).then_some(UnequalForward { producers, consumers })
    }

    /// What this and `other` state differently, as text: each field with our value and, as needed, theirs. `None`
    /// if they agree in all that both state.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Option<String> {
        let mut text = String::new();
        let mut field = |name: &str, ours: &dyn fmt::Display, theirs: &dyn fmt::Display| {
            let lead = if text.is_empty() { "" } else { "; " };
            // Writing to a String cannot fail.
            let _ = write!(text, "{lead}{name} is {ours}, needed: {theirs}");
        };
        if self.consumers != other.consumers {
            field("consumers", &self.consumers, &other.consumers);
        }
        if let (Some(ours), Some(theirs)) = (self.producers, other.producers)
            && ours != theirs
        {
            field("producers", &ours, &theirs);
        }
        if let (Some(ours), Some(theirs)) = (self.strategy, other.strategy)
            && ours != theirs
        {
            field("strategy", &ours, &theirs);
        }
        if self.segment_bytes != other.segment_bytes {
            field("segment size", &self.segment_bytes, &other.segment_bytes);
        }
        if let (Some(ours), Some(theirs)) = (self.checksum, other.checksum)
            && ours != theirs
        {
            field("checksum", &ours, &theirs);
        }
        if text.is_empty() { None } else { Some(text) }
    }
}
