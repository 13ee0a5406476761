//! Where to begin: a channel's life at either end, and each way in which it ends early.

use crate::input::put_all;

const ACCEPT: &[u64] = &[3, 1, 0, 0, 0];
const OPEN: &[u64] = &[3, 0, 0, 0, 0, 0, 0, 4, 8];
const DATA: &[u64] = &[1, 6, 1, 0, 0, 0, 1, 10];
const TRANSMIT: &[u64] = &[10, 249];

pub(super) fn seeds() -> Vec<Vec<u8>> {
    [lives(), ends()].concat()
}

/// Steps of a program: each is an operation and its numbers.
fn program(steps: &[&[u64]]) -> Vec<u8> {
    let mut program = Vec::new();
    for step in steps {
        put_all(&mut program, step);
    }
    program
}

/// From opening to the end, in whole and in pieces.
fn lives() -> Vec<Vec<u8>> {
    vec![
        // A gate: accepted, DATA, an event of each kind, the end, everything given back.
        program(&[
            TRANSMIT,
            ACCEPT,
            DATA,
            &[3, 5, 0, 0, 1, 1],
            &[3, 5, 0, 0, 2, 0],
            &[1, 6, 0, 0, 0, 3, 1, 20],
            &[3, 7, 0, 0, 4],
            &[9],
            &[8, 0],
            &[8, 0],
            &[15, 0],
            &[15, 0],
            TRANSMIT,
            &[9],
            &[11, 1],
            TRANSMIT,
        ]),
        // The same, cut into single bytes.
        program(&[TRANSMIT, &[6, 0], ACCEPT, DATA, &[9], &[8, 0], TRANSMIT]),
        // A partition: asked for, served, paid, acknowledged, finished.
        program(&[
            OPEN,
            TRANSMIT,
            &[7, 0, 2, 0, 0, 20],
            &[7, 0, 4, 0, 64, 0],
            &[10, 3],
            TRANSMIT,
            &[10, 3],
            &[3, 3, 0, 9, 2, 0, 8],
            &[7, 0, 1, 0],
            &[7, 0, 0],
            TRANSMIT,
            &[3, 3, 0, 9, 3, 0, 8],
            &[3, 8, 0],
            &[9],
        ]),
    ]
}

/// Refused, failed, cancelled, broken, replaced.
fn ends() -> Vec<Vec<u8>> {
    vec![
        // Broken frames, a refused channel, a failed one, a cancelled one, a peer that stops.
        program(&[TRANSMIT, ACCEPT, &[1, 6, 0, 0, 0, 5, 1, 10], &[9], &[1, 99, 0, 0, 0, 0, 0, 0]]),
        program(&[
            &[3, 0, 0, 0, 7, 0, 0, 4, 8],
            TRANSMIT,
            OPEN,
            &[3, 9, 0, 0, 0],
            TRANSMIT,
            &[3, 14, 0],
            &[11, 200],
        ]),
        program(&[TRANSMIT, ACCEPT, &[3, 2, 0], &[9], &[12], &[7, 9, 2, 0, 0, 0], &[0, 40, 1, 2, 3], &[13]]),
        // A socket breaks in a frame and is replaced.
        program(&[
            TRANSMIT,
            ACCEPT,
            DATA,
            &[14],
            &[14],
            &[3, 11, 0, 1],
            TRANSMIT,
            &[1, 6, 0, 0, 0, 1, 1, 10],
            &[9],
        ]),
        program(&[
            OPEN,
            TRANSMIT,
            &[7, 0, 4, 0, 0, 20],
            TRANSMIT,
            &[14],
            &[14],
            &[3, 11, 0, 1],
            &[3, 10, 0, 7, 0, 0, 0, 4, 8, 0],
            TRANSMIT,
        ]),
    ]
}
