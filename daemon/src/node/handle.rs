//! Asking a running node: the control socket's source, and the order to stop.

use tokio::sync::{mpsc, oneshot};

use super::configuration::{Configure, LiveSettings};
use super::report::NodeReport;
use super::stats::TasksFacts;
use super::{Beat, NodeEvent};
use crate::control::bottleneck::BottleneckReport;
use crate::control::configuration::ConfigurationReport;
use crate::control::plan::PlanReport;
use crate::control::shards::ShardsReport;
use crate::control::snapshot::{ChannelsReport, SnapshotSource, StatusReport};
use crate::control::stalls::StallsReport;
use crate::control::tasks::TasksReport;
use crate::exit::{Exit, Problem};

/// A way to a running node, cheap to clone.
#[derive(Clone, Debug)]
pub struct NodeHandle {
    pub(super) events: mpsc::Sender<NodeEvent>,
}

impl NodeHandle {
    /// Tells the node to drain and end. Repeating it has no effect.
    pub async fn drain(&self) {
        // A node that has ended needs no telling.
        let _ = self.events.send(NodeEvent::Drain).await;
    }

    /// Whether the node and its shards go on.
    ///
    /// # Errors
    /// The node is ending.
    pub async fn beat(&self) -> Result<Beat, Problem> {
        let (reply, answer) = oneshot::channel();
        let gone = || Problem::new(Exit::Failed, "the daemon is stopping");
        self.events.send(NodeEvent::Beat { reply }).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }

    /// Tells the node what of a configuration that was read takes effect (nothing if it was not taken) and what there is to
    /// say of it. Returns when it holds, or the node is ending.
    pub async fn configure(&self, settings: Option<LiveSettings>, report: ConfigurationReport) {
        let (done, is_done) = oneshot::channel();
        let order = Box::new(Configure { settings, report, done });
        if self.events.send(NodeEvent::Configure(order)).await.is_ok() {
            // A node that ends does not answer.
            let _ = is_done.await;
        }
    }

    /// What the node and its shards say about themselves.
    ///
    /// # Errors
    /// The node is ending, or a shard does not answer.
    pub(super) async fn report(&self) -> Result<NodeReport, Problem> {
        let (reply, answer) = oneshot::channel();
        let gone = || Problem::new(Exit::Failed, "the daemon is stopping");
        self.events.send(NodeEvent::Report { reply }).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }
}

impl NodeHandle {
    async fn tasks_facts(&self) -> Result<TasksFacts, Problem> {
        let (reply, answer) = oneshot::channel();
        let gone = || Problem::new(Exit::Failed, "the daemon is stopping");
        self.events.send(NodeEvent::Tasks { reply }).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }
}

impl SnapshotSource for NodeHandle {
    async fn ended(&self) {
        self.events.closed().await;
    }

    async fn status(&self) -> Result<StatusReport, Problem> {
        Ok(self.report().await?.status())
    }

    async fn configuration(&self) -> Result<ConfigurationReport, Problem> {
        Ok(self.report().await?.facts.configuration)
    }

    async fn shards(&self) -> Result<ShardsReport, Problem> {
        Ok(self.report().await?.places())
    }

    async fn channels(&self) -> Result<ChannelsReport, Problem> {
        Ok(self.report().await?.channels())
    }

    async fn stalls(&self) -> Result<StallsReport, Problem> {
        Ok(self.report().await?.stalls())
    }

    async fn own(&self) -> Result<(StatusReport, ChannelsReport, StallsReport), Problem> {
        let report = self.report().await?;
        Ok((report.status(), report.channels(), report.stalls()))
    }

    async fn plan(&self) -> Result<PlanReport, Problem> {
        let (reply, answer) = oneshot::channel();
        let gone = || Problem::new(Exit::Failed, "the daemon is stopping");
        self.events.send(NodeEvent::Plan { reply }).await.map_err(|_| gone())?;
        Ok(answer.await.map_err(|_| gone())?.report())
    }

    async fn tasks(&self) -> Result<TasksReport, Problem> {
        Ok(self.tasks_facts().await?.tasks())
    }

    async fn bottleneck(&self) -> Result<BottleneckReport, Problem> {
        Ok(self.tasks_facts().await?.bottleneck())
    }
}
