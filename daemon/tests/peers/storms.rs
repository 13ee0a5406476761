//! Peers that hold the key and do too much of what they may do.

use weir_flow::ids::{ChannelIndex, Incarnation};
use weir_flow::wire::{CATALOG_ENTRIES_MAX, CatalogEntry, Limit, Message, PartitionState};

use super::*;
use crate::peer::{Heard, Persona, bytes_of, entry, limit, open};

fn frames(count: usize, make: impl Fn(usize) -> Message) -> Vec<u8> {
    (0..count).flat_map(|number| bytes_of(&make(number))).collect()
}

#[test]
fn a_storm_of_questions_whose_answers_are_not_read_ends_that_link() {
    let scene = Scene::start("", &[]);
    let mut line = Persona::new("evil").dial_data(&scene.at_a, 0);
    let storm = frames(1000, |number| open(number as u32, "none", 1));
    eventually("the link is given up", || (!line.send_bytes(&storm)).then_some(()));
    logged(&scene.a, &["data link closed", "evil", "answers that wait"]);
    scene.end();
}

#[test]
fn a_storm_of_questions_whose_answers_are_never_acknowledged_is_bounded() {
    let scene = Scene::start("", &[]);
    let mut line = Persona::new("evil").dial_data(&scene.at_a, 0);
    line.answers_pings = false;
    let (mut asked, mut answered) = (0_usize, 0_usize);
    let storm = frames(1000, |number| open(number as u32, "none", 1));
    // Either all are answered, or the link is given up.
    'storm: while asked < 600_000 {
        if !line.send_bytes(&storm) {
            break;
        }
        asked += 1000;
        while answered < asked {
            match line.next() {
                Heard::Frame(Message::ChannelFailed { .. }) => answered += 1,
                // It waits to be told that the answers came: it goes on asking, and gets no more.
                Heard::Frame(Message::Ping { .. }) => {
                    if answered + 1000 < asked {
                        continue 'storm;
                    }
                }
                Heard::End(_) => break 'storm,
                other => panic!("{other:?}"),
            }
        }
    }
    scene.end();
}

#[test]
fn storms_of_pings_and_of_frames_for_nobody_cost_their_sender_only() {
    let scene = Scene::start("", &[]);
    let mut evil = Persona::new("evil");
    let (mut control, mut data) = (evil.dial_control(&scene.at_a), evil.dial_data(&scene.at_a, 0));
    let pings = frames(2000, |number| Message::Ping { token: number as u64 });
    let strays = frames(1000, |number| limit(number as u32, Limit { limit: u64::MAX, ..Limit::default() }));
    let acks = frames(1000, |number| Message::EndAck { channel: ChannelIndex(number as u32) });
    for _ in 0..100 {
        // Nothing of what comes back is read.
        assert!(control.send_bytes(&pings));
        for storm in [&pings, &strays, &acks] {
            assert!(data.send_bytes(storm));
        }
        scene.assert_memory_is_bounded();
    }
    drop((control, data));
    scene.end();
}

fn entries(round: usize, state: PartitionState) -> Vec<CatalogEntry> {
    (0..CATALOG_ENTRIES_MAX)
        .map(|number| CatalogEntry {
            incarnation: Incarnation(1 + round as u64),
            state,
            ..entry(&format!("a.name.of.some.length.{round}.{number}"))
        })
        .collect()
}

#[test]
fn a_flood_of_partitions_ends_that_control_link_and_what_it_told_is_forgotten() {
    let scene = Scene::start("", &[]);
    let mut evil = Persona::new("evil");
    for _ in 0..2 {
        let mut line = evil.dial_control(&scene.at_a);
        for round in 0.. {
            assert!(round < 1000, "half a million partitions were taken");
            if !line.send(&Message::Catalog { entries: entries(round, PartitionState::Running) }) {
                break;
            }
            scene.assert_memory_is_bounded();
        }
        logged(&scene.a, &["peer=evil", "partitions"]);
    }
    scene.end();
}

#[test]
fn partitions_that_come_and_go_all_the_time_hold_nobody_up() {
    let scene = Scene::start("", &[]);
    let mut line = Persona::new("evil").dial_control(&scene.at_a);
    for round in 0..200 {
        for state in [PartitionState::Running, PartitionState::Finished, PartitionState::Gone] {
            assert!(line.send(&Message::Catalog { entries: entries(round, state) }));
        }
    }
    // A new exchange finds its way meanwhile.
    let other = Healthy::start(&scene.a, &scene.b, "other");
    other.finish();
    drop(line);
    scene.end();
}

#[test]
fn one_peer_under_many_names_is_bounded_and_one_that_dials_all_the_time_has_one_link() {
    raise_descriptor_limit();
    let scene = Scene::start("", &[]);
    let mut lines = Vec::new();
    for number in 0..1100 {
        let mut line = Persona::new(&format!("evil{number}")).dial_control(&scene.at_a);
        if number >= 1024 {
            assert!(line.until_end().is_some_and(|text| text.contains("1024 nodes")), "{number}");
        }
        lines.push(line);
    }
    assert!(is_linked(&scene.b, "a"));
    drop(lines);
    let mut evil = Persona::new("evil");
    let mut last = None;
    for _ in 0..300 {
        last = Some(evil.dial_control(&scene.at_a));
    }
    let mut last = last.expect("the last one");
    last.send(&Message::Ping { token: 3 });
    last.until("a Pong", |heard| matches!(heard, Heard::Frame(Message::Pong { token: 3 })).then_some(()));
    eventually("the others are closed", || {
        (Usage::of(&scene.a).descriptors <= scene.before[0].descriptors + 2).then_some(())
    });
    drop(last);
    scene.end();
}

fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("as many as are allowed");
}
