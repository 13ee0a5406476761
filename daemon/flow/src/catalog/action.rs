//! What the catalog knows things by, and what it asks for.

use alloc::vec::Vec;
use core::fmt;

use crate::exchange::{Name, Shape};
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

/// A gate, whoever has it.
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

/// What the catalog asks the shell to do. Each is asked for once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogAction {
    /// Tell a peer, or all, of these partitions and gates of this node.
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
