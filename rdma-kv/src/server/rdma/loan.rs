//! A client's leave to borrow.

use toroid_fabric::{Mapped, PacketChannel, RemoteKey};

use super::client::Client;
use crate::client::SLIPS_ACCESS;
use crate::control::{Refusal, Reply};
use crate::loans::{Borrower, SLIPS_LEN};
use crate::network::Network;
use crate::shared::Shared;

/// What a client borrows is looked at until this is dropped.
pub(super) struct Loan {
    store: Shared,
    borrower: Borrower,
}

impl Loan {
    fn begin(store: &Shared, slips: impl Mapped) -> Self {
        Loan {
            borrower: store.with(|store| store.loans().admit(Box::new(slips))),
            store: store.clone(),
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.store
            .with(|store| store.loans().dismiss(self.borrower));
    }
}

impl<N: Network> Client<N> {
    /// Looks at these slips from now on, and no more at others of the client.
    pub(super) fn lend(&mut self, slips: RemoteKey, network: &N, store: &Shared) -> Reply<'static> {
        let opened = (slips.node == self.channel().peer()).then(|| {
            let (slips, len) = network.open(slips, SLIPS_ACCESS).ok()?;
            (len >= SLIPS_LEN && slips.is_mapped()).then_some(slips)
        });
        self.loan = opened.flatten().map(|slips| Loan::begin(store, slips));
        match self.loan {
            Some(_) => Reply::Done,
            None => Reply::Refused(Refusal::Slips),
        }
    }
}
