//! Replays the corpora of the fuzz targets that drive this crate. Each target has two tests: its inputs break no rule, and
//! with one rule broken on purpose they notice.

use weir_fuzz_drivers::{flow_operations, link_bytes, record_assembler, replay, wire_decode};

#[test]
fn frames_of_the_corpus_are_decoded_or_refused() {
    replay::expect_rules_kept(&wire_decode::DRIVER);
}

#[test]
fn an_encoder_that_forgets_a_field_is_noticed() {
    replay::expect_broken_rule_noticed(&wire_decode::DRIVER);
}

#[test]
fn link_bytes_of_the_corpus_break_no_account() {
    replay::expect_rules_kept(&link_bytes::DRIVER);
}

#[test]
fn a_write_that_loses_a_byte_is_noticed() {
    replay::expect_broken_rule_noticed(&link_bytes::DRIVER);
}

#[test]
fn operations_of_the_corpus_lose_and_leak_nothing() {
    replay::expect_rules_kept(&flow_operations::DRIVER);
}

#[test]
fn a_socket_that_takes_more_than_it_says_is_noticed() {
    replay::expect_broken_rule_noticed(&flow_operations::DRIVER);
}

#[test]
fn slices_of_the_corpus_hold_the_records_of_their_stream() {
    replay::expect_rules_kept(&record_assembler::DRIVER);
}

#[test]
fn a_slice_that_loses_a_byte_is_noticed() {
    replay::expect_broken_rule_noticed(&record_assembler::DRIVER);
}
