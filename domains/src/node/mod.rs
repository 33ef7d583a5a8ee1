//! Emulated nodes: a process that is the first of its own PID namespace, with a network and a
//! mount namespace, and all that runs there.

pub(crate) mod init;
