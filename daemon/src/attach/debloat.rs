//! Checking what a client wants of debloating for its gate.

use weir_flow::debloat::{DebloatSpec, TARGET_NS_MAX};
use weir_flow::failure::{Failure, FailureCode};
use weir_ipc::attach::message::DebloatOptions;

/// Shortest target that a client may choose, in nanoseconds: 1 ms, as in the configuration.
const TARGET_NS_MIN: u64 = 1_000_000;

/// What gates do whose client does not say: `debloat.*` of the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DebloatDefaults {
    /// Whether they are debloated.
    pub is_on: bool,
    /// To what, those of clients among them that name no numbers.
    pub spec: DebloatSpec,
}

impl DebloatDefaults {
    /// The client's choice where it made one, the node's elsewhere. None: the gate is not debloated.
    ///
    /// # Errors
    /// The first number that is out of its bounds, or a most below the least.
    pub fn chosen(&self, wanted: Option<&DebloatOptions>) -> Result<Option<DebloatSpec>, Failure> {
        let Some(wanted) = wanted else { return Ok(self.is_on.then_some(self.spec)) };
        if !wanted.enabled {
            return Ok(None);
        }
        let target_ns = wanted.target_ns.unwrap_or(self.spec.target_ns);
        if !(TARGET_NS_MIN..=TARGET_NS_MAX).contains(&target_ns) {
            return Err(refused(format!("debloat target is {target_ns} ns; needed: 1 ms to 60 s")));
        }
        let bytes_min = wanted.bytes_min.unwrap_or(self.spec.bytes_min);
        let bytes_max = wanted.bytes_max.unwrap_or(self.spec.bytes_max);
        if bytes_max < bytes_min {
            return Err(refused(format!(
                "debloat bytes_max is {bytes_max}{}; needed: at least bytes_min, which is {bytes_min}{}",
                whose(wanted.bytes_max),
                whose(wanted.bytes_min)
            )));
        }
        Ok(Some(DebloatSpec { target_ns, bytes_min, bytes_max }))
    }
}

/// Where a number comes from that the client need not know.
fn whose(chosen: Option<u64>) -> &'static str {
    if chosen.is_some() { "" } else { " (the daemon's setting)" }
}

fn refused(text: String) -> Failure {
    Failure::new(FailureCode::Protocol, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: DebloatDefaults = DebloatDefaults {
        is_on: false,
        spec: DebloatSpec { target_ns: 1_000_000_000, bytes_min: 1_000, bytes_max: u64::MAX },
    };

    fn on() -> DebloatOptions {
        DebloatOptions { enabled: true, ..DebloatOptions::default() }
    }

    #[test]
    fn who_says_nothing_gets_what_the_node_does() {
        assert_eq!(NODE.chosen(None).unwrap(), None);
        assert_eq!(DebloatDefaults { is_on: true, ..NODE }.chosen(None).unwrap(), Some(NODE.spec));
    }

    #[test]
    fn a_client_switches_its_own_gate_on_and_off() {
        let off = DebloatOptions { target_ns: Some(0), ..DebloatOptions::default() };
        assert_eq!(DebloatDefaults { is_on: true, ..NODE }.chosen(Some(&off)).unwrap(), None);
        assert_eq!(NODE.chosen(Some(&on())).unwrap(), Some(NODE.spec));
        let own = DebloatOptions {
            target_ns: Some(50_000_000),
            bytes_min: Some(0),
            bytes_max: Some(1 << 20),
            ..on()
        };
        let needed = DebloatSpec { target_ns: 50_000_000, bytes_min: 0, bytes_max: 1 << 20 };
        assert_eq!(NODE.chosen(Some(&own)).unwrap(), Some(needed));
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_is_needed() {
        let text = |options: DebloatOptions| NODE.chosen(Some(&options)).unwrap_err().text;
        for target_ns in [0, 999_999, 60_000_000_001, u64::MAX] {
            let told = text(DebloatOptions { target_ns: Some(target_ns), ..on() });
            assert_eq!(told, format!("debloat target is {target_ns} ns; needed: 1 ms to 60 s"));
        }
        assert_eq!(
            text(DebloatOptions { bytes_max: Some(999), ..on() }),
            "debloat bytes_max is 999; needed: at least bytes_min, which is 1000 (the daemon's setting)"
        );
        assert_eq!(
            text(DebloatOptions { bytes_min: Some(2), bytes_max: Some(1), ..on() }),
            "debloat bytes_max is 1; needed: at least bytes_min, which is 2"
        );
    }
}
