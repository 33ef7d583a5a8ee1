//! Further names of nodes.

use std::sync::Arc;

use toroid_fabric::NodeId;

use super::{Directory, DirectoryError, MAX_ALIASES};
use crate::names::is_alias;

impl Directory {
    /// The aliases of `node`, in order.
    pub fn aliases_of(&self, node: NodeId) -> impl Iterator<Item = &str> {
        let its = self.names.iter_from(&(node, Arc::from("")));
        let its = its.take_while(move |((of, _), ())| *of == node);
        its.map(|((_, alias), ())| &**alias)
    }

    /// Gives a node a further name, unless it has it already.
    ///
    /// # Errors
    /// [`DirectoryError::BadAlias`], [`DirectoryError::AliasExists`] and
    /// [`DirectoryError::TooManyAliases`].
    pub fn add_alias(&mut self, node: NodeId, alias: &str) -> Result<(), DirectoryError> {
        if !is_alias(alias) {
            return Err(DirectoryError::BadAlias(alias.into()));
        }
        if !self.aliases.contains_key(alias) && self.aliases_of(node).count() >= MAX_ALIASES {
            return Err(DirectoryError::TooManyAliases(self.places(&[node].into())));
        }
        let other = self.aliases.get(alias).filter(|owner| **owner != node);
        if let Some(place) = other.and_then(|owner| self.torus.place(*owner)) {
            return Err(DirectoryError::AliasExists {
                alias: alias.into(),
                place,
            });
        }
        self.put_alias(alias, node);
        Ok(())
    }

    /// Takes a name from its node, which it returns.
    ///
    /// # Errors
    /// [`DirectoryError::NoSuchAlias`].
    pub fn remove_alias(&mut self, alias: &str) -> Result<NodeId, DirectoryError> {
        let removed = self.take_alias(alias);
        removed.ok_or_else(|| DirectoryError::NoSuchAlias(alias.into()))
    }

    /// Gives an alias to a node, and takes it from the present one.
    pub(super) fn put_alias(&mut self, alias: &str, node: NodeId) {
        self.take_alias(alias);
        Arc::make_mut(&mut self.aliases).insert(alias.into(), node);
        self.names.insert((node, alias.into()), ());
    }

    /// Takes an alias from its node, if it has one.
    pub(super) fn take_alias(&mut self, alias: &str) -> Option<NodeId> {
        if !self.aliases.contains_key(alias) {
            return None;
        }
        let node = Arc::make_mut(&mut self.aliases).remove(alias)?;
        self.names.remove(&(node, Arc::from(alias)));
        Some(node)
    }
}
