//! Sets with the value in their message beside sets whose value the server reads, one at a time and
//! 64 in one go. `INLINE_LIMIT` belongs where the former get slower than the latter.
//!
//! ```sh
//! cargo run --release -p bench --example inline
//! ```

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use bench::cluster::Cluster;
use bench::roles::{self, StoreConfig};
use bench::stats::median;
use serde::{Deserialize, Serialize};
use toroid_client::member::Member;
use toroid_fabric::Torus;
use toroid_kv::Change;
use toroid_kv::Client;

/// Argument of the client process.
const CLIENT: &str = "__inline-client";

const DOMAIN: &str = "inline";
const SIZES: [usize; 11] = [
    64, 512, 1024, 2048, 4096, 8192, 12_288, 16_384, 24_576, 32_768, 65_000,
];

/// Inline limits above and below all sizes.
const LIMITS: [usize; 2] = [usize::MAX, 0];

const KEYS: usize = 16;
const ROUNDS: usize = 21;
const SLICE: Duration = Duration::from_millis(8);
const TOGETHER: usize = 64;

/// Nanoseconds per set.
#[derive(Serialize, Deserialize)]
struct Row {
    bytes: usize,
    /// One at a time: inline, staged.
    alone: [f64; 2],
    /// In one go.
    together: [f64; 2],
}

fn main() -> Result<ExitCode> {
    if let Some(status) = roles::run_if_asked() {
        return Ok(status);
    }
    if std::env::args().nth(1).as_deref() == Some(CLIENT) {
        let answer = measure().map_err(|error| error.to_string());
        println!("{}", serde_json::to_string(&answer)?);
        return Ok(ExitCode::SUCCESS);
    }
    let mut cluster = Cluster::start(Torus::new(2, 1, 1)?, None)?;
    cluster.create_domain(DOMAIN)?;
    let config = StoreConfig {
        domain: DOMAIN.into(),
        memory: 64 << 20,
        item: 1 << 20,
        stack: false,
    };
    let config = serde_json::to_string(&config)?;
    let store = cluster.spawn("0,0,0", &[roles::STORE, &config])?;
    let _port: u16 = cluster.answer(&store)?;
    let client = cluster.spawn("1,0,0", &[CLIENT])?;
    let rows: Vec<Row> = cluster.answer(&client)?;
    println!("us per set (medians of {ROUNDS})    alone            64 in one go");
    println!("   bytes                    inline  staged    inline  staged");
    for Row {
        bytes,
        alone,
        together,
    } in rows
    {
        let [a, b, c, d] = [alone, together].concat()[..] else {
            continue;
        };
        let us = |ns: f64| format!("{:8.2}", ns / 1000.0);
        let (a, b, c, d) = (us(a), us(b), us(c), us(d));
        println!("{bytes:8}                  {a}{b}  {c}{d}");
    }
    Ok(ExitCode::SUCCESS)
}

fn measure() -> Result<Vec<Row>> {
    let domain = Member::attach()?.domain(DOMAIN)?;
    let mut client = Client::connect(&domain, None)?;
    SIZES
        .map(|bytes| compare(&mut client, bytes))
        .into_iter()
        .collect()
}

/// Measures both limits in turn, so that both find the machine in the same state.
fn compare(client: &mut Client, bytes: usize) -> Result<Row> {
    let mut samples = [[(); 2]; 2].map(|ways| ways.map(|()| Vec::new()));
    for _ in 0..ROUNDS {
        for (way, limit) in LIMITS.into_iter().enumerate() {
            client.set_inline_limit(limit);
            samples[0][way].push(time(|| alone(client, bytes))?);
            samples[1][way].push(time(|| together(client, bytes))?);
        }
    }
    let [alone, together] =
        samples.map(|ways| ways.map(|samples| median(&samples).unwrap_or_default()));
    Ok(Row {
        bytes,
        alone,
        together,
    })
}

fn key(n: usize) -> [u8; 4] {
    (n as u32 % KEYS as u32).to_le_bytes()
}

/// Sets one at a time. Returns the number of sets.
fn alone(client: &mut Client, bytes: usize) -> Result<usize> {
    let value = vec![1; bytes];
    for n in 0..KEYS {
        client.set(&key(n), 0, 0, &value)?;
    }
    Ok(KEYS)
}

fn together(client: &mut Client, bytes: usize) -> Result<usize> {
    let value = vec![2; bytes];
    let keys: Vec<_> = (0..TOGETHER).map(key).collect();
    let changes: Vec<_> = keys
        .iter()
        .map(|key| (Change::set(key, false), &value[..]))
        .collect();
    let mut failed = None;
    client.store_many(&changes, |_, outcome| {
        failed = failed.take().or(outcome.err())
    })?;
    failed.map_or(Ok(TOGETHER), |error| Err(error.into()))
}

/// Nanoseconds per operation of `work`, which returns the number of its operations.
fn time(mut work: impl FnMut() -> Result<usize>) -> Result<f64> {
    let (start, mut done) = (Instant::now(), 0);
    while start.elapsed() < SLICE {
        done += work()?;
    }
    Ok(start.elapsed().as_nanos() as f64 / done as f64)
}
