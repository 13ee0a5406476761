//! The run directory: one daemon at a time, found by clients and commands through the sockets in it.
//!
//! `weir.lock` holds the pid of its daemon and is locked (`flock`) for the daemon's whole life. The kernel drops the
//! lock when the process ends in whatever way, so once the lock was had, a socket that nobody listens on is one that a
//! dead daemon left, and goes. Whatever else lies at its path is not the daemon's: it is named and left alone.

use std::fmt;
use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, getsockname};

use super::listener::credentials;
use crate::inherited::{self, Inherited, check_listening};

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

/// How long a process that has a socket of the directory may take to end: the kernel drops the lock of a killed daemon
/// a moment before it closes the daemon's sockets.
const LAST_BREATH: Duration = Duration::from_secs(1);

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
    /// The directory that it would be made in does not exist.
    NoParent {
        /// The directory.
        path: PathBuf,
    },
    /// Something lies in the way that no daemon has left there.
    Foreign {
        /// Where.
        path: PathBuf,
        /// What it is, with what is needed there.
        found: &'static str,
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
            Self::NoParent { path } => write!(
                f,
                "cannot make {}: the directory that it lies in does not exist; make that one, or set another --run-dir",
                path.display()
            ),
            Self::Foreign { path, found } => write!(
                f,
                "{} {found}; no daemon left it there: remove it, or set another --run-dir",
                path.display()
            ),
            Self::NotWritable { path, source } => {
                let needed = match Errno::from_io_error(source) {
                    Some(Errno::NOSPC | Errno::DQUOT) => {
                        "space on its file system (`df`), or a directory on another"
                    }
                    Some(Errno::ROFS) => "a directory on a file system that is not read-only",
                    _ => "a directory that this user may write",
                };
                write!(f, "cannot write {}: {source}; needed: {needed}, set by --run-dir", path.display())
            }
        }
    }
}

impl std::error::Error for RunDirError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NotWritable { source, .. } => Some(source),
            Self::Live { .. } | Self::NoParent { .. } | Self::Foreign { .. } => None,
        }
    }
}

/// The file of a socket that this daemon has made. What lies at its path later may be another's.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// While it is open, no other file is given its number.
    file: OwnedFd,
}

impl SocketFile {
    /// That which lies at this path now.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn at(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Whether it still lies at its path.
    #[must_use]
    pub fn is_there(&self) -> bool {
        is_at(&self.file, &self.path)
    }
}

/// Whether an open file is the one that lies at this path.
fn is_at(file: impl AsFd, path: &Path) -> bool {
    match (rustix::fs::fstat(file), rustix::fs::lstat(path)) {
        (Ok(open), Ok(found)) => (open.st_dev, open.st_ino) == (found.st_dev, found.st_ino),
        _ => false,
    }
}

/// A run directory that belongs to this daemon. Dropped: its sockets are removed, then the lock is given up.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    sockets: Vec<SocketFile>,
    /// Of an earlier daemon, until they are asked for.
    attach: Option<OwnedFd>,
    control: Option<OwnedFd>,
    has_heirs: bool,
    _lock: File,
}

impl RunDir {
    /// Makes the directory if there is none but the one that it lies in, locks it, and removes the sockets that a dead
    /// daemon left.
    ///
    /// # Errors
    /// A live daemon has it, something foreign lies where its files belong, or it cannot be written.
    pub fn lock(path: &Path) -> Result<Self, RunDirError> {
        Self::lock_with(path, &mut Inherited::default())
    }

    /// As [`RunDir::lock`]. Sockets of an earlier daemon that still listen stay: [`RunDir::listen`] and
    /// [`RunDir::control`] go on with them. Where there are any, inside a tokio runtime with I/O only.
    ///
    /// # Errors
    /// As of [`RunDir::lock`].
    pub fn lock_with(path: &Path, inherited: &mut Inherited) -> Result<Self, RunDirError> {
        Self::lock_and(path, inherited, LAST_BREATH, write_pid)
    }

    /// The same, with how long a socket is waited for, and how the lock file is written.
    fn lock_and(
        path: &Path,
        inherited: &mut Inherited,
        last_breath: Duration,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<Self, RunDirError> {
        make(path)?;
        let lock_path = path.join(LOCK_FILE);
        let mut lock = loop {
            let mut lock = open_lock(path)?;
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                // Not one that was removed between opening and locking it.
                Ok(()) if is_at(&lock, &lock_path) => break lock,
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    let mut text = String::new();
                    // A pid that cannot be read is only missing from the message.
                    let _ = (&mut lock).take(32).read_to_string(&mut text);
                    let pid = text.lines().next().and_then(|line| line.parse().ok());
                    return Err(RunDirError::Live { path: path.to_owned(), pid });
                }
                Err(errno) => return Err(not_writable(&lock_path)(errno.into())),
            }
        };
        if let Err(error) = write(&mut lock) {
            // An empty one, as on a full file system, tells nobody anything.
            if lock.metadata().is_ok_and(|found| found.len() == 0) {
                let _ = std::fs::remove_file(&lock_path);
            }
            return Err(not_writable(&lock_path)(error));
        }
        let mut resume = |name: &'static str, file: &str, kind: SocketType| {
            let file = path.join(file);
            let socket = inherited.take(name, |socket| check_inherited(socket, &file, kind));
            if socket.is_none() {
                clear_within(&file, kind, last_breath)?;
            }
            Ok(socket)
        };
        let attach = resume(inherited::ATTACH, ATTACH_SOCKET, SocketType::SEQPACKET)?;
        let control = resume(inherited::CONTROL, CONTROL_SOCKET, SocketType::STREAM)?;
        let sockets = Vec::new();
        Ok(Self { path: path.to_owned(), sockets, attach, control, has_heirs: false, _lock: lock })
    }

    /// The control socket of an earlier daemon that still listens, once.
    pub fn control(&mut self) -> Option<OwnedFd> {
        self.control.take()
    }

    /// Its sockets are kept by who starts the next daemon, which goes on with them: their files stay.
    pub fn set_heirs(&mut self) {
        self.has_heirs = true;
    }

    /// Whether the next daemon goes on with its sockets.
    #[must_use]
    pub fn has_heirs(&self) -> bool {
        self.has_heirs
    }

    /// Takes a socket that was made in this directory as this daemon's own.
    pub fn keep(&mut self, socket: SocketFile) {
        self.sockets.push(socket);
    }

    /// The sockets of this daemon that do not lie at their paths any more: nobody can find it by them.
    pub fn vanished(&self) -> impl Iterator<Item = &Path> {
        self.sockets.iter().filter(|socket| !socket.is_there()).map(|socket| socket.path.as_path())
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the attach socket. It does not block and has mode 0660.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn listen(&mut self) -> Result<OwnedFd, RunDirError> {
        let path = self.path.join(ATTACH_SOCKET);
        if let Some(socket) = self.attach.take() {
            self.keep(SocketFile::at(&path).map_err(not_writable(&path))?);
            return Ok(socket);
        }
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
        let socket = open().map_err(|errno| not_writable(&path)(errno.into()))?;
        self.keep(SocketFile::at(&path).map_err(not_writable(&path))?);
        // Before anyone can connect, that is, before listen.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(SOCKET_MODE))
            .map_err(not_writable(&path))?;
        rustix::net::listen(&socket, ACCEPT_BACKLOG).map_err(|errno| not_writable(&path)(errno.into()))?;
        Ok(socket)
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if self.has_heirs {
            return;
        }
        // The lock file stays: removing it would let two daemons lock two files of one name.
        // Only what this daemon has made: if directory or sockets were removed, another one may have made its own there.
        for socket in self.sockets.iter().filter(|socket| socket.is_there()) {
            // One that cannot be removed is stale, which the next daemon deals with.
            let _ = std::fs::remove_file(&socket.path);
        }
    }
}

/// Whether a socket of an earlier daemon listens, and is what lies at this path: something else may have taken its place.
fn check_inherited(socket: &OwnedFd, path: &Path, kind: SocketType) -> Result<(), String> {
    check_listening(socket, kind)?;
    rustix::io::ioctl_fionbio(socket, true).map_err(|errno| errno.to_string())?;
    let bound = getsockname(socket).ok().and_then(|address| SocketAddrUnix::try_from(address).ok());
    if bound.as_ref().and_then(SocketAddrUnix::path_bytes) != Some(path.as_os_str().as_bytes()) {
        return Err(format!("it is not bound to {}", path.display()));
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)
        .map_err(|errno| errno.to_string())?;
    let address = SocketAddrUnix::new(path).map_err(|errno| errno.to_string())?;
    match rustix::net::connect(&probe, &address) {
        // Both name the process that has begun to listen on it.
        Ok(()) => match (credentials(socket), credentials(&probe)) {
            (Ok(own), Ok(found)) if own == found => Ok(()),
            _ => Err(format!("another socket lies at {}", path.display())),
        },
        // Its queue is full: somebody listens who does not accept, as nobody does now.
        Err(Errno::AGAIN) => Ok(()),
        Err(errno) => Err(format!("it is not found at {}: {errno}", path.display())),
    }
}

fn write_pid(lock: &mut File) -> io::Result<()> {
    // In this order: whoever reads it meanwhile finds a whole first line.
    lock.rewind()?;
    let line = format!("{}\n", std::process::id());
    lock.write_all(line.as_bytes())?;
    lock.set_len(line.len() as u64)
}

fn not_writable(path: &Path) -> impl Fn(io::Error) -> RunDirError {
    let path = path.to_owned();
    move |source| RunDirError::NotWritable { path: path.clone(), source }
}

/// Makes the directory, unless it is there.
fn make(path: &Path) -> Result<(), RunDirError> {
    match std::fs::DirBuilder::new().mode(0o750).create(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(RunDirError::NoParent { path: path.to_owned() })
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match std::fs::metadata(path) {
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => Err(foreign(path, "is no directory, which is needed there")),
            Err(error) => Err(not_writable(path)(error)),
        },
        Err(error) => Err(not_writable(path)(error)),
    }
}

/// Opens the lock file, which is a regular file and nothing else.
fn open_lock(directory: &Path) -> Result<File, RunDirError> {
    let path = directory.join(LOCK_FILE);
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o640)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(&path);
    // Looked at by name: what cannot be opened at all has a kind too.
    match std::fs::symlink_metadata(&path).map(|found| found.file_type()) {
        Ok(found) if found.is_symlink() => Err(foreign(&path, "is a symbolic link; needed: a regular file")),
        Ok(found) if !found.is_file() => Err(foreign(&path, "is no regular file, which is needed there")),
        _ => opened.map_err(not_writable(&path)),
    }
}

fn foreign(path: &Path, found: &'static str) -> RunDirError {
    RunDirError::Foreign { path: path.to_owned(), found }
}

/// What lies at the path of a socket, if it is nothing that is in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occupant {
    /// Nothing.
    Nothing,
    /// A socket that nobody listens on.
    Stale,
    /// A socket that some process listens on.
    Live,
}

/// Looks at the path of a socket, and changes nothing.
///
/// # Errors
/// Something lies there that is no socket, or it cannot be looked at.
pub(crate) fn occupant(path: &Path, kind: SocketType) -> Result<Occupant, RunDirError> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Occupant::Nothing),
        Err(error) => return Err(not_writable(path)(error)),
    };
    if let Some(found) = in_the_way(found) {
        return Err(foreign(path, found));
    }
    match listener(path, kind) {
        Ok(Listener::None) => Ok(Occupant::Stale),
        Ok(Listener::Live) => Ok(Occupant::Live),
        Err(errno) => Err(not_writable(path)(errno.into())),
    }
}

/// Makes room for a socket: removes one that nobody listens on, and refuses everything else. That there is nothing is
/// fine. The caller holds the lock of the run directory.
///
/// # Errors
/// Something lies there that no dead daemon has left, or it cannot be removed.
pub(crate) fn clear(path: &Path, kind: SocketType) -> Result<(), RunDirError> {
    clear_within(path, kind, LAST_BREATH)
}

/// The same, with how long a socket is waited for whose process may be about to end.
fn clear_within(path: &Path, kind: SocketType, last_breath: Duration) -> Result<(), RunDirError> {
    let patience = Instant::now() + last_breath;
    loop {
        match occupant(path, kind)? {
            Occupant::Nothing => return Ok(()),
            Occupant::Stale => {
                return match std::fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(not_writable(path)(error)),
                    _ => Ok(()),
                };
            }
            Occupant::Live if Instant::now() < patience => std::thread::sleep(Duration::from_millis(10)),
            Occupant::Live => {
                return Err(foreign(
                    path,
                    "is a socket on which another live process listens (`ss -xlp` names it); needed: nothing, or \
                     the socket of a daemon that has ended",
                ));
            }
        }
    }
}

/// What lies at the path of a socket and is none.
fn in_the_way(found: FileType) -> Option<&'static str> {
    if found.is_symlink() {
        Some("is a symbolic link; needed: nothing, or the socket of a daemon that has ended")
    } else if found.is_dir() {
        Some("is a directory; needed: nothing, or the socket of a daemon that has ended")
    } else if found.is_file() {
        Some("is a regular file; needed: nothing, or the socket of a daemon that has ended")
    } else if !found.is_socket() {
        Some("is a pipe or device; needed: nothing, or the socket of a daemon that has ended")
    } else {
        None
    }
}

/// Who listens on a socket.
enum Listener {
    /// Nobody: it is stale.
    None,
    /// Some process.
    Live,
}

/// Finds out by connecting, without waiting.
fn listener(path: &Path, kind: SocketType) -> Result<Listener, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(Listener::None),
        // Its queue is full, or it is a socket of another type: somebody is there.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Ok(Listener::Live),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_daemon_is_named_and_a_dead_one_is_replaced() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("run");
        let mut first = RunDir::lock(&path).unwrap();
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
    fn what_a_later_daemon_made_at_the_same_path_is_not_removed() {
        for is_directory_removed in [true, false] {
            let parent = tempfile::tempdir().unwrap();
            let path = parent.path().join("run");
            let (attach, control) = (path.join(ATTACH_SOCKET), path.join(CONTROL_SOCKET));
            let start = || {
                let mut run_dir = RunDir::lock(&path).unwrap();
                let clients = run_dir.listen().unwrap();
                let commands = std::os::unix::net::UnixListener::bind(&control).unwrap();
                run_dir.keep(SocketFile::at(&control).unwrap());
                (run_dir, clients, commands)
            };
            let (first, ..) = start();
            assert_eq!(first.vanished().count(), 0);
            if is_directory_removed {
                std::fs::remove_dir_all(&path).unwrap();
            } else {
                for file in [&attach, &control, &path.join(LOCK_FILE)] {
                    std::fs::remove_file(file).unwrap();
                }
            }
            assert_eq!(first.vanished().collect::<Vec<_>>(), [&attach, &control]);
            let (second, ..) = start();
            assert_eq!(first.vanished().count(), 2, "those are another's");
            drop(first);
            assert_eq!(second.vanished().count(), 0);
            drop(second);
            assert!(!attach.exists() && !control.exists());
        }
    }

    /// Many file systems give the number of a file that is gone to the next one.
    #[test]
    fn no_other_file_is_taken_for_a_socket_that_was_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CONTROL_SOCKET);
        // Nobody listens, who would keep the number as well.
        let bind = || drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        bind();
        let own = SocketFile::at(&path).unwrap();
        assert!(own.is_there());
        for _ in 0..100 {
            std::fs::remove_file(&path).unwrap();
            assert!(!own.is_there());
            bind();
            assert!(!own.is_there());
        }
    }

    #[test]
    fn a_lock_file_that_cannot_be_written_is_not_left_empty_and_the_need_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let needs = [
            (Errno::NOSPC, "needed: space on its file system"),
            (Errno::DQUOT, "needed: space on its file system"),
            (Errno::ROFS, "needed: a directory on a file system that is not read-only"),
            (Errno::ACCESS, "needed: a directory that this user may write"),
        ];
        for (errno, needed) in needs {
            let refused =
                RunDir::lock_and(dir.path(), &mut Inherited::default(), LAST_BREATH, |_| Err(errno.into()))
                    .unwrap_err()
                    .to_string();
            assert!(refused.contains(needed) && refused.contains("--run-dir"), "{refused}");
            assert!(!dir.path().join(LOCK_FILE).exists());
        }
        // What an earlier daemon wrote stays.
        drop(RunDir::lock(dir.path()).unwrap());
        RunDir::lock_and(dir.path(), &mut Inherited::default(), LAST_BREATH, |_| Err(Errno::NOSPC.into()))
            .unwrap_err();
        assert!(dir.path().join(LOCK_FILE).exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_the_new_one_has_mode_0660() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(ATTACH_SOCKET);
        // What kill -9 leaves behind: the socket's file, and a lock file that nobody holds.
        std::os::unix::net::UnixListener::bind(&path).unwrap();
        std::fs::write(dir.path().join(LOCK_FILE), "999999\n").unwrap();
        let mut run_dir = RunDir::lock(dir.path()).unwrap();
        let _socket = run_dir.listen().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, SOCKET_MODE);
        let lock = std::fs::read_to_string(dir.path().join(LOCK_FILE)).unwrap();
        assert_eq!(lock.trim(), std::process::id().to_string());
        drop(run_dir);
        assert!(!path.exists());
    }

    #[test]
    fn what_no_daemon_left_is_told_apart_named_and_left_alone() {
        use std::os::unix::fs::MetadataExt;
        use std::os::unix::net::{UnixDatagram, UnixListener};

        for name in [ATTACH_SOCKET, CONTROL_SOCKET] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(name);
            let elsewhere = dir.path().join("elsewhere");
            std::fs::write(&elsewhere, "precious").unwrap();
            let refused = |word: &str| {
                let before = std::fs::symlink_metadata(&path).unwrap();
                let error = RunDir::lock(dir.path()).map(drop).unwrap_err();
                assert!(matches!(&error, RunDirError::Foreign { .. }), "{error:?}");
                let text = error.to_string();
                let words = [word, &path.display().to_string(), "remove it", "--run-dir"];
                assert!(words.iter().all(|word| text.contains(word)), "{words:?} in {text}");
                let after = std::fs::symlink_metadata(&path).expect("it still lies there");
                assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()));
            };
            std::fs::write(&path, "precious").unwrap();
            refused("is a regular file");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
            std::fs::remove_file(&path).unwrap();
            std::fs::create_dir(&path).unwrap();
            refused("is a directory");
            std::fs::remove_dir(&path).unwrap();
            std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
            refused("is a symbolic link");
            std::fs::remove_file(&path).unwrap();
            // One that leads nowhere is no stale socket either.
            std::os::unix::fs::symlink(dir.path().join("nowhere"), &path).unwrap();
            refused("is a symbolic link");
            std::fs::remove_file(&path).unwrap();
            rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
            refused("is a pipe or device");
            std::fs::remove_file(&path).unwrap();
            // Sockets of every type that a live process has there.
            let listener = UnixListener::bind(&path).unwrap();
            refused("another live process listens");
            drop(listener);
            std::fs::remove_file(&path).unwrap();
            let datagrams = UnixDatagram::bind(&path).unwrap();
            refused("another live process listens");
            drop(datagrams);
            // And now it is stale.
            drop(RunDir::lock(dir.path()).unwrap());
            assert!(!path.exists());
            assert_eq!(std::fs::read_to_string(&elsewhere).unwrap(), "precious");
        }
    }

    #[test]
    fn a_socket_whose_process_is_about_to_end_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(ATTACH_SOCKET);
        let mut first = RunDir::lock(dir.path()).unwrap();
        let socket = first.listen().unwrap();
        // The kernel closes the files of a process that ends one after the other, the lock before the socket.
        let lock = first._lock.try_clone().unwrap();
        std::mem::forget(first);
        rustix::fs::flock(&lock, FlockOperation::Unlock).unwrap();
        let ending = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(socket);
        });
        let patience = Duration::from_secs(60);
        let mut second =
            RunDir::lock_and(dir.path(), &mut Inherited::default(), patience, write_pid).unwrap();
        assert!(!path.exists());
        second.listen().unwrap();
        ending.join().unwrap();
    }

    #[test]
    fn a_lock_file_that_is_none_is_named_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (dir.path().join(LOCK_FILE), dir.path().join("elsewhere"));
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        let refused = |word: &str| {
            let error = RunDir::lock(dir.path()).map(drop).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains(LOCK_FILE), "{error}");
        };
        refused("is a symbolic link");
        assert!(!elsewhere.exists(), "nothing was made where the link points");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        refused("is no regular file");
    }

    #[test]
    fn the_directory_is_made_and_the_one_that_it_lies_in_is_not() {
        let parent = tempfile::tempdir().unwrap();
        drop(RunDir::lock(&parent.path().join("run")).unwrap());
        let mode = std::fs::metadata(parent.path().join("run")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o750);
        let path = parent.path().join("none").join("run");
        let error = RunDir::lock(&path).unwrap_err();
        assert!(matches!(&error, RunDirError::NoParent { .. }), "{error:?}");
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        assert!(!parent.path().join("none").exists());
        // What is there and is no directory.
        let file = parent.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = RunDir::lock(&file).unwrap_err();
        assert!(error.to_string().contains("is no directory"), "{error}");
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
