//! How much of each source one turn may take, so that none starves the others. What is left over waits for the next
//! turn, which then does not park.

/// Completions of the ring. A receive completion carries at most one receive buffer, 256 KiB by default.
pub(super) const COMPLETIONS: usize = 256;

/// Bytes received, after which a turn turns to sending. Bounds how long acknowledgements and credit wait.
pub(super) const RECEIVED_BYTES: usize = 1 << 20;

/// Entries taken from one ring of a client.
pub(super) const RING_ENTRIES: usize = 256;

/// Entries put into one ring of a client.
pub(super) const DELIVERIES: usize = 1024;
