//! Replays the corpora of the fuzz targets that drive this crate. Each target has two tests: its inputs break no rule, and
//! with one rule broken on purpose they notice.

use weir_fuzz_drivers::{config, handshake, replay};

#[test]
fn handshakes_of_the_corpus_succeed_only_untouched() {
    replay::expect_rules_kept(&handshake::DRIVER);
}

#[test]
fn a_change_that_nobody_notices_is_noticed() {
    replay::expect_broken_rule_noticed(&handshake::DRIVER);
}

#[test]
fn files_of_the_corpus_are_refused_or_render_to_themselves() {
    replay::expect_rules_kept(&config::DRIVER);
}

#[test]
fn a_renderer_that_forgets_a_setting_is_noticed() {
    replay::expect_broken_rule_noticed(&config::DRIVER);
}
