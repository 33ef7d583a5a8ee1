//! Memory that is mapped at ever other addresses, and stays where it was as well.

use std::fs::File;

use super::mapping::Mapping;
use super::{COUNTED, MOVED, Result};

pub struct Moved {
    /// The mapping at the first address.
    left: Mapping,
    here: Mapping,
}

impl Moved {
    pub fn new(memory: &File) -> Result<Self> {
        let left = Mapping::of(memory, 1)?;
        let here = left.again()?;
        Ok(Moved { left, here })
    }

    pub fn go_on(&mut self, n: u64) -> Result<()> {
        self.here.move_on()?;
        self.here.write(MOVED, n);
        self.left.write(MOVED, n);
        Ok(())
    }

    /// The counted word at both addresses.
    pub fn counted(&self) -> [u64; 2] {
        [&self.left, &self.here].map(|mapping| mapping.read(COUNTED))
    }
}
