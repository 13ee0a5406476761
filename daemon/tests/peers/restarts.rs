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

/// While the earlier life counts as linked nobody can tell the next one from another node of the name. When it is gone, the
/// next one is the node.
#[test]
fn a_peer_that_is_started_anew_with_its_clock_set_back_is_the_node_once_the_old_one_is_gone() {
    let scene = Scene::start("", &[]);
    let mut first = Persona::new("evil");
    let mut old_data = first.dial_data(&scene.at_a, 0);
    let old_control = first.dial_control(&scene.at_a);
    let mut bystander = Persona::new("bystander").dial_data(&scene.at_a, 0);
    eventually("it is linked", || is_linked(&scene.a, "evil").then_some(()));
    let mut second = Persona { epoch: first.epoch / 2, ..Persona::new("evil") };
    let told = second.dial_control(&scene.at_a).until_end().unwrap_or_default();
    let (was, is) = (first.epoch.to_string(), second.epoch.to_string());
    for word in ["needed: a name of its own", "its clock was set back", &was, &is] {
        assert!(told.contains(word), "{word:?} is missing in {told:?}");
    }
    assert!(!old_data.has_ended() && is_linked(&scene.a, "evil"));
    drop(old_control);
    logged(&scene.a, &["the control link to a peer has ended", "evil"]);
    let new_control = second.dial_control(&scene.at_a);
    old_data.until_end();
    logged(&scene.a, &["data link closed", "evil", "started anew"]);
    logged(&scene.a, &["its clock was set back", &was, &is]);
    let mut new_data = second.dial_data(&scene.at_a, 0);
    eventually("the new life has its data link", || {
        let entry = subsystem(&scene.a, "peer/evil")?;
        entry["detail"].as_str()?.contains("1 data links").then_some(())
    });
    assert!(!new_data.has_ended() && !bystander.has_ended() && is_linked(&scene.a, "evil"));
    drop((new_control, new_data, bystander));
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
    eventually("each has one link", || (proxy.living(Kind::Control) == PEERS).then_some(()));
}

/// Three real daemons. The one that was started first is pushed out once, as a node that was started anew would be; from
/// then on it disturbs nobody, and says what is wrong.
#[test]
fn of_two_daemons_with_one_name_the_later_one_is_linked_and_the_other_is_told_why() {
    let directories = [(); 2].map(|()| TempDir::new().expect("a directory"));
    let (at_hub, addresses) = (free_address(), [free_address(), free_address()]);
    let extra: &[&str] = &["--shards", "1"];
    std::fs::write(directories[0].path().join("hub.toml"), "[log]\nlevel = 'debug'\n").expect("a file");
    let hub =
        Daemon::start(directories[0].path(), &DaemonOptions { extra, ..DaemonOptions::new("hub", &at_hub) });
    let start = |number: usize| {
        let peers: &[(&str, &str)] = &[("hub", &at_hub)];
        let options = DaemonOptions { peers, extra, ..DaemonOptions::new("n", &addresses[number]) };
        Daemon::start(directories[number].path(), &options)
    };
    let first = start(0);
    let disturbed = Healthy::start(&hub, &first, "first");
    let mut second = start(1);
    for output in disturbed.failed() {
        assert_failed(&output, &["link lost", "started anew"]);
    }
    let healthy = Healthy::start(&hub, &second, "second");
    let why = "another node n, which was started later, is linked with hub; needed: a name of its own";
    shown(&first, "peer/hub", why);
    let linked = || hub.printed().matches("linked with a peer").count();
    let before = linked();
    let refused = || hub.printed().matches("a control link is not needed").count();
    let begin = refused();
    eventually("the first has tried again and again", || (refused() > begin + 3).then_some(()));
    healthy.flows_on(&second);
    assert_eq!(linked(), before, "no link was made anew");
    // However often it tries, it is told and said once.
    assert_eq!(hub.printed().matches("two daemons use this name").count(), 1);
    let of_why = |line: &&str| line.contains("WARN") && line.contains(why);
    let printed = first.printed();
    assert_eq!(printed.lines().filter(of_why).count(), 1, "{printed}");
    assert_eq!(printed.matches("linked with a peer").count(), 1, "a link that is refused is none: {printed}");
    assert!(is_linked(&second, "hub") && !is_linked(&first, "hub"));
    // A data link of an earlier life, which a daemon that is not linked has nobody to dial for.
    let mut earlier = Persona { epoch: 1, ..Persona::new("n") };
    let told = earlier.dial_data(&at_hub, 0).until_end().unwrap_or_default();
    assert!(told.contains("a later node of this name is linked"), "{told:?}");
    healthy.finish();
    // When the later one is gone there is one node of that name.
    assert_eq!(second.terminate(), Some(0));
    eventually("the first is linked", || is_linked(&first, "hub").then_some(()));
    Healthy::start(&hub, &first, "third").finish();
}
