//! How many cases the property tests of this crate try.

use proptest::prelude::ProptestConfig;

/// So many cases; so many under Miri, which runs a thousand times slower and does not see the file system, where inputs
/// that failed are kept.
pub(crate) fn cases(cases: u32, under_miri: u32) -> ProptestConfig {
    if cfg!(miri) {
        return ProptestConfig { cases: under_miri, failure_persistence: None, ..ProptestConfig::default() };
    }
    ProptestConfig { cases, ..ProptestConfig::default() }
}
