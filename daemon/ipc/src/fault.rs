//! What one side finds wrong in memory that the other side writes.

use std::fmt;

/// A number in shared memory that cannot be true. The side that finds it stops using that memory: the daemon
/// detaches the client, the client fails the partition or gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpcFault {
    /// Which number: ring or cell, then the field, for example `submit.segment`.
    pub field: &'static str,
    /// Its value.
    pub found: u64,
    /// What would have been accepted, in words.
    pub needed: String,
}

impl IpcFault {
    /// A fault of this field.
    pub(crate) fn new(field: &'static str, found: u64, needed: impl Into<String>) -> Self {
        Self { field, found, needed: needed.into() }
    }

    /// Checks that `found` is below `bound`.
    pub(crate) fn check_below(field: &'static str, found: u32, bound: u32) -> Result<(), Self> {
        if found < bound { Ok(()) } else { Err(Self::new(field, found.into(), format!("less than {bound}"))) }
    }

    /// Checks that a field which this kind of entry does not use is zero.
    pub(crate) fn check_zero(field: &'static str, found: u64) -> Result<(), Self> {
        if found == 0 { Ok(()) } else { Err(Self::new(field, found, "0")) }
    }
}

impl fmt::Display for IpcFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}; needed: {}", self.field, self.found, self.needed)
    }
}

impl std::error::Error for IpcFault {}
