//! How a node stops.

use super::*;

#[tokio::test]
async fn a_drained_node_tells_everybody_and_ends() {
    let b = TestNode::start(options("b"), 1);
    let mut a = TestNode::start(NodeOptions { peers: vec![peer_at("b", b.listen)], ..options("a") }, 2);
    a.until_linked("b").await;
    let mut client = a.client().await;
    assert!(matches!(a.shards[0].next().await, ToShard::AddAttachment { .. }));
    a.handle.drain().await;
    for shard in &mut a.shards {
        assert!(matches!(shard.next().await, ToShard::Drain));
    }
    assert_eq!(a.subsystem("node").await.unwrap().state, Health::Degraded);
    let path = a.attach_socket();
    // Whether it says Hello or not.
    for says_hello in [false, true] {
        let path = path.clone();
        let late = tokio::task::spawn_blocking(move || {
            let late = socket::connect(&path).expect("somebody answers");
            if says_hello {
                let hello = Request { id: 1, body: hello() };
                let sent = socket::send_request(&late, &hello);
                assert!(matches!(sent, Ok(()) | Err(AttachError::Closed)), "{sent:?}");
            }
            // "Reset" may come first, if the Hello was not read.
            socket::receive_response(&late).or_else(|_| socket::receive_response(&late))
        });
        let (response, _) = patiently("the reason", late).await.unwrap().expect("a reason");
        let (code, text) = ("daemon_stopping".to_owned(), "the daemon is stopping".to_owned());
        assert_eq!(response.body, ResponseBody::Detached { code, text }, "a client got in while draining");
    }
    a.to_node.send(ToNode::Drained { shard: 0 }).unwrap();
    assert_eq!(
        a.subsystem("node").await.unwrap().state,
        Health::Degraded,
        "ended before all shards were drained"
    );
    a.to_node.send(ToNode::Drained { shard: 1 }).unwrap();
    assert_eq!(patiently("the end", &mut a.end).await.unwrap(), NodeEnd::Drained);
    let needed = ("daemon_stopping".to_owned(), "the daemon is stopping".to_owned());
    assert_eq!(client.last_word().await, needed);
    assert!(matches!(a.shards[0].next().await, ToShard::DropAttachment { .. }));
    for shard in &mut a.shards {
        assert!(matches!(shard.next().await, ToShard::Stop));
    }
    assert!(!a.attach_socket().exists());
    // The peer dialled by nobody any more is forgotten.
    let gone = async {
        while b.subsystem("peer/a").await.is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    patiently("the end of the link", gone).await;
}

#[tokio::test]
async fn a_node_whose_sockets_were_removed_says_so_and_leaves_those_of_another_alone() {
    let mut a = TestNode::start(options("a"), 1);
    assert_eq!(a.subsystem("node").await.unwrap().state, Health::Ok);
    let socket = a.attach_socket();
    std::fs::remove_file(&socket).unwrap();
    let _others = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let line = a.subsystem("node").await.unwrap();
    assert_eq!(line.state, Health::Degraded);
    assert!(format!("{line:?}").contains(&socket.display().to_string()), "{line:?}");
    a.handle.drain().await;
    assert!(matches!(a.shards[0].next().await, ToShard::Drain));
    a.to_node.send(ToNode::Drained { shard: 0 }).unwrap();
    assert_eq!(patiently("the end", a.end).await.unwrap(), NodeEnd::Drained);
    assert!(socket.exists());
}

#[tokio::test]
async fn a_drain_that_takes_too_long_ends_anyway() {
    let a = TestNode::start(NodeOptions { drain_timeout: Duration::from_millis(20), ..options("a") }, 1);
    a.handle.drain().await;
    assert_eq!(patiently("the end", a.end).await.unwrap(), NodeEnd::DrainTimeout);
}

/// Time goes on only while nobody has anything to do, so what passes here was waited for.
#[tokio::test(start_paused = true)]
async fn a_node_that_has_nobody_to_tell_does_not_wait() {
    let mut a = TestNode::start(options("a"), 1);
    a.handle.drain().await;
    assert!(matches!(a.shards[0].next().await, ToShard::Drain));
    a.to_node.send(ToNode::Drained { shard: 0 }).unwrap();
    let began = tokio::time::Instant::now();
    assert_eq!(patiently("the end", a.end).await.unwrap(), NodeEnd::Drained);
    assert!(began.elapsed() < drain::FAREWELL_TIMEOUT, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_shard_that_fails_ends_the_node() {
    let a = TestNode::start(options("a"), 1);
    a.to_node.send(ToNode::ShardFailed { shard: 0, text: "no ring".to_owned() }).unwrap();
    let end = NodeEnd::ShardFailed { shard: 0, text: "no ring".to_owned() };
    assert_eq!(patiently("the end", a.end).await.unwrap(), end);
}

#[tokio::test]
async fn a_second_node_on_a_run_directory_is_refused_and_the_next_one_is_not() {
    let a = TestNode::start(options("a"), 1);
    let second = |dir: &Path| {
        let (sender, _inbox) = mailbox(0).unwrap();
        let (_, from_shards) = mpsc::unbounded_channel();
        Node::start(options("a"), dir, vec![sender], from_shards).map(|_| ())
    };
    let error = second(a.dir.path()).unwrap_err();
    assert!(error.to_string().contains(&format!("pid {}", std::process::id())), "{error}");
    a.to_node.send(ToNode::ShardFailed { shard: 0, text: String::new() }).unwrap();
    patiently("the end", a.end).await.unwrap();
    second(a.dir.path()).unwrap();
}

#[tokio::test]
async fn what_an_operator_must_put_right_first_is_said_at_start() {
    let start = |options: NodeOptions, shards: Vec<ShardSender>| {
        let dir = tempfile::tempdir().unwrap();
        let (_, from_shards) = mpsc::unbounded_channel();
        Node::start(options, dir.path(), shards, from_shards).map(|_| ()).unwrap_err()
    };
    let one = || vec![mailbox(0).unwrap().0];
    assert!(matches!(start(options("a"), Vec::new()), StartError::Shards { found: 0 }));
    let listen: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let error = start(NodeOptions { listen, key: None, ..options("a") }, one());
    assert!(matches!(error, StartError::Listen(_)), "{error}");
    let error = start(NodeOptions { peers: vec![peer_at("a", listen)], ..options("a") }, one());
    assert!(matches!(error, StartError::OwnPeer { .. }), "{error}");
    let link = LinkOptions { congestion: Some("nonesuch".to_owned()), ..LinkOptions::default() };
    let error = start(NodeOptions { link, ..options("a") }, one());
    assert!(matches!(error, StartError::Link(_)), "{error}");
}
