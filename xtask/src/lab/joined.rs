//! Two emulated machines that start from the disk with the package on it, with a network between them whose cards read what is
//! sent where it lies: the service of one sends to the service of the other without a copy.

use std::fs;
use std::path::Path;
use std::time::Instant;

use super::checks::Checks;
use super::installed::{self, Guest};
use super::setup::{self, Series, directory};
use super::zerocopy::Network;
use crate::process::Outcome;

/// What each guest does when it is up.
pub(super) const SCRIPT: &str = include_str!("joined.sh");

/// What it is told by its unit: how many lines are sent, some 30 MB, and the least number of zero-copy sends that shows something.
pub(super) const VARIABLES: &str = "LINES_SENT=4000000 SENDS_MIN=50";

/// Starts both with this kernel and waits for their end.
///
/// # Errors
/// There can be no network for them, or they cannot be started.
pub(super) fn run(checks: &mut Checks, series: Series, image: &Path) -> Outcome {
    let network = Network::new()?;
    let began = Instant::now();
    let runs = directory().join("runs");
    let file = |role: &str, kind: &str| runs.join(format!("joined-{}-{role}.{kind}", series.name()));
    let told = std::thread::scope(|scope| {
        let threads = ["a", "b"].map(|role| {
            let (network, file) = (&network, &file);
            scope.spawn(move || {
                let guest = Guest {
                    card: Some(network.card(role)),
                    words: format!("net.ifnames=0 weir.role={role}"),
                };
                installed::boot(series, image, &file(role, "txt"), &file(role, "log"), &guest)
            })
        });
        threads.map(|thread| thread.join().unwrap_or_else(|_| Err("a thread of the lab failed".to_owned())))
    });
    for (role, told) in ["a", "b"].into_iter().zip(told) {
        let name = format!("{}, {role} of two", series.name());
        installed::judge(checks, &name, told?, began, &file(role, "log"));
    }
    Ok(())
}

/// What is put on the disk for it, beside the script: the drivers of the card for each kernel, and what loads them.
///
/// # Errors
/// A file cannot be copied.
pub(super) fn prepare(root: &Path, series: &[Series]) -> Outcome {
    let copy = |from: &Path, to: &Path| {
        fs::copy(from, to).map(drop).map_err(|error| format!("{}: {error}", from.display()))
    };
    copy(&setup::busybox(), &root.join("root/busybox"))?;
    for one in series {
        let target = root.join("root/drivers").join(one.name());
        fs::create_dir_all(&target).map_err(|error| format!("{}: {error}", target.display()))?;
        let drivers = setup::files(&one.drivers());
        drivers
            .iter()
            .try_for_each(|driver| copy(driver, &target.join(driver.file_name().unwrap_or_default())))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_ends_with_the_word_that_is_waited_for_and_knows_its_variables() {
        assert!(SCRIPT.contains("\necho end\n"));
        for variable in VARIABLES.split(' ') {
            let (name, number) = variable.split_once('=').unwrap();
            assert!(SCRIPT.contains(&format!("${name}")) && number.parse::<u32>().is_ok(), "{variable}");
        }
    }
}
