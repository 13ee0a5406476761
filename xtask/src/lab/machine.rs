//! A machine that QEMU emulates: how it is started, and that it ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::setup::QEMU;

/// Memory of the guest beside its file system, in MiB.
const MEMORY_MIB: u64 = 768;

/// Processors of the guest: two, so that events run beside each other as on real machines.
const PROCESSORS: u32 = 2;

/// How often it is looked whether the machine has stopped.
const LOOK: Duration = Duration::from_millis(200);

/// One machine, not yet started.
pub(super) struct Machine<'a> {
    /// The kernel that it starts.
    pub(super) kernel: &'a Path,
    /// The file system that the kernel unpacks.
    pub(super) image: &'a Path,
    /// Size of that, in bytes.
    pub(super) image_bytes: u64,
    /// Where what comes over its two serial lines is kept.
    pub(super) directory: &'a Path,
    /// Longest time that it may run. Then it is killed.
    pub(super) timeout: Duration,
    /// Its network card, if it has one.
    pub(super) card: Option<Card>,
    /// Words for its kernel and its first program, beside those that all machines get.
    pub(super) words: String,
}

/// A network card. What it sends goes to the machine's other guests as it is, in as large pieces as the guest likes.
pub(super) struct Card {
    /// The network namespace in which QEMU runs.
    pub(super) namespace: String,
    /// The interface there that is its other end.
    pub(super) tap: String,
    /// The last byte of its address.
    pub(super) number: u8,
}

impl Card {
    /// QEMU with this card, in its namespace.
    pub(super) fn command(&self) -> Command {
        let Self { namespace, tap, number } = self;
        let mut command = Command::new("ip");
        // In place of this program, so that killing it kills the machine.
        command
            .args(["netns", "exec", namespace, QEMU])
            .args(["-netdev", &format!("tap,id=card,ifname={tap},script=no,downscript=no")])
            .args([
                "-device",
                &format!("virtio-net-pci,romfile=,netdev=card,mac=52:54:00:00:00:{number:02x}"),
            ]);
        command
    }
}

/// What a machine has said until it stopped, or was stopped.
pub(super) struct Told {
    /// What the kernel and the programs say to people.
    pub(super) console: String,
    /// What the guest reports.
    pub(super) report: String,
    /// Whether it stopped by itself in time.
    pub(super) has_ended: bool,
    /// How long it ran.
    pub(super) took: Duration,
}

impl Machine<'_> {
    fn console(&self) -> PathBuf {
        self.directory.join("console.log")
    }

    fn report(&self) -> PathBuf {
        self.directory.join("report.txt")
    }

    /// The command that starts it. It is emulated and not accelerated: what the kernel of a host makes of its guests is
    /// no matter here, and not every host can.
    fn command(&self) -> Command {
        // The kernel has the archive and what it unpacks from it in memory at a time.
        let memory = MEMORY_MIB + 2 * self.image_bytes.div_ceil(1 << 20);
        // Time for both ends of a link to be started anew. Unknown words with `=` are variables of init.
        let seconds = self.timeout.as_secs();
        let mut words = format!("console=ttyS0 quiet panic=-1 mitigations=off WEIR_SECONDS={seconds}");
        if !self.words.is_empty() {
            words = format!("{words} {}", self.words);
        }
        let mut command = self.card.as_ref().map_or_else(|| Command::new(QEMU), Card::command);
        command
            .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
            .args(["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"])
            .args(["-smp", &PROCESSORS.to_string(), "-m", &memory.to_string()])
            .args(["-serial", &format!("file:{}", self.console().display())])
            .args(["-serial", &format!("file:{}", self.report().display())])
            .arg("-kernel")
            .arg(self.kernel)
            .arg("-initrd")
            .arg(self.image)
            .args(["-append", &words])
            .stdin(Stdio::null());
        command
    }

    /// Starts it, and waits until it has stopped.
    ///
    /// # Errors
    /// QEMU cannot be started or does not go on.
    pub(super) fn run(&self) -> Result<Told, String> {
        for file in [self.console(), self.report()] {
            fs::write(&file, "").map_err(|error| format!("{}: {error}", file.display()))?;
        }
        let began = Instant::now();
        let mut command = self.command();
        let child = command.spawn().map_err(|error| format!("cannot start `{QEMU}`: {error}"))?;
        let has_ended = Running(child).wait(began + self.timeout)?;
        let text = |file: PathBuf| String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned();
        Ok(Told {
            console: text(self.console()),
            report: text(self.report()),
            has_ended,
            took: began.elapsed(),
        })
    }
}

/// A process that is killed when nobody waits for it any more.
struct Running(Child);

impl Running {
    /// Waits for its end until a moment. Returns whether it came.
    fn wait(mut self, deadline: Instant) -> Result<bool, String> {
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(true),
                Ok(Some(status)) => return Err(format!("`{QEMU}` failed ({status})")),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK),
                Ok(None) => return Ok(false),
                Err(error) => return Err(format!("cannot wait for `{QEMU}`: {error}")),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail where it has ended, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;

    #[test]
    fn the_machine_is_emulated_and_has_room_for_its_file_system_twice() {
        let machine = Machine {
            kernel: Path::new("/lab/kernel"),
            image: Path::new("/lab/image"),
            image_bytes: (100 << 20) + 1,
            directory: Path::new("/lab/run"),
            timeout: Duration::from_secs(90),
            card: None,
            words: String::new(),
        };
        let line = process::describe(&machine.command());
        for part in [
            " -accel tcg,thread=multi ",
            " -no-reboot ",
            " -m 970 ",
            " -serial file:/lab/run/console.log -serial file:/lab/run/report.txt ",
            " -kernel /lab/kernel -initrd /lab/image ",
            " panic=-1 ",
            " WEIR_SECONDS=90",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert!(!line.contains("kvm") && !line.contains("netdev"), "{line}");
        let card = Card { namespace: "n".to_owned(), tap: "t".to_owned(), number: 10 };
        let machine = Machine { card: Some(card), words: "WEIR_ROLE=a".to_owned(), ..machine };
        let line = process::describe(&machine.command());
        for part in
            ["ip netns exec n ", "ifname=t,script=no", "mac=52:54:00:00:00:0a", "WEIR_SECONDS=90 WEIR_ROLE=a"]
        {
            assert!(line.contains(part), "{part}: {line}");
        }
    }

    #[test]
    fn what_does_not_end_is_killed_and_what_fails_is_told() {
        let start =
            |program: &str, argument: &str| Running(Command::new(program).arg(argument).spawn().unwrap());
        let sleeping = start("sleep", "600");
        let process = sleeping.0.id();
        let alive = || Path::new("/proc").join(process.to_string()).exists();
        assert!(alive());
        assert_eq!(sleeping.wait(Instant::now()), Ok(false));
        assert!(!alive(), "it was reaped");
        let later = Instant::now() + Duration::from_secs(60);
        assert_eq!(start("true", "").wait(later), Ok(true));
        assert!(start("false", "").wait(later).unwrap_err().contains("failed"));
    }
}
