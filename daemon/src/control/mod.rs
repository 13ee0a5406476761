//! The control socket: HTTP/1.1 and JSON over a Unix socket in the run directory.
//!
//! Commands ask here; nothing on the data path does. The server ([`server`], [`routes`]) runs on the control thread and
//! gets what it answers from a [`snapshot::SnapshotSource`]; [`client`] is the other end, for the command line.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/status` | [`snapshot::StatusReport`] |
//! | `GET /v1/configuration` | [`configuration::ConfigurationReport`] |
//! | `GET /v1/channels` | [`snapshot::ChannelsReport`] |
//! | `GET /v1/shards` | [`shards::ShardsReport`] |
//! | `GET /v1/stalls` | [`stalls::StallsReport`] |
//! | `GET /v1/plan` | [`plan::PlanReport`] |
//! | `GET /v1/tasks` | [`tasks::TasksReport`] |
//! | `GET /v1/bottleneck` | [`bottleneck::BottleneckReport`] |
//! | `GET /metrics` | text for Prometheus, which [`scrape`] answers on an address as well |
//!
//! Whatever fails is answered with a [`snapshot::ErrorReport`].

pub mod bottleneck;
pub mod client;
pub mod configuration;
pub mod gates;
pub mod plan;
mod routes;
pub mod scrape;
pub mod server;
pub mod shards;
pub mod snapshot;
pub mod sockets;
pub mod stalls;
pub mod tasks;
pub mod zero_copy;
