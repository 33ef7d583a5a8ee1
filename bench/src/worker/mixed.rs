//! A client that carries out a [`Mix`].

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::mix::{Keys, Mix};
use crate::samples::Samples;
use crate::worker::pattern;
use crate::worker::store::Client;

/// Every `SAMPLED`th operation is a sample, which keeps answers short. All operations count.
const SAMPLED: u64 = 8;

/// The operations of one client.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Mixed {
    /// Gets. Wrong values are errors, misses are not. The figure `misses` counts misses.
    pub gets: Samples,
    pub sets: Samples,
}

/// Carries out a mix for some time, and verifies every value outside of the measured times.
pub fn run<C: Client>(client: &mut C, mix: Mix, salt: u64, time: Duration) -> Result<Mixed> {
    let mut keys = Keys::new(salt);
    let (mut name, mut value) = (Vec::new(), Vec::new());
    let (mut done, mut misses) = (Mixed::default(), 0.0);
    let end = Instant::now() + time;
    while Instant::now() < end {
        let key = keys.draw();
        mix.name(key, &mut name);
        if keys.chance(mix.sets()) {
            value.resize(mix.value_len(key), 0);
            pattern::fill_value(key, salt, &mut value);
            let start = Instant::now();
            client.set(&name, &value)?;
            let is_sampled = done.sets.ops.is_multiple_of(SAMPLED);
            done.sets.record(start.elapsed(), value.len(), is_sampled);
            continue;
        }
        let start = Instant::now();
        let found = client.get(&name)?;
        let (took, is_sampled) = (start.elapsed(), done.gets.ops.is_multiple_of(SAMPLED));
        done.gets.record(took, client.value().len(), is_sampled);
        misses += f64::from(u8::from(!found));
        done.gets.errors += u64::from(found && !is_right(mix, key, client.value()));
    }
    done.gets = done.gets.with("misses", misses);
    Ok(done)
}

fn is_right(mix: Mix, key: u64, value: &[u8]) -> bool {
    value.len() == mix.value_len(key) && pattern::is_value(key, None, value)
}
