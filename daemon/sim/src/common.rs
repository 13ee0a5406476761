//! What every actor of a run shares.

use std::collections::BTreeMap;

use weir_flow::ids::Time;
use weir_flow::wire::OpenChannel;

use crate::coverage::Coverage;
use crate::faults::Sabotage;
use crate::model::{ChannelKey, Model};
use crate::rng::Rng;
use crate::trace::Trace;

/// Chance, time, model, coverage and trace of one run.
#[derive(Debug)]
pub struct Common {
    /// The run's chance.
    pub rng: Rng,
    /// What must happen.
    pub model: Model,
    /// What did happen that is rare.
    pub coverage: Coverage,
    /// For a person.
    pub trace: Trace,
    /// The virtual clock.
    pub now: Time,
    /// The step.
    pub step: u64,
    /// Faults have stopped.
    pub healed: bool,
    /// Bytes of each submission that a daemon has accepted, by channel.
    pub submissions: BTreeMap<ChannelKey, Vec<u32>>,
    wanted: Sabotage,
    opportunities: u64,
    /// Whether the defect was put in.
    pub sabotaged: bool,
    /// The canary: a channel that is granted no more than this.
    pub starved: Option<(ChannelKey, u64)>,
}

impl Common {
    /// What a run starts with.
    #[must_use]
    pub fn new(mut rng: Rng, model: Model, trace: bool, wanted: Sabotage) -> Self {
        // Resuming, and a consumer without room, are rare enough to be spoilt soon.
        let is_rare = [&Sabotage::RULES[..], &Sabotage::CHOICES, &Sabotage::DEBLOAT]
            .iter()
            .any(|kinds| kinds.contains(&wanted));
        let opportunities = rng.below(if is_rare { 3 } else { 20 });
        Self {
            rng,
            model,
            coverage: Coverage::default(),
            trace: Trace::new(trace),
            now: Time(1_000_000),
            step: 0,
            healed: false,
            submissions: BTreeMap::new(),
            wanted,
            opportunities,
            sabotaged: false,
            starved: None,
        }
    }

    /// The channel that an OpenChannel asks for.
    pub fn channel_of(&self, open: &OpenChannel) -> Result<ChannelKey, String> {
        let number = open.exchange.as_str().strip_prefix('x').and_then(|text| text.parse().ok());
        let Some(exchange) = number else { return Err(format!("unknown exchange {}", open.exchange)) };
        let key = ChannelKey { exchange, producer: open.producer.0, consumer: open.consumer.0 };
        self.model.channel(key).map(|_| key)
    }

    /// Whether this is the wanted defect, and it was not put in yet.
    #[must_use]
    pub fn wants(&self, kind: Sabotage) -> bool {
        self.wanted == kind && !self.sabotaged
    }

    /// Whether the wanted defect is one that changes what a core is told, and was not put in yet.
    #[must_use]
    pub fn may_tamper(&self) -> bool {
        let tells = Sabotage::RULES.contains(&self.wanted) || Sabotage::DEBLOAT.contains(&self.wanted);
        tells && !self.sabotaged
    }

    /// Whether this is the moment to put the defect in: it happens once, at one of its first opportunities.
    pub fn sabotage(&mut self, kind: Sabotage) -> bool {
        if self.wanted != kind || self.sabotaged {
            return false;
        }
        if self.opportunities > 0 {
            self.opportunities -= 1;
            return false;
        }
        self.sabotaged = true;
        self.trace.line(&"sabotage", format_args!("{kind:?}"));
        true
    }
}
