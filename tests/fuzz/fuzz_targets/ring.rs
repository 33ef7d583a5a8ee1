#![no_main]

use nix::sys::signal::{SigSet, Signal};

/// The other end of a wake-up pipe may have gone. What other Rust programs ignore ends this one,
/// which begins in C.
fn ignore_broken_pipes() {
    let blocked = SigSet::from(Signal::SIGPIPE).thread_block();
    blocked.expect("a signal can be blocked");
}

libfuzzer_sys::fuzz_target!(init: ignore_broken_pipes(), |bytes: &[u8]| {
    tests::fuzz::ring(bytes);
});
