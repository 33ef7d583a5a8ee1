//! The Ethernet driver as a program. An agent starts it; its log goes to standard error.

use std::io;

use tracing_subscriber::EnvFilter;

fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::from_default_env())
        .with_writer(io::stderr)
        .init();
    Ok(toroid_ethernet::role::run()?)
}
