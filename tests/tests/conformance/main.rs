//! The conformance suite on each provider, as a module of tests of its name, and behind emulated links.

mod emulated;
mod loopback;
mod shm;
mod tcp;
