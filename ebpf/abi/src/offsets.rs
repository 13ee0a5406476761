//! Where members of the kernel's structures lie.
//!
//! No kernel's layout is compiled in: user space finds each member by name in the type information of the kernel that
//! runs, and the probes get the result as a read-only global, so that the verifier knows every offset as a constant.

/// Where one member of a structure lies, and how it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Member {
    /// Offset of the word that holds it, in bytes from the start of the structure.
    pub offset: u32,
    /// Bytes of that word: 1, 2, 4 or 8.
    pub size: u8,
    /// Bits to the right of it in that word; 0 unless it is a bit field.
    pub shift: u8,
    /// Its width in bits; 0: all of the word.
    pub bits: u8,
    /// 0.
    pub reserved: u8,
}

/// Declares [`Offsets`] and the search for its members: `field: "structure"."member" of SIZES`. One that a kernel may be
/// without has 0 among its sizes, and is [`Member::default`] there.
macro_rules! offsets {
    ($( $(#[doc = $doc:literal])* $field:ident: $structure:literal . $member:literal of [$($size:literal),*], )*) => {
        /// Where the members lie that the probes read.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C)]
        pub struct Offsets {
            $( $(#[doc = $doc])* pub $field: Member, )*
        }

        impl Offsets {
            /// All of them where [`Member::default`] stands: what the probes are built with.
            pub const NOWHERE: Self = Self { $( $field: NOWHERE, )* };

            /// Asks `find` for each member by the names of its structure and itself.
            ///
            /// # Errors
            /// The names of the first one that `find` does not know, or knows with a size that the probes do not read.
            pub fn resolve(
                mut find: impl FnMut(&'static str, &'static str) -> Option<Member>,
            ) -> Result<Self, Missing> {
                Ok(Self {
                    $( $field: {
                        let missing = Missing { structure: $structure, member: $member };
                        let member = find($structure, $member).unwrap_or_default();
                        if ![$($size),*].contains(&member.size) {
                            return Err(missing);
                        }
                        member
                    }, )*
                })
            }
        }
    };
}

const NOWHERE: Member = Member { offset: 0, size: 0, shift: 0, bits: 0, reserved: 0 };

/// A member that this kernel does not have, or not as the probes need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The structure.
    pub structure: &'static str,
    /// The member of it.
    pub member: &'static str,
}

offsets! {
    /// Stream position behind the last byte that was written.
    write_seq: "tcp_sock"."write_seq" of [4],
    /// Stream position of the next byte to be sent.
    snd_nxt: "tcp_sock"."snd_nxt" of [4],
    /// Stream position of the first byte that is not acknowledged.
    snd_una: "tcp_sock"."snd_una" of [4],
    /// The peer's receive window, in bytes.
    snd_wnd: "tcp_sock"."snd_wnd" of [4],
    /// The congestion window, in segments.
    snd_cwnd: "tcp_sock"."snd_cwnd" of [4],
    /// Stream position of the next byte that is expected.
    rcv_nxt: "tcp_sock"."rcv_nxt" of [4],
    /// Stream position of the next byte that the application reads.
    copied_seq: "tcp_sock"."copied_seq" of [4],
    /// Bytes received so far.
    bytes_received: "tcp_sock"."bytes_received" of [8],
    /// Bytes sent so far, those that were sent again included.
    bytes_sent: "tcp_sock"."bytes_sent" of [8],
    /// Bytes that were sent again.
    bytes_retrans: "tcp_sock"."bytes_retrans" of [8],
    /// Segments sent and not acknowledged.
    packets_out: "tcp_sock"."packets_out" of [4],
    /// Of those, the ones that arrived out of order.
    sacked_out: "tcp_sock"."sacked_out" of [4],
    /// Of those, the ones that are held to be lost.
    lost_out: "tcp_sock"."lost_out" of [4],
    /// Segments sent again and not acknowledged.
    retrans_out: "tcp_sock"."retrans_out" of [4],
    /// Segments sent again so far.
    total_retrans: "tcp_sock"."total_retrans" of [4],
    /// Smoothed round trip, in eighths of a microsecond.
    srtt_us: "tcp_sock"."srtt_us" of [4],
    /// Which of its own clocks the kernel runs: 2 for the peer's window, 3 for the send buffer. A bit field on older
    /// kernels.
    chrono_type: "tcp_sock"."chrono_type" of [1, 2, 4, 8],
    /// Since when that one runs, in ticks of the kernel's timer.
    chrono_start: "tcp_sock"."chrono_start" of [4],
    /// When anything was last sent or received, or a timer of the connection ran, in nanoseconds.
    clock_cache: "tcp_sock"."tcp_clock_cache" of [8],
    /// The socket of the application; null when it has let go.
    sk_socket: "sock"."sk_socket" of [8],
    /// Flags of that, one of which says that a writer waits.
    socket_flags: "socket"."flags" of [8],
    /// What programs have stored with a socket; null while nothing is. Where a kernel has it, it is not at offset 0.
    sk_bpf_storage: "sock"."sk_bpf_storage" of [0, 8],
    /// What the protocol keeps in a segment.
    skb_cb: "sk_buff"."cb" of [1],
    /// Therein, the stream position of its first byte.
    cb_seq: "tcp_skb_cb"."seq" of [4],
    /// Therein, the stream position behind its last byte.
    cb_end_seq: "tcp_skb_cb"."end_seq" of [4],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_member_is_asked_for_and_the_first_that_is_missing_is_named() {
        let mut asked = 0_u32;
        let member = |structure: &str, member: &str| {
            let size = match (structure, member) {
                (
                    _,
                    "bytes_received" | "bytes_sent" | "bytes_retrans" | "tcp_clock_cache" | "sk_socket"
                    | "sk_bpf_storage" | "flags",
                ) => 8,
                (_, "cb" | "chrono_type") => 1,
                _ => 4,
            };
            Member { size, ..Member::default() }
        };
        let all = Offsets::resolve(|structure, name| {
            asked += 1;
            Some(Member { offset: asked, ..member(structure, name) })
        });
        assert_eq!(all.map(|all| (all.write_seq.offset, all.cb_end_seq.offset)), Ok((1, asked)));
        assert_eq!(size_of::<Offsets>(), asked as usize * size_of::<Member>());
        let without =
            Offsets::resolve(|structure, name| (name != "srtt_us").then(|| member(structure, name)));
        assert_eq!(without, Err(Missing { structure: "tcp_sock", member: "srtt_us" }));
        let without = Offsets::resolve(|structure, name| {
            (name != "sk_bpf_storage").then(|| Member { offset: 8, ..member(structure, name) })
        });
        assert_eq!(without.map(|all| (all.sk_bpf_storage, all.sk_socket.offset)), Ok((Member::default(), 8)));
        let narrow = Offsets::resolve(|structure, name| {
            let size = if name == "snd_wnd" { 2 } else { member(structure, name).size };
            Some(Member { size, ..Member::default() })
        });
        assert_eq!(narrow, Err(Missing { structure: "tcp_sock", member: "snd_wnd" }));
    }
}
