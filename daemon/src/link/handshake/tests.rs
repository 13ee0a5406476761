use std::net::SocketAddr;

use tokio::net::TcpListener;

use super::*;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn identity(node: &str) -> Identity {
    Identity {
        node: name(node),
        epoch: 7,
        segment_bytes: 32 * 1024 + RECORD_ROOM_BYTES,
        record_bytes_max: 1 << 20,
        grace: Duration::from_secs(10),
        shards: 2,
        listen_port: 7070,
        key: Arc::from([1_u8; 32]),
    }
}

const DATA: Purpose =
    Purpose { kind: LinkKind::Data, local_shard: 5, peer_shard: 1, link: 0x1234_5678_9abc_def0, resumes: 0 };

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let (dialled, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    (dialled.unwrap(), accepted.unwrap().0)
}

type Outcome = Result<(TcpStream, Peer), HandshakeError>;

async fn meet(dialler: Identity, acceptor: Identity, purpose: Purpose, expected: &str) -> (Outcome, Outcome) {
    let (dialled, accepted) = pair().await;
    let expected = name(expected);
    tokio::join!(dial(dialled, &dialler, purpose, &expected), accept(accepted, &acceptor))
}

fn text(outcome: Outcome) -> String {
    outcome.unwrap_err().to_string()
}

#[tokio::test]
async fn both_ends_learn_who_the_other_is_and_take_no_byte_too_many() {
    let (own, others) = (Duration::from_millis(1500), Duration::from_secs(10));
    let (dialled, accepted) =
        meet(Identity { epoch: 3, listen_port: 1, grace: own, ..identity("a") }, identity("b"), DATA, "b")
            .await;
    let (mut at_a, b) = dialled.unwrap();
    let (mut at_b, a) = accepted.unwrap();
    assert_eq!(b, Peer { node: name("b"), epoch: 7, listen_port: 7070, grace: others, purpose: DATA });
    let mirrored = Purpose { local_shard: 1, peer_shard: 5, ..DATA };
    assert_eq!(a, Peer { node: name("a"), epoch: 3, listen_port: 1, grace: own, purpose: mirrored });
    at_a.write_all(b"first").await.unwrap();
    let mut first = [0_u8; 5];
    at_b.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"first");
}

#[tokio::test]
async fn a_grace_is_told_in_milliseconds_and_one_that_is_short_or_long_does_not_become_none() {
    for (own, told) in [
        (Duration::ZERO, Duration::ZERO),
        (Duration::from_nanos(1), Duration::from_millis(1)),
        (Duration::from_micros(1001), Duration::from_millis(2)),
        (Duration::from_secs(7200), Duration::from_secs(7200)),
        (Duration::MAX, Duration::from_millis(u32::MAX.into())),
    ] {
        let (dialled, accepted) = meet(
            Identity { grace: own, ..identity("a") },
            Identity { grace: own, ..identity("b") },
            DATA,
            "b",
        )
        .await;
        assert_eq!((dialled.unwrap().1.grace, accepted.unwrap().1.grace), (told, told));
    }
}

#[tokio::test]
async fn without_a_key_on_both_ends_the_handshake_succeeds() {
    let bare = |node| Identity { key: Arc::from([]), ..identity(node) };
    let (dialled, accepted) = meet(bare("a"), bare("b"), Purpose::CONTROL, "b").await;
    dialled.unwrap();
    accepted.unwrap();
}

#[tokio::test]
async fn a_wrong_key_is_told_to_both_ends() {
    for key in [Arc::from([2_u8; 32]), Arc::from([])] {
        let (dialled, accepted) =
            meet(Identity { key, ..identity("a") }, identity("b"), Purpose::CONTROL, "b").await;
        assert!(matches!(dialled, Err(HandshakeError::Key)), "{dialled:?}");
        assert!(matches!(&accepted, Err(HandshakeError::Refused(_))), "{accepted:?}");
        assert!(text(accepted).contains("cluster key differs"));
    }
}

#[tokio::test]
async fn a_wrong_name_is_told_to_both_ends() {
    let (dialled, accepted) = meet(identity("a"), identity("b"), Purpose::CONTROL, "c").await;
    let needed = "node name is b; needed: c, as peers configures it for this address";
    assert_eq!(text(dialled), needed);
    assert!(text(accepted).contains(needed));
    let itself = || Identity { epoch: 7, ..identity("a") };
    let (dialled, accepted) = meet(itself(), itself(), Purpose::CONTROL, "a").await;
    assert!(matches!(accepted, Err(HandshakeError::Itself)), "{accepted:?}");
    assert!(text(dialled).contains(ITSELF));
    let other = Identity { epoch: 8, ..identity("a") };
    let (dialled, accepted) = meet(itself(), other, Purpose::CONTROL, "a").await;
    assert!(matches!(accepted, Err(HandshakeError::OwnName { .. })), "{accepted:?}");
    assert!(text(dialled).contains("node name a is that of both nodes"));
}

#[tokio::test]
async fn a_wrong_segment_size_is_told_to_both_ends() {
    let (dialled, accepted) = meet(
        Identity { segment_bytes: 65536 + RECORD_ROOM_BYTES, ..identity("a") },
        identity("b"),
        Purpose::CONTROL,
        "b",
    )
    .await;
    let needed = "memory.segment_bytes of the peer is 65536; needed: 32768, equal on all nodes";
    assert_eq!(text(accepted), needed);
    assert!(text(dialled).contains(needed));
}

/// In either direction: the acceptor sees it first, whoever has the smaller one.
#[tokio::test]
async fn another_bound_on_records_is_told_to_both_ends() {
    for (at_a, at_b) in [(100, 1 << 20), (1 << 20, 100)] {
        let a = Identity { record_bytes_max: at_a, ..identity("a") };
        let b = Identity { record_bytes_max: at_b, ..identity("b") };
        let (dialled, accepted) = meet(a, b, Purpose::CONTROL, "b").await;
        let needed = format!("record.bytes_max of the peer is {at_a}; needed: {at_b}, equal on all nodes");
        assert_eq!(text(accepted), needed);
        assert_eq!(text(dialled), format!("refused by the peer: {needed}"));
    }
}

#[tokio::test]
async fn a_shard_that_is_not_there_is_told_to_both_ends() {
    let (dialled, accepted) =
        meet(identity("a"), identity("b"), Purpose { peer_shard: 2, ..DATA }, "b").await;
    assert_eq!(text(accepted), "shard 2 asked for; needed: below 2");
    assert!(text(dialled).contains("shard 2 asked for"));
}

#[tokio::test]
async fn a_data_link_without_a_name_and_a_control_link_with_one_are_refused() {
    for purpose in [
        Purpose { link: 0, ..DATA },
        Purpose { link: 1, ..Purpose::CONTROL },
        Purpose { resumes: 1, ..Purpose::CONTROL },
    ] {
        let (dialled, accepted) = meet(identity("a"), identity("b"), purpose, "b").await;
        assert_eq!(text(accepted), "link does not fit the handshake; needed: the expected one");
        assert!(matches!(dialled, Err(HandshakeError::Refused(_))), "{dialled:?}");
    }
}

/// An acceptor that answers for another connection than the one that was asked for.
#[tokio::test]
async fn an_answer_for_another_connection_of_a_link_is_refused() {
    for change in [Purpose { link: 9, ..DATA }, Purpose { resumes: 9, ..DATA }] {
        let (dialled, mut accepted) = pair().await;
        let (a, expected) = (identity("a"), name("b"));
        let (dialled, ()) = tokio::join!(dial(dialled, &a, DATA, &expected), async {
            let Message::Hello { hello, .. } = read_message(&mut accepted, &mut 0).await.unwrap() else {
                panic!("no Hello");
            };
            let mut ack = own_hello(&identity("b"), Role::Acceptor, change.mirrored()).unwrap();
            ack.mac = code(&a, &hello, &ack, Role::Acceptor).unwrap().finalize().into_bytes().into();
            write_message(&mut accepted, &Message::HelloAck { hello: ack }).await.unwrap();
            drop(accepted);
        });
        assert!(matches!(dialled, Err(HandshakeError::Inconsistent { .. })), "{dialled:?}");
    }
}

#[tokio::test]
async fn a_dialler_that_goes_on_with_a_link_waits_for_the_acceptors_first_frame_and_leaves_it_there() {
    let (dialled, accepted) = pair().await;
    let (a, b, expected) = (identity("a"), identity("b"), name("b"));
    let next = Purpose { resumes: 3, ..DATA };
    let dialling = tokio::spawn(async move { dial(dialled, &a, next, &expected).await });
    let (mut at_b, from_a) = accept(accepted, &b).await.unwrap();
    assert_eq!(from_a.purpose, next.mirrored());
    let mut first = Vec::new();
    encode(&Message::LinkResume { control_received: 5 }, &mut first);
    // In pieces, of which the first is no whole header.
    at_b.write_all(&first[..7]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!dialling.is_finished(), "it must not believe in the link before the acceptor does");
    at_b.write_all(&first[7..]).await.unwrap();
    let (mut at_a, _) = dialling.await.unwrap().unwrap();
    let mut found = vec![0; first.len()];
    at_a.read_exact(&mut found).await.unwrap();
    assert_eq!(found, first);
}

#[tokio::test]
async fn a_dialler_hears_that_its_link_is_over_and_why() {
    let (dialled, accepted) = pair().await;
    let (a, b, expected) = (identity("a"), identity("b"), name("b"));
    let (dialled, ()) = tokio::join!(dial(dialled, &a, Purpose { resumes: 3, ..DATA }, &expected), async {
        let (stream, _) = accept(accepted, &b).await.unwrap();
        say_goodbye(stream, Failure::new(FailureCode::LinkLost, "it was too late")).await;
    });
    let error = dialled.unwrap_err();
    assert!(matches!(&error, HandshakeError::LinkOver(failure) if failure.text == "it was too late"));
    assert_eq!(error.to_string(), "the peer has given the link up: it was too late");
}

#[tokio::test]
async fn an_acceptor_that_only_closes_does_not_end_the_link() {
    let (dialled, accepted) = pair().await;
    let (a, b, expected) = (identity("a"), identity("b"), name("b"));
    let (dialled, ()) = tokio::join!(dial(dialled, &a, Purpose { resumes: 3, ..DATA }, &expected), async {
        drop(accept(accepted, &b).await.unwrap());
    });
    assert!(matches!(dialled, Err(HandshakeError::Closed)), "{dialled:?}");
}

/// Noticed, not waited for: else it would be the time that ends the handshake.
#[tokio::test]
async fn an_acceptor_that_closes_inside_its_first_frame_is_noticed() {
    let mut frame = Vec::new();
    encode(&Message::LinkResume { control_received: 5 }, &mut frame);
    for bytes in 1..HEADER_BYTES {
        let (dialled, accepted) = pair().await;
        let (a, b, expected) = (identity("a"), identity("b"), name("b"));
        let (dialled, ()) =
            tokio::join!(dial(dialled, &a, Purpose { resumes: 3, ..DATA }, &expected), async {
                let (mut stream, _) = accept(accepted, &b).await.unwrap();
                // Together with the end, or long before it.
                stream.write_all(&frame[..bytes]).await.unwrap();
                if bytes % 2 == 0 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
        assert!(matches!(dialled, Err(HandshakeError::Closed)), "{bytes} bytes: {dialled:?}");
    }
}

/// Whatever is in the place of the code is covered by no code.
#[tokio::test]
async fn a_first_hello_with_a_code_is_refused() {
    for at in [0, 13, 31] {
        let (mut dialled, accepted) = pair().await;
        let identity_b = identity("b");
        let (accepted, goodbye) = tokio::join!(accept(accepted, &identity_b), async {
            let mut hello = own_hello(&identity("a"), Role::Dialler, Purpose::CONTROL).unwrap();
            hello.mac[at] = 1;
            write_message(&mut dialled, &Message::Hello { hello, confirm: false }).await.unwrap();
            let goodbye = read_goodbye(&mut dialled).await;
            drop(dialled);
            goodbye
        });
        let field = "code of the first Hello";
        assert!(
            matches!(accepted, Err(HandshakeError::Inconsistent { field: found }) if found == field),
            "{accepted:?}"
        );
        assert!(goodbye.contains(field), "{goodbye}");
    }
}

/// The first message of a dialler with this version; only the version's place is fixed for all versions.
fn hello_of_version(version: u16) -> Vec<u8> {
    let hello = own_hello(&identity("a"), Role::Dialler, Purpose::CONTROL).unwrap();
    let mut bytes = Vec::new();
    encode(&Message::Hello { hello: Hello { version, ..hello }, confirm: false }, &mut bytes);
    bytes
}

/// What the other end says before it closes. A test must fail, not hang, when it says nothing.
async fn read_goodbye(stream: &mut TcpStream) -> String {
    let said = async {
        loop {
            match read_message(stream, &mut 0).await {
                Ok(Message::Goodbye { failure }) => return failure.text,
                Ok(_) => {}
                Err(error) => panic!("no Goodbye but {error}"),
            }
        }
    };
    tokio::time::timeout(HANDSHAKE_TIMEOUT * 2, said).await.expect("a Goodbye")
}

#[tokio::test]
async fn a_wrong_version_is_told_to_both_ends() {
    let (mut dialled, accepted) = pair().await;
    dialled.write_all(&hello_of_version(PROTOCOL_VERSION + 1)).await.unwrap();
    let identity = identity("b");
    let (accepted, goodbye) = tokio::join!(accept(accepted, &identity), async {
        let goodbye = read_goodbye(&mut dialled).await;
        drop(dialled);
        goodbye
    });
    let found = PROTOCOL_VERSION + 1;
    assert!(matches!(accepted, Err(HandshakeError::Version { found: version }) if version == found));
    assert!(
        goodbye.contains(&format!("protocol version is {found}; needed: {PROTOCOL_VERSION}")),
        "{goodbye}"
    );
}

#[tokio::test]
async fn a_replayed_handshake_is_refused() {
    // An honest handshake, recorded by someone in the middle.
    let (dialled, mut middle_a) = pair().await;
    let (mut middle_b, accepted) = pair().await;
    let (a, b, expected) = (identity("a"), identity("b"), name("b"));
    let mut recorded = Vec::new();
    let (dialled, accepted, ()) =
        tokio::join!(dial(dialled, &a, Purpose::CONTROL, &expected), accept(accepted, &b), async {
            for from_a in [true, false, true] {
                let (from, to) =
                    if from_a { (&mut middle_a, &mut middle_b) } else { (&mut middle_b, &mut middle_a) };
                let mut bytes = Vec::new();
                encode(&read_message(from, &mut 0).await.unwrap(), &mut bytes);
                to.write_all(&bytes).await.unwrap();
                if from_a {
                    recorded.extend_from_slice(&bytes);
                }
            }
        });
    dialled.unwrap();
    accepted.unwrap();

    let (mut replayer, accepted) = pair().await;
    replayer.write_all(&recorded).await.unwrap();
    let (accepted, goodbye) = tokio::join!(accept(accepted, &b), async {
        let goodbye = read_goodbye(&mut replayer).await;
        drop(replayer);
        goodbye
    });
    assert!(matches!(accepted, Err(HandshakeError::Key)), "{accepted:?}");
    assert!(goodbye.contains("cluster key differs"), "{goodbye}");
}

#[tokio::test]
async fn a_reflected_code_is_refused() {
    let (mut attacker, accepted) = pair().await;
    let b = identity("b");
    let (accepted, ()) = tokio::join!(accept(accepted, &b), async {
        let hello = own_hello(&identity("a"), Role::Dialler, Purpose::CONTROL).unwrap();
        write_message(&mut attacker, &Message::Hello { hello: hello.clone(), confirm: false }).await.unwrap();
        let Message::HelloAck { hello: ack } = read_message(&mut attacker, &mut 0).await.unwrap() else {
            panic!("no HelloAck");
        };
        // Without the key, the acceptor's own code is all there is to answer with.
        let confirm = Message::Hello { hello: Hello { mac: ack.mac, ..hello }, confirm: true };
        write_message(&mut attacker, &confirm).await.unwrap();
        drop(attacker);
    });
    assert!(matches!(accepted, Err(HandshakeError::Key)), "{accepted:?}");
}

#[tokio::test]
async fn an_acceptor_that_is_reflected_to_itself_is_refused() {
    // The attacker answers the dialler with the dialler's own Hello.
    let (dialled, mut attacker) = pair().await;
    let (a, expected) = (identity("a"), name("b"));
    let (dialled, ()) = tokio::join!(dial(dialled, &a, Purpose::CONTROL, &expected), async {
        let Message::Hello { hello, .. } = read_message(&mut attacker, &mut 0).await.unwrap() else {
            panic!("no Hello");
        };
        let ack = Message::HelloAck { hello: Hello { role: Role::Acceptor, node: name("b"), ..hello } };
        write_message(&mut attacker, &ack).await.unwrap();
        drop(attacker);
    });
    assert!(matches!(dialled, Err(HandshakeError::Key)), "{dialled:?}");
}

#[tokio::test]
async fn a_confirmation_for_another_hello_is_refused() {
    let (mut dialled, accepted) = pair().await;
    let b = identity("b");
    let (accepted, ()) = tokio::join!(accept(accepted, &b), async {
        let hello = own_hello(&identity("a"), Role::Dialler, Purpose::CONTROL).unwrap();
        write_message(&mut dialled, &Message::Hello { hello: hello.clone(), confirm: false }).await.unwrap();
        read_message(&mut dialled, &mut 0).await.unwrap();
        let other = Hello { node: name("c"), ..hello };
        write_message(&mut dialled, &Message::Hello { hello: other, confirm: true }).await.unwrap();
        drop(dialled);
    });
    assert!(matches!(accepted, Err(HandshakeError::Inconsistent { .. })), "{accepted:?}");
}

#[tokio::test]
async fn garbage_and_frames_that_are_no_handshake_are_refused() {
    let mut catalog = Vec::new();
    encode(&Message::Catalog { entries: Vec::new() }, &mut catalog);
    for bytes in [vec![0xA5_u8; 64], catalog, b"GET / HTTP/1.1\r\nHost: weir.example.com\r\n\r\n".to_vec()] {
        let (mut dialled, accepted) = pair().await;
        dialled.write_all(&bytes).await.unwrap();
        let identity = identity("b");
        let (accepted, goodbye) = tokio::join!(accept(accepted, &identity), async {
            let goodbye = read_goodbye(&mut dialled).await;
            drop(dialled);
            goodbye
        });
        assert!(matches!(accepted, Err(HandshakeError::Wire(_))), "{accepted:?}");
        assert!(goodbye.starts_with("no handshake: "), "{goodbye}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_sends_byte_after_byte_is_cut_off_after_five_seconds() {
    let (mut dialled, accepted) = pair().await;
    let begun = tokio::time::Instant::now();
    let identity = identity("b");
    let (accepted, ()) = tokio::join!(accept(accepted, &identity), async {
        for byte in hello_of_version(PROTOCOL_VERSION) {
            tokio::time::sleep(Duration::from_millis(900)).await;
            if dialled.write_all(&[byte]).await.is_err() {
                break;
            }
        }
    });
    assert!(matches!(accepted, Err(HandshakeError::Timeout)), "{accepted:?}");
    assert!(begun.elapsed() >= HANDSHAKE_TIMEOUT);
}

#[tokio::test]
async fn a_peer_that_closes_is_reported() {
    let (dialled, accepted) = pair().await;
    drop(dialled);
    let outcome = accept(accepted, &identity("b")).await;
    assert!(matches!(outcome, Err(HandshakeError::Closed)), "{outcome:?}");
}
