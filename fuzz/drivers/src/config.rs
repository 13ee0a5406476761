//! Configuration files of any text.
//!
//! A file is refused with its place and one reason, or taken; what was taken is rendered as a file that is taken again and
//! renders the same.
//!
//! **Broken rule**: the renderer forgets `drain_timeout`.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::fs::MemfdFlags;
use weir::config::{Config, ConfigError, effective_file, load};

use crate::{Driver, Reached, Rule};

/// The driver.
pub const DRIVER: Driver =
    Driver { name: "config", run, seeds, must_reach: &["taken", "refused", "not text", "with peers"] };

/// Loads `text` as a file. It is in memory, under a path that no other file is beside.
fn load_text(text: &[u8]) -> Result<Config, ConfigError> {
    let file = File::from(rustix::fs::memfd_create("weir-config", MemfdFlags::CLOEXEC).expect("a memfd"));
    file.write_all_at(text, 0).expect("room for a file");
    load(Some(&PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))), &[])
}

fn run(text: &[u8], rule: Rule) -> Reached {
    let mut reached = Reached::new();
    if std::str::from_utf8(text).is_err() {
        reached.insert("not text");
    }
    let config = match load_text(text) {
        Ok(config) => config,
        Err(error) => {
            let reason = error.to_string();
            assert!(!reason.is_empty() && reason.len() < 2000 + 2 * text.len(), "{reason}");
            reached.insert("refused");
            return reached;
        }
    };
    reached.insert("taken");
    if !config.peers.is_empty() {
        reached.insert("with peers");
    }
    let rendered = effective_file(&config);
    let mut again = rendered.clone();
    if rule == Rule::Broken {
        again =
            again.lines().filter(|line| !line.starts_with("drain_timeout")).collect::<Vec<_>>().join("\n");
    }
    let config = load_text(again.as_bytes()).unwrap_or_else(|error| panic!("{error}, of\n{again}"));
    assert_eq!(effective_file(&config), rendered, "it renders to the same file");
    reached
}

fn seeds() -> Vec<Vec<u8>> {
    let defaults = effective_file(&Config::default());
    let texts = [
        defaults.as_str(),
        "",
        "drain_timeout = \"3s\"\nnode = \"a\"\n[peers]\nb = \"127.0.0.1:7071\"\n\"c.d\" = \"host.example:7072\"\n",
        "[memory]\ntotal = \"25%\"\nhugepages = \"off\"\nsegment_bytes = 65536\n[log]\nlevel = \"debug\"\n",
        "[memory]\ntotal = \"2GiB\"\n[pool]\nexclusive = 3\n",
        "[pool]\nexclusive = 0\n",
        "[poool]\nexclusive = 2\n",
        "node = 7\n",
        "[link]\nheartbeat_timeout = \"200ms\"\n",
        "[[peers]]\n",
        "node = \"a\nb\"",
    ];
    let mut seeds: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    seeds.push(vec![b'n', 0xff, 0xfe]);
    seeds
}
