//! Everything that can keep the probes from running: each is another cause, and the sockets are sampled all the same.

use std::path::Path;

use rustix::thread::CapabilitySet;

use super::thread::{alone, keep_capabilities, refuse_bpf};
use super::*;
use crate::observe::probes::cause::Cause;
use crate::observe::sockets::ObserverState;

/// The kernel's type information.
const TYPES: &str = "/sys/kernel/btf/vmlinux";

/// Loads on this thread, and sees that a socket is sampled. Returns why there are no probes.
fn cause_of(sources: &Sources<'_>) -> Cause {
    let observer = Observer::from_sources(sources);
    let (near, far) = pair();
    let watch = observer.watch(near.as_fd());
    exchange(&near, &far, 1_000);
    let account = watch.account();
    assert!(account.approximate, "{account:?}");
    let residence = account.residence.as_ref().unwrap();
    assert_eq!((residence.total, residence.sum_ns, residence.unmarked_total), (None, None, None));
    assert_eq!(account.state_ns.unwrap().iter().sum::<u64>(), account.watched_ns);
    assert!(!observer.has_wanted_hooks());
    observer.cause().unwrap_or_else(|| panic!("the probes run: {observer:?}")).clone()
}

#[test]
fn without_capabilities_or_with_one_of_two_the_missing_one_is_named() {
    if !has_object("capabilities") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return println!("not run here: capabilities (this is not root)");
    }
    for (kept, expected) in [
        (CapabilitySet::empty(), Cause::NoBpfCapability),
        (CapabilitySet::PERFMON, Cause::NoBpfCapability),
        (CapabilitySet::BPF, Cause::OnlyBpfCapability),
    ] {
        let cause = alone(move || {
            keep_capabilities(kept);
            cause_of(&Sources::own(1))
        });
        assert_eq!(cause, expected, "{kept:?}");
    }
    let Some(_) = probes("the two capabilities are enough") else { return };
    let observer = alone(|| {
        keep_capabilities(CapabilitySet::BPF | CapabilitySet::PERFMON);
        Observer::start(1)
    });
    assert_eq!(observer.cause(), None);
}

#[test]
fn a_filter_that_refuses_bpf_is_told_from_missing_capabilities() {
    if !has_object("a system call filter") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return println!("not run here: a system call filter (this is not root)");
    }
    let cause = alone(|| {
        refuse_bpf();
        cause_of(&Sources::own(1))
    });
    assert!(matches!(&cause, Cause::CallRefused { errno } if errno.contains("not permitted")), "{cause}");
}

#[test]
fn type_information_that_cannot_be_read_is_named_with_its_place() {
    let Some(_) = probes("type information that cannot be read") else { return };
    let dir = tempfile::tempdir().unwrap();
    let garbage = dir.path().join("garbage");
    std::fs::write(&garbage, [7; 100]).unwrap();
    for (path, word) in [(Path::new("/none/such"), "No such file"), (&garbage, "no type information")] {
        let cause = cause_of(&Sources { types: path, ..Sources::own(1) });
        let text = cause.to_string();
        assert!(matches!(cause, Cause::NoTypes { .. }), "{text}");
        assert!(text.contains(word) && text.contains(path.to_str().unwrap()), "{text}");
    }
}

/// The type information of this kernel, as if it had no such name.
fn types_without(dir: &Path, name: &str) -> std::path::PathBuf {
    let mut types = std::fs::read(TYPES).unwrap();
    let needle: Vec<u8> = [&[0], name.as_bytes(), &[0]].concat();
    let places: Vec<usize> =
        types.windows(needle.len()).enumerate().filter(|(_, at)| *at == needle).map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "this kernel has no {name}");
    for at in places {
        types[at + 1] = b'#';
    }
    let path = dir.join(name);
    std::fs::write(&path, types).unwrap();
    path
}

#[test]
fn a_kernel_without_a_member_or_a_tracepoint_is_told_by_the_name() {
    let Some(_) = probes("kernels that lack something") else { return };
    let dir = tempfile::tempdir().unwrap();
    let without = |name: &str| types_without(dir.path(), name);
    let types = without("chrono_type");
    let cause = cause_of(&Sources { types: &types, ..Sources::own(1) });
    assert!(matches!(&cause, Cause::NoMember(missing) if missing.member == "chrono_type"), "{cause}");

    let types = without("btf_trace_tcp_probe");
    let cause = cause_of(&Sources { types: &types, ..Sources::own(1) });
    assert!(matches!(&cause, Cause::NoBase { problem } if problem.contains("tp_btf/tcp_probe")), "{cause}");

    for (name, point) in [
        ("btf_trace_tcp_rcv_space_adjust", "tp_btf/tcp_rcv_space_adjust"),
        ("btf_trace_inet_sock_set_state", "tp_btf/inet_sock_set_state"),
        ("btf_trace_tcp_retransmit_skb", "tp_btf/tcp_retransmit_skb"),
    ] {
        let types = without(name);
        let observer = Observer::from_sources(&Sources { types: &types, ..Sources::own(1) });
        let ObserverState::Probes { hooks, .. } = observer.state() else { panic!("{name}: {observer:?}") };
        let missing: Vec<String> = hooks.iter().filter_map(|hook| hook.missing()).collect();
        assert!(missing.len() == 1 && missing[0].contains(point), "{missing:?}");
        // Whoever requires probes does without those at the end of a connection and at what is sent again.
        assert_eq!(observer.has_wanted_hooks(), !name.contains("rcv_space"), "{name}");
        // The rest counts on.
        let (near, far) = pair();
        let watch = observer.watch(far.as_fd());
        exchange(&near, &far, 1_000);
        exchange(&far, &near, 1_000);
        let account = watch.account();
        assert!(account.send_queue.max_bytes > Some(0), "{account:?}");
        assert_eq!(account.residence.is_some(), !name.contains("rcv_space"), "{name}: {account:?}");
        // Its end is seen all the same, if later.
        far.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(watch.account().state, None, "{name}");
    }
}

#[test]
fn on_a_kernel_that_does_not_show_a_socket_s_storage_nothing_is_lost() {
    let Some(_) = probes("a kernel that does not show the storage of a socket") else { return };
    let dir = tempfile::tempdir().unwrap();
    let types = types_without(dir.path(), "sk_bpf_storage");
    let observer = Observer::from_sources(&Sources { types: &types, ..Sources::own(1) });
    let ObserverState::Probes { hooks, .. } = observer.state() else { panic!("{observer:?}") };
    let whole = Observer::from_sources(&Sources::own(1));
    let ObserverState::Probes { hooks: expected, .. } = whole.state() else { panic!("{whole:?}") };
    let attached = |hooks: &[crate::observe::probes::hooks::HookState]| {
        hooks.iter().map(|hook| hook.is_attached()).collect::<Vec<_>>()
    };
    assert_eq!(attached(&hooks), attached(&expected));
    let (near, far) = pair();
    let watch = observer.watch(far.as_fd());
    exchange(&near, &far, 1_000);
    exchange(&far, &near, 500);
    let account = watch.account();
    assert!(account.send_queue.max_bytes > Some(0), "{account:?}");
    assert!(account.residence.as_ref().is_some_and(|residence| residence.total > Some(0)), "{account:?}");
}

#[test]
fn without_the_tracepoint_of_sends_the_function_is_tried_and_what_is_lost_is_said() {
    let Some(_) = probes("the function behind the tracepoint") else { return };
    let dir = tempfile::tempdir().unwrap();
    let types = std::fs::read(TYPES).unwrap();
    let name = b"\0btf_trace_tcp_sendmsg_locked\0";
    let path = if types.windows(name.len()).any(|at| at == name) {
        types_without(dir.path(), "btf_trace_tcp_sendmsg_locked")
    } else {
        TYPES.into()
    };
    let observer = Observer::from_sources(&Sources { types: &path, ..Sources::own(1) });
    let ObserverState::Probes { hooks, .. } = observer.state() else { panic!("{observer:?}") };
    let send = &hooks[1];
    let (near, far) = pair();
    let watch = observer.watch(near.as_fd());
    exchange(&near, &far, 1_000);
    match send.missing() {
        // This kernel lets programs stand at functions.
        None => assert!(!watch.account().approximate && observer.has_wanted_hooks()),
        Some(missing) => {
            println!("{missing}");
            assert!(missing.starts_with("fentry/tcp_sendmsg_locked is refused"), "{missing}");
            assert!(watch.account().approximate && !observer.has_wanted_hooks());
        }
    }
}
