//! A read-through cache in a few lines: gets are one-sided, and many sets travel together.
//!
//! ```text
//! toroid exec 0,0,0 -- toroid-kv serve &
//! toroid exec 1,0,0 -- target/debug/examples/cache
//! ```

use std::error::Error;
use std::time::Instant;

use toroid_client::member::Member;
use toroid_kv::{Change, Client};

const KEYS: usize = 1000;

/// Seconds until a value expires.
const TTL: i64 = 60;

fn main() -> Result<(), Box<dyn Error>> {
    let domain = Member::attach()?.domain_or_only(None)?;
    let mut client = Client::connect(&domain, None)?;
    let names: Vec<String> = (0..KEYS).map(|n| format!("square-{n}")).collect();
    let keys: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    for round in ["first", "second"] {
        let start = Instant::now();
        let mut missing = Vec::new();
        client.get_many(&keys, |n, value| {
            if value.is_none() {
                missing.push(n);
            }
        })?;
        println!(
            "{round} round: {} missing, {:?}",
            missing.len(),
            start.elapsed()
        );
        fill(&mut client, &keys, &missing)?;
    }
    let stats = client.stats();
    println!(
        "{} gets took {} reads of the server's memory",
        stats.gets, stats.reads
    );
    Ok(())
}

/// Computes and stores the values of missing keys.
fn fill(client: &mut Client, keys: &[&[u8]], missing: &[usize]) -> Result<(), Box<dyn Error>> {
    let values: Vec<String> = missing.iter().map(|n| (n * n).to_string()).collect();
    let changes = missing.iter().zip(&values).map(|(&n, value)| {
        let change = Change {
            exptime: TTL,
            ..Change::set(keys[n], false)
        };
        (change, value.as_bytes())
    });
    let changes: Vec<_> = changes.collect();
    let mut failed = None;
    client.store_many(&changes, |_, stored| {
        failed = failed.take().or(stored.err())
    })?;
    failed.map_or(Ok(()), |error| Err(error.into()))
}
