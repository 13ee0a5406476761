//! Both ends of an exchange on one node, against the same exchange between two nodes in the same round.

use crate::cluster::{Cluster, Node};
use crate::pipeline::Layout;
use crate::report::Case;

use super::{Settings, WARM_UP, Window, Workload};

const MEMORY_BYTES: u64 = 1 << 30;
const CHANNELS: u32 = 64;

/// Record lengths, in bytes.
const RECORD_BYTES: [usize; 3] = [32 * 1024, 1024, 64];

/// Each round: for each record length between the nodes, then on one; the next round the other way round.
pub(super) fn run(settings: &Settings) -> Result<Vec<Case>, String> {
    let cluster = Cluster::start(&settings.cluster(MEMORY_BYTES))?;
    let rounds = settings.every_round("local", |round| {
        let mut pairs = Vec::new();
        for record_bytes in RECORD_BYTES {
            let transfer = |to: &Node| transfer(settings, &cluster, to, round, record_bytes);
            pairs.push(if round % 2 == 0 {
                let remote = transfer(cluster.b())?;
                [remote, transfer(cluster.a())?]
            } else {
                let local = transfer(cluster.a())?;
                [transfer(cluster.b())?, local]
            });
        }
        Ok(pairs)
    })?;
    let of = |at: usize| rounds.iter().filter_map(|pairs| pairs.get(at)).collect::<Vec<_>>();
    Ok(RECORD_BYTES.into_iter().enumerate().map(|(at, record_bytes)| case(record_bytes, &of(at))).collect())
}

/// One window from node `a` to `to`.
fn transfer(
    settings: &Settings,
    cluster: &Cluster,
    to: &Node,
    round: u32,
    record_bytes: usize,
) -> Result<Window, String> {
    let exchange = format!("local-{}-{record_bytes}-{round}", to.name);
    let mut stream = Workload::new(exchange, Layout::FanIn(CHANNELS), record_bytes).start(cluster.a(), to)?;
    std::thread::sleep(WARM_UP);
    let window = stream.watch(cluster, settings.window)?;
    stream.end()?;
    Ok(window)
}

fn case(record_bytes: usize, pairs: &[&[Window; 2]]) -> Case {
    let mut case = Case::new(format!("local: {CHANNELS} channels on one node, records of {record_bytes} B"));
    let local = || pairs.iter().map(|[_, local]| local);
    case.figure("gigabytes_per_second", local().map(Window::gigabytes_per_second));
    case.figure("records_per_second", local().map(Window::records_per_second));
    case.figure("cpu_seconds_per_gigabyte", local().map(Window::cpu_seconds_per_gigabyte));
    let ratio = |of: fn(&Window) -> f64| pairs.iter().map(move |[remote, local]| of(local) / of(remote));
    case.figure("gigabytes_per_second_over_two_nodes", ratio(Window::gigabytes_per_second));
    case.figure("cpu_per_gigabyte_over_two_nodes", ratio(Window::cpu_seconds_per_gigabyte));
    case.figure("foreign_cores", local().map(|window| window.foreign_cores));
    case
}
