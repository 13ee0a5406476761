//! What the kernel charges a socket for a zero-copy send from hugepages, found by sending a little.
//!
//! A socket may hold so many bytes, and is charged for the pages that what it holds lies in. Kernels charge a send from
//! registered memory by the page of the registration: if that is nothing but hugepages, by the hugepage, which can be a
//! hundred times what is sent. Then a socket that may hold a megabyte holds a few kilobytes, and a link stands still. With
//! a page of another size in the registration, as the tail of a region is, they charge what is sent. Whether this one does
//! is tried before it is relied on.

use std::fmt;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::types::{self, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};
use serde::{Deserialize, Serialize};

use super::Errno;
use crate::memory::{HUGEPAGE_BYTES, HugepageMode, SendRegion, Tail};

/// Bytes of the slice that is sent.
const SLICE_BYTES: u32 = 32 << 10;
const HEADER_BYTES: usize = 32;

/// Most that a byte may be charged as. Page tables and what else belongs to a segment make it a little more than one.
const FACTOR_MAX: u32 = 4;

/// Longest time for what is sent to arrive, when it is tried.
const ARRIVAL: Duration = Duration::from_secs(1);

/// SO_MEMINFO, and how many numbers it gives.
const MEMINFO: libc::c_int = 55;
const MEMINFO_NUMBERS: usize = 9;

/// What lets the kernel lock as much memory as zero-copy sends need.
pub const MEMLOCK_FIX: &str =
    "LimitMEMLOCK=infinity or AmbientCapabilities=CAP_IPC_LOCK (weir.service), or `ulimit -l unlimited`";

/// What gives the kernel what it lacks.
pub const KERNEL_FIX: &str = "a newer kernel";

/// What helps where a way is charged too much.
const CHARGED_FIX: &str = "a newer kernel, or memory.hugepages = \"off\"";

/// Something that zero-copy sends could have and do not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// Why.
    pub reason: String,
    /// What brings it; none where nobody need do anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// What one way of sending is charged: the bytes for each byte, or why that is not known.
pub type Factor = Result<u32, Unknown>;

/// Why it is not known what a way of sending is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// No hugepage was free.
    NoHugepage,
    /// The kernel refused it, as it will later: whoever sends so has another way then.
    Refused(Errno),
    /// The kernel took what was sent, and it did not arrive.
    Stuck,
}

impl Unknown {
    /// What has it found out, or lets it be used.
    #[must_use]
    pub const fn fix(self) -> &'static str {
        match self {
            Self::NoHugepage => {
                "a hugepage that is free when the daemon starts: sysctl vm.nr_hugepages. Regions of ordinary pages need no such try"
            }
            Self::Refused(Errno(libc::ENOMEM | libc::EPERM)) => MEMLOCK_FIX,
            Self::Refused(Errno(libc::EMFILE | libc::ENFILE)) => "LimitNOFILE= of the unit, or `ulimit -n`",
            Self::Refused(_) => KERNEL_FIX,
            Self::Stuck => {
                "restart the daemon, which tries it whenever it starts: neither rights nor hugepages are missing. If it gets stuck \
                 again, a newer kernel, or memory.hugepages = \"off\""
            }
        }
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHugepage => f.pad("no hugepage is free"),
            Self::Refused(errno) => errno.fmt(f),
            Self::Stuck => f.pad("what was sent did not arrive"),
        }
    }
}

impl From<Errno> for Unknown {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno)
    }
}

impl From<std::io::Error> for Unknown {
    fn from(error: std::io::Error) -> Self {
        Self::Refused(error.into())
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accounting {
    /// Memory that is not registered.
    pub plain: Factor,
    /// A registered region with its tail, in which the header lies.
    pub registered: Factor,
    /// A registered region alone. Nothing is sent so; it says whether the tail is what helps.
    pub alone: Factor,
}

impl Accounting {
    /// Tries it: some milliseconds, with a hugepage and a connection of its own on the loopback. A way that gets stuck takes up to six
    /// seconds, in which it is tried twice, and there are three.
    #[must_use]
    pub fn find() -> Self {
        Self::find_within(ARRIVAL)
    }

    /// As [`Self::find`], where each thing that is waited for may take so long.
    fn find_within(arrival: Duration) -> Self {
        let [plain, registered, alone] =
            [Way::Plain, Way::Registered, Way::Alone].map(|way| try_way(way, arrival));
        Self { plain, registered, alone }
    }

    /// Why registered memory is not to be sent from, if it is not: because it is charged too much, or because what was sent got
    /// stuck. Nothing speaks against it where no hugepage could be had or the kernel refused, nor for it.
    #[must_use]
    pub fn against_registered(&self) -> Option<Lost> {
        against(&self.registered, "from registered memory")
    }

    /// The same for zero-copy sends of any kind.
    #[must_use]
    pub fn against_plain(&self) -> Option<Lost> {
        against(&self.plain, "without a copy")
    }

    /// Why it is not known, of a way that is used all the same. `registered`: whether sends can be from registered memory.
    #[must_use]
    pub fn untried(&self, registered: bool) -> Option<Lost> {
        let of_use = [&self.plain, &self.registered].into_iter().take(if registered { 2 } else { 1 });
        let why = of_use.filter_map(|factor| factor.err()).find(|why| *why != Unknown::Stuck)?;
        Some(Lost { reason: format!("not tried: {why}"), fix: Some(why.fix().to_owned()) })
    }
}

impl fmt::Display for Accounting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |factor: &Factor| match factor {
            Ok(factor) => format!("x{factor}"),
            Err(why) => format!("not tried: {why}"),
        };
        if let (Err(plain), Err(registered)) = (&self.plain, &self.registered)
            && plain == registered
        {
            return write!(f, "not tried: {plain}");
        }
        write!(
            f,
            "unregistered {}, registered with a tail {}, registered alone {}",
            said(&self.plain),
            said(&self.registered),
            said(&self.alone)
        )
    }
}

fn against(factor: &Factor, how: &str) -> Option<Lost> {
    let lost = |reason, fix: &str| Some(Lost { reason, fix: Some(fix.to_owned()) });
    match factor {
        Ok(factor) if *factor > FACTOR_MAX => lost(
            format!("the kernel charges a socket {factor} bytes for each byte sent {how} out of a hugepage"),
            CHARGED_FIX,
        ),
        Err(why @ Unknown::Stuck) => lost(
            format!(
                "what was sent {how} out of a hugepage did not arrive within {} ms when it was tried",
                ARRIVAL.as_millis()
            ),
            why.fix(),
        ),
        Ok(_) | Err(Unknown::NoHugepage | Unknown::Refused(_)) => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plain,
    Registered,
    Alone,
}

/// What got stuck is tried once more: a machine that stood still for a moment is no reason against a way for good.
fn try_way(way: Way, arrival: Duration) -> Factor {
    match try_way_once(way, arrival) {
        Err(Unknown::Stuck) => try_way_once(way, arrival),
        found => found,
    }
}

fn try_way_once(way: Way, arrival: Duration) -> Factor {
    let segments = u32::try_from(HUGEPAGE_BYTES).unwrap_or(0) / SLICE_BYTES;
    let made = SendRegion::create(segments, SLICE_BYTES, HugepageMode::Require);
    let (region, _file, segments) = made.map_err(|_| Unknown::NoHugepage)?;
    send(way, &region, segments - 1, arrival)
}

/// Sends the last segment of a region, and returns what the receiver is charged for each byte.
fn send(way: Way, region: &Arc<SendRegion>, segment: u32, arrival: Duration) -> Factor {
    let mut tail = Tail::take(region).ok_or(Errno(libc::EBUSY))?;
    let header = tail.write(0, &[0; HEADER_BYTES]).ok_or(Errno(libc::EINVAL))?;
    let slice = region.slice(segment, 0, SLICE_BYTES).ok_or(Errno(libc::EINVAL))?.address();
    let vector = |address: *const u8, bytes: usize| libc::iovec {
        iov_base: address.cast_mut().cast(),
        iov_len: bytes,
    };
    let mut parts = vec![vector(header, HEADER_BYTES), vector(slice, SLICE_BYTES as usize)];
    if way == Way::Alone {
        parts.remove(0);
    }
    let bytes: usize = parts.iter().map(|part| part.iov_len).sum();
    let (near, far) = pair()?;
    let mut ring: IoUring =
        IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(8).map_err(Errno::from)?;
    let (address, length) = tail.range_with_region();
    let registered = match way {
        Way::Plain => None,
        Way::Registered => Some(vector(address, length)),
        Way::Alone => Some(vector(address, usize::try_from(region.bytes()).unwrap_or(0))),
    };
    if let Some(range) = registered {
        // SAFETY: the memory outlives the ring, which is dropped before the tail, which keeps the region.
        unsafe { ring.submitter().register_buffers(&[range]) }.map_err(Errno::from)?;
    }
    // SAFETY: all zeroes is a msghdr without name, vectors and control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len();
    let entry = opcode::SendMsgZc::new(types::Fd(near.as_raw_fd()), &raw const message)
        .buf_index(registered.map(|_| 0))
        .build();
    // SAFETY: the message and its vectors live until the entry was handed over, which copies them. What they name is given
    // up below only if the kernel has let go of it.
    unsafe { ring.submission().push(&entry) }.map_err(|_| Errno(libc::EBUSY))?;
    let (sent, is_read) = submit(&mut ring, arrival);
    let charged = sent.and_then(|()| arrived(&far, bytes, arrival)).and_then(|()| Ok(charged(far.as_fd())?));
    // Whatever was not read ends the connection, and with it what the kernel may have to send again.
    drop((near, far));
    let has_let_go = !is_read || wait_let_go(&mut ring, arrival);
    drop(ring);
    if !has_let_go {
        std::mem::forget(tail);
    }
    Ok(charged?.div_ceil(u32::try_from(bytes).unwrap_or(u32::MAX)))
}

fn pair() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    // Somebody else may have been faster.
    loop {
        let (far, address) = listener.accept()?;
        if near.local_addr()? == address {
            return Ok((near, far));
        }
    }
}

/// Hands the one entry over, and waits for what became of it. The second value: whether the kernel goes on reading the
/// memory until it says otherwise, which may also be so for a send that it refused.
fn submit(ring: &mut IoUring, arrival: Duration) -> (Result<(), Unknown>, bool) {
    let timeout = Timespec::from(arrival);
    let entered = ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timeout));
    match (ring.completion().next(), entered) {
        (None, Err(error)) if error.raw_os_error() != Some(libc::ETIME) => (Err(error.into()), true),
        (None, _) => (Err(Unknown::Stuck), true),
        (Some(answer), _) => {
            let result = answer.result();
            let outcome = if result < 0 { Err(Errno(result.saturating_neg()).into()) } else { Ok(()) };
            (outcome, cqueue::more(answer.flags()))
        }
    }
}

/// Waits until this many bytes are there to be read.
fn arrived(far: &TcpStream, bytes: usize, arrival: Duration) -> Result<(), Unknown> {
    let deadline = Instant::now() + arrival;
    far.set_nonblocking(true)?;
    let mut space = vec![0; bytes];
    loop {
        match far.peek(&mut space) {
            Ok(there) if there >= bytes => return Ok(()),
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
            Ok(_) | Err(_) if Instant::now() > deadline => return Err(Unknown::Stuck),
            Ok(_) | Err(_) => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}

/// Bytes that a socket is charged for what it has received.
fn charged(socket: BorrowedFd<'_>) -> Result<u32, Errno> {
    let mut numbers = [0_u32; MEMINFO_NUMBERS];
    let mut length = size_of_val(&numbers) as libc::socklen_t;
    let numbers_at = numbers.as_mut_ptr().cast();
    // SAFETY: the kernel writes at most `length` bytes to memory of that size.
    let outcome = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, MEMINFO, numbers_at, &raw mut length)
    };
    if outcome != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    let [received, ..] = numbers;
    Ok(received)
}

/// Waits until the kernel has said that it has let go of the memory.
fn wait_let_go(ring: &mut IoUring, arrival: Duration) -> bool {
    let deadline = Instant::now() + arrival;
    let timeout = Timespec::from(Duration::from_millis(20));
    let mut is_late = false;
    loop {
        if ring.completion().any(|entry| cqueue::notif(entry.flags())) {
            return true;
        }
        if is_late {
            return false;
        }
        // This thread may have stood still until now: the kernel is asked once more.
        is_late = Instant::now() > deadline;
        // Fails for want of time; the deadline ends that.
        let _ = ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timeout));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// So long that what takes longer is stuck, however busy the machine is.
    const STUCK: Duration = Duration::from_secs(30);

    fn found(plain: Factor, registered: Factor) -> Accounting {
        Accounting { plain, registered, alone: Ok(128) }
    }

    #[test]
    fn what_is_charged_too_much_is_not_used_and_what_was_not_tried_is() {
        let none = || Err(Unknown::NoHugepage);
        let refused = || Err(Unknown::Refused(Errno(libc::EOPNOTSUPP)));
        let cases = [
            (found(Ok(2), Ok(2)), false, false),
            (found(Ok(2), Ok(128)), false, true),
            (found(Ok(100), Ok(4)), true, false),
            (found(none(), none()), false, false),
            (found(Ok(2), refused()), false, false),
            (found(Ok(2), Err(Unknown::Stuck)), false, true),
            (found(Err(Unknown::Stuck), Ok(2)), true, false),
        ];
        for (found, plain, registered) in cases {
            let against = (found.against_plain().is_some(), found.against_registered().is_some());
            assert_eq!(against, (plain, registered), "{found}");
        }
        let text = found(Ok(2), Ok(128)).against_registered().expect("a reason").reason;
        assert!(text.contains("128 bytes for each byte sent from registered memory"), "{text}");
        assert_eq!(found(none(), none()).to_string(), "not tried: no hugepage is free");
        assert_eq!(
            found(Ok(2), Ok(3)).to_string(),
            "unregistered x2, registered with a tail x3, registered alone x128"
        );
    }

    #[test]
    fn each_cause_has_advice_of_its_own() {
        let (none, stuck) = (Unknown::NoHugepage, Unknown::Stuck);
        let (memory, refused) =
            (Unknown::Refused(Errno(libc::ENOMEM)), Unknown::Refused(Errno(libc::EINVAL)));
        assert!(none.fix().contains("vm.nr_hugepages") && memory.fix().contains("MEMLOCK"));
        for why in [stuck, refused] {
            assert!(!why.fix().contains("MEMLOCK") && !why.fix().contains("nr_hugepages"), "{}", why.fix());
        }
        assert!(stuck.fix().contains("restart"));
        assert_eq!(
            found(Err(stuck), Ok(2)).against_plain().and_then(|lost| lost.fix).as_deref(),
            Some(stuck.fix())
        );
        // What got stuck was tried; what is never sent so need not be.
        let untried = |found: &Accounting, registered| Some(found.untried(registered)?.fix.expect("advice"));
        assert_eq!(untried(&found(Err(stuck), Ok(2)), true), None);
        assert_eq!(untried(&found(Err(none), Err(memory)), true).as_deref(), Some(none.fix()));
        assert_eq!(untried(&found(Ok(2), Err(memory)), true).as_deref(), Some(memory.fix()));
        assert_eq!(untried(&found(Ok(2), Err(memory)), false), None);
    }

    #[test]
    fn what_does_not_arrive_is_told_from_what_cannot_be_asked() {
        let (near, far) = pair().expect("a connection");
        (&near).write_all(&[1; 10]).expect("ten bytes");
        assert_eq!(arrived(&far, 11, Duration::ZERO), Err(Unknown::Stuck));
        (&near).write_all(&[1]).expect("one more");
        assert_eq!(arrived(&far, 11, STUCK), Ok(()));
        drop(near);
        assert_eq!(arrived(&far, 12, Duration::ZERO), Err(Unknown::Stuck));
    }

    #[test]
    fn on_this_kernel_the_tail_keeps_the_charge_down() {
        let found = Accounting::find_within(STUCK);
        println!("{found}");
        if [&found.plain, &found.registered, &found.alone].contains(&&Err(Unknown::Stuck)) {
            return println!("not run here: what sends from a hugepage are charged ({found})");
        }
        if let Err(why) = &found.plain {
            return println!("not run here: sends from a hugepage ({why})");
        }
        assert_eq!((found.against_plain(), found.against_registered()), (None, None), "{found}");
    }

    #[test]
    fn memory_that_was_measured_with_is_given_back() {
        let (region, _file, segments) =
            SendRegion::create(64, SLICE_BYTES, HugepageMode::Off).expect("a region");
        for way in [Way::Plain, Way::Registered, Way::Alone] {
            match send(way, &region, segments - 1, STUCK) {
                Ok(factor) => assert!((1..=FACTOR_MAX).contains(&factor), "{way:?}: {factor}"),
                Err(why) => {
                    println!("not run here: a send that is {way:?} ({why})");
                    if why == Unknown::Stuck {
                        continue;
                    }
                }
            }
            assert_eq!(Arc::strong_count(&region), 1, "{way:?}");
        }
    }
}
