//! What runs beside the node, each in a task of its own, and reports to it.

use std::io;
use std::thread;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::{COLLECT_INTERVAL, LOAD_INTERVAL, LOOK_INTERVAL, NodeEvent, PLACE_INTERVAL, report};
use crate::attach::listener::AttachListener;
use crate::link::handshake::{self, Identity};
use crate::link::listen::{self, Gatekeeper};
use crate::link::options as link_options;
use crate::observe::sockets::Observer;
use crate::shard::mailbox::ShardSender;
use crate::shard::placement::keeper::{Keeper, News, Read};

pub(super) async fn until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

pub(super) async fn accept_clients(mut listener: AttachListener, events: mpsc::Sender<NodeEvent>) {
    loop {
        let client = listener.next().await;
        if events.send(NodeEvent::Connected(client)).await.is_err() {
            return;
        }
    }
}

/// Accepts connections and shakes hands with each in a task of its own.
pub(super) async fn accept_peers(
    mut gate: Gatekeeper,
    identity: Identity,
    options: link_options::LinkOptions,
    events: mpsc::Sender<NodeEvent>,
) {
    let mut handshakes = JoinSet::new();
    loop {
        tokio::select! {
            stranger = gate.next() => {
                let (identity, options, events) = (identity.clone(), options.clone(), events.clone());
                handshakes.spawn(async move {
                    let listen::Stranger { stream, from, permit } = stranger;
                    if let Err(error) = link_options::apply(&stream, &options) {
                        tracing::warn!(%from, %error, "a link was refused");
                        return;
                    }
                    let event = match handshake::accept(stream, &identity).await {
                        Ok((stream, peer)) => NodeEvent::Accepted { stream, peer, from },
                        Err(error) => NodeEvent::Refused { from, error },
                    };
                    drop(permit);
                    // A node that has ended accepts nobody.
                    let _ = events.send(event).await;
                });
                // Its turn to read, and that of who was turned out to end: else a flood holds two descriptors for each
                // connection that is accepted in one go.
                tokio::task::yield_now().await;
            }
            Some(_) = handshakes.join_next() => {}
        }
    }
}

pub(super) async fn collect_stalls(observer: Observer) {
    let mut ticks = tokio::time::interval(COLLECT_INTERVAL);
    loop {
        ticks.tick().await;
        observer.collect();
    }
}

/// A system call for each shard, with several NUMA nodes one file, and more only when other CPUs or memory may be used.
pub(super) async fn keep_places(placement: Keeper) {
    let mut ticks = tokio::time::interval(PLACE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut is_told = false;
    loop {
        ticks.tick().await;
        if let Some(news) = placement.news() {
            match read(news, in_a_thread).await {
                Ok(read) => {
                    placement.take(read);
                    is_told = false;
                }
                // It is tried again at the next tick.
                Err(error) if !is_told => {
                    tracing::warn!(%error, "other CPUs or memory may be used than before, and the machine cannot be read");
                    is_told = true;
                }
                Err(_) => {}
            }
        }
        placement.settle();
    }
}

type Work = Box<dyn FnOnce() + Send>;

/// Not a thread of the runtime: that panics where no more can be made (`TasksMax=`).
fn in_a_thread(work: Work) -> io::Result<()> {
    thread::Builder::new().name("weir-places".to_owned()).spawn(work).map(drop)
}

async fn read(news: News, start: impl FnOnce(Work) -> io::Result<()>) -> io::Result<Read> {
    let (tell, told) = oneshot::channel();
    start(Box::new(move || {
        // Nobody waits for it when the node ends.
        let _ = tell.send(news.read());
    }))?;
    told.await.map_err(|_| io::Error::other("what read it has panicked"))
}

pub(super) async fn look_for_sockets(events: mpsc::Sender<NodeEvent>) {
    let mut ticks = tokio::time::interval(LOOK_INTERVAL);
    loop {
        ticks.tick().await;
        if events.send(NodeEvent::LookForSockets).await.is_err() {
            return;
        }
    }
}

pub(super) async fn sample_load(shards: Vec<ShardSender>, events: mpsc::Sender<NodeEvent>) {
    let mut ticks = tokio::time::interval(LOAD_INTERVAL);
    loop {
        ticks.tick().await;
        let snapshots = report::ask_shards(&shards).await;
        if events.send(NodeEvent::Load(snapshots)).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_thread_that_cannot_be_made_is_an_error_and_no_end() {
        let refused = read(News::default(), |_| Err(io::ErrorKind::WouldBlock.into())).await;
        assert_eq!(refused.map(drop).map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));
        assert!(
            read(News::default(), |work| {
                drop(work);
                Ok(())
            })
            .await
            .is_err(),
            "one that panics"
        );
        assert!(read(News::default(), in_a_thread).await.is_ok());
    }
}
