//! What is in the Debian package, with which modes and owners, without installing it.

use std::path::Path;
use std::process::Command;

use super::files::{Report, run, silence};
use super::setup::said;
use crate::dist::{self, Effort};
use crate::process::Outcome;

/// What must be there, beside the rest.
const NEEDED: &[&str] = &[
    "etc/default/weir-hugepages",
    "etc/weir/conf.d/",
    "etc/weir/weir.toml",
    "usr/bin/weir",
    "usr/lib/sysctl.d/10-weir.conf",
    "usr/lib/systemd/system/weir-hugepages.service",
    "usr/lib/systemd/system/weir.service",
    "usr/lib/sysusers.d/weir.conf",
    "usr/lib/tmpfiles.d/weir.conf",
    "usr/share/bash-completion/completions/weir",
    "usr/share/doc/weir/changelog.gz",
    "usr/share/doc/weir/configuration.md",
    "usr/share/doc/weir/copyright",
    "usr/share/doc/weir/examples/conf.d/no-probes.toml",
    "usr/share/doc/weir/examples/drop-ins/no-probes.conf",
    "usr/share/doc/weir/libraries.txt.gz",
    "usr/share/doc/weir/operations.md",
    "usr/share/fish/vendor_completions.d/weir.fish",
    "usr/share/man/man1/weir-config-check.1.gz",
    "usr/share/man/man1/weir.1.gz",
    "usr/share/weir/grafana/weir.json",
    "usr/share/weir/prometheus/weir.rules.yml",
    "usr/share/zsh/vendor-completions/_weir",
];

/// What dpkg does not overwrite when an administrator has edited it.
const CONFIGURATION: &str = "/etc/default/weir-hugepages\n/etc/weir/weir.toml\n";

/// Makes the package below `stage` with this program, and looks at it.
pub(super) fn check(report: &mut Report, stage: &Path, weir: &Path) {
    if !report.tool("dpkg-deb", "what is in the package") {
        return;
    }
    let package = match dist::deb::build(weir, &dist::version(), stage, Effort::Little) {
        Ok(package) => package,
        Err(problem) => return report.failed.push(format!("the package is made: {problem}")),
    };
    let told = |flag: &str| said(Command::new("dpkg-deb").arg(flag).arg(&package));
    report.take(
        "the package has what it should, as root's".to_owned(),
        told("--contents").and_then(|list| contents(&list)),
    );
    let part = |name: &str| said(Command::new("dpkg-deb").arg("--info").arg(&package).arg(name));
    report.take(
        "the package's configuration is kept".to_owned(),
        part("conffiles").and_then(|list| {
            if list == CONFIGURATION {
                Ok(())
            } else {
                Err(format!("that is {list:?}, not {CONFIGURATION:?}"))
            }
        }),
    );
    for script in ["postinst", "prerm", "postrm"] {
        let read = part(script).and_then(|text| silence(&run(Command::new("sh").args(["-n", "-c", &text]))?));
        report.take(format!("a shell reads {script} of the package"), read);
    }
}

/// Whether each line of a listing, as tar prints it, is as it should be, and everything needed is there.
fn contents(listing: &str) -> Outcome {
    let mut paths = Vec::new();
    for line in listing.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [mode, owner, _, _, _, path, ..] = fields.as_slice() else {
            return Err(format!("a line with too few fields: {line}"));
        };
        let path = path.trim_start_matches("./");
        let wanted = match path {
            _ if path.is_empty() || path.ends_with('/') => "drwxr-xr-x",
            "usr/bin/weir" => "-rwxr-xr-x",
            _ => "-rw-r--r--",
        };
        if (*mode, *owner) != (wanted, "root/root") {
            return Err(format!("{path} is {mode} {owner}, not {wanted} root/root"));
        }
        paths.push(path);
    }
    match NEEDED.iter().find(|needed| !paths.contains(needed)) {
        Some(missing) => Err(format!("no {missing}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_has_all_that_is_needed_and_nothing_with_other_modes_and_owners() {
        let line =
            |mode: &str, owner: &str, path: &str| format!("{mode} {owner} 12 2026-11-30 12:00 ./{path}\n");
        let whole: String = NEEDED
            .iter()
            .map(|path| match *path {
                "usr/bin/weir" => line("-rwxr-xr-x", "root/root", path),
                path if path.ends_with('/') => line("drwxr-xr-x", "root/root", path),
                path => line("-rw-r--r--", "root/root", path),
            })
            .collect();
        assert_eq!(contents(&whole), Ok(()));
        let short: String = whole.lines().skip(1).map(|line| format!("{line}\n")).collect();
        assert_eq!(contents(&short), Err("no etc/default/weir-hugepages".to_owned()));
        for bad in [
            line("-rwsr-xr-x", "root/root", "usr/bin/other"),
            line("-rw-r--r--", "me/me", "etc/file"),
            line("drwxrwxr-x", "root/root", "etc/"),
            "short\n".to_owned(),
        ] {
            assert!(contents(&format!("{whole}{bad}")).is_err(), "{bad}");
        }
    }
}
