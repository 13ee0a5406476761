//! Bounds on what is logged again and again: of the warnings and errors of one place in the program, some are written and
//! the rest is counted.
//!
//! This is the only place that does so. Whoever warns of what a stranger can cause need not think of floods.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Warnings of one place that are written in one window.
pub(super) const WRITTEN_MAX: u64 = 20;

/// How long a window is. It begins with the first warning.
pub(super) const WINDOW: Duration = Duration::from_secs(10);

/// Lets some pass, and counts the others. Cheap to clone: all count together.
#[derive(Clone, Default)]
pub(super) struct Limiter {
    places: Arc<Mutex<HashMap<Identifier, Window>>>,
}

/// One place, from its first warning on.
struct Window {
    began: Instant,
    count: u64,
    level: Level,
    /// What the first one that was not written said.
    message: String,
}

/// Warnings of one place that were not written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Suppressed {
    pub(super) level: Level,
    /// How many.
    pub(super) count: u64,
    /// What they said, without what differs.
    pub(super) message: String,
}

impl Limiter {
    fn places(&self) -> MutexGuard<'_, HashMap<Identifier, Window>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one of this place is written. `message` is asked for at most once in a window.
    fn passes(
        &self,
        place: Identifier,
        level: Level,
        now: Instant,
        message: impl FnOnce() -> String,
    ) -> bool {
        let mut places = self.places();
        // A window that is over is taken by who tells of it, at the latest a second later: until then it goes on.
        let window = places.entry(place).or_insert_with(|| Window {
            began: now,
            count: 0,
            level,
            message: String::new(),
        });
        window.count = window.count.saturating_add(1);
        if window.count == WRITTEN_MAX + 1 {
            window.message = message();
        }
        window.count <= WRITTEN_MAX
    }

    /// What was not written in windows that are over at this moment; in all of them, if `at_once`. They are told once.
    pub(super) fn take(&self, now: Instant, at_once: bool) -> Vec<Suppressed> {
        let mut told = Vec::new();
        self.places().retain(|_, window| {
            let is_over = at_once || now.saturating_duration_since(window.began) >= WINDOW;
            let count = window.count.saturating_sub(WRITTEN_MAX);
            if is_over && count > 0 {
                let message = std::mem::take(&mut window.message);
                told.push(Suppressed { level: window.level, count, message });
            }
            !is_over
        });
        told
    }
}

impl<S: Subscriber> Layer<S> for Limiter {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        let level = *metadata.level();
        // Less severe ones tell of what was ordered or happens seldom; who asks for the rest wants all of it.
        level > Level::WARN || self.passes(metadata.callsite(), level, Instant::now(), || message_of(event))
    }
}

fn message_of(event: &Event<'_>) -> String {
    struct Message(String);
    impl Visit for Message {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            if field.name() == "message" {
                self.0 = format!("{value:?}");
            }
        }
    }
    let mut message = Message(String::new());
    event.record(&mut message);
    message.0
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Counts what passes.
    #[derive(Clone, Default)]
    struct Counted(Arc<Mutex<Vec<String>>>);

    impl<S: Subscriber> Layer<S> for Counted {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            self.0.lock().unwrap().push(message_of(event));
        }
    }

    #[test]
    fn of_a_flood_some_are_written_the_rest_is_counted_and_others_are_not_touched() {
        let (limiter, counted) = (Limiter::default(), Counted::default());
        let subscriber = tracing_subscriber::registry().with(limiter.clone()).with(counted.clone());
        let written = || std::mem::take(&mut *counted.0.lock().unwrap());
        let flood = |rounds: u64| {
            for round in 0..rounds {
                tracing::warn!(round, "strangers");
                tracing::info!(round, "ordered");
            }
        };
        tracing::subscriber::with_default(subscriber, || {
            flood(1000);
            tracing::warn!("another place");
            let all = written();
            let count = |what: &str| all.iter().filter(|message| *message == what).count() as u64;
            assert_eq!(
                (count("strangers"), count("ordered"), count("another place")),
                (WRITTEN_MAX, 1000, 1)
            );
            let now = Instant::now();
            assert_eq!(limiter.take(now, false), [], "the window goes on");
            let suppressed =
                Suppressed { level: Level::WARN, count: 1000 - WRITTEN_MAX, message: "strangers".to_owned() };
            assert_eq!(limiter.take(now + WINDOW, false), [suppressed]);
            assert_eq!(limiter.take(now + WINDOW, true), [], "told once");
            // A new window, in which as many are written again.
            flood(WRITTEN_MAX + 1);
            assert_eq!(
                written().iter().filter(|message| *message == "strangers").count() as u64,
                WRITTEN_MAX
            );
            assert_eq!(limiter.take(Instant::now(), true).len(), 1, "at the end all is told");
        });
    }
}
