//! A client that carries out a [`Mix`].

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::mix::{KEYS, Keys, Mix};
use crate::pattern;
use crate::stats::Slice;
use crate::store::Client;

/// One operation in so many is a sample, which keeps an answer short; all are counted.
const SAMPLED: u64 = 8;

/// What one client did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Mixed {
    /// Its gets. A wrong value is an error; a miss is not.
    pub gets: Slice,
    /// Its sets.
    pub sets: Slice,
    /// Gets that found nothing.
    pub misses: u64,
}

/// Carries out a mix for some time. Every value that it gets is verified, outside the times.
///
/// # Errors
/// The client's.
pub fn run<C: Client>(
    client: &mut C,
    mix: Mix,
    salt: u64,
    time: Duration,
) -> Result<Mixed, C::Error> {
    let mut keys = Keys::new(salt);
    let (mut name, mut value) = (Vec::new(), Vec::new());
    let mut done = Mixed::default();
    let end = Instant::now() + time;
    while Instant::now() < end {
        let key = keys.draw();
        mix.name(key, &mut name);
        if keys.chance(mix.sets()) {
            value.resize(mix.value_len(key), 0);
            pattern::fill_value(key, salt, &mut value);
            let start = Instant::now();
            client.set(&name, &value)?;
            record(&mut done.sets, start.elapsed(), value.len());
            continue;
        }
        let start = Instant::now();
        let found = client.get(&name)?;
        record(&mut done.gets, start.elapsed(), client.value().len());
        done.misses += u64::from(!found);
        done.gets.errors += u64::from(found && !is_right(mix, key, client.value()));
    }
    Ok(done)
}

/// Gets every key; returns how many are missing or wrong. A client that caches places has them all
/// afterwards.
///
/// # Errors
/// The client's.
pub fn verify<C: Client>(client: &mut C, mix: Mix) -> Result<u64, C::Error> {
    let (mut name, mut wrong) = (Vec::new(), 0);
    for key in 0..KEYS {
        mix.name(key, &mut name);
        let right = client.get(&name)? && is_right(mix, key, client.value());
        wrong += u64::from(!right);
    }
    Ok(wrong)
}

fn is_right(mix: Mix, key: u64, value: &[u8]) -> bool {
    value.len() == mix.value_len(key) && pattern::is_value(key, None, value)
}

fn record(slice: &mut Slice, took: Duration, bytes: usize) {
    if slice.ops.is_multiple_of(SAMPLED) {
        slice.samples_ns.push(took.as_nanos() as f64);
    }
    slice.batch = 1;
    slice.ops += 1;
    slice.bytes += bytes as u64;
    slice.elapsed_ns += took.as_nanos() as u64;
}
