//! Peers that are found by a name, with a resolver that the test has.

use std::sync::Mutex;

use super::*;
use crate::link::resolve::Lookup;

/// What the name means at the moment.
#[derive(Clone, Default)]
struct Records(Arc<Mutex<Vec<SocketAddr>>>);

impl Records {
    fn set(&self, addresses: &[SocketAddr]) {
        *self.0.lock().unwrap() = addresses.to_vec();
    }

    fn lookup(&self) -> Lookup {
        let records = self.clone();
        Lookup::by("all.weir:7070".to_owned(), Duration::from_millis(20), move |asked| {
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
    let records = Records::default();
    let b = TestNode::start(options("b"), 1);
    records.set(&[b.listen]);
    let peers = vec![peer_at("b", b.listen)];
    let a = TestNode::start(NodeOptions { peers, ..searching("a", &records) }, 1);
    a.until_linked("b").await;
    let line = line(&a, |line| line.detail.ends_with("peers: b")).await;
    assert_eq!(line.detail, "all.weir:7070: 1 addresses; peers: b");
    records.set(&[a.listen]);
    self::line(&a, |line| line.detail.contains("this node among them")).await;
    b.end.abort();
    a.until("peer/b", |line| line.state == Health::Degraded).await;
}
