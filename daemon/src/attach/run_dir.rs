//! The run directory: one daemon at a time, found by clients and commands through the sockets in it.
//!
//! `weir.lock` holds the pid of its daemon and is locked (`flock`) for the daemon's whole life. The kernel drops the
//! lock when the process ends in whatever way, so a left-over socket is known to be stale once the lock was had.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Name of the socket that clients attach to.
pub const ATTACH_SOCKET: &str = "attach.sock";

/// Name of the socket that commands ask.
pub const CONTROL_SOCKET: &str = "control.sock";

/// Name of the lock file.
pub const LOCK_FILE: &str = "weir.lock";

/// Who may attach: owner and group.
const SOCKET_MODE: u32 = 0o660;

/// Clients that the kernel may hold ready to be accepted.
const ACCEPT_BACKLOG: i32 = 128;

/// Why the run directory cannot be used.
#[derive(Debug)]
pub enum RunDirError {
    /// A daemon is running on it.
    Live {
        /// The directory.
        path: PathBuf,
        /// The pid that the lock file names, if it can be read.
        pid: Option<u32>,
    },
    /// A file in it cannot be made or changed.
    NotWritable {
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl fmt::Display for RunDirError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Live { path, pid: Some(pid) } => write!(
                f,
                "a daemon is running on {} (pid {pid}); stop it, or set another --run-dir for this one",
                path.display()
            ),
            Self::Live { path, pid: None } => write!(
                f,
                "a daemon is running on {}; stop it, or set another --run-dir for this one",
                path.display()
            ),
            Self::NotWritable { path, source } => write!(
                f,
                "cannot write {}: {source}; needed: a directory that this user may write, set by --run-dir",
                path.display()
            ),
        }
    }
}

impl std::error::Error for RunDirError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NotWritable { source, .. } => Some(source),
            Self::Live { .. } => None,
        }
    }
}

/// A run directory that belongs to this daemon. Dropped: its sockets are removed, then the lock is given up.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    _lock: File,
}

impl RunDir {
    /// Makes the directory if there is none, and locks it.
    ///
    /// # Errors
    /// When a live daemon has it, and when it cannot be written.
    pub fn lock(path: &Path) -> Result<Self, RunDirError> {
        let not_writable = |path: &Path, source| RunDirError::NotWritable { path: path.to_owned(), source };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(path)
            .map_err(|source| not_writable(path, source))?;
        let lock_path = path.join(LOCK_FILE);
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o640)
            .open(&lock_path)
            .map_err(|source| not_writable(&lock_path, source))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                // A pid that cannot be read is only missing from the message.
                let _ = (&mut lock).take(32).read_to_string(&mut text);
                return Err(RunDirError::Live { path: path.to_owned(), pid: text.trim().parse().ok() });
            }
            Err(errno) => return Err(not_writable(&lock_path, errno.into())),
        }
        let write_pid = |lock: &mut File| {
            lock.set_len(0)?;
            lock.rewind()?;
            writeln!(lock, "{}", std::process::id())
        };
        write_pid(&mut lock).map_err(|source| not_writable(&lock_path, source))?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the attach socket, in place of one that a dead daemon left. It does not block and has mode 0660.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn listen(&self) -> Result<OwnedFd, RunDirError> {
        let path = self.path.join(ATTACH_SOCKET);
        let not_writable = |source: io::Error| RunDirError::NotWritable { path: path.clone(), source };
        self.remove(ATTACH_SOCKET).map_err(not_writable)?;
        let open = || -> Result<OwnedFd, Errno> {
            let socket = rustix::net::socket_with(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                None,
            )?;
            rustix::net::bind(&socket, &SocketAddrUnix::new(&path)?)?;
            Ok(socket)
        };
        let socket = open().map_err(|errno| not_writable(errno.into()))?;
        // Before anyone can connect, that is, before listen.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(SOCKET_MODE))
            .map_err(not_writable)?;
        rustix::net::listen(&socket, ACCEPT_BACKLOG).map_err(|errno| not_writable(errno.into()))?;
        Ok(socket)
    }

    /// Removes a file of the directory. That there is none is fine.
    fn remove(&self, name: &str) -> io::Result<()> {
        match std::fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // The lock file stays: removing it would let two daemons lock two files of one name.
        for name in [ATTACH_SOCKET, CONTROL_SOCKET] {
            // A socket that cannot be removed is stale, which the next daemon deals with.
            let _ = self.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_daemon_is_named_and_a_dead_one_is_replaced() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("run");
        let first = RunDir::lock(&path).unwrap();
        let _socket = first.listen().unwrap();
        let error = RunDir::lock(&path).unwrap_err();
        assert!(
            matches!(&error, RunDirError::Live { pid, .. } if *pid == Some(std::process::id())),
            "{error:?}"
        );
        assert!(error.to_string().contains("--run-dir"), "{error}");
        drop(first);
        RunDir::lock(&path).unwrap();
    }

    #[test]
    fn a_stale_socket_is_replaced_and_the_new_one_has_mode_0660() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(ATTACH_SOCKET);
        // What kill -9 leaves behind: the socket's file, and a lock file that nobody holds.
        std::os::unix::net::UnixListener::bind(&path).unwrap();
        std::fs::write(dir.path().join(LOCK_FILE), "999999\n").unwrap();
        let run_dir = RunDir::lock(dir.path()).unwrap();
        let _socket = run_dir.listen().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, SOCKET_MODE);
        let lock = std::fs::read_to_string(dir.path().join(LOCK_FILE)).unwrap();
        assert_eq!(lock.trim(), std::process::id().to_string());
        drop(run_dir);
        assert!(!path.exists());
    }

    #[test]
    fn a_directory_that_cannot_be_made_says_which_and_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = RunDir::lock(&file.join("run")).unwrap_err();
        assert!(matches!(error, RunDirError::NotWritable { .. }), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains(&file.join("run").display().to_string()) && text.contains("--run-dir"),
            "{text}"
        );
    }
}
