//! Tests of regions and scratch. Those that need hugepages say so where there are none.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use super::region::{hugepage_file, ordinary_file};
use super::system::{Hugepages, default_hugepage_is_2_mib, hugepages};
use super::*;

const SEGMENT: u32 = 32 << 10;

/// Both kinds of pages, or only ordinary ones where there are too few hugepages.
fn modes() -> Vec<HugepageMode> {
    let available = hugepages(Path::new(system::ROOT)).unwrap_or_default().available();
    if available < 16 {
        println!(
            "not run here: hugepages, of which {available} are free; needed: 16; run `sysctl vm.nr_hugepages=64`"
        );
        return vec![HugepageMode::Off];
    }
    vec![HugepageMode::Off, HugepageMode::Require]
}

fn write_to(map: &MmapRaw, start: usize, bytes: &[u8]) {
    assert!(start + bytes.len() <= map.len());
    // SAFETY: the range lies inside the mapping, and nothing refers to it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), map.as_mut_ptr().add(start), bytes.len()) };
}

fn read_from(address: *const u8, bytes: usize) -> Vec<u8> {
    // SAFETY: all callers pass a range inside a mapping that lives, and nobody writes to it meanwhile.
    unsafe { std::slice::from_raw_parts(address, bytes) }.to_vec()
}

#[test]
fn a_region_has_whole_pages_and_at_least_the_segments_asked_for() {
    for mode in modes() {
        let (region, _file, segments) = SendRegion::create(3, SEGMENT, mode).expect("a region");
        let (wanted, backing) = match mode {
            HugepageMode::Off => (3, Backing::Ordinary),
            _ => (64, Backing::Hugepages),
        };
        assert_eq!((segments, region.segments(), region.backing()), (wanted, wanted, backing));
        assert_eq!(region.bytes(), planned_bytes(3, SEGMENT, mode).expect("sound numbers"));
        assert_eq!(region.bytes(), u64::from(segments) * u64::from(SEGMENT));
        let (region, _file, segments) = ReceiveRegion::create(65, SEGMENT, mode).expect("a region");
        let wanted = if mode == HugepageMode::Off { 65 } else { 128 };
        assert_eq!((segments, region.segments(), region.backing()), (wanted, wanted, backing));
    }
}

#[test]
fn what_a_client_writes_is_where_the_slice_says() {
    for mode in modes() {
        let (region, file, _) = SendRegion::create(4, SEGMENT, mode).expect("a region");
        let client = MmapRaw::map_raw(&file).expect("a writable mapping");
        drop(file);
        assert_eq!(client.len() as u64, region.bytes());
        write_to(&client, 2 * SEGMENT as usize + 100, b"from the client");
        let slice = region.slice(2, 100, 15).expect("a range in a segment");
        assert_eq!(slice.bytes(), 15);
        assert_eq!(read_from(slice.address(), 15), b"from the client");
        let last = region.slice(3, SEGMENT - 1, 1).expect("the last byte");
        write_to(&client, 4 * SEGMENT as usize - 1, b"!");
        assert_eq!(read_from(last.address(), 1), b"!");
    }
}

#[test]
fn a_range_outside_its_segment_does_not_exist() {
    for mode in modes() {
        let (send, _file, segments) = SendRegion::create(4, SEGMENT, mode).expect("a region");
        let (mut receive, _file, _) = ReceiveRegion::create(4, SEGMENT, mode).expect("a region");
        let bad = [
            (segments, 0, 1),
            (u32::MAX, 0, 1),
            (u32::MAX, u32::MAX, u32::MAX),
            (0, SEGMENT, 1),
            (0, SEGMENT + 1, 0),
            (0, 1, SEGMENT),
            (0, 0, SEGMENT + 1),
            (0, u32::MAX, 1),
            (0, 1, u32::MAX),
            (segments - 1, SEGMENT - 1, 2),
        ];
        for (segment, offset, bytes) in bad {
            assert!(send.slice(segment, offset, bytes).is_none(), "{segment} {offset} {bytes}");
            if bytes <= 2 * SEGMENT {
                assert!(
                    !receive.write(segment, offset, &vec![1; bytes as usize]),
                    "{segment} {offset} {bytes}"
                );
            }
        }
        for (segment, offset, bytes) in [(0, 0, SEGMENT), (segments - 1, SEGMENT - 1, 1), (0, SEGMENT, 0)] {
            assert!(send.slice(segment, offset, bytes).is_some());
            assert!(receive.write(segment, offset, &vec![1; bytes as usize]));
        }
    }
}

fn fails_with(result: Result<(), Errno>, wanted: Errno, what: &str) {
    assert_eq!(result, Err(wanted), "{what}");
}

/// Maps as the client would, with these protections.
fn map(file: &OwnedFd, protection: ProtFlags) -> Result<*mut std::ffi::c_void, Errno> {
    let length = rustix::fs::fstat(file).expect("an open file").st_size as usize;
    // SAFETY: a new mapping at an address of the kernel's choice.
    unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0) }
}

/// No client can change the size of a region, or its seals.
fn check_size_is_sealed(file: &OwnedFd) {
    let size = rustix::fs::fstat(file).expect("an open file").st_size as u64;
    fails_with(rustix::fs::ftruncate(file, 0), Errno::PERM, "shrink");
    fails_with(rustix::fs::ftruncate(file, size - (2 << 20).min(size)), Errno::PERM, "shrink by a page");
    fails_with(rustix::fs::ftruncate(file, size + (2 << 20)), Errno::PERM, "grow");
    fails_with(rustix::fs::fcntl_add_seals(file, SealFlags::WRITE), Errno::PERM, "another seal");
    assert_eq!(rustix::fs::fstat(file).expect("an open file").st_size as u64, size);
}

#[test]
fn a_client_reads_a_receive_region_and_can_do_nothing_else() {
    for mode in modes() {
        let (mut region, file, _) = ReceiveRegion::create(4, SEGMENT, mode).expect("a region");
        assert!(region.write(1, 7, b"before"));
        fails_with(map(&file, ProtFlags::READ | ProtFlags::WRITE).map(drop), Errno::PERM, "writable mapping");
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fails_with(rustix::fs::fallocate(&file, punch, 0, 2 << 20), Errno::PERM, "hole");
        assert!(rustix::io::pwrite(&file, b"x", 0).is_err(), "write");
        check_size_is_sealed(&file);
        assert_eq!(rustix::fs::fstat(&file).expect("an open file").st_mode & 0o777, 0o400);
        let address = map(&file, ProtFlags::READ).expect("a readable mapping");
        // SAFETY: the range is the mapping's first page.
        let raised =
            unsafe { rustix::mm::mprotect(address, 4096, MprotectFlags::READ | MprotectFlags::WRITE) };
        fails_with(raised, Errno::ACCESS, "write permission after the fact");
        let at = |offset: usize| address.cast::<u8>().wrapping_add(SEGMENT as usize + offset);
        assert_eq!(read_from(at(7), 6), b"before");
        // The daemon's own mapping stays writable.
        assert!(region.write(1, 7, b"after!"));
        assert_eq!(read_from(at(7), 6), b"after!");
        drop(region);
        // The client's mapping outlives the daemon's.
        assert_eq!(read_from(at(7), 6), b"after!");
    }
}

#[test]
fn a_client_cannot_change_the_size_of_a_send_region() {
    for mode in modes() {
        let (region, file, _) = SendRegion::create(4, SEGMENT, mode).expect("a region");
        check_size_is_sealed(&file);
        assert_eq!(rustix::fs::fstat(&file).expect("an open file").st_mode & 0o777, 0o600);
        assert!(region.slice(0, 0, 1).is_some());
    }
}

#[test]
fn all_pages_are_allocated_before_anyone_maps_them() {
    let root = Path::new(system::ROOT);
    for mode in modes() {
        let make = if mode == HugepageMode::Off { ordinary_file } else { hugepage_file };
        let file = make("weir-test", 4 << 20, root).expect("a file");
        assert_eq!(rustix::fs::fstat(&file).expect("an open file").st_blocks * 512, 4 << 20);
    }
}

/// A system with this many free hugepages of 10, and this much memory.
fn system_with(free: u32, memory: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a directory");
    let free = free.to_string();
    write_pool(root.path(), &[("nr_hugepages", "10"), ("free_hugepages", &free), ("resv_hugepages", "0")]);
    fs::create_dir_all(root.path().join("proc")).expect("a directory");
    let text = format!("MemAvailable: {memory} kB\nHugepagesize: 2048 kB\n");
    fs::write(root.path().join("proc/meminfo"), text).expect("a file");
    root
}

#[test]
fn too_few_hugepages_are_an_error_only_when_they_are_required() {
    let root = system_with(2, "1000000");
    let create = |mode| SendRegion::create_at(129, SEGMENT, mode, root.path());
    let error = create(HugepageMode::Require).expect_err("3 pages of 2 free ones");
    let remedy = String::from("run `sysctl vm.nr_hugepages=11`");
    assert_eq!(
        error,
        RegionError::NoHugepages { wanted: 3, found: "2 hugepages of 2 MiB are free".to_owned(), remedy }
    );
    assert_eq!(
        error.to_string(),
        "2 hugepages of 2 MiB are free; needed: 3; run `sysctl vm.nr_hugepages=11` or set memory.hugepages = \"auto\""
    );
    let (region, _file, segments) = create(HugepageMode::Auto).expect("a region of ordinary pages");
    assert_eq!((region.backing(), segments), (Backing::Ordinary, 129));
}

/// The kernel's own answer counts, whatever the pool said a moment before.
#[test]
fn hugepages_that_are_gone_when_they_are_taken_are_missed_without_a_signal() {
    let pool = hugepages(Path::new(system::ROOT)).unwrap_or_default();
    if pool.total > 0 {
        println!("not run here: creation on a machine without any hugepage; this one has {}", pool.total);
        return;
    }
    let root = system_with(10, "1000000");
    let create = |mode| SendRegion::create_at(64, SEGMENT, mode, root.path());
    let error = create(HugepageMode::Require).expect_err("a page that is not there");
    assert!(matches!(error, RegionError::NoHugepages { wanted: 1, .. }));
    // No command is known to help, so none is made up.
    let text = error.to_string();
    assert!(text.starts_with("10 hugepages of 2 MiB are free, and the kernel gives fewer: "), "{text}");
    assert!(
        text.contains("hugetlb.2MB.max") && text.contains("NUMAPolicy=") && !text.contains('`'),
        "{text}"
    );
    assert_eq!(create(HugepageMode::Auto).expect("a region").0.backing(), Backing::Ordinary);
}

#[test]
fn more_memory_than_there_is_is_refused_and_not_taken() {
    let root = system_with(0, "1000");
    let error = SendRegion::create_at(32, SEGMENT, HugepageMode::Auto, root.path()).expect_err("too much");
    assert_eq!(error, RegionError::NoMemory { wanted_bytes: 1 << 20, available_bytes: 1_024_000 });
    assert!(error.to_string().starts_with("1024000 bytes of memory are left for a region; needed: 1048576;"));
    SendRegion::create_at(31, SEGMENT, HugepageMode::Auto, root.path()).expect("31 segments fit");
}

#[test]
fn bad_sizes_are_refused_with_both_numbers() {
    for found in [0, 1, 4095, 2048, 5000, 2 << 20, u32::MAX] {
        let error = SendRegion::create(1, found, HugepageMode::Off).expect_err("a bad size");
        assert_eq!(error, RegionError::SegmentBytes { found });
        assert_eq!(planned_bytes(1, found, HugepageMode::Auto), Err(RegionError::SegmentBytes { found }));
        assert!(
            error
                .to_string()
                .contains(&format!("{found} bytes; needed: a multiple of 64 from 4096 to 1048640"))
        );
    }
    assert_eq!(SendRegion::create(0, 4096, HugepageMode::Off).err(), Some(RegionError::NoSegments));
}

#[test]
fn the_plan_is_never_below_what_is_taken() {
    let planned = |segments, bytes, mode| planned_bytes(segments, bytes, mode).expect("sound numbers");
    assert_eq!(planned(1, 4096, HugepageMode::Off), 4096);
    assert_eq!(planned(1, 4096, HugepageMode::Auto), 2 << 20);
    assert_eq!(planned(64, SEGMENT, HugepageMode::Require), 2 << 20);
    assert_eq!(planned(65, SEGMENT, HugepageMode::Require), 4 << 20);
    assert_eq!(planned(u32::MAX, 1 << 20, HugepageMode::Auto), 1 << 52);
    let (region, _file, _) = SendRegion::create(65, SEGMENT, HugepageMode::Auto).expect("a region");
    assert!(region.bytes() <= planned(65, SEGMENT, HugepageMode::Auto));
}

fn write_pool(root: &Path, files: &[(&str, &str)]) {
    let pool = root.join("sys/kernel/mm/hugepages/hugepages-2048kB");
    fs::create_dir_all(&pool).expect("a directory");
    for (file, text) in files {
        fs::write(pool.join(file), text).expect("a file");
    }
}

#[test]
fn the_pool_is_read_as_the_kernel_shows_it() {
    let root = tempfile::tempdir().expect("a directory");
    assert_eq!(hugepages(root.path()), None);
    write_pool(
        root.path(),
        &[("nr_hugepages", "40\n"), ("free_hugepages", "30\n"), ("resv_hugepages", "8\n")],
    );
    let pool = hugepages(root.path()).expect("a pool");
    assert_eq!(pool, Hugepages { total: 40, free: 30, reserved: 8, growth: 0, nodes: None, group: None });
    assert_eq!(pool.available(), 22);
    assert_eq!(pool.fix(32), "sysctl vm.nr_hugepages=50");
    assert_eq!(pool.refusal(23).1, "run `sysctl vm.nr_hugepages=41`");
    // Nothing that is seen says why these are not to be had, and no command is made up.
    let (found, remedy) = pool.refusal(22);
    assert!(found.starts_with("22 hugepages of 2 MiB are free, and the kernel gives fewer: "), "{found}");
    assert!(!remedy.contains('`'), "{remedy}");
    write_pool(root.path(), &[("nr_overcommit_hugepages", "5\n"), ("surplus_hugepages", "2\n")]);
    assert_eq!(hugepages(root.path()).expect("a pool").available(), 25);
    write_pool(root.path(), &[("free_hugepages", "many\n")]);
    assert_eq!(hugepages(root.path()), None);
}

#[test]
fn what_the_control_group_may_have_is_all_that_is_free() {
    let root = system_with(10, "1000000");
    let write = |file: &str, text: &str| {
        let file = root.path().join(file);
        fs::create_dir_all(file.parent().expect("a directory")).expect("a directory");
        fs::write(file, text).expect("a file");
    };
    write("proc/self/cgroup", "0::/weir\n");
    let limit = "/sys/fs/cgroup/weir/hugetlb.2MB.max";
    for (bytes, available) in [("0", 0), ("4194304", 2), ("41943040", 10), ("max", 10)] {
        write(limit.trim_start_matches('/'), bytes);
        let pool = hugepages(root.path()).expect("a pool");
        assert_eq!(pool.available(), available, "{bytes}");
        assert_eq!(pool.found().contains(limit), available < 10, "{bytes}: {}", pool.found());
        let lifted = if available < 10 { format!("echo max > {limit}") } else { String::new() };
        assert!(pool.fix(10).starts_with(&lifted) && !pool.fix(10).contains("=10 &&"), "{}", pool.fix(10));
        assert!(pool.fix(11).ends_with("sysctl vm.nr_hugepages=11"), "{}", pool.fix(11));
    }
    write(limit.trim_start_matches('/'), "2097152");
    let error =
        SendRegion::create_at(129, SEGMENT, HugepageMode::Require, root.path()).expect_err("2 too few");
    let text = error.to_string();
    assert!(text.contains("may have 2 MiB of them, in /sys/fs/cgroup/weir/"), "{text}");
    assert!(text.contains("`echo max > /sys/fs/cgroup/weir/hugetlb.2MB.max`"), "{text}");
}

/// Writes a file of a system.
fn write_file(root: &Path, file: &str, text: &str) {
    let file = root.join(file);
    fs::create_dir_all(file.parent().expect("a directory")).expect("a directory");
    fs::write(file, text).expect("a file");
}

#[test]
fn pages_of_nodes_that_the_process_may_not_use_do_not_count() {
    let root = system_with(8, "1000000");
    let write = |file: &str, text: &str| write_file(root.path(), file, text);
    for (node, total, free) in [(0, "3\n", "2\n"), (1, "7\n", "6\n")] {
        let pool = format!("sys/devices/system/node/node{node}/hugepages/hugepages-2048kB");
        write(&format!("{pool}/nr_hugepages"), total);
        write(&format!("{pool}/free_hugepages"), free);
    }
    // One without memory has no pool.
    write("sys/devices/system/node/node2/cpulist", "4-5\n");
    let pool = |allowed: &str| {
        write("proc/self/status", &format!("Name:\tweir\nMems_allowed_list:\t{allowed}\n"));
        hugepages(root.path()).expect("a pool")
    };
    for (allowed, available) in [("0", 2), ("1", 6), ("1-2", 6), ("0-1", 8), ("0-3", 8), ("2", 8), ("?", 8)] {
        assert_eq!(pool(allowed).available(), available, "{allowed}");
    }
    assert_eq!(pool("0-1").found(), "8 hugepages of 2 MiB are free");
    pool("0");
    let error =
        SendRegion::create_at(129, SEGMENT, HugepageMode::Require, root.path()).expect_err("1 too few");
    assert_eq!(
        error.to_string(),
        "2 hugepages of 2 MiB are free on NUMA nodes 0, and the daemon may use no others (AllowedMemoryNodes=, \
         cpuset.mems); needed: 3; run `echo 4 > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages` \
         or set memory.hugepages = \"auto\""
    );
    // What is reserved may be on any node.
    write_pool(root.path(), &[("resv_hugepages", "7")]);
    assert_eq!((pool("0").available(), pool("1").available()), (1, 1));
}

#[test]
fn the_default_size_is_read_as_the_kernel_shows_it() {
    let root = tempfile::tempdir().expect("a directory");
    let is_2_mib = |text: &str| {
        fs::create_dir_all(root.path().join("proc")).expect("a directory");
        fs::write(root.path().join("proc/meminfo"), text).expect("a file");
        default_hugepage_is_2_mib(root.path())
    };
    assert!(!default_hugepage_is_2_mib(root.path()));
    assert!(is_2_mib("MemTotal: 5 kB\nHugepagesize:       2048 kB\n"));
    assert!(!is_2_mib("Hugepagesize:    1048576 kB\n"));
    assert!(!is_2_mib("MemTotal: 5 kB\n"));
}

#[test]
fn scratch_is_zeroed_page_aligned_and_writable() {
    for mode in modes() {
        for bytes in [1, 4096, 3 << 20] {
            let scratch = Scratch::create(bytes, mode).expect("scratch");
            let backing = if mode == HugepageMode::Off { Backing::Ordinary } else { Backing::Hugepages };
            assert_eq!((scratch.bytes(), scratch.backing()), (bytes, backing));
            assert!((scratch.address() as usize).is_multiple_of(backing.page_bytes() as usize));
            assert!(read_from(scratch.address(), bytes).iter().all(|byte| *byte == 0));
            // SAFETY: the last byte of the scratch, which nobody refers to.
            unsafe { scratch.address().add(bytes - 1).write(9) };
            assert_eq!(read_from(scratch.address(), bytes)[bytes - 1], 9);
        }
    }
    assert!(Scratch::create(0, HugepageMode::Auto).is_err());
    assert!(Scratch::create(usize::MAX, HugepageMode::Auto).is_err());
}

/// How many mappings of this process start at an address.
fn mappings_at(address: *mut u8) -> usize {
    let maps = fs::read_to_string("/proc/self/maps").expect("/proc");
    maps.lines().filter(|line| line.starts_with(&format!("{:x}-", address as usize))).count()
}

#[test]
fn scratch_falls_back_and_is_given_back() {
    let root = system_with(1, "1000000");
    let create = |mode| Scratch::create_at(3 << 20, mode, root.path());
    assert_eq!(create(HugepageMode::Auto).expect("scratch").backing(), Backing::Ordinary);
    let error = create(HugepageMode::Require).expect_err("2 pages of 1 free one");
    assert!(error.to_string().ends_with("needed: 2; run `sysctl vm.nr_hugepages=11`"), "{error}");
    for mode in modes() {
        let scratch = Scratch::create(2 << 20, mode).expect("scratch");
        let address = scratch.address();
        assert_eq!(mappings_at(address), 1);
        drop(scratch);
        assert_eq!(mappings_at(address), 0);
    }
}

#[test]
fn a_region_lives_as_long_as_someone_refers_to_it() {
    let (region, file, _) = SendRegion::create(4, SEGMENT, HugepageMode::Off).expect("a region");
    drop(file);
    let address = region.slice(0, 0, 1).expect("a range").address().cast_mut();
    let second = std::sync::Arc::clone(&region);
    drop(region);
    assert_eq!(mappings_at(address), 1);
    drop(second);
    assert_eq!(mappings_at(address), 0);
    let map = MmapOptions::new().len(4096).map_anon().expect("memory");
    assert_eq!(map.len(), 4096);
}
