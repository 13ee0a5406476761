//! From the object to attached programs, with a cause of its own for each way in which that can end early.

#![allow(unsafe_code)] // declares which records are plain data for the kernel

use std::error::Error;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use aya::maps::{Array, MapData, MapError, PerCpuArray, RingBuf, SkStorage};
use aya::programs::{BtfTracePoint, FEntry, ProgramError};
use aya::{Ebpf, EbpfError, EbpfLoader, Endianness, VerifierLogLevel};
use rustix::time::{ClockId, clock_getres};
use weir_ebpf_abi::Offsets;

use super::accounts::Accounts;
use super::btf::Btf;
use super::cause::Cause;
use super::hooks::{self, Attach, Point};
use super::slots::Slots;
use super::{AccountRecord, MISSING, OBJECT, Probes, TotalsRecord, WatchRecord, Writing, privileges};

/// Where the kernel shows its type information.
const TYPES_FILE: &str = "/sys/kernel/btf/vmlinux";

/// Where the kernel says whether it calls what stands at the entry of a function: 1 or 0. Programs are attached in either
/// case, and with 0 they never run.
const FUNCTIONS_FILE: &str = "/proc/sys/kernel/ftrace_enabled";

/// Stalls that last less are summed up only.
const STALL_MIN_NS: u64 = 10_000_000;

/// Length of the ring of stalls in bytes: some 5,000, taken once a second.
const STALLS_BYTES: u32 = 256 << 10;

/// What the probes are loaded from and with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sources<'a> {
    /// The object; empty: the daemon was built without.
    pub(crate) object: &'a [u8],
    /// Why it is empty.
    pub(crate) missing: &'static str,
    /// The kernel's type information.
    pub(crate) types: &'a Path,
    /// Sockets that can be watched at a time.
    pub(crate) slots: u32,
    /// The shortest stall that is told one by one, in nanoseconds.
    pub(crate) stall_min_ns: u64,
    /// Length of the ring of stalls, in bytes: a power of two, at least a page.
    pub(crate) stalls_bytes: u32,
}

impl Sources<'_> {
    /// The object of this program and the kernel that runs.
    pub(crate) fn own(slots: u32) -> Sources<'static> {
        Sources {
            object: OBJECT,
            missing: MISSING,
            types: Path::new(TYPES_FILE),
            slots,
            stall_min_ns: STALL_MIN_NS,
            stalls_bytes: STALLS_BYTES,
        }
    }
}

/// Where the members lie, in the form in which the kernel is given them.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct OffsetsRecord(Offsets);

// SAFETY: integers without a gap, of which any value is one.
unsafe impl aya::Pod for OffsetsRecord {}

/// Loads the object and attaches what can be attached.
///
/// # Errors
/// Why nothing is attached; nothing is left in the kernel then.
pub(crate) fn load(sources: &Sources<'_>) -> Result<Probes, Cause> {
    if sources.object.is_empty() {
        return Err(Cause::BuiltWithout { reason: sources.missing });
    }
    privileges::check()?;
    let no_types =
        |problem: String| Cause::NoTypes { problem: format!("{}: {problem}", sources.types.display()) };
    let types = std::fs::read(sources.types).map_err(|error| no_types(error.to_string()))?;
    let kernel = Btf::parse(&types).map_err(|error| no_types(error.to_string()))?;
    let offsets =
        Offsets::resolve(|structure, member| kernel.member(structure, member)).map_err(Cause::NoMember)?;
    let target = aya::Btf::parse(&types, Endianness::default()).map_err(|error| no_types(chain(&error)))?;
    let mut ebpf = create(sources, &target, &OffsetsRecord(offsets))?;
    let maps = Maps::take(&mut ebpf, sources.slots)?;
    let hooks = hooks::attach_all(&kernel, &mut Loaded { ebpf: &mut ebpf, target: &target })?;
    Ok(Probes {
        _programs: ebpf,
        hooks,
        writing: Mutex::new(Writing {
            slots: Slots::new(sources.slots),
            accounts: maps.account_array,
            watches: maps.watches,
        }),
        accounts: maps.accounts,
        totals: maps.totals,
        stalls: Mutex::new(maps.stalls),
        unwatched: AtomicU64::new(0),
    })
}

/// Makes the maps, with the members' places in their read-only part.
fn create<T: aya::Pod>(sources: &Sources<'_>, target: &aya::Btf, offsets: &T) -> Result<Ebpf, Cause> {
    let tick_ns = tick_ns();
    EbpfLoader::new()
        .btf(Some(target))
        // What a refusal says without it is an error number; with more, the log of a success is long.
        .verifier_log_level(VerifierLogLevel::STATS)
        .override_global("OFFSETS", offsets, true)
        .override_global("STALL_MIN_NS", &sources.stall_min_ns, true)
        .override_global("TICK_NS", &tick_ns, true)
        .map_max_entries("ACCOUNTS", sources.slots)
        .map_max_entries("STALLS", sources.stalls_bytes)
        .load(sources.object)
        .map_err(|error| cause_of(&error))
}

/// Length of a tick of the kernel's timer, which is the step of its coarse clocks.
fn tick_ns() -> u64 {
    let step = clock_getres(ClockId::MonotonicCoarse);
    u64::try_from(step.tv_nsec).unwrap_or(0).max(1)
}

/// The maps of the object.
struct Maps {
    watches: SkStorage<MapData, WatchRecord>,
    account_array: Array<MapData, AccountRecord>,
    accounts: Accounts,
    totals: PerCpuArray<MapData, TotalsRecord>,
    stalls: RingBuf<MapData>,
}

impl Maps {
    fn take(ebpf: &mut Ebpf, slots: u32) -> Result<Self, Cause> {
        let mut map = |name: &str| {
            ebpf.take_map(name).ok_or_else(|| Cause::StaleObject { problem: format!("it has no map {name}") })
        };
        let stale = |error: MapError| Cause::StaleObject { problem: chain(&error) };
        let unmapped = |error: std::io::Error| Cause::Rejected { problem: format!("mmap of a map: {error}") };
        let (accounts, totals) = (map("ACCOUNTS")?, map("TOTALS")?);
        let watches = SkStorage::try_from(map("WATCHES")?).map_err(stale)?;
        let stalls = RingBuf::try_from(map("STALLS")?).map_err(stale)?;
        // Only an array has a descriptor that is its memory.
        let aya::maps::Map::Array(accounts) = accounts else {
            return Err(Cause::StaleObject { problem: "its accounts are no array".to_owned() });
        };
        let mapped = Accounts::new(accounts.fd().as_fd(), slots).map_err(unmapped)?;
        let totals = PerCpuArray::try_from(totals).map_err(stale)?;
        let account_array = Array::try_from(aya::maps::Map::Array(accounts)).map_err(stale)?;
        Ok(Self { watches, account_array, accounts: mapped, totals, stalls })
    }
}

/// The programs of an object whose maps are made.
struct Loaded<'a> {
    ebpf: &'a mut Ebpf,
    target: &'a aya::Btf,
}

impl Attach for Loaded<'_> {
    fn attach(&mut self, name: &'static str, point: Point) -> Result<Option<u32>, String> {
        let program = self.ebpf.program_mut(name).ok_or("the object has no such program")?;
        let attached = match point {
            Point::Tracepoint(place) => <&mut BtfTracePoint>::try_from(&mut *program).and_then(|program| {
                program.load(place, self.target)?;
                program.attach().map(drop)
            }),
            Point::Function(_) if is_zero(std::fs::read_to_string(FUNCTIONS_FILE).ok()) => {
                return Err("kernel.ftrace_enabled is 0: it would never run".to_owned());
            }
            Point::Function(place) => <&mut FEntry>::try_from(&mut *program).and_then(|program| {
                program.load(place, self.target)?;
                program.attach().map(drop)
            }),
        };
        attached.map_err(|error| refusal(&error))?;
        Ok(program.info().ok().and_then(|info| info.verified_instruction_count()))
    }
}

/// Whether a switch of the kernel is off. One that it does not have, or does not show, is not.
fn is_zero(switch: Option<String>) -> bool {
    switch.is_some_and(|text| text.trim() == "0")
}

/// What the kernel says of a program, in one line: the error, and the last words of the verifier if it had any.
fn refusal(error: &ProgramError) -> String {
    let ProgramError::LoadError { io_error, verifier_log } = error else { return chain(error) };
    let log = verifier_log.to_string();
    let last = log.lines().map(str::trim).rfind(|line| !line.is_empty() && !is_statistics(line));
    last.map_or_else(|| io_error.to_string(), |line| format!("{io_error}: {line}"))
}

/// Lines that stand at the end of every log.
fn is_statistics(line: &str) -> bool {
    ["verification time", "stack depth", "processed "].iter().any(|begin| line.starts_with(begin))
}

/// What an error of the loader means. An object that cannot be read, or whose records have another size, is not of this
/// build.
fn cause_of(error: &EbpfError) -> Cause {
    let problem = chain(error);
    match error {
        EbpfError::ParseError(_) => Cause::StaleObject { problem },
        _ => Cause::Rejected { problem },
    }
}

/// An error with what caused it, in one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        source = inner.source();
    }
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_whose_records_have_another_size_is_stale() {
        if OBJECT.is_empty() {
            return println!("not run here: a stale object (built without probes: {MISSING})");
        }
        let Ok(types) = std::fs::read(TYPES_FILE) else {
            return println!("not run here: a stale object (no {TYPES_FILE})");
        };
        let target = aya::Btf::parse(&types, Endianness::default()).unwrap();
        let sources = Sources::own(1);
        // One member more than the object knows.
        let longer = [0_u64; size_of::<Offsets>() / 8 + 1];
        let cause = create(&sources, &target, &longer).err().unwrap();
        assert!(matches!(&cause, Cause::StaleObject { problem } if problem.contains("OFFSETS")), "{cause}");
        // No object at all, or not the right one.
        let garbage = vec![0x7f; 4096];
        let cause = create(&Sources { object: &garbage, ..sources }, &target, &0_u64).err().unwrap();
        assert!(matches!(cause, Cause::StaleObject { .. }), "{cause}");
    }

    #[test]
    fn functions_are_entered_unless_the_kernel_says_that_they_are_not() {
        let switches = [(Some("0\n"), true), (Some("1\n"), false), (Some(""), false), (None, false)];
        for (switch, is_off) in switches {
            assert_eq!(is_zero(switch.map(str::to_owned)), is_off, "{switch:?}");
        }
    }

    #[test]
    fn what_is_missing_is_a_cause_of_its_own() {
        let cause = |sources: &Sources<'_>| load(sources).err().unwrap();
        let none = Sources { object: &[], missing: "no linker", ..Sources::own(1) };
        assert_eq!(cause(&none), Cause::BuiltWithout { reason: "no linker" });
    }
}
