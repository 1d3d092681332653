#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| vellum_corpus::run(vellum_kernel::fuzz::stdio, bytes));
