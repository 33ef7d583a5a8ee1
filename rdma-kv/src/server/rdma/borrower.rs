//! Registration of the hazard pointers of a client.

use toroid_fabric::{Mapped, PacketChannel, RemoteKey};

use super::remote_client::RemoteClient;
use crate::network::Network;
use crate::protocol::hazards::{HAZARDS_ACCESS, HAZARDS_LEN};
use crate::protocol::messages::{Refusal, Reply};
use crate::store::borrows::Borrower;
use crate::store::shared::Shared;

/// Keeps the hazard pointers of a client registered until it is dropped.
pub(super) struct BorrowerGuard {
    store: Shared,
    borrower: Borrower,
}

impl BorrowerGuard {
    fn begin(store: &Shared, hazards: impl Mapped) -> Self {
        BorrowerGuard {
            borrower: store.with(|store| store.borrows().admit(Box::new(hazards))),
            store: store.clone(),
        }
    }
}

impl Drop for BorrowerGuard {
    fn drop(&mut self) {
        self.store
            .with(|store| store.borrows().dismiss(self.borrower));
    }
}

impl<N: Network> RemoteClient<N> {
    /// Registers these hazard pointers in place of the former ones of the client.
    pub(super) fn admit_borrower(
        &mut self,
        hazards: RemoteKey,
        network: &N,
        store: &Shared,
    ) -> Reply<'static> {
        let opened = (hazards.node == self.channel().peer()).then(|| {
            let (hazards, len) = network.open(hazards, HAZARDS_ACCESS).ok()?;
            (len >= HAZARDS_LEN && hazards.is_mapped()).then_some(hazards)
        });
        self.borrower = opened
            .flatten()
            .map(|hazards| BorrowerGuard::begin(store, hazards));
        match self.borrower {
            Some(_) => Reply::Done,
            None => Reply::Refused(Refusal::HazardPointers),
        }
    }
}
