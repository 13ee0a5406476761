//! What holds for zero-copy sends of all links: what was configured, what the kernel was found to do, and what that costs.
//! `weir status` and `weir doctor` both go by it.

use serde::{Deserialize, Serialize};

use crate::config;
use crate::io::accounting::{Accounting, KERNEL_FIX, Lost};
use crate::io::probe::Level;
use crate::io::zero_copy::{ZeroCopySupport, support};

/// Which links send without a copy (`link.zero_copy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ZeroCopyMode {
    /// Those for which it pays.
    Auto,
    /// All that can.
    Always,
    /// None.
    Never,
}

impl From<config::ZeroCopyMode> for ZeroCopyMode {
    fn from(mode: config::ZeroCopyMode) -> Self {
        match mode {
            config::ZeroCopyMode::Auto => Self::Auto,
            config::ZeroCopyMode::Always => Self::Always,
            config::ZeroCopyMode::Never => Self::Never,
        }
    }
}

/// What holds for all links of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZeroCopySetting {
    /// As configured.
    pub mode: ZeroCopyMode,
    /// Why the kernel cannot do it here, if it cannot. Then no link does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<Lost>,
    /// Why no memory is registered for it, if none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unregistered: Option<Lost>,
    /// Why it is not known what the kernel charges sockets for what is sent so, if that was to be found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub untried: Option<Lost>,
    /// What it charges them; empty if that was not looked at.
    #[serde(default)]
    pub accounting: String,
}

/// How zero-copy sends are for all links, whatever comes of them on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged<'a> {
    /// As good as this kernel has them.
    Fine,
    /// So far as is known: what the kernel charges for them could not be found.
    Untried(&'a Lost),
    /// Not in use, for this reason, and nothing is wrong with that.
    Off(&'a str),
    /// What it costs, why, and what helps.
    Degraded(&'static str, &'a Lost),
}

impl ZeroCopySetting {
    /// Links send like this, of memory that may be registered.
    #[must_use]
    pub const fn of(mode: ZeroCopyMode) -> Self {
        Self { mode, lost: None, unregistered: None, untried: None, accounting: String::new() }
    }

    /// No link sends without a copy.
    #[must_use]
    pub const fn never() -> Self {
        Self::of(ZeroCopyMode::Never)
    }

    /// Tries what the kernel can do for links that are to send like this, over rings of this level, whose loss of a higher one
    /// has this reason: some milliseconds, and up to 18 seconds if every way of trying gets stuck. The second value: whether the kernel can be asked whether it copied.
    #[must_use]
    pub fn find(mode: ZeroCopyMode, level: Level, level_lost: Option<&str>) -> (Self, bool) {
        if mode == ZeroCopyMode::Never {
            return (Self::never(), false);
        }
        let support = support();
        let lost = unsupported(support, mode);
        let mut setting = Self { lost, ..Self::of(mode) };
        if setting.lost.is_none() {
            setting.take(&Accounting::find(), level, level_lost);
        }
        (setting, support == ZeroCopySupport::Measured)
    }

    fn take(&mut self, accounting: &Accounting, level: Level, level_lost: Option<&str>) {
        self.lost = accounting.against_plain();
        self.unregistered = match level {
            Level::Full => accounting.against_registered(),
            // The line of io_uring says what helps.
            Level::OneShot | Level::Incremental => {
                level_lost.map(|reason| Lost { reason: reason.to_owned(), fix: None })
            }
        };
        self.untried = accounting.untried(level == Level::Full);
        self.accounting = accounting.to_string();
    }

    /// What all of it comes to.
    #[must_use]
    pub fn judge(&self) -> Judged<'_> {
        let is_fault = |lost: &&Lost| lost.fix.is_some();
        match (self.mode, &self.lost) {
            (ZeroCopyMode::Never, _) => Judged::Off("link.zero_copy = \"never\""),
            (_, Some(lost)) if lost.fix.is_none() => Judged::Off(&lost.reason),
            (_, Some(lost)) => Judged::Degraded("all links copy", lost),
            (_, None) => match (self.unregistered.as_ref().filter(is_fault), &self.untried) {
                (Some(lost), _) => {
                    Judged::Degraded("zero-copy sends are from memory that is not registered", lost)
                }
                (None, Some(lost)) => Judged::Untried(lost),
                (None, None) => Judged::Fine,
            },
        }
    }
}

impl Default for ZeroCopySetting {
    fn default() -> Self {
        Self::never()
    }
}

/// What this kernel does not have that links need which are to send like this. With `auto` they copy then, as they should.
fn unsupported(support: ZeroCopySupport, mode: ZeroCopyMode) -> Option<Lost> {
    let reason = match support {
        ZeroCopySupport::Measured => return None,
        ZeroCopySupport::Unmeasured if mode == ZeroCopyMode::Always => return None,
        ZeroCopySupport::Unmeasured => {
            "the kernel does not tell whether it copies, which needs Linux 6.2; link.zero_copy = \"always\" does not ask"
                .to_owned()
        }
        ZeroCopySupport::Missing(errno) => {
            format!("the kernel has no zero-copy send of several ranges, which needs Linux 6.1 ({errno})")
        }
    };
    Some(Lost { reason, fix: (mode == ZeroCopyMode::Always).then(|| KERNEL_FIX.to_owned()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Errno;
    use crate::io::accounting::{Factor, Unknown};

    fn judged(mode: ZeroCopyMode, level: Level, plain: Factor, registered: Factor) -> String {
        let mut setting = ZeroCopySetting::of(mode);
        setting.take(&Accounting { plain, registered, alone: Ok(128) }, level, Some("too old"));
        // As it goes from the daemon to those who ask it.
        let told: ZeroCopySetting = serde_json::from_str(&serde_json::to_string(&setting).unwrap()).unwrap();
        assert_eq!(told, setting);
        match told.judge() {
            Judged::Fine => "fine".to_owned(),
            Judged::Untried(lost) => format!("untried: {}", lost.fix.as_deref().unwrap()),
            Judged::Off(reason) => format!("off: {reason}"),
            Judged::Degraded(effect, lost) => format!("{effect}: {}", lost.fix.as_deref().unwrap()),
        }
    }

    #[test]
    fn what_the_kernel_charges_is_a_fault_whatever_the_mode_and_has_the_advice_of_its_cause() {
        let (none, stuck, memory) =
            (Unknown::NoHugepage, Unknown::Stuck, Unknown::Refused(Errno(libc::ENOMEM)));
        let copy = |why: Unknown| format!("all links copy: {}", why.fix());
        let unregistered = "zero-copy sends are from memory that is not registered: ";
        for mode in [ZeroCopyMode::Auto, ZeroCopyMode::Always] {
            let judged = |level, plain, registered| judged(mode, level, plain, registered);
            assert_eq!(judged(Level::Full, Ok(2), Ok(2)), "fine");
            assert_eq!(judged(Level::Full, Err(stuck), Ok(2)), copy(stuck));
            assert!(judged(Level::Full, Ok(100), Ok(2)).starts_with("all links copy: a newer kernel"));
            assert_eq!(judged(Level::Full, Ok(2), Err(stuck)), format!("{unregistered}{}", stuck.fix()));
            assert!(judged(Level::Full, Ok(2), Ok(100)).starts_with(unregistered));
            // Below that level no memory is registered in any case, which is another line's to tell.
            assert_eq!(judged(Level::Incremental, Ok(2), Ok(100)), "fine");
            assert_eq!(judged(Level::Full, Err(none), Err(none)), format!("untried: {}", none.fix()));
            assert_eq!(judged(Level::Full, Ok(2), Err(memory)), format!("untried: {}", memory.fix()));
            assert_eq!(judged(Level::Incremental, Ok(2), Err(memory)), "fine");
        }
    }

    #[test]
    fn a_kernel_without_it_is_no_fault_unless_all_links_are_to_have_it() {
        let of =
            |support, mode| ZeroCopySetting { lost: unsupported(support, mode), ..ZeroCopySetting::of(mode) };
        let missing = ZeroCopySupport::Missing(Errno(libc::EINVAL));
        let is_off = |support, mode| matches!(of(support, mode).judge(), Judged::Off(_));
        assert!(
            is_off(missing, ZeroCopyMode::Auto) && is_off(ZeroCopySupport::Unmeasured, ZeroCopyMode::Auto)
        );
        assert!(matches!(of(missing, ZeroCopyMode::Always).judge(), Judged::Degraded("all links copy", _)));
        for (support, mode) in [
            (ZeroCopySupport::Unmeasured, ZeroCopyMode::Always),
            (ZeroCopySupport::Measured, ZeroCopyMode::Auto),
        ] {
            assert_eq!(of(support, mode).judge(), Judged::Fine);
        }
        assert!(is_off(ZeroCopySupport::Measured, ZeroCopyMode::Never));
    }
}
