//! The cluster key, with which nodes know each other.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::error::{ConfigError, Place};
use super::file::{open, read_bounded, shown_path};

/// Length of a cluster key, in bytes.
pub const CLUSTER_KEY_BYTES: usize = 32;

/// The secret that every node of a cluster has. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey(pub [u8; CLUSTER_KEY_BYTES]);

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}

/// Reads the cluster key from `path`: a regular file of exactly [`CLUSTER_KEY_BYTES`] bytes that only its owner can
/// read or write.
///
/// # Errors
/// The file cannot be read, others may read it, or it has another length.
pub fn read_cluster_key(path: &Path) -> Result<ClusterKey, ConfigError> {
    let error = |what: &str, found: String, needed: &str, fix: String| ConfigError {
        place: Place::File(path.into()),
        what: format!("cluster key {what}"),
        found,
        needed: needed.to_owned(),
        fix,
    };
    let make = format!(
        "head -c {CLUSTER_KEY_BYTES} /dev/urandom > FILE; chmod 600 FILE, and the same file on every node"
    );
    let unreadable = |e: std::io::Error| {
        error(
            "cannot be read",
            e.to_string(),
            "a file that the daemon can read",
            format!("key_file, or {make}"),
        )
    };
    let (file, metadata) = open(path).map_err(unreadable)?;
    if !metadata.is_file() {
        let found = "a directory, pipe or device".to_owned();
        return Err(error("is not a file", found, "a regular file", make));
    }
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        let fix = format!("chmod 600 {}", shown_path(path));
        return Err(error("can be read by others", format!("mode {mode:03o}"), "mode 600 or 400", fix));
    }
    let bytes = read_bounded(file, CLUSTER_KEY_BYTES as u64).map_err(unreadable)?;
    match <[u8; CLUSTER_KEY_BYTES]>::try_from(bytes.as_slice()) {
        Ok(key) => Ok(ClusterKey(key)),
        Err(_) => {
            let found = format!("{} bytes", metadata.len());
            Err(error(
                "has the wrong length",
                found,
                &format!("exactly {CLUSTER_KEY_BYTES} random bytes"),
                make,
            ))
        }
    }
}
