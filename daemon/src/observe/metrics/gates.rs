//! Input gates as samples: what is in flight to them, and what they want there.

use super::registry::{self, Metric};
use super::text::{Exposition, Value};
use crate::control::gates::GateRow;

/// A value of a gate; none if it is not known.
type GateColumn = (&'static Metric, fn(&GateRow) -> Option<Value>);

const GATE_COLUMNS: [GateColumn; 9] = [
    (&registry::GATE_IN_FLIGHT, |gate| Some(gate.in_flight_bytes.into())),
    (&registry::GATE_CONSUMED, |gate| Some(gate.consumed_bytes_total.into())),
    (&registry::GATE_IN_FLIGHT_TIME, |gate| gate.in_flight_seconds().map(Value::from)),
    (&registry::GATE_TARGET, |gate| Some(gate.debloat?.target_seconds.into())),
    (&registry::GATE_WANTED, |gate| gate.debloat?.wanted_bytes.map(Value::from)),
    (&registry::GATE_WINDOW, |gate| gate.debloat?.window_segments.map(|it| u64::from(it).into())),
    (&registry::GATE_BUFFER, |gate| gate.debloat?.buffer_bytes.map(|it| u64::from(it).into())),
    (&registry::GATE_CHANGES, |gate| Some(gate.debloat?.changes_total.into())),
    (&registry::GATE_TURNS, |gate| Some(gate.debloat?.turns_total.into())),
];

/// Writes the gates of this node.
pub(super) fn write(text: &mut Exposition, gates: &[GateRow]) {
    for (metric, value) in GATE_COLUMNS {
        let mut family = text.family(metric);
        for gate in gates {
            if let Some(value) = value(gate) {
                family.sample(&[&gate.exchange, &gate.consumer.to_string()], value);
            }
        }
    }
}
