#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    tests::fuzz::store_memory(bytes);
});
