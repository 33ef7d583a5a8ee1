//! Queries of a member about addresses of nodes that are not members yet.
//!
//! A kernel repeats a query after a second, and gives up after three. A node that becomes a member
//! meanwhile has to be reachable at once, so the query is answered when its membership begins.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::IpAddr;

use crate::headers::neighbour::AddressQuery;

/// Limit of the queries of one member; the oldest is dropped first.
const MAX_QUERIES: usize = 64;

/// Pending queries of one member, the newest last.
#[derive(Debug, Default)]
pub(super) struct PendingQueries(RefCell<VecDeque<AddressQuery>>);

impl PendingQueries {
    /// Adds a query.
    pub(super) fn add(&self, query: AddressQuery) {
        let mut all = self.0.borrow_mut();
        if all.contains(&query) {
            return;
        }
        if all.len() == MAX_QUERIES {
            all.pop_front();
        }
        all.push_back(query);
    }

    /// Removes and returns the queries about these addresses.
    pub(super) fn take(&self, addresses: [IpAddr; 2]) -> Vec<AddressQuery> {
        let mut all = self.0.borrow_mut();
        let is_about = |query: &AddressQuery| addresses.contains(&query.target());
        let taken = all.iter().copied().filter(is_about).collect();
        all.retain(|query| !is_about(query));
        taken
    }
}
