//! What the catalog knows things by, and what it asks for.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::fmt::Write as _;

use crate::exchange::{Name, Shape, Strategy};
use crate::failure::Failure;
use crate::ids::{ConsumerIndex, Incarnation, ProducerIndex};
use crate::wire::CatalogEntry;

/// A partition, whoever has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionKey {
    /// The exchange.
    pub exchange: Name,
    /// Which producer.
    pub producer: ProducerIndex,
}

impl fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "producer {} of exchange {}", self.producer, self.exchange)
    }
}

/// A gate of this node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GateKey {
    /// The exchange.
    pub exchange: Name,
    /// Which consumer.
    pub consumer: ConsumerIndex,
}

impl fmt::Display for GateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "consumer {} of exchange {}", self.consumer, self.exchange)
    }
}

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

/// What the catalog asks the shell to do. Each is asked for once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogAction {
    /// Tell a peer, or all, of these partitions of this node.
    Announce {
        /// The peer, or `None` for all.
        peer: Option<Name>,
        /// At most [`crate::wire::CATALOG_ENTRIES_MAX`].
        entries: Vec<CatalogEntry>,
    },
    /// The shape of this gate's exchange is known: its memory can be made.
    GateShapeKnown {
        /// The gate.
        gate: GateKey,
        /// The shape.
        shape: Shape,
    },
    /// Open a channel from this gate to this producer. Comes after [`CatalogAction::GateShapeKnown`] of the gate.
    Connect {
        /// The gate.
        gate: GateKey,
        /// The producer.
        producer: ProducerIndex,
        /// The node that it is attached to, which may be this one.
        node: Name,
        /// The shard that it is attached to there.
        shard: u16,
        /// Its life.
        incarnation: Incarnation,
    },
    /// This partition of this node lost its place to another.
    FailLocalPartition {
        /// The partition.
        partition: PartitionKey,
        /// Why, and who has the place.
        failure: Failure,
    },
    /// This gate can never be served as it is.
    FailGate {
        /// The gate.
        gate: GateKey,
        /// Why.
        failure: Failure,
    },
}
