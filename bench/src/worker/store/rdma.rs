//! The store's client: gets read the server's memory, sets and deletes are messages.

use anyhow::Result;
use toroid_client::member::Domain;
use toroid_fabric::Place;
use toroid_kv::{Change, View};

use super::{Client, Pipelined};
use crate::samples::Samples;

/// Bytes of the longest value of a get.
const LONGEST: usize = 1 << 20;

pub struct RdmaClient {
    client: toroid_kv::Client,
    value: Vec<u8>,
    len: usize,
}

impl RdmaClient {
    pub fn connect(domain: &Domain, place: Place) -> Result<Self> {
        Ok(RdmaClient {
            client: toroid_kv::Client::connect(domain, Some(place))?,
            value: vec![0; LONGEST],
            len: 0,
        })
    }

    pub fn borrow(&mut self, key: &[u8]) -> Result<Option<View>> {
        Ok(self.client.borrow(key)?)
    }

    /// Does some work, and adds figures of it: one-sided gets, their reads of memory, and gets
    /// answered by the server.
    pub fn counting_reads(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<Samples>,
    ) -> Result<Samples> {
        let before = self.client.stats();
        let samples = work(self)?;
        let after = self.client.stats();
        Ok(samples
            .with("gets", (after.gets - before.gets) as f64)
            .with("reads", (after.reads - before.reads) as f64)
            .with("asked", (after.asked - before.asked) as f64))
    }
}

impl Pipelined for RdmaClient {
    /// Does nothing: [`Self::receive_gets`] posts the reads.
    fn send_gets(&mut self, _names: &[Vec<u8>], _together: usize) -> Result<()> {
        Ok(())
    }

    fn receive_gets(
        &mut self,
        names: &[Vec<u8>],
        together: usize,
        take: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<usize> {
        let mut found = 0;
        for (request, names) in names.chunks(together).enumerate() {
            let keys: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
            self.client.get_many(&keys, |at, value| {
                if let Some(value) = value {
                    take(request * together + at, value.data);
                    found += 1;
                }
            })?;
        }
        Ok(found)
    }

    fn send_sets(&mut self, names: &[Vec<u8>], values: &[Vec<u8>]) -> Result<()> {
        for (name, value) in names.iter().zip(values) {
            self.client.post(&Change::set(name, false), value)?;
        }
        Ok(())
    }

    fn receive_sets(&mut self, count: usize) -> Result<u64> {
        for _ in 0..count {
            if let Some((_, outcome)) = self.client.wait()? {
                outcome?;
            }
        }
        Ok(0)
    }
}

impl Client for RdmaClient {
    fn get(&mut self, key: &[u8]) -> Result<bool> {
        let found = self.client.get_into(key, &mut self.value)?;
        self.len = found.map_or(0, |(_flags, len)| len);
        Ok(found.is_some())
    }

    fn value(&self) -> &[u8] {
        &self.value[..self.len]
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.client.set(key, 0, 0, value)?)
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool> {
        Ok(self.client.delete(key)?)
    }
}
