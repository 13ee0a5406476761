//! Loads from the structures of the kernel.
//!
//! A program of this kind may load straight from a pointer to a structure, where the verifier knows that a member lies
//! there. The offsets are in read-only memory that was frozen before the verifier looked, so it knows them.

use core::ffi::c_void;
use core::ptr::read_volatile;

use aya_ebpf::helpers::generated::{bpf_get_socket_cookie, bpf_skc_to_tcp_sock};
use weir_ebpf_abi::{Member, Offsets};

use crate::OFFSETS;

/// `SOCK_NOSPACE` among the flags of a socket: a writer met a full send buffer and has not been woken since.
const NO_SPACE: u64 = 1 << 2;

/// Where a member lies. Read from memory, so that the compiler does not take the value that it was built with.
macro_rules! at {
    ($field:ident) => {{
        // SAFETY: `OFFSETS` is a live static.
        unsafe { read_volatile(&raw const (*offsets()).$field) }
    }};
}

#[inline(always)]
fn offsets() -> *const Offsets {
    &raw const OFFSETS
}

/// Loads 4 bytes.
#[inline(always)]
fn load_u32(structure: *const c_void, member: Member) -> u32 {
    // SAFETY: the verifier refuses the program unless a member of this size lies there.
    unsafe { read_volatile(structure.byte_add(member.offset as usize).cast::<u32>()) }
}

/// Loads 8 bytes.
#[inline(always)]
fn load_u64(structure: *const c_void, member: Member) -> u64 {
    // SAFETY: as for `load_u32`.
    unsafe { read_volatile(structure.byte_add(member.offset as usize).cast::<u64>()) }
}

/// Loads a member of any size, bit fields included.
#[inline(always)]
fn load(structure: *const c_void, member: Member) -> u64 {
    // SAFETY: as for `load_u32`. The verifier follows only the branch of the size that stands in `member`.
    let word = unsafe {
        let place = structure.byte_add(member.offset as usize);
        match member.size {
            1 => read_volatile(place.cast::<u8>()) as u64,
            2 => read_volatile(place.cast::<u16>()) as u64,
            4 => read_volatile(place.cast::<u32>()) as u64,
            _ => read_volatile(place.cast::<u64>()),
        }
    };
    match member.bits {
        0 => word,
        bits => (word >> (member.shift & 63)) & ((1 << (bits & 63)) - 1),
    }
}

/// Whether any program has stored anything with the socket. It costs one load, where looking into a storage costs a call.
/// `true` on a kernel that does not show it.
#[inline(always)]
pub fn may_be_watched(sock: *const c_void) -> bool {
    // SAFETY: `OFFSETS` is a live static.
    let offset = unsafe { read_volatile(&raw const (*offsets()).sk_bpf_storage.offset) };
    offset == 0 || load_u64(sock, Member { offset, ..Member::default() }) != 0
}

/// A TCP socket.
pub struct Connection {
    sock: *const c_void,
    tcp: *const c_void,
}

impl Connection {
    /// The TCP part of a socket; `None` if it has none.
    #[inline(always)]
    pub fn of(sock: *const c_void) -> Option<Self> {
        // SAFETY: `sock` is a socket that the kernel handed to the program.
        let tcp = unsafe { bpf_skc_to_tcp_sock(sock.cast_mut()) }.cast_const().cast::<c_void>();
        if tcp.is_null() { None } else { Some(Self { sock, tcp }) }
    }

    /// The number that user space reads as `SO_COOKIE`.
    #[inline(always)]
    pub fn cookie(&self) -> u64 {
        // SAFETY: `sock` is a socket that the kernel handed to the program.
        unsafe { bpf_get_socket_cookie(self.sock.cast_mut()) }
    }

    /// Bytes written and not acknowledged.
    #[inline(always)]
    pub fn queued_bytes(&self) -> u32 {
        load_u32(self.tcp, at!(write_seq)).wrapping_sub(load_u32(self.tcp, at!(snd_una)))
    }

    /// Of those, bytes that were not sent. Less than 0 for a moment, when a connection ends: then 0.
    #[inline(always)]
    pub fn unsent_bytes(&self) -> u32 {
        let unsent = load_u32(self.tcp, at!(write_seq)).wrapping_sub(load_u32(self.tcp, at!(snd_nxt)));
        if unsent as i32 > 0 { unsent } else { 0 }
    }

    /// Which of its own clocks the kernel runs.
    #[inline(always)]
    pub fn clock(&self) -> u64 {
        load(self.tcp, at!(chrono_type))
    }

    /// Since when that one runs, in ticks.
    #[inline(always)]
    pub fn clock_start(&self) -> u32 {
        load_u32(self.tcp, at!(chrono_start))
    }

    /// When the kernel last did anything for the connection, in nanoseconds. Not what it is about to do now: a probe
    /// stands before that.
    #[inline(always)]
    pub fn active_ns(&self) -> u64 {
        load_u64(self.tcp, at!(clock_cache))
    }

    /// Whether there are as many segments under way as the congestion window allows.
    #[inline(always)]
    pub fn is_congested(&self) -> bool {
        let under_way = load_u32(self.tcp, at!(packets_out))
            .wrapping_sub(load_u32(self.tcp, at!(sacked_out)))
            .wrapping_sub(load_u32(self.tcp, at!(lost_out)))
            .wrapping_add(load_u32(self.tcp, at!(retrans_out)));
        under_way >= load_u32(self.tcp, at!(snd_cwnd))
    }

    /// The peer's receive window, in bytes.
    #[inline(always)]
    pub fn peer_window_bytes(&self) -> u32 {
        load_u32(self.tcp, at!(snd_wnd))
    }

    /// Stream offset of the first byte that was not sent.
    #[inline(always)]
    pub fn sent_offset(&self) -> u64 {
        load_u64(self.tcp, at!(bytes_sent)).wrapping_sub(load_u64(self.tcp, at!(bytes_retrans)))
    }

    /// Segments sent again so far.
    #[inline(always)]
    pub fn retransmitted_segments(&self) -> u32 {
        load_u32(self.tcp, at!(total_retrans))
    }

    /// Smoothed round trip, in microseconds.
    #[inline(always)]
    pub fn round_trip_us(&self) -> u32 {
        load_u32(self.tcp, at!(srtt_us)) >> 3
    }

    /// Whether a writer waits for room in the send buffer.
    #[inline(always)]
    pub fn is_unwritable(&self) -> bool {
        let socket = load_u64(self.sock, at!(sk_socket)) as *const c_void;
        !socket.is_null() && load_u64(socket, at!(socket_flags)) & NO_SPACE != 0
    }

    /// Bytes that arrived and are not read.
    #[inline(always)]
    pub fn unread_bytes(&self) -> u32 {
        load_u32(self.tcp, at!(rcv_nxt)).wrapping_sub(load_u32(self.tcp, at!(copied_seq)))
    }

    /// Stream offset behind the last byte that arrived.
    #[inline(always)]
    pub fn received_offset(&self) -> u64 {
        load_u64(self.tcp, at!(bytes_received))
    }

    /// How many bytes of this segment are the next of the stream; 0 for an acknowledgement, a duplicate, and what comes
    /// out of order.
    #[inline(always)]
    pub fn next_bytes_of(&self, segment: *const c_void) -> u32 {
        let expected = load_u32(self.tcp, at!(rcv_nxt));
        let block = at!(skb_cb).offset as usize;
        // SAFETY: the block lies inside the segment, by its type.
        let block = unsafe { segment.byte_add(block) };
        let begins = load_u32(block, at!(cb_seq)).wrapping_sub(expected) as i32;
        let new = load_u32(block, at!(cb_end_seq)).wrapping_sub(expected);
        if begins > 0 || new as i32 <= 0 { 0 } else { new }
    }
}
