//! What the daemon says, asked for again and again.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::control::bottleneck::BottleneckReport;
use crate::control::client;
use crate::control::plan::PlanReport;
use crate::control::snapshot::{ChannelsReport, StatusReport};
use crate::control::stalls::StallsReport;
use crate::control::tasks::TasksReport;
use crate::exit::Problem;

/// All reports, of about one moment.
pub(super) struct Reports {
    pub(super) status: StatusReport,
    pub(super) plan: PlanReport,
    pub(super) tasks: TasksReport,
    pub(super) bottleneck: BottleneckReport,
    pub(super) channels: ChannelsReport,
    pub(super) stalls: StallsReport,
    /// When they were asked for.
    pub(super) at: Instant,
}

/// Asks for everything.
///
/// # Errors
/// No daemon answers, or it answers with a problem.
pub(super) fn ask(run_dir: &Path) -> Result<Reports, Problem> {
    let at = Instant::now();
    Ok(Reports {
        status: client::get(run_dir, "/v1/status")?,
        plan: client::get(run_dir, "/v1/plan")?,
        tasks: client::get(run_dir, "/v1/tasks")?,
        bottleneck: client::get(run_dir, "/v1/bottleneck")?,
        channels: client::get(run_dir, "/v1/channels")?,
        stalls: client::get(run_dir, "/v1/stalls")?,
        at,
    })
}

/// A thread that asks. It ends when this is dropped, at its next answer.
pub(super) struct Reader {
    answers: mpsc::Receiver<Result<Box<Reports>, Problem>>,
}

impl Reader {
    /// Asks now and every `interval`, or as soon as the answer before is there if that takes longer.
    pub(super) fn start(run_dir: PathBuf, interval: Duration) -> Self {
        // One answer may wait; while it does, nothing is asked.
        let (sender, answers) = mpsc::sync_channel(1);
        thread::spawn(move || {
            loop {
                let began = Instant::now();
                if sender.send(ask(&run_dir).map(Box::new)).is_err() {
                    return;
                }
                thread::sleep(interval.saturating_sub(began.elapsed()));
            }
        });
        Self { answers }
    }

    /// What has been answered and not been looked at.
    pub(super) fn poll(&self) -> Option<Result<Box<Reports>, Problem>> {
        self.answers.try_recv().ok()
    }
}

/// The reports that are shown, and the ones before, for rates.
#[derive(Default)]
pub(super) struct Latest {
    pub(super) now: Option<Box<Reports>>,
    pub(super) before: Option<Box<Reports>>,
    /// Why there is nothing newer, if that is so.
    pub(super) problem: Option<String>,
}

impl Latest {
    /// Newer reports.
    pub(super) fn take(&mut self, reports: impl Into<Box<Reports>>) {
        self.before = self.now.replace(reports.into());
        self.problem = None;
    }

    /// Newer reports, or why there are none: then the last ones stay on the screen.
    pub(super) fn take_or_note(&mut self, asked: Result<Box<Reports>, Problem>) {
        match asked {
            Ok(reports) => self.take(reports),
            Err(problem) => self.problem = Some(problem.to_string()),
        }
    }

    /// Seconds between the two reports that rates are from; none if there is one only.
    pub(super) fn seconds(&self) -> Option<f64> {
        let (now, before) = (self.now.as_ref()?, self.before.as_ref()?);
        let seconds = now.at.duration_since(before.at).as_secs_f64();
        (seconds > 0.0).then_some(seconds)
    }
}
