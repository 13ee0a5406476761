//! What holds a pipeline up: the answer to `GET /v1/bottleneck`.

use serde::{Deserialize, Serialize};

use super::plan::MissingNode;
use crate::observe::verdict::Verdict;

/// Answer to `GET /v1/bottleneck`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BottleneckReport {
    /// [`super::snapshot::SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Name of the node that answers.
    pub node: String,
    /// The verdict.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Nodes of the cluster whose tasks it looks at, by name.
    pub included: Vec<String>,
    /// Nodes of the cluster whose tasks it does not know: no control link leads there.
    pub missing: Vec<MissingNode>,
    /// How many more are missing than are named.
    pub missing_unnamed: u64,
    /// Nodes that are linked and have told nothing for 3 seconds, by name.
    pub stale: Vec<String>,
}

impl BottleneckReport {
    /// Whether tasks of some node may be missing.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        !self.missing.is_empty() || self.missing_unnamed > 0 || !self.stale.is_empty()
    }
}
