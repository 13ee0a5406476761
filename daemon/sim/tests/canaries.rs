//! Defects put in on purpose: if one of them is not reported, the simulator does not look where it says it does.

use weir_sim::{Options, STEPS, Sabotage, run};

/// Runs seeds until the defect was put in this often. How often it was reported, and the first report.
fn reports(sabotage: Sabotage, wanted: u32) -> (u32, u32, String) {
    let (mut put_in, mut reported, mut first) = (0, 0, String::new());
    for seed in 0..1_000 {
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
        if put_in == wanted {
            break;
        }
    }
    (put_in, reported, first)
}

#[test]
fn every_defect_is_reported() {
    for sabotage in Sabotage::ALL {
        let (put_in, reported, first) = reports(sabotage, 20);
        println!("{sabotage:?}: reported in {reported} of {put_in} runs, first: {first}");
        assert_eq!(put_in, 20, "{sabotage:?} could not be put in often enough");
        // In some runs it hits what nobody reads any more: a channel that fails, a consumer that dies.
        assert!(reported >= 14, "{sabotage:?} was reported in {reported} of {put_in} runs only");
    }
}
