//! Looking a name up again and again, with bounded work: one question at a time, each with a time that it may take.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

/// How long an answer may take. What comes later is taken when it comes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Most addresses of a name. Each is dialled.
pub const ADDRESSES_MAX: usize = 1024;

/// An answer on its way.
pub type Answer = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// A name, and how it is looked up.
#[derive(Clone)]
pub struct Lookup {
    /// `host:port`.
    pub name: String,
    /// Time between two questions.
    pub interval: Duration,
    resolver: Arc<dyn Fn(&str) -> Answer + Send + Sync>,
}

impl Lookup {
    /// By the resolver of the system.
    #[must_use]
    pub fn new(name: String, interval: Duration) -> Self {
        Self::by(name, interval, |name| {
            let name = name.to_owned();
            Box::pin(async move { Ok(tokio::net::lookup_host(name).await?.collect()) })
        })
    }

    /// By this one.
    pub fn by(
        name: String,
        interval: Duration,
        resolver: impl Fn(&str) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self { name, interval, resolver: Arc::new(resolver) }
    }
}

impl PartialEq for Lookup {
    /// Whether the same is looked up as often.
    fn eq(&self, other: &Self) -> bool {
        (&self.name, self.interval) == (&other.name, other.interval)
    }
}

impl fmt::Debug for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookup")
            .field("name", &self.name)
            .field("interval", &self.interval)
            .finish_non_exhaustive()
    }
}

/// Looks the name up until nobody hears it. Each address once, in order; or why there is none.
pub async fn repeat<E>(
    lookup: Lookup,
    events: mpsc::Sender<E>,
    wrap: impl Fn(Result<Vec<SocketAddr>, String>) -> E,
) {
    let mut ticks = tokio::time::interval(lookup.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // A resolver that does not answer holds a thread: it is not asked again before it has answered.
    let mut asked = None;
    loop {
        ticks.tick().await;
        let mut answer = asked.take().unwrap_or_else(|| tokio::spawn((lookup.resolver)(&lookup.name)));
        let outcome = match tokio::time::timeout(ANSWER_TIMEOUT, &mut answer).await {
            Ok(Ok(Ok(addresses))) => distinct(addresses),
            Ok(Ok(Err(error))) => Err(error.to_string()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => {
                asked = Some(answer);
                Err(format!("the resolver has not answered for {} s", ANSWER_TIMEOUT.as_secs()))
            }
        };
        if events.send(wrap(outcome)).await.is_err() {
            return;
        }
        // From the answer on: one that takes long is not asked for again at once.
        ticks.reset();
    }
}

fn distinct(mut addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, String> {
    addresses.sort_unstable();
    addresses.dedup();
    match addresses.len() {
        0 => Err("the name has no address".to_owned()),
        count if count > ADDRESSES_MAX => {
            Err(format!("the name has {count} addresses; needed: at most {ADDRESSES_MAX}"))
        }
        _ => Ok(addresses),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_resolver_that_does_not_answer_is_asked_once_and_its_answer_is_taken_when_it_comes() {
        let count = Arc::new(AtomicUsize::new(0));
        let asked = Arc::clone(&count);
        let lookup = Lookup::by("x:1".to_owned(), Duration::from_secs(1), move |_| {
            asked.fetch_add(1, Ordering::Relaxed);
            Box::pin(async {
                tokio::time::sleep(ANSWER_TIMEOUT * 3 - Duration::from_millis(1)).await;
                Ok(["127.0.0.2:1", "127.0.0.1:1", "127.0.0.2:1"]
                    .map(|address| address.parse().unwrap())
                    .to_vec())
            })
        });
        let (events, mut heard) = mpsc::channel(1);
        let task = tokio::spawn(repeat(lookup, events, |outcome| outcome));
        for _ in 0..2 {
            assert!(heard.recv().await.unwrap().unwrap_err().contains("has not answered for 5 s"));
            assert_eq!(count.load(Ordering::Relaxed), 1);
        }
        let found: Vec<String> =
            heard.recv().await.unwrap().unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(
            (found, count.load(Ordering::Relaxed)),
            (vec!["127.0.0.1:1".into(), "127.0.0.2:1".into()], 1)
        );
        drop(heard);
        task.await.unwrap();
    }

    #[test]
    fn a_name_without_addresses_and_one_with_too_many_is_an_error() {
        assert!(distinct(Vec::new()).unwrap_err().contains("no address"));
        let many = |count: usize| {
            let address = |n: usize| SocketAddr::from(([10, 0, (n >> 8) as u8, n as u8], 1));
            distinct((0..count).map(address).collect())
        };
        assert_eq!(many(ADDRESSES_MAX).unwrap().len(), ADDRESSES_MAX);
        assert!(many(ADDRESSES_MAX + 1).unwrap_err().contains("1025 addresses"));
    }
}
