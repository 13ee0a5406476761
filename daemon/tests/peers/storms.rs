//! Peers that hold the key and do too much of what they may do.

use weir_flow::catalog::PEER_GATES_MAX;
use weir_flow::ids::{ChannelIndex, ConsumerIndex, Incarnation};
use weir_flow::wants::GateWants;
use weir_flow::wire::{
    CATALOG_ENTRIES_MAX, CatalogEntry, GateEntry, GateState, Limit, Message, PartitionEntry, PartitionState,
};

use super::*;
use crate::links::assert_alive;
use crate::peer::{Heard, Line, Persona, bytes_of, catalog, entry, limit, open};

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

fn entries(round: usize, state: PartitionState) -> Vec<PartitionEntry> {
    (0..CATALOG_ENTRIES_MAX)
        .map(|number| {
            let name = format!("a.name.of.some.length.{round}.{number}");
            let task = name.parse().expect("a name");
            PartitionEntry { incarnation: Incarnation(1 + round as u64), state, task, ..entry(&name) }
        })
        .collect()
}

/// As many gates, of the same exchanges.
fn gates(round: usize) -> Message {
    let gate = |of: PartitionEntry| {
        let (exchange, task, state) = (of.exchange, of.task, GateState::Attached);
        let wants = GateWants::all_of(&of.shape);
        CatalogEntry::Gate(GateEntry { exchange, consumer: ConsumerIndex(0), wants, state, task })
    };
    let partitions = entries(round, PartitionState::Running);
    Message::Catalog { entries: partitions.into_iter().map(gate).collect() }
}

#[test]
fn a_flood_of_partitions_or_gates_ends_that_control_link_and_what_it_told_is_forgotten() {
    let scene = Scene::start("", &[]);
    let mut evil = Persona::new("evil");
    let partitions = |round| catalog(entries(round, PartitionState::Running));
    for (what, flood) in [("partitions", &partitions as &dyn Fn(usize) -> Message), ("gates", &gates)] {
        for _ in 0..2 {
            let mut line = evil.dial_control(&scene.at_a);
            // As many of the other kind as may be are remembered beside them.
            for round in 0..PEER_GATES_MAX / CATALOG_ENTRIES_MAX {
                assert!(line.send(&if what == "gates" { partitions(round) } else { gates(round) }));
            }
            for round in 0.. {
                // Sockets hold some hundred of them, and a daemon that gets no processor ends the link later.
                assert!(round < 10_000, "two and a half million {what} were taken");
                if !line.send(&flood(round)) {
                    break;
                }
                scene.assert_memory_is_bounded();
            }
            logged(&scene.a, &["peer=evil", &format!("peer announces more {what}")]);
        }
    }
    scene.end();
}

#[test]
fn partitions_that_come_and_go_all_the_time_hold_nobody_up() {
    let scene = Scene::start("", &[]);
    let mut line = Persona::new("evil").dial_control(&scene.at_a);
    for round in 0..200 {
        for state in [PartitionState::Running, PartitionState::Finished, PartitionState::Gone] {
            assert!(line.send(&catalog(entries(round, state))));
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
    let scene = Scene::start(PATIENT, &[]);
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

/// Without a control link, each name at first only once.
#[test]
fn data_links_of_one_peer_under_many_names_are_bounded_and_those_of_one_name_replace_each_other() {
    const BOUND: usize = 64;
    let scene = Scene::start(PATIENT, &[]);
    let mut evils: Vec<Persona> = (0..BOUND).map(|number| Persona::new(&format!("evil{number}"))).collect();
    let mut lines: Vec<Line> = evils.iter_mut().map(|evil| evil.dial_data(&scene.at_a, 0)).collect();
    for line in &mut lines {
        assert_alive(line);
    }
    for name in ["late", "later", "latest"] {
        let told = Persona::new(name).dial_data(&scene.at_a, 0).until_end().unwrap_or_default();
        let needed =
            format!("64 data links of nodes without a control link; needed: a control link of {name}");
        assert!(told.contains(&needed), "{told:?}");
        shown(&scene.a, "listener", &needed);
    }
    // With another id each time.
    for _ in 0..100 {
        lines[0] = evils[0].dial_data(&scene.at_a, 0);
    }
    assert_alive(&mut lines[0]);
    eventually("the others are closed", || {
        // Each has its socket, and a duplicate to ask the kernel with what that waits for.
        (Usage::of(&scene.a).descriptors <= scene.before[0].descriptors + 2 * BOUND + 4).then_some(())
    });
    for line in &mut lines[1..] {
        assert_alive(line);
    }
    drop(lines);
    scene.end();
}

fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("as many as are allowed");
}
