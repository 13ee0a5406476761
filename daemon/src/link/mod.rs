//! Links: the TCP connections between nodes, up to the moment a shard takes them over.
//!
//! Everything here runs on the control thread: [`listen`] accepts, [`dial`] connects, [`handshake`] proves to both
//! ends that the other holds the cluster key, [`peer`] keeps one control link per peer. What comes out is an
//! established data-link socket that a shard owns from then on. Frames of channels never pass through here, so a
//! slow or hostile connection attempt costs no shard a turn.
//!
//! [`zero_copy`] decides for a link how it sends; the shard that owns it asks.
//!
//! Nothing here trusts a peer: before the handshake has succeeded a connection may cost 4 KiB and 5 seconds, and
//! there are at most 64 of them.

pub mod dial;
pub mod handshake;
pub mod listen;
pub mod options;
pub mod peer;
pub mod resolve;
pub mod zero_copy;
