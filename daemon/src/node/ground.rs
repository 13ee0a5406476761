//! What only one daemon can have. It is taken before anything dear is made: a second daemon finds it taken at once, and
//! loads no probes and makes no rings.

use std::net::SocketAddr;
use std::path::Path;

use tokio::net::TcpListener;

use super::StartError;
use super::options::os;
use crate::attach::run_dir::RunDir;
use crate::link::listen;

/// The run directory's lock and the socket for links from other nodes. Connections wait in its queue until a node
/// accepts them.
#[derive(Debug)]
pub struct Ground {
    pub(super) run_dir: RunDir,
    pub(super) listener: TcpListener,
    pub(super) address: SocketAddr,
}

impl Ground {
    /// Locks `run_dir` and listens on `listen`. Must be called inside a tokio runtime with I/O.
    ///
    /// # Errors
    /// Another daemon or process has one of them, or the system refuses it; nothing is left behind then.
    pub fn take(run_dir: &Path, listen: SocketAddr, has_key: bool) -> Result<Self, StartError> {
        let run_dir = RunDir::lock(run_dir)?;
        let listener = listen::bind(listen, has_key)?;
        let address = listener.local_addr().map_err(os("asking for the listening address"))?;
        Ok(Self { run_dir, listener, address })
    }
}
