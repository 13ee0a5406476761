//! The receiving half: input gates, their channels, and what each grants to its sender.

pub(crate) mod channel;
pub(crate) mod debloating;
pub(crate) mod gate;
pub(crate) mod grant;
pub(crate) mod lent;
