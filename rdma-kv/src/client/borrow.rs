//! Borrowing: values that are read in place.

use super::{Client, ClientError, Value, check_key};
use crate::client::reader::Lookup;
use crate::client::view::{HazardPointer, HazardPool, View};
use crate::network::{Network, Remote};
use crate::protocol::hazards::{HAZARDS, HAZARDS_ACCESS, HAZARDS_LEN};
use crate::protocol::messages::{Reply, Request};

impl<N: Network> Client<N> {
    /// Gets a view of a value without copying it; `None` when the key is absent. See [`View`].
    /// From a server on another host, or behind an emulated link, the view holds a copy.
    ///
    /// # Errors
    /// [`ClientError::TooManyViews`] and others of [`ClientError`].
    pub fn borrow(&mut self, key: &[u8]) -> Result<Option<View<Remote<N>>>, ClientError> {
        check_key(key)?;
        let copied = |Value { flags, cas, data }| View::copied(flags, cas, data);
        if !self.reader.can_borrow() {
            return Ok(self.get(key)?.map(copied));
        }
        self.report_if_due()?;
        let probed = self.reader.probe(key)?;
        let hazard = match self.hazard() {
            // The link to the server got a model meanwhile.
            Err(ClientError::Refused(_)) if !self.reader.can_borrow() => {
                return Ok(self.get(key)?.map(copied));
            }
            hazard => hazard?,
        };
        match self.reader.borrow(key, probed, hazard)? {
            Lookup::Found(view) => return Ok(Some(view)),
            Lookup::Absent => return Ok(None),
            Lookup::Retry => {}
        }
        Ok(self.ask(key)?.map(copied))
    }

    fn hazard(&mut self) -> Result<HazardPointer<Remote<N>>, ClientError> {
        let usable = match &self.hazards {
            Some(hazards) => !hazards.is_recalled()?,
            None => false,
        };
        if !usable {
            self.hazards = Some(self.announce_hazards()?);
        }
        let hazard = self.hazards.as_mut().and_then(HazardPool::take);
        hazard.ok_or(ClientError::TooManyViews { limit: HAZARDS })
    }

    /// Registers a region of hazard pointers at the server.
    fn announce_hazards(&mut self) -> Result<HazardPool<Remote<N>>, ClientError> {
        let region = self.network.alloc(HAZARDS_LEN, HAZARDS_ACCESS)?;
        let key = region.remote_key().ok_or(ClientError::Protocol)?;
        match self.call(&Request::Borrow { hazards: key })? {
            Reply::Done => Ok(HazardPool::new(region, self.reader.items().clone())),
            Reply::Refused(refusal) => Err(ClientError::Refused(refusal)),
            _ => Err(ClientError::Protocol),
        }
    }
}
