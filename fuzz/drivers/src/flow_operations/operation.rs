//! What can happen, as it is read from the input.

use arbitrary::{Arbitrary, Result, Unstructured};

use crate::input::{byte, number, number_32};

/// Producers, and consumers, are counted over both nodes.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Write {
        producer: usize,
        consumer: u32,
        bytes: u32,
        close: bool,
    },
    Event {
        producer: usize,
        consumer: u32,
        priority: bool,
    },
    End {
        producer: usize,
        consumer: u32,
    },
    /// The kernel has the next batch, but takes nothing yet.
    Plan {
        node: usize,
    },
    /// The socket takes this many bytes.
    Send {
        node: usize,
        bytes: usize,
    },
    Receive {
        node: usize,
        bytes: usize,
    },
    Poll {
        consumer: usize,
        count: usize,
    },
    GiveBack {
        consumer: usize,
        pick: usize,
        share: u32,
    },
    ConsumeEvent {
        consumer: usize,
    },
    Time {
        ns: u64,
    },
    /// A gate learns of a producer.
    Attach {
        consumer: usize,
        producer: u32,
    },
    /// One node notices that its socket is gone.
    Lose {
        node: usize,
    },
    /// The same while the kernel has a batch, of which it had sent this much; it says so with the next `Send`.
    LoseBusy {
        node: usize,
        bytes: usize,
    },
    /// Both nodes get a new socket, whatever they believe of the old one.
    Resume,
    /// The link ends for good, on both nodes.
    CloseLink,
    ClosePartition {
        producer: usize,
    },
    CloseGate {
        consumer: usize,
    },
    /// A client submits any numbers.
    Claim {
        producer: usize,
        subpartition: u32,
        segment: u32,
        offset: u32,
        bytes: u32,
    },
    Drain {
        node: usize,
    },
}

/// Producers and consumers of a run.
pub(super) const CLIENTS: usize = 3;

fn client(input: &mut Unstructured<'_>) -> usize {
    usize::from(byte(input)) % CLIENTS
}

fn node(input: &mut Unstructured<'_>) -> usize {
    usize::from(byte(input) % 2)
}

/// Bytes on a socket: few, or more than there ever are.
fn socket_bytes(input: &mut Unstructured<'_>) -> usize {
    match byte(input) {
        249.. => usize::MAX,
        few => usize::from(few) * usize::from(few) / 4,
    }
}

impl Arbitrary<'_> for Operation {
    fn arbitrary(input: &mut Unstructured<'_>) -> Result<Self> {
        Ok(match byte(input) % 24 {
            0..=3 => Self::Write {
                producer: client(input),
                consumer: byte(input).into(),
                bytes: u32::from(byte(input)).pow(2) / 15,
                close: !byte(input).is_multiple_of(2),
            },
            4 => Self::Event {
                producer: client(input),
                consumer: byte(input).into(),
                priority: byte(input).is_multiple_of(2),
            },
            5 => Self::End { producer: client(input), consumer: byte(input).into() },
            6 => Self::Plan { node: node(input) },
            7 | 8 => Self::Send { node: node(input), bytes: socket_bytes(input) },
            9 | 10 => Self::Receive { node: node(input), bytes: socket_bytes(input) },
            11 => Self::Poll { consumer: client(input), count: byte(input).into() },
            12 => Self::GiveBack {
                consumer: client(input),
                pick: byte(input).into(),
                share: 1 + u32::from(byte(input) % 3),
            },
            13 => Self::ConsumeEvent { consumer: client(input) },
            14 => Self::Time { ns: u64::from(byte(input)).pow(3) * 300 },
            15 => Self::Attach { consumer: client(input), producer: byte(input).into() },
            16 => Self::Lose { node: node(input) },
            17 => Self::Resume,
            18 => Self::CloseLink,
            19 => Self::ClosePartition { producer: client(input) },
            20 => Self::CloseGate { consumer: client(input) },
            21 => Self::Claim {
                producer: client(input),
                subpartition: number_32(input),
                segment: number_32(input),
                offset: number_32(input),
                bytes: u32::try_from(number(input)).unwrap_or(u32::MAX).saturating_mul(8),
            },
            22 => Self::Drain { node: node(input) },
            _ => Self::LoseBusy { node: node(input), bytes: socket_bytes(input) },
        })
    }
}
