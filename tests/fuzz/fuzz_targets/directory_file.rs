#![no_main]

/// The database panics at some files, which the directory catches; libFuzzer would end at any panic.
/// One that is not caught still ends it.
fn leave_panics_to_the_directory() {
    drop(std::panic::take_hook());
}

libfuzzer_sys::fuzz_target!(init: leave_panics_to_the_directory(), |bytes: &[u8]| {
    tests::fuzz::directory_file(bytes);
});
