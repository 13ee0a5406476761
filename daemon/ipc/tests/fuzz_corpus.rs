//! Replays the corpora of the fuzz targets that drive this crate. Each target has two tests: its inputs break no rule, and
//! with one rule broken on purpose they notice.

#![cfg(not(loom))]

use weir_fuzz_drivers::{attach_message, ipc_validation, replay};

#[test]
fn what_clients_of_the_corpus_write_is_taken_or_refused_by_name() {
    replay::expect_rules_kept(&ipc_validation::DRIVER);
}

#[test]
fn a_bound_that_is_off_by_one_is_noticed() {
    replay::expect_broken_rule_noticed(&ipc_validation::DRIVER);
}

#[test]
fn attach_messages_of_the_corpus_are_taken_or_refused() {
    replay::expect_rules_kept(&attach_message::DRIVER);
}

#[test]
fn an_attach_message_that_loses_its_sizes_is_noticed() {
    replay::expect_broken_rule_noticed(&attach_message::DRIVER);
}
