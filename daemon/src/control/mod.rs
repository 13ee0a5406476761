//! The control socket: HTTP/1.1 and JSON over a Unix socket in the run directory.
//!
//! Commands ask here; nothing on the data path does. The server ([`server`], [`routes`]) runs on the control thread and
//! gets what it answers from a [`snapshot::SnapshotSource`]; [`client`] is the other end, for the command line.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/status` | [`snapshot::StatusReport`] |
//! | `GET /v1/channels` | [`snapshot::ChannelsReport`] |
//! | `GET /v1/plan` | [`plan::PlanReport`] |
//!
//! Whatever fails is answered with a [`snapshot::ErrorReport`].

pub mod client;
pub mod plan;
mod routes;
pub mod server;
pub mod snapshot;
