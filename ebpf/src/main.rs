//! Kernel probes: what a watched TCP socket waits for, and how long what arrived has waited to be read.
//!
//! Every probe stands at the **start** of an event that can change the state of a socket: a segment is about to be
//! processed, a send is about to be copied. The state that it finds has held since the probe before, so the whole
//! interval is accounted to it: between events nothing changes, and no timer is needed.
//!
//! A socket is watched when user space has put a [`Watch`] into its storage. One that has no storage costs one load.
//! The kernel holds the lock of the socket at each of these points, so that an account has one writer at a time.
//!
//! | file | holds |
//! |---|---|
//! | this | the programs, one per hook, and the maps |
//! | [`kernel`] | loads from the kernel's structures |
//! | [`sampling`] | what a program does with what it found |
#![no_std]
#![no_main]
// An empty one keeps stores in their order: this target has no fence, not even for the compiler.
#![feature(asm_experimental_arch)]

mod kernel;
mod sampling;

use core::arch::asm;
use core::ffi::c_void;

use aya_ebpf::Global;
use aya_ebpf::btf_maps::{Array, PerCpuArray, RingBuf, SkStorage};
use aya_ebpf::helpers::generated::{bpf_ktime_get_ns, bpf_sk_storage_get};
use aya_ebpf::macros::{btf_map, btf_tracepoint, fentry};
use aya_ebpf::programs::{BtfTracePointContext, FEntryContext};
use weir_ebpf_abi::{Account, Offsets, SocketStall, Totals, Watch};

use kernel::{Connection, may_be_watched};

/// `BPF_F_MMAPABLE`: user space reads it without a system call.
const MAPPED: usize = 1 << 10;

/// Places for accounts, unless the loader says otherwise.
const ACCOUNTS_MAX: usize = 256;

/// Bytes of the ring of stalls, unless the loader says otherwise.
const STALLS_BYTES: usize = 256 << 10;

/// The state number of an established connection, `TCP_ESTABLISHED`.
const ESTABLISHED: i32 = 1;

/// Where the members lie that are read. Set by the loader.
#[unsafe(no_mangle)]
static OFFSETS: Offsets = Offsets::NOWHERE;

/// Shorter stalls are summed up only. In nanoseconds. Set by the loader.
#[unsafe(no_mangle)]
static STALL_MIN_NS: Global<u64> = Global::new(10_000_000);

/// Length of a tick of the kernel's timer, in nanoseconds. Set by the loader.
#[unsafe(no_mangle)]
static TICK_NS: Global<u64> = Global::new(4_000_000);

#[btf_map]
static WATCHES: SkStorage<Watch> = SkStorage::new();

#[btf_map]
static ACCOUNTS: Array<Account, ACCOUNTS_MAX, MAPPED> = Array::new();

#[btf_map]
static TOTALS: PerCpuArray<Totals, 1> = PerCpuArray::new();

#[btf_map]
static STALLS: RingBuf<SocketStall, STALLS_BYTES> = RingBuf::new();

/// The account of a socket, if it is watched and its place is still its own.
#[inline(always)]
fn account_of(sock: *const c_void) -> Option<&'static mut Account> {
    if !may_be_watched(sock) {
        return None;
    }
    let map = (&raw const WATCHES).cast_mut().cast::<c_void>();
    // SAFETY: the map is a socket storage, and `sock` a socket that the kernel handed to the program.
    let watch = unsafe { bpf_sk_storage_get(map, sock.cast_mut(), core::ptr::null_mut(), 0) }.cast::<Watch>();
    if watch.is_null() {
        return None;
    }
    // SAFETY: a storage lives as long as its socket, which the kernel holds during the program.
    let watch = unsafe { &*watch };
    // SAFETY: an element of an array lives as long as the map. The kernel holds the lock of the socket, and no other
    // socket has this generation, so that this is the one reference to it that writes.
    let account = unsafe { &mut *ACCOUNTS.get_ptr_mut(watch.slot)? };
    (account.generation == watch.generation).then_some(account)
}

/// Lets `update` change the account of a watched socket, at the time that it is handed.
#[inline(always)]
fn update(sock: *const c_void, update: impl FnOnce(&Connection, &mut Account, u64)) {
    let Some(account) = account_of(sock) else { return };
    let Some(connection) = Connection::of(sock) else { return };
    if account.send.closed_ns != 0 {
        return;
    }
    // SAFETY: the helper takes nothing and changes nothing.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    turn(&mut account.sequence);
    update(&connection, account, now_ns);
    turn(&mut account.sequence);
}

/// Says to whoever reads that writing begins, or is over.
#[inline(always)]
fn turn(sequence: &mut u64) {
    // SAFETY: no instruction; the compiler only has to believe that it looks at memory. An x86 processor stores in order;
    // on one that does not, a reader may take what is half written for whole.
    unsafe { asm!("") };
    *sequence = sequence.wrapping_add(1);
    // SAFETY: as above.
    unsafe { asm!("") };
}

/// A segment of an established connection, data or acknowledgement, is about to be processed. In the kernel since 4.16.
#[btf_tracepoint(function = "tcp_probe")]
pub fn weir_segment(context: BtfTracePointContext) -> i32 {
    let sock: *const c_void = context.arg(0);
    let segment: *const c_void = context.arg(1);
    update(sock, |connection, account, now_ns| {
        sampling::sample(connection, &mut account.send, now_ns);
        sampling::arrive(connection, segment, &mut account.receive, now_ns);
    });
    0
}

/// Bytes are about to be copied into the send queue, by whichever call. In the kernel since 6.16.
#[btf_tracepoint(function = "tcp_sendmsg_locked")]
pub fn weir_send(context: BtfTracePointContext) -> i32 {
    let sock: *const c_void = context.arg(0);
    update(sock, |connection, account, now_ns| sampling::sample(connection, &mut account.send, now_ns));
    0
}

/// The same where there is no such tracepoint and the kernel lets functions be entered.
#[fentry(function = "tcp_sendmsg_locked")]
pub fn weir_send_entry(context: FEntryContext) -> i32 {
    let sock: *const c_void = context.arg(0);
    update(sock, |connection, account, now_ns| sampling::sample(connection, &mut account.send, now_ns));
    0
}

/// The application has taken bytes out of the receive queue. In the kernel since 4.15.
#[btf_tracepoint(function = "tcp_rcv_space_adjust")]
pub fn weir_read(context: BtfTracePointContext) -> i32 {
    let sock: *const c_void = context.arg(0);
    update(sock, |connection, account, now_ns| sampling::read(connection, &mut account.receive, now_ns));
    0
}

/// A connection goes from one state to another: the last that is heard of one that has been established.
#[btf_tracepoint(function = "inet_sock_set_state")]
pub fn weir_state(context: BtfTracePointContext) -> i32 {
    let sock: *const c_void = context.arg(0);
    let old: i32 = context.arg(1);
    if old != ESTABLISHED {
        return 0;
    }
    update(sock, |connection, account, now_ns| {
        sampling::sample(connection, &mut account.send, now_ns);
        sampling::close(connection, &mut account.send, now_ns);
    });
    0
}

/// A segment was sent again.
#[btf_tracepoint(function = "tcp_retransmit_skb")]
pub fn weir_resend(context: BtfTracePointContext) -> i32 {
    let sock: *const c_void = context.arg(0);
    update(sock, |_, account, now_ns| account.send.retransmitted_last_ns = now_ns);
    0
}

/// Nothing here panics; the compiler needs one all the same.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
