//! What goes wrong in a run, and how much of it: drawn once from the seed, so that some seeds have little of
//! everything and others a lot of one thing.

use crate::rng::Rng;

/// The faults of one run. Rates are per thousand.
#[derive(Clone, Debug)]
pub struct Faults {
    /// A send ends before the kernel took everything.
    pub short_write: u32,
    /// A send ends with nothing taken.
    pub empty_write: u32,
    /// The kernel takes a random piece of a send instead of all that fits.
    pub piecewise: u32,
    /// A read takes a random number of bytes instead of all that arrived.
    pub cut_read: u32,
    /// Reads end near frame boundaries: within a header's length of one.
    pub cut_near_boundary: u32,
    /// A shard takes a long turn and does nothing else meanwhile.
    pub long_turn: u32,
    /// A reader of a link stalls.
    pub stalled_reader: u32,
    /// Socket buffer of each link and direction, in bytes.
    pub socket_bytes: usize,
    /// The step at which a link breaks, and how many do.
    pub links_lost: Vec<u64>,
    /// Links that go silent instead of breaking, at these steps.
    pub links_silent: Vec<u64>,
    /// Links on which one byte of a header changes, at these steps.
    pub links_garbled: Vec<u64>,
    /// The step at which a node begins to stop, and its number.
    pub drain: Option<(u64, u16)>,
}

impl Faults {
    /// No fault at all.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            short_write: 0,
            empty_write: 0,
            piecewise: 0,
            cut_read: 0,
            cut_near_boundary: 0,
            long_turn: 0,
            stalled_reader: 0,
            socket_bytes: 1 << 20,
            links_lost: Vec::new(),
            links_silent: Vec::new(),
            links_garbled: Vec::new(),
            drain: None,
        }
    }

    /// The faults of a seed, for a run of `steps`.
    #[must_use]
    pub fn draw(rng: &mut Rng, steps: u64) -> Self {
        let mut faults = Self::none();
        faults.socket_bytes = rng.pick(&[64, 700, 4096, 20_000, 1 << 16, 1 << 18]);
        for rate in [
            &mut faults.short_write,
            &mut faults.empty_write,
            &mut faults.piecewise,
            &mut faults.cut_read,
            &mut faults.cut_near_boundary,
        ] {
            *rate = rng.pick(&[0, 10, 100, 400, 900]);
        }
        faults.empty_write /= 4;
        faults.long_turn = rng.pick(&[0, 0, 5, 20]);
        faults.stalled_reader = rng.pick(&[0, 0, 5, 20]);
        if rng.chance(150) {
            faults.links_lost = (0..rng.range(1, 2)).map(|_| rng.below(steps)).collect();
        }
        if rng.chance(50) {
            faults.links_silent = vec![rng.below(steps)];
        }
        if rng.chance(50) {
            faults.links_garbled = vec![rng.below(steps)];
        }
        if rng.chance(50) {
            faults.drain = Some((rng.below(steps), rng.below(3) as u16));
        }
        faults
    }
}

/// A defect that the simulator puts into itself, so that a test can show that it would be noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sabotage {
    /// None: the normal case.
    #[default]
    None,
    /// One payload byte changes on its way.
    FlipPayloadByte,
    /// One byte of a header changes on its way.
    FlipHeaderByte,
    /// A consumer forgets to give one slice back.
    LoseGiveBack,
    /// The shell loses one returned segment on its way to the producer's client.
    LoseReturned,
    /// A producer writes into a segment that it has handed over.
    WriteAfterSubmit,
    /// A consumer gives a slice back and goes on reading it.
    ReadAfterGiveBack,
    /// The shell hands one delivery to the consumer twice.
    RepeatDelivery,
    /// The shell loses one delivery.
    LoseDelivery,
    /// The kernel reports more bytes as sent than it took.
    OverstateSent,
}

impl Sabotage {
    /// Every kind of defect.
    pub const ALL: [Self; 9] = [
        Self::FlipPayloadByte,
        Self::FlipHeaderByte,
        Self::LoseGiveBack,
        Self::LoseReturned,
        Self::WriteAfterSubmit,
        Self::ReadAfterGiveBack,
        Self::RepeatDelivery,
        Self::LoseDelivery,
        Self::OverstateSent,
    ];
}
