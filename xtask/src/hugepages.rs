//! Hugepages for the length of one job. Raises the pool if there are too few free pages and puts it back at the end.

use std::fs;
use std::path::Path;

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// The pool as it was; dropped, it is as it was again.
pub(crate) struct Hugepages {
    before: Option<u64>,
}

impl Hugepages {
    /// Makes sure that `wanted` 2 MiB pages are free, if this process may. The text says what was done or why not.
    pub(crate) fn reserve(wanted: u64) -> (Self, String) {
        let (Some(total), Some(free)) = (read("nr_hugepages"), read("free_hugepages")) else {
            return (Self { before: None }, "this kernel has no 2 MiB hugepages".to_owned());
        };
        if free >= wanted {
            return (Self { before: None }, format!("{free} hugepages of 2 MiB are free"));
        }
        let raised = total + wanted - free;
        if fs::write(Path::new(POOL).join("nr_hugepages"), raised.to_string()).is_err() {
            let text =
                format!("{free} hugepages are free, {wanted} wanted, and this process may not raise them");
            return (Self { before: None }, text);
        }
        let now_free = read("free_hugepages").unwrap_or(free);
        (
            Self { before: Some(total) },
            format!("raised 2 MiB hugepages from {total} to {raised} for this run: {now_free} free"),
        )
    }
}

impl Drop for Hugepages {
    fn drop(&mut self) {
        let Some(before) = self.before else { return };
        if fs::write(Path::new(POOL).join("nr_hugepages"), before.to_string()).is_err() {
            eprintln!("xtask: cannot put vm.nr_hugepages back to {before}");
        }
    }
}

fn read(file: &str) -> Option<u64> {
    fs::read_to_string(Path::new(POOL).join(file)).ok()?.trim().parse().ok()
}
