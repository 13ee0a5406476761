//! What only one daemon can have. It is taken before anything dear is made: a second daemon finds it taken at once, and
//! loads no probes and makes no rings.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use tokio::net::TcpListener;

use super::StartError;
use super::options::os;
use crate::attach::run_dir::RunDir;
use crate::inherited::{self, Inherited};
use crate::link::listen;

/// The run directory's lock, and the sockets for links from other nodes and for clients. Who connects waits in their queues
/// until a node accepts.
#[derive(Debug)]
pub struct Ground {
    pub(super) run_dir: RunDir,
    pub(super) listener: TcpListener,
    pub(super) address: SocketAddr,
    pub(super) clients: OwnedFd,
}

impl Ground {
    /// Locks `run_dir`, and listens there and on `listen`: with the sockets of an earlier daemon, where they fit. Must be
    /// called inside a tokio runtime with I/O.
    ///
    /// # Errors
    /// Another daemon or process has one of them, or the system refuses it; nothing is left behind then.
    pub fn take(
        run_dir: &Path,
        listen: SocketAddr,
        has_key: bool,
        inherited: &mut Inherited,
    ) -> Result<Self, StartError> {
        let mut run_dir = RunDir::lock_with(run_dir, inherited)?;
        listen::check(listen, has_key)?;
        let earlier = inherited.take(inherited::LINKS, |socket| listen::check_inherited(socket, listen));
        let listener = match earlier {
            Some(socket) => {
                listen::resume(socket).map_err(os("taking the listening socket of the earlier daemon"))?
            }
            None => listen::bind(listen, has_key)?,
        };
        let address = listener.local_addr().map_err(os("asking for the listening address"))?;
        let clients = run_dir.listen()?;
        Ok(Self { run_dir, listener, address, clients })
    }

    /// Its listening sockets with their names, to be kept by who starts the next daemon.
    pub fn sockets(&self) -> impl Iterator<Item = (&'static str, BorrowedFd<'_>)> {
        [(inherited::LINKS, self.listener.as_fd()), (inherited::ATTACH, self.clients.as_fd())].into_iter()
    }

    /// The run directory.
    pub fn run_dir(&mut self) -> &mut RunDir {
        &mut self.run_dir
    }
}
