//! Two shards, a byte stream between them that is cut anywhere, and honest clients on both sides, with links that break
//! and come back, clients that leave, and a client that claims things.
//!
//! After every step all accounts of both shards add up. As long as nothing was disturbed that may fail a channel (sockets
//! that break and are replaced within the grace are no such thing), everything arrives, once and in order, and every
//! segment is free at the end. What was disturbed fails with its reason, what did arrive is a part of what was sent, and
//! nothing is left of it.
//!
//! **Broken rule**: a socket that takes one byte more than it says.

mod operation;
mod world;

use arbitrary::{Arbitrary, Unstructured};

use crate::input::{byte, put_all};
use crate::{Driver, Reached, Rule};
use operation::Operation;
use world::World;

/// The driver.
pub const DRIVER: Driver = Driver {
    name: "flow_operations",
    run,
    seeds,
    must_reach: &[
        "everything arrived",
        "everything arrived from shared segments",
        "everything left",
        "partly sent",
        "half-open",
        "sent before the loss",
        "resumed",
        "resumed with channels",
        "timed out",
        "expired",
        "link closed",
        "partition failed",
        "channel failed",
        "goes on without a consumer",
        "client fault",
        "draining",
    ],
};

const STEPS_MAX: u32 = 300;

fn run(program: &[u8], rule: Rule) -> Reached {
    let mut input = Unstructured::new(program);
    let mut world = World::new(byte(&mut input), rule);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        let Ok(operation) = Operation::arbitrary(&mut input) else { break };
        world.apply(&operation);
    }
    world.finish()
}

/// A program of these operations, each with its numbers.
fn program(first: u64, steps: &[&[u64]]) -> Vec<u8> {
    let mut program = Vec::new();
    put_all(&mut program, &[first]);
    for step in steps {
        put_all(&mut program, step);
    }
    program
}

/// Each kind of disturbance in the middle of a transfer.
fn seeds() -> Vec<Vec<u8>> {
    const ATTACH: &[u64] = &[15, 0, 0];
    const WRITE: &[u64] = &[0, 0, 0, 100, 1];
    const ALL: u64 = 249;
    let moved: &[&[u64]] = &[&[7, 0, ALL], &[9, 1, ALL], &[7, 1, ALL], &[9, 0, ALL]];
    let with = |first: u64, middle: &[&[u64]]| {
        let begin: &[&[u64]] =
            &[ATTACH, &[7, 1, ALL], &[9, 0, ALL], &[7, 0, ALL], &[9, 1, ALL], WRITE, WRITE];
        let end: &[&[u64]] = &[WRITE, &[4, 0, 0, 1], &[11, 0, 9], &[12, 0, 0, 0], &[13, 0], WRITE];
        program(first, &[begin, middle, moved, end, moved].concat())
    };
    let second: &[u64] = &[15, 1, 0];
    vec![
        with(0, &[]),
        with(4, &[]),
        with(4, &[second, &[7, 1, ALL], &[9, 0, ALL], &[7, 0, ALL], &[9, 1, ALL], &[4, 0, 0, 1]]),
        with(5, &[second, &[7, 0, 30], &[9, 1, 10], &[16, 0], &[9, 1, 10], &[17], &[7, 0, ALL]]),
        with(4, &[second, &[20, 0], &[7, 1, ALL], &[9, 0, ALL]]),
        with(0, &[&[7, 0, 3], &[9, 1, 1]]),
        with(0, &[&[7, 0, 30], &[9, 1, 10], &[16, 0], &[9, 1, 10], &[17], &[7, 0, ALL]]),
        with(1, &[&[7, 0, 30], &[17], &[7, 1, 2], &[17], &[7, 1, ALL], &[9, 0, ALL]]),
        with(0, &[&[16, 0], &[14, 240], &[14, 240], &[14, 240], &[17]]),
        with(0, &[&[14, 240], &[14, 240]]),
        with(0, &[&[6, 0], &[18]]),
        with(0, &[&[6, 0], &[23, 0, 40], &[9, 1, 249], &[7, 0, 0], &[17]]),
        with(0, &[&[7, 0, 40], &[9, 1, 20], &[19, 0]]),
        with(0, &[&[20, 0], &[7, 1, ALL], &[9, 0, ALL]]),
        with(1, &[&[20, 0], &[7, 1, ALL], &[9, 0, ALL]]),
        with(0, &[&[21, 0, 0, 9, 9, 9]]),
        with(0, &[&[22, 0], &[7, 0, ALL], &[9, 1, ALL], &[5, 0, 0]]),
        program(0, &[&[15, 2, 0], &[15, 2, 1], &[0, 1, 0, 200, 0], &[0, 2, 0, 50, 1], &[5, 1, 0], &[17]]),
    ]
}
