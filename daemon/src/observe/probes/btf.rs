//! A reader of the kernel's type information (BTF): where members of structures lie, and which functions and
//! tracepoints there are.
//!
//! The file comes from the kernel, so it is believed to mean well and not to be sound: every number in it is checked
//! before it is used, and the work per question is bounded.

use std::fmt;

use weir_ebpf_abi::Member;

const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: usize = 24;
const TYPE_BYTES: usize = 12;
const MEMBER_BYTES: usize = 12;

/// Types of types, as the format numbers them.
mod kind {
    pub(super) const INT: u32 = 1;
    pub(super) const POINTER: u32 = 2;
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const FORWARD: u32 = 7;
    pub(super) const TYPEDEF: u32 = 8;
    pub(super) const VOLATILE: u32 = 9;
    pub(super) const CONST: u32 = 10;
    pub(super) const RESTRICT: u32 = 11;
    pub(super) const FUNCTION: u32 = 12;
    pub(super) const PROTOTYPE: u32 = 13;
    pub(super) const VARIABLE: u32 = 14;
    pub(super) const SECTION: u32 = 15;
    pub(super) const FLOAT: u32 = 16;
    pub(super) const DECLARATION_TAG: u32 = 17;
    pub(super) const TYPE_TAG: u32 = 18;
    pub(super) const ENUM64: u32 = 19;
}

/// Longest chain of types that only name another one.
const NAMES_MAX: usize = 32;

/// Deepest nesting of members without a name.
const DEPTH_MAX: usize = 16;

/// Members looked at for one question; the largest structure of a kernel has a few hundred.
const STEPS_MAX: usize = 20_000;

/// Why a file cannot be read as type information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BtfError {
    /// It does not begin as such a file does.
    NotBtf,
    /// It ends before this byte, which it says that it has.
    Truncated {
        /// Counted from the beginning of the file.
        at: usize,
    },
    /// It has a kind of type that this reader does not know, so that the rest cannot be found.
    UnknownKind {
        /// Its number.
        kind: u32,
    },
}

impl fmt::Display for BtfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBtf => f.write_str("it is no type information (BTF)"),
            Self::Truncated { at } => write!(f, "it ends before byte {at}"),
            Self::UnknownKind { kind } => write!(f, "it has types of the unknown kind {kind}"),
        }
    }
}

/// The type information of a kernel.
#[derive(Debug)]
pub(super) struct Btf<'a> {
    data: &'a [u8],
    strings: &'a [u8],
    /// Where each type stands in the file. The first has number 1.
    types: Vec<usize>,
}

/// The part of a type that all kinds have.
#[derive(Clone, Copy)]
struct Type {
    /// Where it stands in the file.
    at: usize,
    /// Where its name stands among the strings.
    name: u32,
    kind: u32,
    /// How many members or parameters it has.
    count: usize,
    /// Whether offsets of its members carry a width.
    has_widths: bool,
    /// Its size in bytes, or the number of the type that it refers to.
    size_or_type: u32,
}

/// Where a member was found.
#[derive(Clone, Copy)]
struct Found {
    offset_bits: u32,
    width_bits: u32,
    of_type: u32,
}

impl<'a> Btf<'a> {
    /// Reads the file once and notes where each type stands.
    ///
    /// # Errors
    /// It is not such a file, it is cut off, or it holds what this reader does not know.
    pub(super) fn parse(data: &'a [u8]) -> Result<Self, BtfError> {
        let magic = data.get(..2).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
        if magic != Some(MAGIC) {
            return Err(BtfError::NotBtf);
        }
        let header =
            |at| word(data, at).map(|word| word as usize).ok_or(BtfError::Truncated { at: HEADER_BYTES });
        let header_bytes = header(4)?;
        let section = |offset: usize, bytes: usize| {
            let begin = header_bytes.saturating_add(offset);
            let end = begin.saturating_add(bytes);
            data.get(begin..end).map(|_| (begin, end)).ok_or(BtfError::Truncated { at: end })
        };
        let (mut at, end) = section(header(8)?, header(12)?)?;
        let (strings, strings_end) = section(header(16)?, header(20)?)?;
        let mut btf =
            Self { data, strings: data.get(strings..strings_end).unwrap_or_default(), types: Vec::new() };
        while at < end {
            let kind = btf.at(at).ok_or(BtfError::Truncated { at: at + TYPE_BYTES })?;
            btf.types.push(at);
            at = at.saturating_add(TYPE_BYTES + tail_bytes(kind)?);
        }
        if at > end { Err(BtfError::Truncated { at }) } else { Ok(btf) }
    }

    /// Whether the kernel has a function of this name that programs may be attached to, as far as its types tell.
    pub(super) fn has_function(&self, name: &str) -> bool {
        self.named(kind::FUNCTION, name).next().is_some()
    }

    /// Whether the kernel has a tracepoint of this name.
    pub(super) fn has_tracepoint(&self, name: &str) -> bool {
        self.named(kind::TYPEDEF, &format!("btf_trace_{name}")).next().is_some()
    }

    /// Where a member of a structure lies; `None`: this kernel has no such member. One without a name is looked into.
    pub(super) fn member(&self, structure: &str, member: &str) -> Option<Member> {
        let found = self.named(kind::STRUCT, structure).find_map(|structure| {
            let mut steps = STEPS_MAX;
            self.search(structure, member, DEPTH_MAX, &mut steps)
        })?;
        let size = self.size_of(found.of_type)?;
        if found.width_bits == 0 {
            let offset = found.offset_bits / 8;
            return Some(Member { offset, size: u8::try_from(size).ok()?, ..Member::default() });
        }
        // A bit field: the smallest aligned word that holds all of it.
        [1_u8, 2, 4, 8].into_iter().find_map(|size| {
            let word_bits = u32::from(size) * 8;
            let offset = found.offset_bits / word_bits * u32::from(size);
            let shift = found.offset_bits - offset * 8;
            (shift + found.width_bits <= word_bits).then_some(Member {
                offset,
                size,
                shift: shift as u8,
                bits: found.width_bits as u8,
                reserved: 0,
            })
        })
    }

    /// Every type of this kind and name.
    fn named(&self, kind: u32, name: &str) -> impl Iterator<Item = Type> {
        let types = self.types.iter().filter_map(|at| self.at(*at));
        types.filter(move |found| found.kind == kind && self.is_called(*found, name))
    }

    fn is_called(&self, found: Type, name: &str) -> bool {
        let rest = self.strings.get(found.name as usize..).unwrap_or_default();
        rest.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    }

    fn search(&self, structure: Type, member: &str, depth: usize, steps: &mut usize) -> Option<Found> {
        let depth = depth.checked_sub(1)?;
        for number in 0..structure.count {
            *steps = steps.checked_sub(1)?;
            let at = structure.at + TYPE_BYTES + number * MEMBER_BYTES;
            let (name, of_type, offset) =
                (word(self.data, at)?, word(self.data, at + 4)?, word(self.data, at + 8)?);
            let (offset_bits, width_bits) =
                if structure.has_widths { (offset & 0xff_ffff, offset >> 24) } else { (offset, 0) };
            if self.is_called(Type { name, ..structure }, member) {
                return Some(Found { offset_bits, width_bits, of_type });
            }
            if self.is_called(Type { name, ..structure }, "")
                && let Some(inner) = self.resolve(of_type)
                && matches!(inner.kind, kind::STRUCT | kind::UNION)
                && let Some(found) = self.search(inner, member, depth, steps)
            {
                return Some(Found { offset_bits: offset_bits.checked_add(found.offset_bits)?, ..found });
            }
        }
        None
    }

    /// Size of a type in bytes; of an array, that of its elements.
    fn size_of(&self, number: u32) -> Option<u32> {
        let found = self.resolve(number)?;
        match found.kind {
            kind::POINTER => Some(8),
            kind::ARRAY => {
                let element = self.resolve(word(self.data, found.at + TYPE_BYTES)?)?;
                match element.kind {
                    kind::POINTER => Some(8),
                    kind::ARRAY => None,
                    _ => Some(element.size_or_type),
                }
            }
            kind::INT | kind::STRUCT | kind::UNION | kind::ENUM | kind::ENUM64 | kind::FLOAT => {
                Some(found.size_or_type)
            }
            _ => None,
        }
    }

    /// The type of this number, behind whatever only names it.
    fn resolve(&self, mut number: u32) -> Option<Type> {
        for _ in 0..NAMES_MAX {
            let at = *self.types.get((number as usize).checked_sub(1)?)?;
            let found = self.at(at)?;
            match found.kind {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    number = found.size_or_type;
                }
                _ => return Some(found),
            }
        }
        None
    }

    fn at(&self, at: usize) -> Option<Type> {
        let info = word(self.data, at + 4)?;
        Some(Type {
            at,
            name: word(self.data, at)?,
            kind: info >> 24 & 0x1f,
            count: (info & 0xffff) as usize,
            has_widths: info >> 31 == 1,
            size_or_type: word(self.data, at + 8)?,
        })
    }
}

/// Bytes that follow the part of a type that all kinds have.
fn tail_bytes(found: Type) -> Result<usize, BtfError> {
    Ok(match found.kind {
        kind::INT | kind::VARIABLE | kind::DECLARATION_TAG => 4,
        kind::ARRAY => 12,
        kind::STRUCT | kind::UNION | kind::SECTION | kind::ENUM64 => found.count * 12,
        kind::ENUM | kind::PROTOTYPE => found.count * 8,
        kind::POINTER
        | kind::FORWARD
        | kind::TYPEDEF
        | kind::VOLATILE
        | kind::CONST
        | kind::RESTRICT
        | kind::FUNCTION
        | kind::FLOAT
        | kind::TYPE_TAG => 0,
        kind => return Err(BtfError::UnknownKind { kind }),
    })
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    let bytes = data.get(at..at.checked_add(4)?)?;
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use weir_ebpf_abi::Offsets;

    use super::*;

    /// Builds a file of types.
    #[derive(Default)]
    struct Builder {
        types: Vec<u8>,
        strings: Vec<u8>,
        count: u32,
    }

    impl Builder {
        fn new() -> Self {
            Self { strings: vec![0], ..Self::default() }
        }

        fn name(&mut self, name: &str) -> u32 {
            if name.is_empty() {
                return 0;
            }
            let at = self.strings.len() as u32;
            self.strings.extend_from_slice(name.as_bytes());
            self.strings.push(0);
            at
        }

        /// Adds a type and returns its number.
        fn add(&mut self, name: &str, info: u32, size_or_type: u32, tail: &[u32]) -> u32 {
            let name = self.name(name);
            for word in [name, info, size_or_type].iter().chain(tail) {
                self.types.extend_from_slice(&word.to_ne_bytes());
            }
            self.count += 1;
            self.count
        }

        fn int(&mut self, bytes: u32) -> u32 {
            self.add("int", kind::INT << 24, bytes, &[bytes * 8])
        }

        /// Members are (name, type, offset in bits, width in bits).
        fn structure(&mut self, kind: u32, name: &str, members: &[(&str, u32, u32, u32)]) -> u32 {
            let has_widths = members.iter().any(|member| member.3 > 0);
            let mut tail = Vec::new();
            for (member, of_type, offset, width) in members {
                tail.push(self.name(member));
                tail.push(*of_type);
                tail.push(if has_widths { offset | width << 24 } else { *offset });
            }
            let info = kind << 24 | u32::from(has_widths) << 31 | members.len() as u32;
            self.add(name, info, 64, &tail)
        }

        fn build(&self) -> Vec<u8> {
            let mut file = MAGIC.to_ne_bytes().to_vec();
            file.extend_from_slice(&[1, 0]);
            let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
            for word in [HEADER_BYTES as u32, 0, types, types, strings] {
                file.extend_from_slice(&word.to_ne_bytes());
            }
            file.extend_from_slice(&self.types);
            file.extend_from_slice(&self.strings);
            file
        }
    }

    /// A file with each form that a kernel's has.
    fn sample() -> Vec<u8> {
        let mut file = Builder::new();
        let (byte, word) = (file.int(1), file.int(4));
        let alias = file.add("u32", kind::TYPEDEF << 24, word, &[]);
        let constant = file.add("", kind::CONST << 24, alias, &[]);
        let pointer = file.add("", kind::POINTER << 24, word, &[]);
        let array = file.add("", kind::ARRAY << 24, 0, &[byte, word, 48]);
        let inner = file.structure(kind::STRUCT, "", &[("deep", constant, 32, 0)]);
        let either = file.structure(kind::UNION, "", &[("other", word, 0, 0), ("", inner, 0, 0)]);
        // A structure of the same name that does not have the member, as kernels have some.
        file.structure(kind::STRUCT, "outer", &[("unrelated", word, 0, 0)]);
        file.structure(
            kind::STRUCT,
            "outer",
            &[("first", word, 0, 0), ("", either, 64, 0), ("link", pointer, 128, 0), ("cb", array, 192, 0)],
        );
        file.structure(
            kind::STRUCT,
            "fields",
            &[("low", byte, 0, 3), ("high", byte, 3, 2), ("wide", word, 12, 9)],
        );
        file.add("", kind::ENUM << 24 | 1, 4, &[0, 1]);
        let prototype = file.add("", kind::PROTOTYPE << 24 | 1, 0, &[0, word]);
        file.add("a_function", kind::FUNCTION << 24, prototype, &[]);
        file.add("btf_trace_a_point", kind::TYPEDEF << 24, pointer, &[]);
        file.build()
    }

    #[test]
    fn members_are_found_by_name_through_what_has_none() {
        let file = sample();
        let btf = Btf::parse(&file).unwrap();
        let plain = |offset, size| Some(Member { offset, size, ..Member::default() });
        assert_eq!(btf.member("outer", "first"), plain(0, 4));
        assert_eq!(btf.member("outer", "unrelated"), plain(0, 4));
        assert_eq!(btf.member("outer", "other"), plain(8, 4));
        assert_eq!(btf.member("outer", "deep"), plain(12, 4));
        assert_eq!(btf.member("outer", "link"), plain(16, 8));
        assert_eq!(btf.member("outer", "cb"), plain(24, 1));
        assert_eq!(btf.member("outer", "fir"), None);
        assert_eq!(btf.member("oute", "first"), None);
        assert!(btf.has_function("a_function") && !btf.has_function("a_point"));
        assert!(btf.has_tracepoint("a_point") && !btf.has_tracepoint("a_function"));
    }

    #[test]
    fn a_bit_field_is_read_from_the_smallest_word_that_holds_it() {
        let file = sample();
        let btf = Btf::parse(&file).unwrap();
        let field = |offset, size, shift, bits| Some(Member { offset, size, shift, bits, reserved: 0 });
        assert_eq!(btf.member("fields", "low"), field(0, 1, 0, 3));
        assert_eq!(btf.member("fields", "high"), field(0, 1, 3, 2));
        assert_eq!(btf.member("fields", "wide"), field(0, 4, 12, 9));
    }

    /// Asks everything of a file that may be anything.
    fn ask(file: &[u8]) {
        if let Ok(btf) = Btf::parse(file) {
            for structure in ["outer", "fields", "tcp_sock", ""] {
                for member in ["first", "deep", "wide", "cb", "none", ""] {
                    let _ = btf.member(structure, member);
                }
            }
            let _ = (btf.has_function("a_function"), btf.has_tracepoint("a_point"));
        }
    }

    #[test]
    fn a_file_that_is_cut_off_anywhere_is_refused() {
        let file = sample();
        assert!(Btf::parse(&file).is_ok());
        for end in 0..file.len() {
            assert!(Btf::parse(&file[..end]).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn no_file_is_too_bad_to_be_looked_at() {
        let file = sample();
        for at in 0..file.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bad = file.clone();
                bad[at] = value;
                ask(&bad);
            }
        }
        ask(&[]);
        ask(&[0xff; 64]);
    }

    #[test]
    fn structures_inside_each_other_without_end_are_given_up() {
        let mut file = Builder::new();
        // Number 1 holds itself, again and again.
        let members: Vec<(&str, u32, u32, u32)> = vec![("", 1, 0, 0); 1000];
        file.structure(kind::STRUCT, "endless", &members);
        let file = file.build();
        assert_eq!(Btf::parse(&file).unwrap().member("endless", "x"), None);
    }

    #[test]
    fn the_kernel_that_runs_has_what_the_probes_read() {
        let Ok(file) = std::fs::read("/sys/kernel/btf/vmlinux") else {
            return println!("not run here: the kernel's type information (no /sys/kernel/btf/vmlinux)");
        };
        let btf = Btf::parse(&file).unwrap();
        let offsets = Offsets::resolve(|structure, member| btf.member(structure, member)).unwrap();
        // What no layout can have otherwise.
        assert_eq!(offsets.cb_end_seq.offset, offsets.cb_seq.offset + 4);
        assert!(
            offsets.sk_socket.offset.is_multiple_of(8) && offsets.write_seq.offset > offsets.sk_socket.offset
        );
        assert!(btf.has_tracepoint("tcp_probe") && btf.has_function("tcp_sendmsg_locked"));
        assert_eq!(btf.member("tcp_sock", "no_such_member"), None);
        for end in (0..file.len()).step_by(file.len() / 97) {
            assert!(Btf::parse(&file[..end]).is_err());
        }
    }
}
