#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| runcast_fuzz::targets::frames(bytes));
