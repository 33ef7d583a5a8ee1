//! The conformance suite on each provider, as a module of tests of its name, behind emulated links, and
//! through completion queues.

mod emulated;
mod loopback;
mod queued;
mod shm;
mod tcp;
