//! TCP: congestion control, how large its buffers may grow, and how many connections may wait.

use super::Row;
use crate::config::Config;
use crate::link::listen::ACCEPT_BACKLOG;
use crate::root::{Root, Unread};

/// What buffers of a connection should be able to grow to: the kernel's own default for sends.
const BUFFER_BYTES_WANTED: u64 = 4 << 20;

/// Largest window without window scaling.
const UNSCALED_WINDOW: &str = "64 KiB";

const IPV4: &str = "/proc/sys/net/ipv4";

/// What the kernel does with TCP.
#[derive(Clone, Debug)]
pub struct NetworkFacts {
    /// The congestion control that a socket has unless told otherwise.
    pub congestion: Result<String, Unread>,
    /// Those that are loaded.
    pub congestion_available: Result<String, Unread>,
    /// What the kernel answers to `link.congestion`; an error has the words in which the daemon refuses to start.
    pub congestion_set: Result<(), String>,
    /// `net.ipv4.tcp_rmem`.
    pub receive_bytes: Result<String, Unread>,
    /// `net.ipv4.tcp_wmem`.
    pub send_bytes: Result<String, Unread>,
    /// `net.ipv4.tcp_moderate_rcvbuf`.
    pub moderates: Result<u32, Unread>,
    /// `net.ipv4.tcp_window_scaling`.
    pub scales: Result<u32, Unread>,
    /// `net.core.rmem_max` and `net.core.wmem_max`.
    pub core_bytes: [Result<u64, Unread>; 2],
    /// `net.core.somaxconn`.
    pub accept_max: Result<u32, Unread>,
}

impl NetworkFacts {
    /// Reads them. `congestion_set` is what came of trying the options of a link on a socket.
    #[must_use]
    pub fn read(root: &Root, congestion_set: Result<(), String>) -> Self {
        let ipv4 = |file: &str| format!("{IPV4}/{file}");
        Self {
            congestion: root.text(&ipv4("tcp_congestion_control")),
            congestion_available: root.text(&ipv4("tcp_available_congestion_control")),
            congestion_set,
            receive_bytes: root.text(&ipv4("tcp_rmem")),
            send_bytes: root.text(&ipv4("tcp_wmem")),
            moderates: root.number(&ipv4("tcp_moderate_rcvbuf")),
            scales: root.number(&ipv4("tcp_window_scaling")),
            core_bytes: ["rmem_max", "wmem_max"]
                .map(|file| root.number(&format!("/proc/sys/net/core/{file}"))),
            accept_max: root.number("/proc/sys/net/core/somaxconn"),
        }
    }
}

/// Judges.
#[must_use]
pub fn rows(facts: &NetworkFacts, config: &Config) -> Vec<Row> {
    let mut rows = vec![
        congestion(facts, config),
        buffers("tcp_rmem", &facts.receive_bytes),
        buffers("tcp_wmem", &facts.send_bytes),
    ];
    rows.extend(["rmem_max", "wmem_max"].into_iter().zip(&facts.core_bytes).map(|(name, bytes)| {
        let wanted = "any: links leave the size of their buffers to the kernel";
        match bytes {
            Ok(bytes) => Row::new(name, wanted, bytes.to_string()),
            Err(unread) => Row::unknown(name, wanted, unread),
        }
    }));
    rows.push(switch(
        "tcp_moderate_rcvbuf",
        &facts.moderates,
        "receive buffers keep their first size, the second number of tcp_rmem",
    ));
    rows.push(switch(
        "tcp_window_scaling",
        &facts.scales,
        &format!("a connection carries at most {UNSCALED_WINDOW} per round trip"),
    ));
    rows.push(accept(&facts.accept_max));
    rows
}

fn congestion(facts: &NetworkFacts, config: &Config) -> Row {
    let name = "congestion";
    let chosen = &config.link.congestion;
    if chosen != "system" {
        let wanted = format!("link.congestion = \"{chosen}\"");
        return match &facts.congestion_set {
            Ok(()) => Row::new(name, wanted, "the kernel takes it"),
            Err(text) => {
                let (found, fix) = text.rsplit_once("; ").unwrap_or((text, ""));
                Row::new(name, wanted, found).failed("the daemon does not start", fix)
            }
        };
    }
    let wanted = "one that suits the path; not bbr on loopback";
    let found = match &facts.congestion {
        Ok(found) => found,
        Err(unread) => return Row::unknown(name, wanted, unread),
    };
    let cost = if found == "bbr" { ", which halves the rate of links over loopback and veth" } else { "" };
    let row = Row::new(name, wanted, format!("{found}{cost}"));
    let has_links = !config.peers.is_empty();
    if found != "bbr" || !config.listen.ip().is_loopback() || !has_links {
        return row;
    }
    let available = facts.congestion_available.as_deref().unwrap_or_default();
    let other =
        ["cubic", "reno"].into_iter().find(|name| available.split_whitespace().any(|one| one == *name));
    row.degraded(
        "bbr halves the rate on loopback and veth",
        format!("link.congestion = \"{}\"", other.unwrap_or("reno")),
    )
}

/// The three sizes of `tcp_rmem` or `tcp_wmem`: least, first, largest.
fn buffers(name: &str, found: &Result<String, Unread>) -> Row {
    let wanted = format!("up to {BUFFER_BYTES_WANTED} bytes or more");
    let text = match found {
        Ok(text) => text,
        Err(unread) => return Row::unknown(name, wanted, unread),
    };
    let sizes: Vec<u64> = text.split_whitespace().map_while(|size| size.parse().ok()).collect();
    let [least, first, largest] = sizes.as_slice() else {
        return Row::unknown(name, wanted, &Unread::malformed(&format!("{IPV4}/{name}"), text));
    };
    let row = Row::new(name, wanted, format!("{least} {first} {largest}"));
    if *largest >= BUFFER_BYTES_WANTED {
        return row;
    }
    row.degraded(
        format!(
            "a connection carries at most some {} KiB per round trip: {} MB/s over 10 ms",
            largest >> 10,
            largest * 100 / 1_000_000
        ),
        format!("sysctl net.ipv4.{name}=\"{least} {first} {BUFFER_BYTES_WANTED}\""),
    )
}

/// A switch that is on by default.
fn switch(name: &str, found: &Result<u32, Unread>, effect: &str) -> Row {
    match found {
        Ok(0) => Row::new(name, "1", "0").degraded(effect, format!("sysctl net.ipv4.{name}=1")),
        Ok(value) => Row::new(name, "1", value.to_string()),
        Err(unread) => Row::unknown(name, "1", unread),
    }
}

fn accept(found: &Result<u32, Unread>) -> Row {
    let wanted = format!("at least {ACCEPT_BACKLOG}");
    match found {
        Ok(found) if *found < ACCEPT_BACKLOG => Row::new("somaxconn", wanted, found.to_string()).degraded(
            "of peers and clients that come at once, those beyond it wait for another try",
            "sysctl net.core.somaxconn=4096",
        ),
        Ok(found) => Row::new("somaxconn", wanted, found.to_string()),
        Err(unread) => Row::unknown("somaxconn", wanted, unread),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;
    use crate::root::machine;

    const FINE: [(&str, &str); 9] = [
        ("/proc/sys/net/ipv4/tcp_congestion_control", "cubic\n"),
        ("/proc/sys/net/ipv4/tcp_available_congestion_control", "reno bbr cubic\n"),
        ("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
        ("/proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304\n"),
        ("/proc/sys/net/ipv4/tcp_moderate_rcvbuf", "1\n"),
        ("/proc/sys/net/ipv4/tcp_window_scaling", "1\n"),
        ("/proc/sys/net/core/rmem_max", "212992\n"),
        ("/proc/sys/net/core/wmem_max", "212992\n"),
        ("/proc/sys/net/core/somaxconn", "4096\n"),
    ];

    /// A machine on which one file, the last part of whose path is given, has other content.
    fn facts(file: &str, text: &str) -> NetworkFacts {
        let files =
            FINE.map(|(path, fine)| (path, if path.ends_with(&format!("/{file}")) { text } else { fine }));
        let (_directory, root) = machine(&files);
        NetworkFacts::read(&root, Ok(()))
    }

    fn config() -> Config {
        let mut config = Config::default();
        config.peers.insert("b".parse().unwrap(), "127.0.0.1:7071".parse().unwrap());
        config
    }

    fn row(name: &str, facts: &NetworkFacts, config: &Config) -> Row {
        rows(facts, config).into_iter().find(|row| row.name == name).unwrap()
    }

    #[test]
    fn a_machine_as_it_is_delivered_is_fine_in_every_row() {
        for row in rows(&facts("", ""), &config()) {
            assert_eq!((row.state, &*row.effect, &*row.fix), (State::Ok, "", ""), "{row:?}");
        }
    }

    #[test]
    fn small_buffers_are_told_with_what_they_cost_and_the_rest_of_the_setting_kept() {
        for file in ["tcp_rmem", "tcp_wmem"] {
            let row = row(file, &facts(file, "4096 8192 1048576"), &config());
            assert_eq!(row.state, State::Degraded);
            assert!(row.effect.contains("1024 KiB per round trip: 104 MB/s over 10 ms"), "{}", row.effect);
            assert_eq!(row.fix, format!("sysctl net.ipv4.{file}=\"4096 8192 4194304\""));
        }
        assert_eq!(row("tcp_rmem", &facts("tcp_rmem", "4096"), &config()).state, State::Unknown);
    }

    #[test]
    fn what_is_switched_off_is_told_with_the_switch() {
        for name in ["tcp_moderate_rcvbuf", "tcp_window_scaling"] {
            let row = row(name, &facts(name, "0"), &config());
            assert_eq!((row.state, row.fix), (State::Degraded, format!("sysctl net.ipv4.{name}=1")));
        }
    }

    #[test]
    fn a_short_queue_of_connections_is_told() {
        for (found, expected) in [("128", State::Degraded), ("255", State::Degraded), ("256", State::Ok)] {
            let row = row("somaxconn", &facts("somaxconn", found), &config());
            assert_eq!(row.state, expected, "{found}");
            assert_eq!(row.fix == "sysctl net.core.somaxconn=4096", expected == State::Degraded);
        }
    }

    #[test]
    fn the_bounds_for_sockets_that_set_their_buffers_do_not_matter() {
        for name in ["rmem_max", "wmem_max"] {
            assert_eq!(row(name, &facts(name, "4096"), &config()).state, State::Ok);
            assert_eq!(row(name, &facts(name, "?"), &config()).state, State::Unknown);
        }
    }

    #[test]
    fn bbr_is_told_where_links_stay_on_the_machine() {
        let facts = facts("tcp_congestion_control", "bbr");
        let here = row("congestion", &facts, &config());
        assert_eq!((here.state, &*here.fix), (State::Degraded, "link.congestion = \"cubic\""));
        let alone = Config::default();
        assert_eq!(row("congestion", &facts, &alone).state, State::Ok);
        let away = Config { listen: "10.0.0.1:7070".parse().unwrap(), ..config() };
        assert_eq!(row("congestion", &facts, &away).state, State::Ok);
        // What it costs is said in any case: whether a link leads over veth is not known here.
        assert!(
            row("congestion", &facts, &away)
                .found
                .contains("halves the rate of links over loopback and veth")
        );
    }

    #[test]
    fn a_congestion_control_that_the_kernel_refuses_stops_the_daemon_in_its_words() {
        let mut config = config();
        config.link.congestion = "nonesuch".to_owned();
        let options = crate::link::options::LinkOptions {
            congestion: config.congestion().map(str::to_owned),
            ..crate::link::options::LinkOptions::default()
        };
        let refused = crate::link::options::check(&options).map_err(|error| error.to_string());
        let text = refused.clone().unwrap_err();
        let row = congestion(&NetworkFacts { congestion_set: refused, ..facts("", "") }, &config);
        assert_eq!(row.state, State::Failed);
        assert!(
            text.starts_with(&row.found) && row.fix.starts_with("load it with `modprobe tcp_nonesuch`"),
            "{row:?}"
        );
        let taken = congestion(&facts("", ""), &config);
        assert_eq!(taken.state, State::Ok);
    }
}
