//! What goes wrong in a run, and how much of it: drawn once from the seed, so that some seeds have little of
//! everything and others a lot of one thing.

use weir_flow::wire::FrameType;

use crate::pipe::Flying;
use crate::plan::Timing;
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
    /// Links that are cut, at these steps or a little later.
    pub links_cut: Vec<u64>,
    /// Links that are cut while a frame of a type is on its way, the first one after a step.
    pub snipes: Vec<(u64, Snipe)>,
    /// A socket that replaces another is cut soon.
    pub recut: u32,
    /// Links that go silent instead of breaking, at these steps.
    pub links_silent: Vec<u64>,
    /// Links on which one byte of a header changes, at these steps.
    pub links_garbled: Vec<u64>,
    /// The step at which a node begins to stop, and its number.
    pub drain: Option<(u64, u16)>,
    /// The step at which a node is killed and started anew, and its number.
    pub restart: Option<(u64, u16)>,
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
            links_cut: Vec::new(),
            snipes: Vec::new(),
            recut: 0,
            links_silent: Vec::new(),
            links_garbled: Vec::new(),
            drain: None,
            restart: None,
        }
    }

    /// The faults of a seed, for a run of `steps`.
    #[must_use]
    pub fn draw(rng: &mut Rng, steps: u64, timing: Timing) -> Self {
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
        faults.draw_outages(rng, steps, timing);
        if rng.chance(50) {
            faults.drain = Some((rng.below(steps), rng.below(3) as u16));
        }
        faults
    }

    fn draw_outages(&mut self, rng: &mut Rng, steps: u64, timing: Timing) {
        let (cuts, silent) = match timing {
            Timing::Calm => return,
            Timing::Resets => (rng.range(1, 6), 0),
            Timing::Quick => (rng.range(0, 4), rng.range(0, 2)),
            Timing::Slow => (rng.range(0, 3), rng.range(0, 2)),
        };
        self.links_cut = (0..cuts).map(|_| rng.below(steps)).collect();
        self.links_silent = (0..silent).map(|_| rng.below(steps)).collect();
        if rng.chance(500) {
            self.snipes = (0..rng.range(1, 3)).map(|_| (rng.below(steps), rng.pick(Snipe::ALL))).collect();
        }
        self.recut = rng.pick(&[0, 100, 400, 800]);
        if rng.chance(100) {
            self.links_garbled = vec![rng.below(steps)];
        }
        if rng.chance(100) {
            self.restart = Some((rng.below(steps), rng.below(3) as u16));
        }
    }
}

/// A kind of frame during which a link is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Snipe {
    /// A frame of this type.
    Frame(FrameType),
    /// A Backlog that gives the open segment up.
    Closed,
    /// Any frame that is sent again.
    Again,
}

impl Snipe {
    /// Every kind that is tried.
    pub const ALL: &'static [Self] = &[
        Self::Frame(FrameType::OpenChannel),
        Self::Frame(FrameType::ChannelAccepted),
        Self::Frame(FrameType::ChannelFailed),
        Self::Frame(FrameType::Cancel),
        Self::Frame(FrameType::EndOfData),
        Self::Frame(FrameType::EndAck),
        Self::Frame(FrameType::Limit),
        Self::Frame(FrameType::Event),
        Self::Frame(FrameType::Goodbye),
        Self::Frame(FrameType::LinkResume),
        Self::Frame(FrameType::Resume),
        Self::Closed,
        Self::Again,
    ];

    /// Whether this is such a frame.
    #[must_use]
    pub fn hits(self, flying: &Flying) -> bool {
        match self {
            Self::Frame(frame) => flying.frame == frame,
            Self::Closed => flying.closes,
            Self::Again => flying.again,
        }
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
    /// A sender goes on after an outage as if everything had arrived.
    NoRewind,
    /// It sends one frame again that had arrived.
    RewindTooFar,
    /// A frame that had arrived in part counts as arrived.
    KeepHalfFrame,
    /// A sender takes the open receive segment for closed.
    ForgetFill,
    /// A control frame that was lost is not sent again.
    DropControl,
    /// A control frame that had arrived is sent again.
    RepeatControl,
    /// A receiver does not hear that the open segment is given up.
    ForgetClosed,
    /// A sender frees what has not arrived.
    FreeUnacked,
    /// A shell reads what was left in the old socket when it has the next one.
    ReadOldSocket,
    /// A segment that several consumers read comes back when the first of them has it.
    FreeShared,
    /// A consumer that adaptive selection has left out never comes back.
    NeverBack,
    /// Adaptive selection does not ask for credit: it goes in turn, and waits for whose turn it is.
    IgnoreCredit,
    /// A record goes to another consumer than its key names, since that one has no room.
    MoveKey,
    /// A sender takes no notice of a bound.
    IgnoreBound,
    /// A producer that waits for a bound keeps what it wrote, which then never arrives.
    KeepBack,
    /// A channel of a gate that holds credit back is granted nothing any more.
    Starve,
    /// The kernel reads a batch that it has said to have let go of.
    LetGoEarly,
}

impl Sabotage {
    /// Every kind of defect.
    pub const ALL: [Self; 26] = [
        Self::FlipPayloadByte,
        Self::FlipHeaderByte,
        Self::LoseGiveBack,
        Self::LoseReturned,
        Self::WriteAfterSubmit,
        Self::ReadAfterGiveBack,
        Self::RepeatDelivery,
        Self::LoseDelivery,
        Self::OverstateSent,
        Self::NoRewind,
        Self::RewindTooFar,
        Self::KeepHalfFrame,
        Self::ForgetFill,
        Self::DropControl,
        Self::RepeatControl,
        Self::ForgetClosed,
        Self::FreeUnacked,
        Self::ReadOldSocket,
        Self::FreeShared,
        Self::NeverBack,
        Self::IgnoreCredit,
        Self::MoveKey,
        Self::IgnoreBound,
        Self::KeepBack,
        Self::Starve,
        Self::LetGoEarly,
    ];

    /// Those that need a gate that wants less in flight than there is room for.
    pub const DEBLOAT: [Self; 3] = [Self::IgnoreBound, Self::KeepBack, Self::Starve];

    /// Those that make a producer choose the wrong consumer.
    pub const CHOICES: [Self; 3] = [Self::NeverBack, Self::IgnoreCredit, Self::MoveKey];

    /// Those that are put in by telling a core something else than what arrived.
    pub const RULES: [Self; 8] = [
        Self::NoRewind,
        Self::RewindTooFar,
        Self::KeepHalfFrame,
        Self::ForgetFill,
        Self::DropControl,
        Self::RepeatControl,
        Self::ForgetClosed,
        Self::FreeUnacked,
    ];
}
