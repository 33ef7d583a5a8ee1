//! Borrowing: values that are read where they are.

use toroid_fabric::Access;

use super::{Client, ClientError, Value, check_key};
use crate::control::{Reply, Request};
use crate::loans::{SLIPS, SLIPS_LEN};
use crate::network::{Network, Remote};
use crate::reader::Sought;
use crate::view::{Pad, Slip, View};

/// What the server may do with slips: see what is borrowed, and say that it is taken back.
pub(crate) const SLIPS_ACCESS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

impl<N: Network> Client<N> {
    /// Gets a value without copying it; `None` when there is none. See [`View`]. From a server on
    /// another host it gets a copy.
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
        let sighted = self.reader.sight(key)?;
        let slip = self.slip()?;
        match self.reader.borrow(key, sighted, slip)? {
            Sought::Found(view) => return Ok(Some(view)),
            Sought::Absent => return Ok(None),
            Sought::Unsettled => {}
        }
        Ok(self.ask(key)?.map(copied))
    }

    fn slip(&mut self) -> Result<Slip<Remote<N>>, ClientError> {
        let usable = match &self.slips {
            Some(slips) => !slips.is_recalled()?,
            None => false,
        };
        if !usable {
            self.slips = Some(self.announce_slips()?);
        }
        let slip = self.slips.as_mut().and_then(Pad::take);
        slip.ok_or(ClientError::TooManyViews { limit: SLIPS })
    }

    /// Slips that the server will look at.
    fn announce_slips(&mut self) -> Result<Pad<Remote<N>>, ClientError> {
        let region = self.network.alloc(SLIPS_LEN, SLIPS_ACCESS)?;
        let key = region.remote_key().ok_or(ClientError::Protocol)?;
        match self.call(&Request::Borrow { slips: key })? {
            Reply::Done => Ok(Pad::new(region, self.reader.items().clone())),
            Reply::Refused(refusal) => Err(ClientError::Refused(refusal)),
            _ => Err(ClientError::Protocol),
        }
    }
}
