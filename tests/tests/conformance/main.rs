//! The conformance suite on each provider, as a module of tests of its name.

mod loopback;
mod shm;
mod tcp;
