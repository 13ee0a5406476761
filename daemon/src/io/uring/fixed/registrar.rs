//! Registering regions, on a thread beside the shards: it takes the kernel up to some milliseconds, since it looks up and
//! holds every page.
//!
//! Each region is registered in a ring of its own, in which nothing else ever happens. The ring of the shard gets a share in
//! it (IORING_REGISTER_CLONE_BUFFERS), which takes microseconds whatever the region's size and locks no memory a second time;
//! then the other ring goes.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use io_uring::IoUring;
use io_uring::types::CloneBuffersFlags;
use rustix::process::getpid;

use super::super::queue::Queue;
use super::{Job, Registrations};
use crate::io::Errno;
use crate::memory::{SendRegion, Tail, numa};

/// A ring that has one region registered.
pub(in crate::io::uring) struct Source(IoUring);

impl Drop for Source {
    fn drop(&mut self) {
        // Closing a ring ends its registrations some time later, and this at once. There may be none.
        let _ = self.0.submitter().unregister_buffers();
    }
}

struct Request {
    address: usize,
    bytes: usize,
    job: Arc<Job<Source>>,
    /// Keeps the memory there. Last: the registration goes first.
    region: Arc<SendRegion>,
}

/// The thread of one ring, from the first region that is asked for to the end of the ring.
#[derive(Default)]
pub(in crate::io::uring) struct Registrar(Option<Sender<Request>>);

impl Registrar {
    /// Its thread, started if it is not there. None if there can be none.
    fn thread(&mut self) -> Option<&Sender<Request>> {
        if self.0.is_none() {
            let (sender, requests) = mpsc::channel::<Request>();
            let work = move || {
                leave_processor();
                requests.into_iter().for_each(serve);
            };
            let name = "weir-register".to_owned();
            self.0 = std::thread::Builder::new().name(name).spawn(work).ok().map(|_| sender);
        }
        self.0.as_ref()
    }
}

/// A shard may be bound to one processor, and a thread begins where the one that made it is bound to: this one may run where the
/// main thread may. If that fails the shard is held up, as if there were no thread.
fn leave_processor() {
    let _ = numa::affinity(Some(getpid())).and_then(|cpus| numa::set_affinity(None, &cpus));
}

fn serve(request: Request) {
    let Request { address, bytes, job, region } = request;
    if job.is_wanted() {
        job.answer(register(address, bytes));
    }
    drop(job);
    drop(region);
}

fn register(address: usize, bytes: usize) -> Result<Source, Errno> {
    // Of no thread in particular: the shard's refers to it as well.
    let ring: IoUring = IoUring::builder().build(1).map_err(Errno::from)?;
    let source = Source(ring);
    let range = libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: bytes };
    // SAFETY: the range is a region and its tail, which the request keeps alive here, and the entry of the region after that.
    // Whoever has the registration then ends it before it lets go of the region. The kernel only reads it.
    unsafe { source.0.submitter().register_buffers(&[range]) }.map_err(Errno::from)?;
    Ok(source)
}

/// The registrations of a ring.
pub(in crate::io::uring) struct Kernel<'ring> {
    pub(in crate::io::uring) queue: &'ring Queue,
    pub(in crate::io::uring) registrar: &'ring mut Registrar,
}

impl Registrations for Kernel<'_> {
    type Source = Source;

    fn ask(&mut self, tail: &Tail, job: &Arc<Job<Source>>) {
        let (address, bytes) = tail.range_with_region();
        let region = Arc::clone(tail.region());
        let request = Request { address: address.addr(), bytes, job: Arc::clone(job), region };
        let thread = self.registrar.thread();
        let is_asked = thread.is_some_and(|thread| thread.send(request).is_ok());
        if !is_asked {
            job.answer(Err(Errno(libc::EAGAIN)));
        }
    }

    fn share(&mut self, number: u16, source: &Source) -> Result<(), Errno> {
        let from = source.0.as_raw_fd();
        let flags = CloneBuffersFlags::DST_REPLACE;
        let submitter = &self.queue.submitter;
        let outcome = submitter.register_buffers_clone_offset(from, 0, u32::from(number), 1, flags);
        outcome.map_err(Errno::from)
    }

    fn give_up(&mut self, number: u16) -> Result<(), Errno> {
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: it names no memory.
        let outcome =
            unsafe { self.queue.submitter.register_buffers_update(u32::from(number), &[nothing], None) };
        outcome.map_err(Errno::from)
    }
}
