//! Defects put in on purpose: if one of them is not reported, the simulator does not look where it says it does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use weir_flow::exchange::Strategy;
use weir_sim::plan::{Plan, Timing};
use weir_sim::rng::Rng;
use weir_sim::{Options, STEPS, Sabotage, run};

/// Runs in which a defect is put in.
const fn runs(sabotage: Sabotage) -> u32 {
    match sabotage {
        // It needs plans that are rare.
        Sabotage::ForgetClosed => 6,
        _ => 12,
    }
}

/// Whether a defect can be put into the run of a seed, and must show there.
fn is_fit(seed: u64, sabotage: Sabotage) -> bool {
    let plan = Plan::draw(&mut Rng::new(seed), STEPS);
    let breaks = !plan.faults.links_cut.is_empty() && plan.limits.link_grace_ns > 0;
    let mut consumers = plan.exchanges.iter().flat_map(|exchange| &exchange.consumers);
    match sabotage {
        // With more than one segment for a channel, one that stays open does no harm.
        Sabotage::ForgetClosed => {
            let one = plan.limits.exclusive == 1 && plan.limits.floating == 0;
            one && consumers.all(|consumer| consumer.spare_segments == 0)
        }
        Sabotage::FreeUnacked => true,
        Sabotage::FreeShared => plan
            .exchanges
            .iter()
            .any(|exchange| exchange.shape.strategy == Strategy::Broadcast && exchange.shape.consumers > 1),
        // Records enough that it matters who gets them.
        Sabotage::NeverBack | Sabotage::IgnoreCredit => plan
            .exchanges
            .iter()
            .flat_map(|exchange| &exchange.producers)
            .any(|producer| producer.adaptive && producer.records > 20),
        Sabotage::MoveKey => plan
            .exchanges
            .iter()
            .any(|exchange| exchange.shape.strategy == Strategy::Hash && exchange.shape.consumers > 1),
        Sabotage::ReadOldSocket => breaks,
        rule if Sabotage::RULES.contains(&rule) => breaks,
        // A link that is interrupted lets a receiver tell again what it granted.
        rule if Sabotage::DEBLOAT.contains(&rule) => {
            let is_calm = plan.timing == Timing::Calm && plan.faults.drain.is_none();
            is_calm && consumers.any(|consumer| consumer.debloat.is_some())
        }
        _ => true,
    }
}

/// Runs seeds until the defect was put in this often. How often it was reported, and the first report.
fn reports(sabotage: Sabotage) -> (u32, u32, String) {
    let (mut put_in, mut reported, mut first) = (0, 0, String::new());
    for seed in (0..2_000).filter(|seed| is_fit(*seed, sabotage)) {
        let report = run(Options { seed, steps: STEPS, trace: false, sabotage });
        if !report.sabotaged {
            assert_eq!(report.finding, None, "nothing was put in");
            continue;
        }
        put_in += 1;
        if let Some(finding) = report.finding {
            reported += 1;
            if first.is_empty() {
                first = finding.text;
            }
        }
        if put_in == runs(sabotage) {
            break;
        }
    }
    (put_in, reported, first)
}

#[test]
fn every_defect_is_reported() {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(sabotage) = Sabotage::ALL.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
            let (put_in, reported, first) = reports(sabotage);
            println!("{sabotage:?}: reported in {reported} of {put_in} runs, first: {first}");
            assert_eq!(put_in, runs(sabotage), "{sabotage:?} could not be put in often enough");
            // In some runs it hits what nobody reads any more: a channel that fails, a consumer that dies.
            assert!(2 * reported >= put_in, "{sabotage:?} was reported in {reported} of {put_in} runs only");
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for thread in running {
            thread.join().expect("each defect is reported");
        }
    });
}
