//! Questions of a member about addresses of nodes that are not members yet.
//!
//! A kernel repeats a question only after a second, and gives up after three. A node that becomes a
//! member meanwhile has to be reached at once, so the question is answered when its membership begins.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::IpAddr;

use crate::headers::neighbour::Question;

/// The most questions that are kept of one member; the oldest goes first.
const MOST: usize = 64;

/// Questions of one member, the newest last.
#[derive(Debug, Default)]
pub(super) struct Unanswered(RefCell<VecDeque<Question>>);

impl Unanswered {
    /// Keeps a question.
    pub(super) fn add(&self, question: Question) {
        let mut all = self.0.borrow_mut();
        if all.contains(&question) {
            return;
        }
        if all.len() == MOST {
            all.pop_front();
        }
        all.push_back(question);
    }

    /// Takes out the questions about these addresses.
    pub(super) fn take(&self, addresses: [IpAddr; 2]) -> Vec<Question> {
        let mut all = self.0.borrow_mut();
        let is_about = |question: &Question| addresses.contains(&question.target());
        let taken = all.iter().copied().filter(is_about).collect();
        all.retain(|question| !is_about(question));
        taken
    }
}
