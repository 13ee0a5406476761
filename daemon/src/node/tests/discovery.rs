//! Peers that are found by a name, with a resolver that the test has.

use std::sync::Mutex;

use super::*;
use crate::control::configuration::ConfigurationReport;
use crate::link::resolve::Lookup;

/// What the name means at the moment.
#[derive(Clone, Default)]
struct Records(Arc<Mutex<Vec<SocketAddr>>>);

impl Records {
    fn set(&self, addresses: &[SocketAddr]) {
        *self.0.lock().unwrap() = addresses.to_vec();
    }

    fn lookup(&self) -> Lookup {
        self.lookup_every(Duration::from_millis(20))
    }

    fn lookup_every(&self, interval: Duration) -> Lookup {
        let records = self.clone();
        Lookup::by("all.weir:7070".to_owned(), interval, move |asked| {
            assert_eq!(asked, "all.weir:7070");
            let found = records.0.lock().unwrap().clone();
            Box::pin(async move {
                if found.is_empty() { Err(std::io::Error::other("no such name")) } else { Ok(found) }
            })
        })
    }
}

fn searching(node: &str, records: &Records) -> NodeOptions {
    NodeOptions { lookup: Some(records.lookup()), ..options(node) }
}

async fn line(node: &TestNode, is_right: impl Fn(&Subsystem) -> bool) -> Subsystem {
    node.until("peers_dns", is_right).await
}

/// Node a, which looks the name up and has these peers besides, linked with b, which the name has.
async fn linked(peers: impl FnOnce(&TestNode) -> Vec<PeerAddress>) -> (Records, TestNode, TestNode) {
    let records = Records::default();
    let b = TestNode::start(options("b"), 1);
    records.set(&[b.listen]);
    let a = TestNode::start(NodeOptions { peers: peers(&b), ..searching("a", &records) }, 1);
    a.until_linked("b").await;
    (records, a, b)
}

#[tokio::test]
async fn nodes_find_each_other_by_a_name_and_themselves_not() {
    let records = Records::default();
    let nodes = ["a", "b", "c"].map(|name| TestNode::start(searching(name, &records), 1));
    // The name does not exist yet: each says so, with what to look at.
    for node in &nodes {
        let line = line(node, |line| line.state == Health::Degraded).await;
        assert!(line.reason.unwrap().contains("cannot resolve all.weir:7070: no such name"));
        assert!(line.fix.unwrap().contains("getent ahosts all.weir"));
    }
    records.set(&nodes.each_ref().map(|node| node.listen));
    for (node, others) in nodes.iter().zip([["b", "c"], ["a", "c"], ["a", "b"]]) {
        for other in others {
            node.until_linked(other).await;
        }
        let expected =
            format!("all.weir:7070: 3 addresses, this node among them; peers: {}", others.join(", "));
        let line = line(node, |line| line.detail == expected).await;
        assert_eq!(line.state, Health::Ok);
    }
    // That it dialled itself is no stranger's doing.
    for node in &nodes {
        let listener = node.subsystem("listener").await.unwrap();
        assert!(!listener.detail.contains("this one itself"), "{}", listener.detail);
    }
}

#[tokio::test]
async fn a_node_that_moves_is_found_again_and_one_that_is_gone_from_the_name_is_forgotten() {
    let records = Records::default();
    let a = TestNode::start(searching("a", &records), 1);
    let b = TestNode::start(options("b"), 1);
    records.set(&[a.listen, b.listen]);
    a.until_linked("b").await;
    // At its address comes another node.
    let address = b.listen;
    b.end.abort();
    patiently("its end", b.end).await.unwrap_err();
    let c = TestNode::start(NodeOptions { listen: address, ..options("c") }, 1);
    a.until_linked("c").await;
    assert_eq!(a.subsystem("peer/b").await, None);
    // And a closed port: the address is named, and what is linked stays.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    records.set(&[a.listen, c.listen, closed]);
    let line = line(&a, |line| line.state == Health::Degraded).await;
    assert!(line.reason.unwrap().contains(&format!("cannot connect to {closed}")));
    assert!(line.fix.unwrap().contains("start weir there"));
    // The name has it no more: it stays as long as its link does.
    records.set(&[a.listen]);
    line_of_one(&a).await;
    c.end.abort();
    let gone = async {
        while a.subsystem("peer/c").await.is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    patiently("it is forgotten", gone).await;
}

/// Waits until the closed port is not asked any more, while the peer is still linked.
async fn line_of_one(a: &TestNode) {
    let line = line(a, |line| line.state == Health::Ok).await;
    assert!(line.detail.ends_with("peers: c"), "{}", line.detail);
    a.until_linked("c").await;
}

#[tokio::test]
async fn a_peer_that_is_configured_too_has_one_link_and_stays_when_the_name_does_not_have_it() {
    let (records, a, b) = linked(|b| vec![peer_at("b", b.listen)]).await;
    let line = line(&a, |line| line.detail.ends_with("peers: b")).await;
    assert_eq!(line.detail, "all.weir:7070: 1 addresses; peers: b");
    records.set(&[a.listen]);
    self::line(&a, |line| line.detail.contains("this node among them")).await;
    b.end.abort();
    a.until("peer/b", |line| line.state == Health::Degraded).await;
}

/// A reload with these peers and this name.
async fn reload(node: &TestNode, peers: Vec<PeerAddress>, lookup: Option<Lookup>) {
    let NodeOptions { limits, debloat, memory_bytes, attachments_max, drain_timeout, .. } = options("any");
    let settings =
        LiveSettings { peers, lookup, limits, debloat, memory_bytes, attachments_max, drain_timeout };
    node.handle.configure(Some(settings), ConfigurationReport::default()).await;
}

#[tokio::test]
async fn a_peer_that_the_configuration_names_no_more_is_dialled_where_the_name_has_it() {
    let (records, a, _b) = linked(|b| vec![peer_at("b", b.listen)]).await;
    line(&a, |line| line.detail.ends_with("peers: b")).await;
    // It lets go of the link, which it has dialled.
    reload(&a, Vec::new(), Some(records.lookup())).await;
    a.until_linked("b").await;
    // By the name: without it there is no such peer.
    reload(&a, Vec::new(), None).await;
    assert_eq!(a.subsystem("peer/b").await, None);
}

#[tokio::test]
async fn another_interval_leaves_the_links_to_the_peers_that_were_found() {
    let (records, a, b) = linked(|_| Vec::new()).await;
    // From here on nobody could be found again.
    records.set(&[]);
    line(&a, |line| line.state == Health::Degraded).await;
    reload(&a, Vec::new(), Some(records.lookup_every(Duration::from_millis(30)))).await;
    let peer = a.subsystem("peer/b").await.unwrap();
    assert!(peer.detail.contains("linked"), "{}", peer.detail);
    // And it is the new task that asks from now on.
    records.set(&[a.listen, b.listen]);
    line(&a, |line| line.detail.contains("2 addresses, this node among them")).await;
}

#[tokio::test]
async fn addresses_of_a_name_that_is_not_looked_up_any_more_are_not_asked() {
    let records = Records::default();
    let b = TestNode::start(options("b"), 1);
    records.set(&[b.listen]);
    let resolved = |name: &str| NodeEvent::Resolved { name: name.to_owned(), outcome: Ok(vec![b.listen]) };
    let late = async |node: &TestNode, name: &str| {
        node.handle.events.send(resolved(name)).await.unwrap();
        // It would have been found by then.
        tokio::time::sleep(Duration::from_millis(100)).await;
        node.subsystem("peer/b").await
    };
    let a = TestNode::start(options("a"), 1);
    assert_eq!(late(&a, "all.weir:7070").await, None);
    let c = TestNode::start(searching("c", &Records::default()), 1);
    assert_eq!(late(&c, "other.weir:7070").await, None);
    // One of that name is heard.
    c.handle.events.send(resolved("all.weir:7070")).await.unwrap();
    c.until_linked("b").await;
}

/// Another address of a node.
async fn way_to(listen: SocketAddr) -> SocketAddr {
    let door = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = door.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut outside, _)) = door.accept().await {
            tokio::spawn(async move {
                let mut inside = TcpStream::connect(listen).await?;
                tokio::io::copy_bidirectional(&mut outside, &mut inside).await
            });
        }
    });
    address
}

#[tokio::test]
async fn a_node_with_two_addresses_is_dialled_at_the_one_that_the_name_still_has() {
    let records = Records::default();
    let b = TestNode::start(options("b"), 1);
    let ways = [b.listen, way_to(b.listen).await];
    records.set(&ways);
    let a = TestNode::start(searching("a", &records), 1);
    a.until_linked("b").await;
    line(&a, |line| line.detail == "all.weir:7070: 2 addresses; peers: b").await;
    let peer = a.subsystem("peer/b").await.unwrap();
    let (dialled, other) = match ways.map(|way| way.to_string()) {
        [one, other] if peer.detail.contains(&one) => (one, other),
        [one, other] => (other, one),
    };
    assert!(peer.detail.contains(&dialled), "{}", peer.detail);
    let left = ways.into_iter().filter(|way| way.to_string() == other).collect::<Vec<_>>();
    records.set(&left);
    b.end.abort();
    a.until("peer/b", |line| line.detail.contains(&other)).await;
}
