//! On which processors a thread may run, and on which NUMA node the kernel takes memory for it: calls with masks of any
//! length.

use std::collections::BTreeMap;
use std::io;
use std::marker::PhantomData;
use std::ptr;

use rustix::thread::Pid;

/// Processors of the smallest mask that the kernel is asked with. It refuses one that is shorter than its own.
const CPUS_FIRST: usize = 1 << 10;

/// Processors of the largest. No kernel has more than 8,192.
const CPUS_MAX: usize = 1 << 16;

/// Nodes of the mask of a policy: as many as any kernel has.
const NODES_MAX: usize = 1 << 10;

/// `get_mempolicy`: asks for the node of a page, and of the one at an address.
const OF_PAGE: usize = 1 | 2;

/// Bits, the lowest first.
type Words = Vec<libc::c_ulong>;

const WORD_BITS: usize = libc::c_ulong::BITS as usize;

/// A mask with these bits, at least `bits_min` long.
fn mask(numbers: &[usize], bits_min: usize) -> Words {
    let bits = numbers.iter().map(|number| number + 1).max().unwrap_or(0).max(bits_min);
    let mut words = vec![0; bits.div_ceil(WORD_BITS)];
    for number in numbers {
        words[number / WORD_BITS] |= 1 << (number % WORD_BITS);
    }
    words
}

/// The numbers of the bits that are set, in ascending order.
fn numbers(words: &[libc::c_ulong]) -> Vec<usize> {
    let is_set = |number: &usize| words[number / WORD_BITS] & (1 << (number % WORD_BITS)) != 0;
    (0..words.len() * WORD_BITS).filter(is_set).collect()
}

/// The number of a thread as the kernel's calls take it; 0 is the calling one.
fn raw(thread: Option<Pid>) -> libc::pid_t {
    thread.map_or(0, |thread| thread.as_raw_nonzero().get())
}

/// The processors that a thread (none: the calling one) may use and that are online, in ascending order.
///
/// # Errors
/// The thread has ended, or the kernel refuses the call.
pub fn affinity(thread: Option<Pid>) -> io::Result<Vec<usize>> {
    let mut bits = CPUS_FIRST;
    loop {
        let mut words = mask(&[], bits);
        // SAFETY: the kernel writes at most so many bytes there, and they are a buffer of that length.
        let outcome = unsafe {
            libc::sched_getaffinity(raw(thread), size_of_val(words.as_slice()), words.as_mut_ptr().cast())
        };
        let error = io::Error::last_os_error();
        match outcome {
            0 => return Ok(numbers(&words)),
            _ if error.raw_os_error() == Some(libc::EINVAL) && bits < CPUS_MAX => bits *= 2,
            _ => return Err(error),
        }
    }
}

/// Lets a thread (none: the calling one) run on these processors and no others.
///
/// # Errors
/// The thread has ended, it may use none of them, or the kernel refuses the call.
pub fn set_affinity(thread: Option<Pid>, cpus: &[usize]) -> io::Result<()> {
    let words = mask(cpus, CPUS_FIRST);
    // SAFETY: the kernel reads so many bytes, and they are a buffer of that length.
    let outcome =
        unsafe { libc::sched_setaffinity(raw(thread), size_of_val(words.as_slice()), words.as_ptr().cast()) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Memory that the calling thread takes from the kernel comes from one node, as long as that has some, until this is
/// dropped: pages of files that it allocates, hugepages too, and what the kernel itself needs for it. Nothing fails for it.
///
/// A policy of a mapping (`mbind`) would not do: pages are allocated by `fallocate`, which for hugepages goes by the policy of
/// the thread and by no other.
#[derive(Debug)]
pub struct Preference {
    /// What the thread had: nothing of its own, in one of the two ways to say so.
    before: libc::c_int,
    /// It belongs to the thread.
    _not_send: PhantomData<*const ()>,
}

impl Preference {
    /// Begins it, if there is a node to prefer. None, and nothing is changed, also where the thread has a policy already
    /// ([`has_own_policy`]).
    ///
    /// # Errors
    /// The kernel knows no such node, the process may not use its memory, or policies are refused to it. Nothing is changed.
    pub fn begin(node: Option<u32>) -> io::Result<Option<Self>> {
        let Some(node) = node else { return Ok(None) };
        let node = usize::try_from(node).ok().filter(|node| *node < NODES_MAX);
        let node = node.ok_or(io::ErrorKind::InvalidInput)?;
        let before = policy()?;
        if !is_none(before) {
            return Ok(None);
        }
        set_policy(libc::MPOL_PREFERRED, &mask(&[node], NODES_MAX))?;
        Ok(Some(Self { before, _not_send: PhantomData }))
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // It held before, and names no node that could have gone.
        if let Err(error) = set_policy(self.before, &[]) {
            tracing::warn!(%error, "a thread goes on taking memory from one NUMA node");
        }
    }
}

/// Whether the calling thread has a policy for memory, which a daemon has from who started it (`NUMAPolicy=`, `numactl`).
#[must_use]
pub fn has_own_policy() -> bool {
    policy().is_ok_and(|mode| !is_none(mode))
}

const fn is_none(mode: libc::c_int) -> bool {
    mode == libc::MPOL_DEFAULT || mode == libc::MPOL_LOCAL
}

/// The policy of the calling thread.
fn policy() -> io::Result<libc::c_int> {
    let mut mode: libc::c_int = 0;
    let no_nodes = ptr::null_mut::<libc::c_ulong>();
    // SAFETY: the kernel writes a number, for which there is room, and looks at no address.
    let outcome = unsafe {
        libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, no_nodes, 0_usize, ptr::null::<u8>(), 0_usize)
    };
    if outcome == 0 { Ok(mode) } else { Err(io::Error::last_os_error()) }
}

fn set_policy(mode: libc::c_int, nodes: &[libc::c_ulong]) -> io::Result<()> {
    let (start, bits) = match nodes {
        [] => (ptr::null(), 0),
        // The kernel reads one bit less than it is told.
        words => (words.as_ptr(), words.len() * WORD_BITS + 1),
    };
    // SAFETY: the kernel reads so many bits of a buffer that has them, or none.
    let outcome = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, start, bits) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The node of the page at an address; none where nothing is mapped, or the kernel does not tell.
fn node_of_page(address: *const u8) -> Option<u32> {
    let mut node: libc::c_int = -1;
    let no_nodes = ptr::null_mut::<libc::c_ulong>();
    // SAFETY: the kernel writes a number, for which there is room, and looks up the page at the address, which need not be one.
    let outcome =
        unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut node, no_nodes, 0_usize, address, OF_PAGE) };
    if outcome == 0 { u32::try_from(node).ok() } else { None }
}

/// Bytes of memory by NUMA node.
pub type BytesByNode = BTreeMap<u32, u64>;

/// Pages of one mapping that are asked for their nodes, at most: of a larger one some, evenly.
const PAGES_ASKED: usize = 64;

/// On which nodes the pages of this mapping are: exact for a small one, of a larger one by a sample. Pages of which the kernel does
/// not tell are left out.
#[must_use]
pub fn nodes_of(start: *const u8, bytes: usize, page_bytes: usize) -> BytesByNode {
    let pages = bytes / page_bytes.max(1);
    let asked = pages.min(PAGES_ASKED);
    let mut by_node = BytesByNode::new();
    for at in 0..asked {
        let (first, end) = (at * pages / asked, (at + 1) * pages / asked);
        if let Some(node) = node_of_page(start.wrapping_add(first * page_bytes)) {
            *by_node.entry(node).or_default() += ((end - first) * page_bytes) as u64;
        }
    }
    by_node
}

/// Where the memory of a region comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeChoice {
    /// There is nothing to choose: one node has all memory, if the kernel knows nodes at all.
    Only(Option<u32>),
    /// This node first, or as the kernel likes.
    Preferred(Option<u32>),
}

impl NodeChoice {
    /// The node that is to be preferred to others, if there are others.
    #[must_use]
    pub const fn preferred(self) -> Option<u32> {
        match self {
            Self::Only(_) => None,
            Self::Preferred(node) => node,
        }
    }
}

/// Where memory is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnNodes {
    /// Its bytes by node, as far as the kernel tells.
    pub by_node: BytesByNode,
    /// Those that are on another node than the one that was preferred when it was made: that had none left.
    pub elsewhere_bytes: u64,
}

impl OnNodes {
    /// Of memory that was made by this choice.
    #[must_use]
    pub fn made(by_node: BytesByNode, choice: NodeChoice) -> Self {
        let elsewhere =
            |wanted| by_node.iter().filter(move |(node, _)| **node != wanted).map(|(_, bytes)| bytes);
        let elsewhere_bytes = choice.preferred().map_or(0, |wanted| elsewhere(wanted).sum());
        Self { by_node, elsewhere_bytes }
    }

    /// Adds that of another.
    pub fn add(&mut self, other: &Self) {
        other.by_node.iter().for_each(|(node, bytes)| *self.by_node.entry(*node).or_default() += bytes);
        self.elsewhere_bytes += other.elsewhere_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_have_any_length() {
        for cpus in [&[0][..], &[1, 63, 64], &[1023], &[1024], &[5, 1500, 4097], &[]] {
            let words = mask(cpus, CPUS_FIRST);
            assert!(words.len() * WORD_BITS >= CPUS_FIRST);
            assert_eq!(numbers(&words), cpus);
        }
        assert_eq!(mask(&[1500], 0).len() * WORD_BITS, 1536);
    }

    #[test]
    fn a_thread_is_bound_by_itself_and_by_others_and_let_go() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let allowed = affinity(None).expect("its processors");
            let last = *allowed.last().expect("one at least");
            set_affinity(None, &[last]).expect("one of its own");
            assert_eq!(affinity(None).expect("its processors"), [last]);
            tell.send((rustix::thread::gettid(), allowed)).expect("the test");
            let _ = ended.recv();
        });
        let (id, allowed) = told.recv().expect("the thread");
        for cpus in [&allowed[..1], &allowed[..]] {
            set_affinity(Some(id), cpus).expect("its processors");
            assert_eq!(affinity(Some(id)).expect("its processors"), cpus);
        }
        drop(end);
        thread.join().expect("its end");
        assert!(affinity(Some(id)).is_err() && set_affinity(Some(id), &allowed).is_err());
    }

    #[test]
    fn a_processor_that_is_not_there_is_refused_and_nothing_changes() {
        let before = affinity(None).expect("its processors");
        if before.contains(&1500) {
            println!("not run here: a processor that is not there (this machine has 1,501)");
            return;
        }
        let error = set_affinity(None, &[1500]).expect_err("no such processor");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        assert_eq!(affinity(None).expect("its processors"), before);
        // Beside one that is there it does no harm.
        std::thread::spawn(move || {
            set_affinity(None, &[before[0], 1500]).expect("one of its own");
            assert_eq!(affinity(None).expect("its processors"), [before[0]]);
        })
        .join()
        .expect("the thread");
    }

    #[test]
    fn a_preference_ends_with_its_value_and_leaves_an_operators_policy_alone() {
        std::thread::spawn(|| {
            let Ok(before) = policy() else {
                println!(
                    "not run here: policies for memory (this kernel has none, or a filter refuses them)"
                );
                return;
            };
            assert!(is_none(before) && !has_own_policy());
            // Node 0 need not have memory, but some node below 64 has.
            let Some(preference) = (0..64).find_map(|node| Preference::begin(Some(node)).ok().flatten())
            else {
                panic!("no node can be preferred");
            };
            assert_eq!(policy().ok(), Some(libc::MPOL_PREFERRED));
            let inner = Preference::begin(Some(0)).expect("no refusal");
            assert!(has_own_policy() && inner.is_none(), "one inside another");
            drop(preference);
            assert_eq!(policy().ok(), Some(before));
            assert!(matches!(Preference::begin(None), Ok(None)));
            // No such node.
            for node in [900, 5000, u32::MAX] {
                assert!(Preference::begin(Some(node)).is_err());
                assert_eq!(policy().ok(), Some(before));
            }
        })
        .join()
        .expect("the thread");
    }

    #[test]
    fn what_counts_as_elsewhere_is_what_was_not_on_the_node_of_its_own_choice() {
        let by_node = || BytesByNode::from([(0, 10), (1, 20)]);
        let mut sum = OnNodes::default();
        for (choice, elsewhere, in_sum) in [
            (NodeChoice::Preferred(Some(0)), 20, 20),
            // The shard has moved to the other node since.
            (NodeChoice::Preferred(Some(1)), 10, 30),
            (NodeChoice::Preferred(None), 0, 30),
            (NodeChoice::Only(Some(0)), 0, 30),
        ] {
            let made = OnNodes::made(by_node(), choice);
            assert_eq!((made.elsewhere_bytes, &made.by_node), (elsewhere, &by_node()));
            sum.add(&made);
            assert_eq!(sum.elsewhere_bytes, in_sum);
        }
        assert_eq!(sum.by_node, BytesByNode::from([(0, 40), (1, 80)]));
    }

    #[test]
    fn pages_are_counted_where_they_are() {
        let pages = 1000;
        let memory = vec![1_u8; (pages + 1) * 4096];
        let start = memory.as_ptr();
        let start = start.wrapping_add(start.align_offset(4096));
        let by_node = nodes_of(start, pages * 4096, 4096);
        if by_node.is_empty() {
            println!("not run here: nodes of pages (this kernel has none, or a filter refuses the question)");
            return;
        }
        assert_eq!(by_node.values().sum::<u64>(), pages as u64 * 4096, "{by_node:?}");
        assert_eq!(nodes_of(start, 4096, 4096).values().sum::<u64>(), 4096);
        assert!(nodes_of(start, 100, 4096).is_empty());
        // Nothing is mapped there.
        assert!(nodes_of(ptr::without_provenance(4096), 4096, 4096).is_empty());
    }
}
