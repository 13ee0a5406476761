//! What a node says about zero-copy sends.

use weir_flow::ids::LinkId;

use crate::control::snapshot::Subsystem;
use crate::control::zero_copy::{RegisteredRow, ZeroCopyRow};
use crate::io::accounting::{Lost, MEMLOCK_FIX};
use crate::io::{Errno, RegisteredCounters};
use crate::link::zero_copy::{Judged, ZeroCopyState};
use crate::memory::mebibytes;
use crate::shard::mailbox::ShardSnapshot;

/// The line of status.
pub(super) fn line(shards: &[ShardSnapshot]) -> Subsystem {
    let name = "zero copy";
    let Some(setting) = shards.first().map(|shard| &shard.zero_copy.setting) else {
        return Subsystem::off(name, "no shard answers");
    };
    match setting.judge() {
        Judged::Off(reason) => return Subsystem::off(name, reason),
        Judged::Degraded(effect, lost) if setting.lost.is_some() => {
            return Subsystem::degraded(name, effect, &lost.reason, lost.fix.as_deref().unwrap_or_default());
        }
        Judged::Fine | Judged::Untried(_) | Judged::Degraded(..) => {}
    }
    let links = || shards.iter().flat_map(|shard| shard.zero_copy.links.values());
    let of_mode = |mode: &str| links().filter(|link| link.mode == mode).count();
    let sum = |count: fn(&ZeroCopyState) -> u64| links().map(count).sum::<u64>();
    let registered = || shards.iter().map(|shard| &shard.zero_copy.registered);
    let mut detail = format!(
        "{} of {} data links send without a copy, {} try; {} batches sent so, {} of them copied by the kernel",
        of_mode("zero_copy"),
        links().count(),
        of_mode("probing"),
        sum(|link| link.counts.sent),
        sum(|link| link.counts.copied),
    );
    match &setting.unregistered {
        Some(lost) => detail.push_str(&format!("; no memory is registered: {}", lost.reason)),
        None => detail.push_str(&format!(
            "; {} named registered memory, of which there are {} MiB in {} regions",
            registered().map(|of| of.sends).sum::<u64>(),
            mebibytes(registered().map(|of| of.bytes).sum()),
            registered().map(|of| of.regions).sum::<u32>(),
        )),
    }
    if !setting.accounting.is_empty() {
        detail.push_str(&format!("; a byte from a hugepage is charged: {}", setting.accounting));
    }
    if let Judged::Untried(Lost { fix: Some(fix), .. }) = setting.judge() {
        detail.push_str(&format!(" (needed: {fix})"));
    }
    let short = links().filter(|link| link.is_short_of_memory).count();
    let refused = registered().find(|of| of.errno != 0);
    if short == 0 {
        let Some(refused) = refused else {
            return match setting.judge() {
                Judged::Degraded(_, lost) => {
                    Subsystem::degraded(name, detail, &lost.reason, lost.fix.as_deref().unwrap_or_default())
                }
                _ => Subsystem::ok(name, detail),
            };
        };
        let errno = Errno(refused.errno);
        let effect = "sends from them have it look up their pages each time";
        if !matches!(refused.errno, libc::ENOMEM | libc::EPERM) {
            let reason = format!("the kernel does not register regions ({errno}); {effect}");
            let fix = "io.level = \"incremental\", which never registers any, or a newer kernel";
            return Subsystem::degraded(name, detail, reason, fix);
        }
        let reason =
            format!("memlock: the kernel may lock no more memory to register regions ({errno}); {effect}");
        return Subsystem::degraded(name, detail, reason, MEMLOCK_FIX);
    }
    let reason = format!(
        "memlock: on {short} data links the kernel may lock no more memory for what is being sent; they copy, and try \
         again within 10 min"
    );
    Subsystem::degraded(name, detail, reason, MEMLOCK_FIX)
}

/// How one link sends.
pub(super) fn row(shard: &ShardSnapshot, link: LinkId) -> ZeroCopyRow {
    let Some(state) = shard.zero_copy.links.get(&link) else { return ZeroCopyRow::default() };
    ZeroCopyRow {
        mode: state.mode.to_owned(),
        reason: state.reason.clone(),
        sent_total: state.counts.sent,
        copied_total: state.counts.copied,
        refused_total: state.counts.refused,
        crowded_total: state.counts.crowded,
        outstanding: state.outstanding,
    }
}

/// What one shard has registered.
pub(super) fn registered(shard: &ShardSnapshot) -> RegisteredRow {
    let RegisteredCounters { regions, bytes, sends, refused, .. } = shard.zero_copy.registered;
    RegisteredRow { regions, bytes, sends_total: sends, refused_total: refused }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::control::snapshot::Health;
    use crate::link::zero_copy::{ZeroCopyCounts, ZeroCopyMode, ZeroCopyReport, ZeroCopySetting};
    use crate::node::tests::snapshot;

    fn lost(reason: &str, fix: Option<&str>) -> Lost {
        Lost { reason: reason.to_owned(), fix: fix.map(str::to_owned) }
    }

    fn shard(mode: ZeroCopyMode, lost: Option<Lost>, links: &[(&'static str, bool)]) -> ShardSnapshot {
        let state = |(number, (mode, is_short)): (usize, &(&'static str, bool))| {
            let counts = ZeroCopyCounts { sent: 5, copied: 2, ..ZeroCopyCounts::default() };
            let state =
                ZeroCopyState { mode, reason: None, is_short_of_memory: *is_short, outstanding: 1, counts };
            (LinkId(number as u32), state)
        };
        let setting = ZeroCopySetting { lost, ..ZeroCopySetting::of(mode) };
        let links: BTreeMap<LinkId, ZeroCopyState> = links.iter().enumerate().map(state).collect();
        let registered = RegisteredCounters { regions: 2, bytes: 3 << 20, sends: 4, ..Default::default() };
        ShardSnapshot { zero_copy: ZeroCopyReport { setting, registered, links }, ..snapshot(0) }
    }

    #[test]
    fn the_line_says_what_links_do_and_what_would_help() {
        let states = [("zero_copy", false), ("copy", false), ("probing", false)];
        let fine = line(&[shard(ZeroCopyMode::Auto, None, &states)]);
        assert_eq!(
            (fine.state, &*fine.detail),
            (
                Health::Ok,
                "1 of 3 data links send without a copy, 1 try; 15 batches sent so, 6 of them copied by the kernel; \
                 4 named registered memory, of which there are 3 MiB in 2 regions"
            )
        );
        let short = line(&[shard(ZeroCopyMode::Auto, None, &[("copy", true)])]);
        assert_eq!(short.state, Health::Degraded);
        assert!(short.reason.unwrap().starts_with("memlock: on 1 data links"));
        assert!(short.fix.unwrap().contains("CAP_IPC_LOCK"));
        let mut refused = shard(ZeroCopyMode::Auto, None, &states);
        refused.zero_copy.registered.errno = libc::ENOMEM;
        refused.zero_copy.setting.unregistered = Some(lost("too old", None));
        refused.zero_copy.setting.accounting = "x2".to_owned();
        let refused = line(&[refused]);
        assert!(
            refused.reason.unwrap().starts_with("memlock: the kernel may lock no more memory to register")
        );
        let detail = refused.detail;
        assert!(
            detail.ends_with("; no memory is registered: too old; a byte from a hugepage is charged: x2")
        );
        for (mode, why, state) in [
            (ZeroCopyMode::Never, None, Health::Off),
            (ZeroCopyMode::Auto, Some(lost("too old", None)), Health::Off),
            (ZeroCopyMode::Auto, Some(lost("stuck", Some("restart"))), Health::Degraded),
            (ZeroCopyMode::Always, Some(lost("too old", Some("a newer kernel"))), Health::Degraded),
        ] {
            let line = line(&[shard(mode, why.clone(), &[])]);
            assert_eq!(line.state, state, "{mode:?}");
            assert!(why.as_ref().is_none_or(|lost| line.reason.as_ref() == Some(&lost.reason)));
            assert_eq!(line.fix, why.and_then(|lost| lost.fix), "{mode:?}");
        }
        assert_eq!(line(&[]).state, Health::Off);
    }

    #[test]
    fn what_was_found_at_start_is_told_with_its_advice() {
        let mut shard = shard(ZeroCopyMode::Auto, None, &[("zero_copy", false)]);
        let setting = &mut shard.zero_copy.setting;
        setting.accounting = "not tried: no hugepage is free".to_owned();
        setting.untried = Some(lost("not tried: no hugepage is free", Some("a hugepage")));
        let untried = line(std::slice::from_ref(&shard));
        assert_eq!(untried.state, Health::Ok);
        assert!(
            untried.detail.ends_with("not tried: no hugepage is free (needed: a hugepage)"),
            "{}",
            untried.detail
        );
        shard.zero_copy.setting.unregistered = Some(lost("stuck", Some("restart")));
        let unregistered = line(&[shard]);
        assert_eq!(unregistered.state, Health::Degraded);
        assert_eq!(
            (unregistered.reason.as_deref(), unregistered.fix.as_deref()),
            (Some("stuck"), Some("restart"))
        );
        assert!(unregistered.detail.starts_with("1 of 1 data links"), "{}", unregistered.detail);
    }

    #[test]
    fn a_row_has_what_came_of_its_link() {
        let shard = shard(ZeroCopyMode::Auto, None, &[("probing", false)]);
        let found = row(&shard, LinkId(0));
        assert_eq!(
            (&*found.mode, found.sent_total, found.copied_total, found.outstanding),
            ("probing", 5, 2, 1)
        );
        assert_eq!(row(&shard, LinkId(7)), ZeroCopyRow::default());
    }
}
