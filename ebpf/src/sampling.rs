//! What a program does with what it found: accounts for the time since the last look.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_jiffies64;
use weir_ebpf_abi::{
    MARKS, Mark, QUEUE_BUCKETS, ReceiveAccount, STATE_PLACES, SendAccount, SendState, SocketStall,
    TIME_BUCKETS, bucket,
};

use crate::kernel::Connection;
use crate::{STALL_MIN_NS, STALLS, TICK_NS, TOTALS};

/// The kernel's clock of the time in which the peer's window held data back, `TCP_CHRONO_RWND_LIMITED`.
const CLOCK_RECEIVE_WINDOW: u64 = 2;

/// The kernel's clock of the time in which the send buffer held the writer back, `TCP_CHRONO_SNDBUF_LIMITED`.
const CLOCK_SEND_BUFFER: u64 = 3;

/// `BPF_RB_NO_WAKEUP`: nobody sleeps on the ring, user space looks into it now and then.
const NO_WAKEUP: u64 = 1;

/// What the sending side waits for.
#[inline(always)]
fn state(connection: &Connection, queued: u32, unsent: u32) -> SendState {
    match connection.clock() {
        CLOCK_RECEIVE_WINDOW => SendState::ReceiveWindow,
        CLOCK_SEND_BUFFER => SendState::SendBuffer,
        _ if queued == 0 => SendState::Idle,
        // The kernel's clock starts late: with the first segment that it sends while a writer waits.
        _ if unsent == 0 && connection.is_unwritable() && !connection.is_congested() => SendState::SendBuffer,
        _ if unsent == 0 => SendState::Flight,
        _ if connection.is_congested() => SendState::CongestionWindow,
        _ => SendState::Held,
    }
}

/// Since when the kernel's clock of the peer's window has run, where that is later than the last look.
///
/// A timer of the connection, such as that of pacing, may send what it held back and so change the state without a
/// probe. The kernel notes the start of its clock in ticks, and when it last did anything in nanoseconds; where the two
/// fit together, that was it.
#[inline(always)]
fn window_since(connection: &Connection, looked_ns: u64, now_ns: u64) -> u64 {
    let tick_ns = TICK_NS.load();
    // SAFETY: the helper takes nothing and changes nothing.
    let ticks = (unsafe { bpf_jiffies64() } as u32).wrapping_sub(connection.clock_start()) as u64;
    let age_ns = ticks * tick_ns;
    let active_ns = now_ns.saturating_sub(connection.active_ns());
    let fits = active_ns < age_ns + tick_ns && active_ns + tick_ns > age_ns;
    let age_ns = if fits { active_ns } else { age_ns };
    now_ns.saturating_sub(age_ns).max(looked_ns)
}

/// Accounts the time since the last look to the state that is found now.
#[inline(always)]
pub fn sample(connection: &Connection, send: &mut SendAccount, now_ns: u64) {
    let looked_ns = send.sampled_ns;
    let passed_ns = now_ns.saturating_sub(looked_ns);
    let (queued, unsent) = (connection.queued_bytes(), connection.unsent_bytes());
    let state = state(connection, queued, unsent) as u64;
    let clock = connection.clock() << 32 | connection.clock_start() as u64;
    let mut began_ns = looked_ns;
    if state == SendState::ReceiveWindow as u64 && clock != send.clock {
        // Until then something of this node held the bytes back.
        began_ns = window_since(connection, looked_ns, now_ns);
        send.state_ns[SendState::Held as usize] += began_ns.saturating_sub(looked_ns);
    }
    send.clock = clock;
    send.state_ns[state as usize & (STATE_PLACES - 1)] += now_ns.saturating_sub(began_ns);
    if state != send.state || began_ns != looked_ns {
        report(connection, send, looked_ns);
        send.state = state;
        send.state_since_ns = began_ns;
        send.state_queued_bytes = queued as u64;
        send.state_offset = connection.sent_offset();
        send.state_entries[state as usize & (STATE_PLACES - 1)] += 1;
    }
    if connection.is_unwritable() {
        send.unwritable_ns += passed_ns;
        if send.unwritable_since_ns == 0 {
            send.unwritable_since_ns = looked_ns;
            send.unwritable_total += 1;
        }
    } else {
        send.unwritable_since_ns = 0;
    }
    if unsent != 0 && connection.peer_window_bytes() == 0 {
        send.zero_window_ns += passed_ns;
        if send.zero_window_since_ns == 0 {
            send.zero_window_since_ns = looked_ns;
            send.zero_window_total += 1;
        }
    } else {
        send.zero_window_since_ns = 0;
    }
    send.queued_ns[bucket(queued as u64) & (QUEUE_BUCKETS - 1)] += passed_ns;
    send.queued_bytes = queued as u64;
    send.queued_max_bytes = send.queued_max_bytes.max(queued as u64);
    send.unsent_bytes = unsent as u64;
    send.retransmitted_segments = connection.retransmitted_segments() as u64;
    send.round_trip_us = connection.round_trip_us() as u64;
    send.samples_total += 1;
    send.sampled_ns = now_ns;
}

/// The connection is over: the state that held until now has ended with it.
#[inline(always)]
pub fn close(connection: &Connection, send: &mut SendAccount, now_ns: u64) {
    report(connection, send, now_ns);
    send.closed_ns = now_ns;
}

/// Puts the state that has ended at this time into the ring, if it was a long stall.
#[inline(always)]
fn report(connection: &Connection, send: &SendAccount, ended_ns: u64) {
    let lasted_ns = ended_ns.saturating_sub(send.state_since_ns);
    if send.state < SendState::Held as u64 || lasted_ns < STALL_MIN_NS.load() {
        return;
    }
    match STALLS.reserve(0) {
        Some(mut entry) => {
            entry.write(SocketStall {
                cookie: connection.cookie(),
                began_ns: send.state_since_ns,
                lasted_ns,
                stream_offset: send.state_offset,
                queued_bytes: send.state_queued_bytes as u32,
                state: send.state as u32,
            });
            entry.submit(NO_WAKEUP);
        }
        None => {
            if let Some(totals) = TOTALS.get_ptr_mut(0) {
                // SAFETY: the element lives as long as the map, and each processor has one of its own.
                unsafe { (*totals).stalls_lost += 1 };
            }
        }
    }
}

/// The receive queue has this length from now on.
#[inline(always)]
fn queue(receive: &mut ReceiveAccount, bytes: u64, now_ns: u64) {
    let passed_ns = now_ns.saturating_sub(receive.changed_ns);
    receive.queued_ns[bucket(receive.queued_bytes) & (QUEUE_BUCKETS - 1)] += passed_ns;
    receive.changed_ns = now_ns;
    receive.queued_bytes = bytes;
    receive.queued_max_bytes = receive.queued_max_bytes.max(bytes);
}

/// A segment is about to be processed: notes when the next bytes of the stream arrived, if it brings any.
#[inline(always)]
pub fn arrive(connection: &Connection, segment: *const c_void, receive: &mut ReceiveAccount, now_ns: u64) {
    let new = connection.next_bytes_of(segment);
    if new == 0 {
        return;
    }
    receive.arrivals_total += 1;
    queue(receive, connection.unread_bytes().wrapping_add(new) as u64, now_ns);
    let number = receive.marks_written;
    if number.wrapping_sub(receive.marks_read) >= MARKS as u64 {
        receive.marks_lost += 1;
        return;
    }
    let end_offset = connection.received_offset().wrapping_add(new as u64);
    receive.marks[number as usize & (MARKS - 1)] = Mark { end_offset, arrived_ns: now_ns, read_ns: 0 };
    receive.marks_written = number.wrapping_add(1);
}

/// The application has read: closes the marks of what it has read to the end.
#[inline(always)]
pub fn read(connection: &Connection, receive: &mut ReceiveAccount, now_ns: u64) {
    let unread = connection.unread_bytes();
    receive.reads_total += 1;
    queue(receive, unread as u64, now_ns);
    let offset = connection.received_offset().wrapping_sub(unread as u64);
    for _ in 0..MARKS {
        let number = receive.marks_read;
        if number == receive.marks_written {
            break;
        }
        let mark = &mut receive.marks[number as usize & (MARKS - 1)];
        if mark.end_offset > offset {
            break;
        }
        mark.read_ns = now_ns;
        let resided_ns = now_ns.saturating_sub(mark.arrived_ns);
        receive.residence_total += 1;
        receive.residence_ns += resided_ns;
        receive.residence_max_ns = receive.residence_max_ns.max(resided_ns);
        receive.residence_histogram[bucket(resided_ns) & (TIME_BUCKETS - 1)] += 1;
        receive.marks_read = number.wrapping_add(1);
    }
}
