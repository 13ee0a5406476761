//! The way to each configured peer: its name, the route, and how large a packet may be on it. Nothing is sent but
//! questions to the resolver.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::{Row, State};
use crate::config::Config;
use crate::link::dial::DialError;

/// How long all names together may take to be resolved.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(3);

/// Threads that resolve names.
const RESOLVERS: usize = 16;

/// What a packet may have on any Ethernet.
const MTU_WANTED: u32 = 1500;

/// What is known of one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFacts {
    /// Its name.
    pub name: String,
    /// `HOST:PORT`, as configured.
    pub address: String,
    /// The way to it.
    pub route: Result<Route, NoRoute>,
}

/// The way to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The address of this machine that it leaves by.
    pub from: IpAddr,
    /// Where it leads.
    pub to: IpAddr,
    /// Largest packet, in bytes, as far as this machine knows.
    pub mtu: u32,
}

/// Why there is no way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRoute {
    /// The name has no address; what the daemon would say.
    Unresolved(String),
    /// The resolver has not answered yet.
    Slow,
    /// The kernel has no route; what the daemon would say.
    Unreachable(String),
}

/// Looks at every peer of the configuration. Takes at most some seconds, however many there are.
#[must_use]
pub fn find(config: &Config) -> Vec<PeerFacts> {
    let (sender, answers) = mpsc::channel();
    let addresses: Vec<(usize, String)> =
        config.peers.values().map(ToString::to_string).enumerate().collect();
    for first in 0..RESOLVERS.min(addresses.len()) {
        let share: Vec<(usize, String)> = addresses.iter().skip(first).step_by(RESOLVERS).cloned().collect();
        let sender = sender.clone();
        // One that waits for a resolver is left behind, and ends with the process.
        let resolving = move || {
            for (number, address) in share {
                let found = address.to_socket_addrs().map(|found| found.collect::<Vec<_>>());
                if sender.send((number, found)).is_err() {
                    // Nobody waits for it any more.
                    return;
                }
            }
        };
        if std::thread::Builder::new().name("weir-resolve".to_owned()).spawn(resolving).is_err() {
            break;
        }
    }
    drop(sender);
    let mut facts: Vec<PeerFacts> = config
        .peers
        .iter()
        .map(|(name, address)| PeerFacts {
            name: name.to_string(),
            address: address.to_string(),
            route: Err(NoRoute::Slow),
        })
        .collect();
    let deadline = Instant::now() + RESOLVE_TIMEOUT;
    while let Ok((number, found)) = answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        if let Some(peer) = facts.get_mut(number) {
            peer.route = route(&peer.address, found);
        }
    }
    facts
}

fn route(address: &str, found: io::Result<Vec<SocketAddr>>) -> Result<Route, NoRoute> {
    let resolve =
        |source| NoRoute::Unresolved(DialError::Resolve { address: address.to_owned(), source }.to_string());
    let candidates = found.map_err(resolve)?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for candidate in candidates {
        match route_to(candidate) {
            Ok(route) => return Ok(route),
            Err(error) => last = error,
        }
    }
    let error = DialError::Connect { address: address.to_owned(), source: last };
    Err(NoRoute::Unreachable(error.to_string()))
}

/// Connecting a datagram socket sends nothing: it looks the route up.
fn route_to(address: SocketAddr) -> io::Result<Route> {
    let any: IpAddr = if address.is_ipv4() { [0_u8; 4].into() } else { [0_u8; 16].into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(address)?;
    let mtu = if address.is_ipv4() { sockopt::ip_mtu(&socket) } else { sockopt::ipv6_mtu(&socket) }?;
    Ok(Route { from: socket.local_addr()?.ip(), to: address.ip(), mtu })
}

/// Judges.
#[must_use]
pub fn rows(facts: &[PeerFacts], config: &Config) -> Vec<Row> {
    facts.iter().map(|peer| row(peer, config)).collect()
}

fn row(peer: &PeerFacts, config: &Config) -> Row {
    let PeerFacts { name, address, route } = peer;
    let wanted = format!("a route to {address} with an MTU of {MTU_WANTED} or more");
    let row = |found: String| Row::new(format!("peer/{name}"), wanted.clone(), found);
    let effect = format!("no link to {name}");
    let key = format!("peers.{name} = \"{address}\"");
    let Route { from, to, mtu } = match route {
        Ok(route) => route,
        Err(NoRoute::Unresolved(text)) => {
            return row(text.clone())
                .degraded(effect, format!("the resolver's entry (getent hosts), or {key}"));
        }
        Err(NoRoute::Slow) => {
            let found = format!("not known: the resolver did not answer within {RESOLVE_TIMEOUT:?}");
            return row(found).in_state(
                State::Degraded,
                effect,
                format!("the resolver, or an address in {key}"),
            );
        }
        Err(NoRoute::Unreachable(text)) => {
            return row(text.clone()).degraded(effect, format!("a route (ip route get), or {key}"));
        }
    };
    let found = row(format!("{from} to {to}, MTU {mtu}"));
    if to.is_loopback() != config.listen.ip().is_loopback() && to.is_loopback() {
        return found.degraded(
            format!("{name} is looked for on this machine, while this node listens on {}", config.listen),
            key,
        );
    }
    if *mtu >= MTU_WANTED {
        return found;
    }
    found.degraded(
        "more packets for the same bytes: more time of processors at both ends",
        format!("ip link set dev $(ip -o route get {to} | grep -oP 'dev \\K\\S+') mtu {MTU_WANTED}, if the network carries it"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(listen: &str, peers: &[(&str, &str)]) -> Config {
        let mut config = Config { listen: listen.parse().unwrap(), ..Config::default() };
        for (name, address) in peers {
            config.peers.insert(name.parse().unwrap(), address.parse().unwrap());
        }
        config
    }

    fn judged(route: Result<Route, NoRoute>) -> Row {
        let peer = PeerFacts { name: "b".to_owned(), address: "10.0.0.2:7070".to_owned(), route };
        row(&peer, &config("10.0.0.1:7070", &[]))
    }

    fn to(address: &str, mtu: u32) -> Result<Route, NoRoute> {
        Ok(Route { from: "10.0.0.1".parse().unwrap(), to: address.parse().unwrap(), mtu })
    }

    #[test]
    fn a_route_is_fine_or_says_what_it_lacks() {
        for (route, expected, fix) in [
            (to("10.0.0.2", 1500), State::Ok, ""),
            (to("10.0.0.2", 9000), State::Ok, ""),
            (to("10.0.0.2", 1499), State::Degraded, "mtu 1500"),
            (to("127.0.0.1", 65_536), State::Degraded, "peers.b ="),
            (Err(NoRoute::Unresolved("cannot resolve x".to_owned())), State::Degraded, "getent"),
            (Err(NoRoute::Unreachable("cannot connect to x".to_owned())), State::Degraded, "ip route get"),
            (Err(NoRoute::Slow), State::Degraded, "the resolver"),
        ] {
            let row = judged(route);
            assert_eq!(row.state, expected, "{row:?}");
            assert!(row.fix.contains(fix), "{row:?}");
            assert_eq!(row.effect.is_empty(), expected == State::Ok);
        }
    }

    #[test]
    fn peers_of_this_machine_are_found_by_address_and_by_name() {
        let config = config("127.0.0.1:7070", &[("a", "127.0.0.1:7071"), ("b", "localhost:7072")]);
        let found = find(&config);
        assert_eq!(found.iter().map(|peer| &*peer.name).collect::<Vec<_>>(), ["a", "b"]);
        for row in rows(&found, &config) {
            assert_eq!(row.state, State::Ok, "{row:?}");
            assert!(row.found.contains("MTU 65"), "{row:?}");
        }
    }

    #[test]
    fn many_peers_are_all_looked_at() {
        let names: Vec<(String, String)> =
            (0..100).map(|number| (format!("n{number}"), format!("127.0.0.1:{}", 7100 + number))).collect();
        let peers: Vec<(&str, &str)> = names.iter().map(|(name, to)| (name.as_str(), to.as_str())).collect();
        let found = find(&config("127.0.0.1:7070", &peers));
        assert_eq!(found.len(), 100);
        assert!(found.iter().all(|peer| peer.route.is_ok()), "{found:?}");
    }

    #[test]
    fn a_name_without_address_and_an_address_without_route_are_told_as_a_daemon_would() {
        let config = config("10.0.0.1:7070", &[("a", "no-such-host.invalid:7071")]);
        let found = find(&config);
        match &found[0].route {
            Err(NoRoute::Unresolved(text)) => {
                assert!(text.starts_with("cannot resolve no-such-host.invalid:7071: "), "{text}");
            }
            // A resolver that is out of reach may take longer.
            other => assert_eq!(other, &Err(NoRoute::Slow)),
        }
        // No machine routes to this one.
        let unreachable = route("240.0.0.1:7070", Ok(vec!["255.255.255.255:7070".parse().unwrap()]));
        match unreachable {
            Err(NoRoute::Unreachable(text)) => {
                assert!(text.starts_with("cannot connect to 240.0.0.1:7070: "), "{text}");
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(route("x:1", Ok(Vec::new())), Err(NoRoute::Unreachable(_))));
    }
}
