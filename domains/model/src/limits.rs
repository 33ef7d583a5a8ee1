//! Limits of an agent.

/// Maximum number of nodes of one host.
pub const MAX_NODES: u32 = 1024;

/// Maximum number of hosts. The largest torus then has 16 nodes of each.
pub const MAX_HOSTS: usize = 4096;

/// Time in milliseconds that a process has to acknowledge a change, unless the agent is configured otherwise.
pub const ACK_TIMEOUT_MS: u64 = 200;

/// The longest time in milliseconds that an agent can be configured to wait for acknowledgements.
pub const MAX_ACK_TIMEOUT_MS: u64 = 60_000;
