//! Errors of the ring, each with what to do about it.

use std::borrow::Cow;
use std::fmt;
use std::io;

/// A number by which the kernel says why something failed. Positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({self})")
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Self(errno.raw_os_error())
    }
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// What to do about a [`RingError`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Try again once more completions have been taken.
    Retry,
    /// Only this socket, watch or batch is concerned: close its link. The ring goes on.
    Socket,
    /// The ring is of no use, and so is the shard.
    Fatal {
        /// What the operator can do.
        fix: Cow<'static, str>,
    },
}

/// Why the ring could not do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingError {
    /// What failed: a system call, or what was asked of the ring.
    pub what: Cow<'static, str>,
    /// Why.
    pub errno: Errno,
    /// What to do about it.
    pub disposition: Disposition,
}

impl RingError {
    pub(super) const fn retry(what: &'static str, errno: Errno) -> Self {
        Self { what: Cow::Borrowed(what), errno, disposition: Disposition::Retry }
    }

    pub(super) fn socket(what: impl Into<Cow<'static, str>>, errno: Errno) -> Self {
        Self { what: what.into(), errno, disposition: Disposition::Socket }
    }

    pub(crate) fn fatal(
        what: impl Into<Cow<'static, str>>,
        errno: Errno,
        fix: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { what: what.into(), errno, disposition: Disposition::Fatal { fix: fix.into() } }
    }
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.errno)?;
        match &self.disposition {
            Disposition::Retry | Disposition::Socket => Ok(()),
            Disposition::Fatal { fix } => write!(f, "; {fix}"),
        }
    }
}

impl std::error::Error for RingError {}
