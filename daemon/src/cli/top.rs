//! `weir top`: the job graph, its tasks, channels, links and stalls, looked at again and again on one screen.
//!
//! | part | what it does |
//! |---|---|
//! | [`reports`] | asks the daemon, on a thread of its own: a daemon that is slow makes no key wait |
//! | [`state`] | what is looked at, and what a key changes in that |
//! | [`view`] | the screen, from reports and state; it knows no terminal |
//! | [`terminal`] | the terminal, which is as it was when this ends, however it ends |

mod reports;
mod state;
mod terminal;
mod view;

use std::io::IsTerminal;
use std::sync::mpsc;
use std::time::Duration;

use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use super::RunDirArgs;
use crate::exit::{Exit, Problem};
use reports::{Latest, Reader};
use state::{Action, State};
use terminal::{Input, Screen};

/// How long a key may wait to be seen, and news to be shown.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Look at tasks, channels, links and stalls again and again.
///
/// Idle time is blue, busy time red, backpressured time grey. Keys: 1 to 5 or Tab choose a view, arrows and Page Up and Down
/// scroll, p pauses, ? explains, q ends. Exit codes: 0 ended, 2 there is no terminal, 4 no daemon answers at the start.
#[derive(Args, Debug)]
pub(super) struct TopArgs {
    #[command(flatten)]
    daemon: RunDirArgs,
    /// Time between two looks, in seconds: 0.2 to 3600.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.2..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "a number of seconds from 0.2 to 3600".to_owned())
}

pub(super) fn run(arguments: &TopArgs) -> Result<Exit, Problem> {
    if !(std::io::stdout().is_terminal() && std::io::stdin().is_terminal()) {
        return Err(Problem::new(Exit::Usage, "weir top needs a terminal")
            .found("a pipe or a file as standard input or output")
            .fix("weir bottleneck, weir stalls and weir channels print text, and JSON with --output json"));
    }
    // Asked once before the screen changes: that no daemon answers is said as every other command says it.
    let mut latest = Latest::default();
    latest.take(reports::ask(&arguments.daemon.run_dir)?);
    let reader = Reader::start(arguments.daemon.run_dir.clone(), arguments.interval);
    let signals = terminal::end_signals()?;
    let mut screen = Screen::open()?;
    let ended = watch(&mut screen, &mut latest, &reader, &signals);
    if screen.is_gone() {
        // Whatever it ended by: a signal often says that the terminal goes, and writing to it fails then.
        screen.forget();
        return Ok(Exit::Ok);
    }
    ended
}

fn watch(
    screen: &mut Screen,
    latest: &mut Latest,
    reader: &Reader,
    signals: &mpsc::Receiver<()>,
) -> Result<Exit, Problem> {
    let lost = |error: std::io::Error| {
        Problem::new(Exit::Failed, "the terminal cannot be used").found(error.to_string())
    };
    let mut state = State::default();
    loop {
        screen.draw(&mut state, latest).map_err(lost)?;
        if signals.try_recv().is_ok() {
            return Ok(Exit::Ok);
        }
        match screen.await_keys(LOOK_INTERVAL).map_err(lost)? {
            Input::Gone => return Ok(Exit::Ok),
            Input::Nothing => {}
            // One read may hold several.
            Input::Keys => {
                while event::poll(Duration::ZERO).map_err(lost)? {
                    if let Event::Key(key) = event::read().map_err(lost)?
                        && key.kind != KeyEventKind::Release
                        && state.handle_key(key) == Action::Quit
                    {
                        return Ok(Exit::Ok);
                    }
                }
            }
        }
        while let Some(asked) = reader.poll() {
            if !state.is_paused {
                latest.take_or_note(asked);
            }
        }
    }
}
