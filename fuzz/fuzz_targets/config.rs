//! libFuzzer around the driver of the same name.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weir_fuzz_drivers::config::DRIVER.fuzz(bytes));
