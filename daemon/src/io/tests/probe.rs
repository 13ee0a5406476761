//! What the probe says.

use std::cell::Cell;
use std::time::Duration;

use crate::io::probe::{FILTERED, Level, Patience, failed, needed, probe, setup_error_at};
use crate::io::uring::{RECEIVE_MEMORY, UringConfig, UringSetup};
use crate::io::{Disposition, Errno, RingError};
use crate::memory::HugepageMode;

fn fix_of(errno: i32, switch: Option<&str>) -> String {
    let root = tempfile::tempdir().expect("a directory");
    if let Some(switch) = switch {
        let directory = root.path().join("proc/sys/kernel");
        std::fs::create_dir_all(&directory).expect("a directory");
        std::fs::write(directory.join("io_uring_disabled"), format!("{switch}\n")).expect("a file");
    }
    let error = setup_error_at(Errno(errno), root.path());
    assert!(matches!(error.disposition, Disposition::Fatal { .. }));
    error.to_string()
}

#[test]
fn an_error_at_setup_names_the_switch_or_filter() {
    assert!(fix_of(libc::EPERM, Some("2")).contains("kernel.io_uring_disabled is 2"));
    assert!(fix_of(libc::EPERM, Some("2")).contains("sysctl kernel.io_uring_disabled=0"));
    assert!(fix_of(libc::EPERM, Some("1")).contains("kernel.io_uring_group"));
    assert!(fix_of(libc::EPERM, Some("0")).contains("seccomp"));
    assert!(fix_of(libc::EPERM, None).contains(FILTERED));
    assert!(fix_of(libc::ENOSYS, None).contains("CONFIG_IO_URING"));
    assert!(fix_of(libc::EINVAL, None).contains("Linux 6.1"));
    assert!(fix_of(libc::ENOMEM, None).contains("LimitMEMLOCK"));
    assert!(fix_of(libc::EMFILE, None).contains("LimitNOFILE"));
}

#[test]
fn the_level_is_at_most_the_limit() {
    let best = probe(None).expect("a working io_uring");
    println!("{best}");
    assert_eq!(best.lost.is_none(), best.level == Level::Full, "{best}");
    for limit in [Level::OneShot, Level::Incremental, Level::Full] {
        let limited = probe(Some(limit)).expect("a working io_uring");
        assert_eq!(limited.level, limit.min(best.level), "{limited}");
        let line = limited.to_string();
        assert!(!line.contains('\n') && line.contains(limited.level.as_str()), "{line}");
    }
}

#[test]
fn a_level_that_is_refused_for_want_of_memory_needs_memory_and_no_other_kernel() {
    assert!(needed(Errno(libc::ENOMEM), "6.12").contains("LimitMEMLOCK=infinity"));
    assert_eq!(needed(Errno(libc::EINVAL), "6.12"), "Linux 6.12");
}

#[test]
fn a_step_that_fails_for_want_of_descriptors_names_their_limit_and_not_the_kernel() {
    for errno in [libc::EMFILE, libc::ENFILE] {
        assert!(failed("socketpair", Errno(errno)).to_string().contains("ulimit -n"));
    }
    assert!(failed("socketpair", Errno(libc::EIO)).to_string().contains("Linux 6.1"));
}

#[test]
fn a_configuration_out_of_bounds_is_refused() {
    let good = UringConfig::new(Level::Incremental);
    let bad = [
        UringConfig { entries: 0, ..good.clone() },
        UringConfig { entries: 8192, ..good.clone() },
        UringConfig { sockets: 0, ..good.clone() },
        UringConfig { sockets: u16::MAX, ..good.clone() },
        UringConfig { buffers: 3, ..good.clone() },
        UringConfig { buffers: 1, ..good.clone() },
        UringConfig { buffers: 256, ..good.clone() },
        UringConfig { buffer_bytes: 5000, ..good.clone() },
        UringConfig { buffer_bytes: 2048, ..good.clone() },
        UringConfig { buffer_bytes: 32 << 20, ..good },
    ];
    for config in bad {
        let error = UringSetup::create(&config).err().expect("out of bounds");
        assert!(error.to_string().contains("needed: "), "{error}");
        assert!(matches!(error.disposition, Disposition::Fatal { .. }));
    }
}

#[test]
fn memory_of_rings_that_are_gone_is_waited_for_and_nothing_else_is() {
    let error = |what: &'static str, errno| RingError::fatal(what, Errno(errno), "");
    for (what, errno, failures, attempts) in [
        ("io_uring_setup", libc::ENOMEM, 3, 4),
        ("io_uring_setup", libc::EPERM, 1, 1),
        (RECEIVE_MEMORY, libc::ENOMEM, 1, 1),
        ("", 0, 0, 1),
    ] {
        let (tried, patience) = (Cell::new(0), Patience::new(3, Duration::ZERO));
        let outcome = patience.make(|| {
            tried.set(tried.get() + 1);
            if tried.get() > failures { Ok(()) } else { Err(error(what, errno)) }
        });
        assert_eq!((outcome.is_ok(), tried.get()), (tried.get() > failures, attempts), "{what} {errno}");
    }
}

#[test]
fn all_that_is_made_with_one_patience_shares_its_pauses() {
    let (tried, patience) = (Cell::new(0), Patience::new(3, Duration::ZERO));
    let attempt = || -> Result<(), RingError> {
        tried.set(tried.get() + 1);
        Err(RingError::fatal("io_uring_setup", Errno(libc::ENOMEM), ""))
    };
    for expected in [4, 5, 6] {
        assert!(patience.make(attempt).is_err());
        assert_eq!(tried.get(), expected);
    }
}

#[test]
fn hugepages_that_are_missing_for_receive_buffers_are_not_waited_for() {
    // 1,024 pages.
    let config = UringConfig {
        buffers: 128,
        buffer_bytes: 16 << 20,
        hugepages: HugepageMode::Require,
        ..UringConfig::new(Level::Incremental)
    };
    let (tried, patience) = (Cell::new(0), Patience::new(3, Duration::ZERO));
    let outcome = patience.make(|| {
        tried.set(tried.get() + 1);
        UringSetup::create(&config)
    });
    match outcome {
        Ok(_) => println!("not run here: too few hugepages (1024 are free)"),
        Err(error) => {
            assert!(error.to_string().contains("needed: 1024"), "{error}");
            assert_eq!(tried.get(), 1);
        }
    }
}
