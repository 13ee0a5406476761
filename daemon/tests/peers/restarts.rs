//! Nodes that are started anew, and how their peers find them again.

use super::*;
use crate::peer::Persona;
use crate::proxy::{Cut, Kind, Proxy};

#[test]
fn a_restarted_peer_is_told_by_its_epoch_and_its_old_links_end() {
    let scene = Scene::start("", &[]);
    let mut first = Persona::new("evil");
    let mut old = [first.dial_data(&scene.at_a, 0), first.dial_control(&scene.at_a)];
    let mut bystander = Persona::new("bystander").dial_data(&scene.at_a, 0);
    eventually("it is linked", || is_linked(&scene.a, "evil").then_some(()));
    let mut second = Persona { epoch: first.epoch + 1, ..first.clone() };
    let new = second.dial_control(&scene.at_a);
    for line in &mut old {
        line.until_end();
    }
    logged(&scene.a, &["data link closed", "evil", "started anew"]);
    assert!(!bystander.has_ended());
    assert!(is_linked(&scene.a, "evil"));
    drop((new, bystander));
    scene.end();
}

#[test]
fn peers_of_a_hub_that_is_away_dial_again_with_pauses_and_all_come_back() {
    const PEERS: usize = 8;
    let directory = TempDir::new().expect("a directory");
    let address = free_address();
    let extra: &[&str] = &["--shards", "1"];
    let start_hub =
        || Daemon::start(directory.path(), &DaemonOptions { extra, ..DaemonOptions::new("hub", &address) });
    let mut hub = start_hub();
    let proxy = Proxy::start(&address);
    let between = proxy.address();
    let names: Vec<String> = (0..PEERS).map(|number| format!("n{number}")).collect();
    let peers: Vec<Daemon> = names
        .iter()
        .map(|name| {
            let address = free_address();
            let options =
                DaemonOptions { peers: &[("hub", &between)], extra, ..DaemonOptions::new(name, &address) };
            Daemon::start(directory.path(), &options)
        })
        .collect();
    let all_linked = |hub: &Daemon| {
        eventually("all are linked", || {
            let at_hub = names.iter().all(|name| is_linked(hub, name));
            (at_hub && peers.iter().all(|peer| is_linked(peer, "hub"))).then_some(())
        });
    };
    all_linked(&hub);
    for peer in &peers {
        shown(peer, "peer/hub", "data link");
    }
    hub.kill();
    proxy.refuse(true);
    proxy.cut(Kind::Control, Cut::Reset);
    // Each draws from 0 to 20, 40, 80, ... 1000 ms: on average eight times in 2 s, and never without a pause.
    eventually("each has dialled some times", || (proxy.refused() >= 4 * PEERS).then_some(()));
    let (before, began) = (proxy.refused(), std::time::Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let (tries, seconds) = (proxy.refused() - before, began.elapsed().as_secs_f64());
    assert!((tries as f64) < PEERS as f64 * 25.0 * seconds, "{tries} tries in {seconds} s");
    hub = start_hub();
    proxy.refuse(false);
    all_linked(&hub);
    // And none is dialled any more.
    assert_eq!(proxy.living(Kind::Control), PEERS);
}
