//! Down the graph from every task that waits for room, to what it waits for.

use std::collections::{BTreeMap, BTreeSet};

use super::{BUSY_FROM_MS, View};
use crate::observe::times::HIGH_ABOVE_MS;

/// A busy task that is also idle for more than this has not enough to do to be what others wait for.
const IDLE_UPTO_MS: u32 = 300;

/// What holds others up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// A task.
    Task(usize),
    /// An exchange, whose consumers are not what its producers wait for.
    Exchange(usize),
    /// Tasks that wait for each other; the first of them.
    Cycle(usize),
}

/// A root and whom it holds up.
#[derive(Clone, Debug)]
pub(super) struct Root {
    pub(super) place: Place,
    /// Tasks that wait for it, right in front of it.
    pub(super) holds_up: BTreeSet<usize>,
    /// It is only what is left when nothing else explains why they wait.
    pub(super) is_left_over: bool,
}

/// What the walk has found. Places of tasks, in the order of the plan.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) roots: Vec<Root>,
    pub(super) victims: Vec<usize>,
    pub(super) starved: Vec<usize>,
}

/// What is behind an exchange that a producer waits for.
#[derive(Debug, Default)]
struct Behind {
    /// Readers that wait themselves.
    waiting: Vec<usize>,
    /// Readers that are what is waited for.
    busy: Vec<usize>,
    /// Whether it is the exchange itself that is waited for: for certain, if nothing else explains it, or not at all.
    itself: Itself,
}

/// Whether an exchange itself is what its producers wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Itself {
    #[default]
    No,
    Maybe,
    Certain,
}

/// What has been found so far.
struct Walk<'a> {
    view: &'a View<'a>,
    /// Of each exchange; none for one whose producers do not wait because of it.
    behind: Vec<Option<Behind>>,
    /// The exchanges that each task reads.
    read: Vec<Vec<usize>>,
    /// Tasks of which it is known what they wait for.
    explained: BTreeSet<usize>,
    /// Exchanges behind which such a task waits.
    explained_exchanges: BTreeSet<usize>,
    roots: BTreeMap<Place, (BTreeSet<usize>, bool)>,
}

/// Takes time in proportion to tasks, and to the ends of exchanges.
pub(super) fn walk(view: &View<'_>) -> Found {
    let waiting: Vec<usize> = (0..view.summaries.len()).filter(|task| view.summary(*task).waits()).collect();
    let mut walk = Walk::new(view);
    for task in &waiting {
        walk.root_right_behind(*task);
    }
    // Who is downstream first, so that what explains one explains those in front of it.
    for task in waiting.iter().rev() {
        if !walk.explained.contains(task) {
            walk.root_left_over(*task);
        }
    }
    finish(view, &waiting, walk.roots)
}

impl<'a> Walk<'a> {
    fn new(view: &'a View<'a>) -> Self {
        let mut read = vec![Vec::new(); view.summaries.len()];
        for (place, exchange) in view.facts.exchanges.iter().enumerate() {
            for reader in &exchange.readers {
                if let Some(exchanges) = read.get_mut(*reader) {
                    exchanges.push(place);
                }
            }
        }
        let behind = (0..view.facts.exchanges.len()).map(|place| behind(view, place)).collect();
        let (explained, explained_exchanges) = (BTreeSet::new(), BTreeSet::new());
        Self { view, behind, read, explained, explained_exchanges, roots: BTreeMap::new() }
    }

    /// What is behind the exchanges that a task writes, and waits for.
    fn behind(&self, task: usize) -> impl Iterator<Item = (usize, &Behind)> {
        let behind = |place: usize| self.behind.get(place).and_then(Option::as_ref);
        self.view.written(task).filter_map(move |(place, _)| Some((place, behind(place)?)))
    }

    /// Notes what is certainly what this task waits for.
    fn root_right_behind(&mut self, task: usize) {
        let mut places: BTreeSet<Place> = BTreeSet::new();
        for (place, behind) in self.behind(task) {
            places.extend(behind.busy.iter().map(|reader| Place::Task(*reader)));
            places.extend((behind.itself == Itself::Certain).then_some(Place::Exchange(place)));
        }
        if !places.is_empty() {
            self.note(task, places, false);
        }
    }

    /// Notes what is left for this task to wait for, when nothing explains it so far.
    fn root_left_over(&mut self, task: usize) {
        let in_front = self.in_front(task);
        if works(self.view, task) && !in_front.is_empty() {
            // It is what those in front of it wait for, whatever it waits for itself at times.
            self.roots.entry(Place::Task(task)).or_default().0.extend(in_front);
            self.explain(task);
            return;
        }
        let waiting: BTreeSet<usize> =
            self.behind(task).flat_map(|(_, behind)| behind.waiting.iter().copied()).collect();
        let working =
            waiting.iter().filter(|place| works(self.view, **place)).map(|place| Place::Task(*place));
        let mut places: BTreeSet<Place> = working.collect();
        if places.is_empty() {
            let maybe = self.behind(task).filter(|(_, behind)| behind.itself == Itself::Maybe);
            places = maybe.map(|(place, _)| Place::Exchange(place)).collect();
        }
        if places.is_empty() && waiting.is_empty() {
            // Its exchanges say that nothing waits there, or it has none that is known.
            places = self.view.written(task).map(|(place, _)| Place::Exchange(place)).collect();
        } else if places.is_empty() {
            places = BTreeSet::from([Place::Cycle(task)]);
        }
        self.note(task, places, true);
    }

    /// Tasks that wait because this one does.
    fn in_front(&self, task: usize) -> BTreeSet<usize> {
        let read = self.read.get(task).into_iter().flatten();
        let blocked = read.filter(|place| self.behind.get(**place).is_some_and(Option::is_some));
        let writers =
            blocked.filter_map(|place| self.view.exchange(*place)).flat_map(|exchange| &exchange.writers);
        writers.copied().filter(|writer| *writer != task && self.view.summary(*writer).waits()).collect()
    }

    fn note(&mut self, task: usize, places: BTreeSet<Place>, is_left_over: bool) {
        for place in places {
            let (holds_up, left_over) = self.roots.entry(place).or_default();
            holds_up.insert(task);
            *left_over |= is_left_over;
        }
        self.explain(task);
    }

    /// It is known what this task waits for, and so of all that wait because of it.
    fn explain(&mut self, task: usize) {
        let mut next = vec![task];
        while let Some(task) = next.pop() {
            if !self.explained.insert(task) {
                continue;
            }
            for place in self.read.get(task).into_iter().flatten() {
                let is_blocked = self.behind.get(*place).is_some_and(Option::is_some);
                if is_blocked && self.explained_exchanges.insert(*place) {
                    let writers =
                        self.view.exchange(*place).into_iter().flat_map(|exchange| &exchange.writers);
                    next.extend(writers.copied().filter(|writer| self.view.summary(*writer).waits()));
                }
            }
        }
    }
}

/// What is behind this exchange, if its producers wait because of it.
fn behind(view: &View<'_>, place: usize) -> Option<Behind> {
    let exchange = view.exchange(place)?;
    if view.told(place).is_blocked == Some(false) {
        return None;
    }
    let (waiting, others): (Vec<usize>, Vec<usize>) =
        exchange.readers.iter().partition(|reader| view.summary(**reader).waits());
    let busy: Vec<usize> = others.into_iter().filter(|reader| is_saturated(view, *reader, place)).collect();
    let itself = if !busy.is_empty() || !waiting.is_empty() {
        Itself::No
    } else if is_carrier_slow(view, place) || exchange.readers.is_empty() {
        Itself::Certain
    } else {
        Itself::Maybe
    };
    Some(Behind { waiting, busy, itself })
}

/// Whether this reader has as much to do as it can: it is busy and not idle beside; or it is busy and what carries the
/// exchange to it is not slow.
fn is_saturated(view: &View<'_>, reader: usize, exchange: usize) -> bool {
    let summary = view.summary(reader);
    summary.is_busy() && (summary.shares.idle <= IDLE_UPTO_MS || !is_carrier_slow(view, exchange))
}

/// Whether most of the stalls of the exchange come from what carries it, and not from its consumers.
fn is_carrier_slow(view: &View<'_>, exchange: usize) -> bool {
    view.told(exchange).carrier.is_some()
}

/// Whether a task waits a little and works more.
fn works(view: &View<'_>, task: usize) -> bool {
    let summary = view.summary(task);
    summary.shares.busy >= BUSY_FROM_MS && summary.backpressured <= HIGH_ABOVE_MS
}

fn finish(view: &View<'_>, waiting: &[usize], roots: BTreeMap<Place, (BTreeSet<usize>, bool)>) -> Found {
    let is_root = |task: &usize| roots.contains_key(&Place::Task(*task));
    let victims: Vec<usize> = waiting.iter().copied().filter(|task| !is_root(task)).collect();
    let mut reached: BTreeSet<usize> = BTreeSet::new();
    let mut next: Vec<usize> = Vec::new();
    for place in roots.keys() {
        match place {
            Place::Task(task) => next.extend(readers_behind(view, *task)),
            Place::Exchange(exchange) => {
                next.extend(view.exchange(*exchange).into_iter().flat_map(|exchange| &exchange.readers));
            }
            Place::Cycle(_) => {}
        }
    }
    while let Some(task) = next.pop() {
        if reached.insert(task) {
            next.extend(readers_behind(view, task));
        }
    }
    let is_starved = |task: &usize| {
        let summary = view.summary(*task);
        !summary.waits() && !is_root(task) && summary.known > 0 && summary.shares.idle >= BUSY_FROM_MS
    };
    let starved = reached.into_iter().filter(is_starved).collect();
    let roots = roots
        .into_iter()
        .map(|(place, (holds_up, is_left_over))| Root { place, holds_up, is_left_over })
        .collect();
    Found { roots, victims, starved }
}

fn readers_behind(view: &View<'_>, task: usize) -> impl Iterator<Item = usize> {
    view.written(task).flat_map(|(_, exchange)| exchange.readers.iter().copied())
}
