//! The directory's store in etcd.
//!
//! A change is one transaction. It compares the term, so that only the leader changes something, and
//! the revision of the key `done`, which each change writes with an identifier of its own. An
//! attempt whose outcome is unknown is made again: of both, one at most can succeed, and the
//! identifier says whether one has.
//!
//! A change that is too large for a transaction is written below `redo` first. The transaction that
//! writes `redo` itself brings all of it into effect; only then are the keys changed, a part at a
//! time. A reader takes `redo` into account, and the next leader completes it.
//!
//! When etcd is out of space, transactions that only delete still succeed. Then members leave, and
//! what else the change writes is owed: to be written with the next change, or computed by the next
//! leader from the keys that are missing.

use std::fmt;

use etcd_client::{Compare, CompareOp, DeleteOptions, Txn, TxnOp, TxnOpResponse, TxnResponse};
use tokio::time::Instant;
use toroid_model::directory::records::{Changes, RecordError, Records};

use super::election::{LEADER, Leader, lasts};
use super::error::EtcdError;
use super::layout::Edit;
use super::load::{self, DONE, REDO};
use super::servers::{Answer, Failure};
use super::{Etcd, Tenure};
use crate::store::{Store, StoreError};

/// Most operations of one transaction. etcd takes 128.
const MAX_OPERATIONS: usize = 120;

/// Most bytes of keys and values of one transaction, and of one record. etcd takes 1.5 MiB.
const MAX_BYTES: usize = 1 << 20;

/// Bytes of a part of a large change. JSON in JSON needs up to twice as many.
const PART_BYTES: usize = 512 << 10;

/// Store of a tenure.
pub(crate) struct EtcdStore {
    etcd: Etcd,
    tenure: Tenure,
    /// `None` if etcd may have others.
    base: Option<Base>,
}

/// Present contents of etcd.
#[derive(Debug, Default)]
struct Base {
    records: Records,
    /// Revision of the last change.
    done: i64,
    /// Differences of the keys from the records, which had no room.
    owed: Edit,
    /// A large change that is not yet in all of its keys.
    redo: Option<Edit>,
}

/// Why a transaction had no effect.
enum Fenced {
    Deposed {
        leader: Option<String>,
        /// Whether it may have had one before.
        is_doubtful: bool,
    },
    /// Another change came in between.
    Overtaken,
    Failed(Failure),
}

impl EtcdStore {
    pub(super) fn new(etcd: Etcd, tenure: Tenure) -> Self {
        EtcdStore {
            etcd,
            tenure,
            base: None,
        }
    }

    /// Runs operations while the tenure lasts and no change came after revision `done`. With an
    /// identifier they are a change themselves. Returns the revision of the change that is the last
    /// then.
    fn fenced(
        &self,
        done: i64,
        id: Option<&str>,
        mut operations: Vec<TxnOp>,
        end: Instant,
    ) -> Result<i64, Fenced> {
        let servers = self.etcd.servers();
        let key = servers.key(DONE);
        let same = Compare::mod_revision(key.clone(), CompareOp::Equal, done);
        operations.extend(id.map(|id| TxnOp::put(key.clone(), id, None)));
        let look = [servers.key(LEADER), key].map(|key| TxnOp::get(key, None));
        let txn = Txn::new()
            .when([lasts(servers, &self.tenure), same])
            .and_then(operations)
            .or_else(look);
        let left = end.saturating_duration_since(Instant::now());
        let answer = self
            .etcd
            .run(|servers| async move { servers.transact(left, txn).await });
        let Answer {
            value: answer,
            is_doubtful,
        } = answer.map_err(Fenced::Failed)?;
        let revision = answer.header().map_or(0, |header| header.revision());
        if answer.succeeded() {
            Ok(if id.is_some() { revision } else { done })
        } else {
            self.find_out(id, &answer, is_doubtful)
        }
    }

    /// Finds out why the comparison of a transaction failed.
    fn find_out(
        &self,
        id: Option<&str>,
        answer: &TxnResponse,
        is_doubtful: bool,
    ) -> Result<i64, Fenced> {
        let found = answer.op_responses();
        let pair = |index: usize| match found.get(index) {
            Some(TxnOpResponse::Get(found)) => found.kvs().first(),
            _ => None,
        };
        if let Some(last) = pair(1)
            && id.is_some_and(|id| id.as_bytes() == last.value())
        {
            // An earlier attempt had no answer.
            return Ok(last.mod_revision());
        }
        let leader = pair(0).and_then(|pair| Leader::of(pair).ok());
        match leader {
            Some(leader) if leader.term == self.tenure.term => Err(Fenced::Overtaken),
            leader => Err(Fenced::Deposed {
                leader: leader.map(|leader| leader.host),
                is_doubtful,
            }),
        }
    }

    /// Reads all, until no transaction of a former life of this host comes in between any more.
    fn read(&mut self) -> Result<Records, StoreError> {
        self.base = None;
        let end = self.soon();
        loop {
            let loaded = self
                .etcd
                .run(|servers| async move { load::load(&servers).await });
            let mut loaded = loaded.map_err(failed)?;
            match self.fenced(loaded.done, Some(&identifier()), vec![], end) {
                Ok(done) => loaded.done = done,
                // Such a transaction is refused later: it compares a revision that is gone then.
                Err(Fenced::Failed(failure)) if failure.error == EtcdError::NoSpace => {}
                Err(Fenced::Overtaken) => continue,
                Err(fenced) => return Err(self.explain(fenced)),
            }
            if loaded.has_remains {
                let remains = vec![self.delete_below(&format!("{REDO}/"))];
                self.fenced(loaded.done, None, remains, end)
                    .map_err(|fenced| self.explain(fenced))?;
            }
            let records = loaded.joined.records;
            self.base = Some(Base {
                records: records.clone(),
                done: loaded.done,
                owed: Edit {
                    put: loaded.joined.owed,
                    ..Edit::default()
                },
                redo: loaded.redo,
            });
            return Ok(records);
        }
    }

    fn change(&mut self, changes: &Changes) -> Result<(), StoreError> {
        if self.base.is_none() {
            self.read()?;
        }
        // It stays away if the outcome is unknown.
        let Some(mut base) = self.base.take() else {
            return Err(failed(EtcdError::Overtaken));
        };
        let made = self.change_from(&mut base, changes);
        if matches!(made, Ok(()) | Err(StoreError::Etcd(_))) {
            self.base = Some(base);
        }
        made
    }

    fn change_from(&self, base: &mut Base, changes: &Changes) -> Result<(), StoreError> {
        self.complete(base)
            .map_err(|fenced| match self.explain(fenced) {
                // Not this change.
                StoreError::Doubtful(cause) => *cause,
                error => error,
            })?;
        let end = self.soon();
        let edit = Edit::of(&base.records, changes).map_err(|error| self.damaged(&error))?;
        let mut all = base.owed.clone();
        all.then(&edit);
        let made = if all.len() < MAX_OPERATIONS && all.bytes() <= MAX_BYTES {
            self.fenced(base.done, Some(&identifier()), self.operations(&all), end)
        } else {
            self.check_sizes(&all)?;
            self.stage(base, &all, end)
        };
        match made {
            Ok(done) => {
                base.done = done;
                base.owed = Edit::default();
            }
            Err(Fenced::Failed(failure))
                if failure.error == EtcdError::NoSpace
                    && !failure.is_doubtful
                    && edit.is_departure(changes) =>
            {
                tracing::warn!("{}; only members leave", failure.error.refusal());
                self.let_leave(base, &edit, end)?;
                all.delete.clear();
                base.owed = all;
            }
            Err(fenced) => return Err(self.explain(fenced)),
        }
        changes.apply_to(&mut base.records);
        // It is in effect already; the next change tries again.
        if let Err(fenced) = self.complete(base) {
            tracing::warn!("a large change is incomplete: {}", self.explain(fenced));
        }
        Ok(())
    }

    /// Deletes without writing anything.
    fn let_leave(&self, base: &Base, edit: &Edit, end: Instant) -> Result<(), StoreError> {
        let deletes = Edit {
            delete: edit.delete.clone(),
            ..Edit::default()
        };
        for (index, part) in deletes.pieces(MAX_OPERATIONS, MAX_BYTES).iter().enumerate() {
            let left = self.fenced(base.done, None, self.operations(part), end);
            left.map_err(|fenced| match self.explain(fenced) {
                error @ StoreError::Etcd(_) if index > 0 => StoreError::Doubtful(Box::new(error)),
                error => error,
            })?;
        }
        Ok(())
    }

    /// Brings a large change into effect.
    fn stage(&self, base: &mut Base, all: &Edit, end: Instant) -> Result<i64, Fenced> {
        let servers = self.etcd.servers();
        let id = identifier();
        let parts = all.clone().pieces(usize::MAX, PART_BYTES);
        for (index, part) in parts.iter().enumerate() {
            let part = serde_json::to_string(part).expect("texts can be written");
            let key = servers.key(&format!("{REDO}/{id}/{index:06}"));
            let put = vec![TxnOp::put(key, part, None)];
            let written = self.fenced(base.done, None, put, end);
            // Parts alone change nothing.
            written.map_err(|fenced| match fenced {
                Fenced::Failed(failure) => Fenced::Failed(Failure {
                    is_doubtful: false,
                    ..failure
                }),
                fenced => fenced,
            })?;
        }
        let put = vec![TxnOp::put(servers.key(REDO), &id[..], None)];
        let done = self.fenced(base.done, Some(&id), put, end)?;
        base.redo = Some(all.clone());
        Ok(done)
    }

    /// Makes the keys of a large change that is in effect.
    fn complete(&self, base: &mut Base) -> Result<(), Fenced> {
        let Some(redo) = &base.redo else {
            return Ok(());
        };
        let mut parts = redo.clone().pieces(MAX_OPERATIONS, MAX_BYTES);
        while let Some(part) = parts.pop() {
            if let Err(fenced) = self.fenced(base.done, None, self.operations(&part), self.soon()) {
                let mut rest = part;
                parts.iter().for_each(|part| rest.then(part));
                base.redo = Some(rest);
                return Err(fenced);
            }
        }
        let key = self.etcd.servers().key(REDO);
        let delete = vec![
            TxnOp::delete(key, None),
            self.delete_below(&format!("{REDO}/")),
        ];
        base.redo = Some(Edit::default());
        self.fenced(base.done, None, delete, self.soon())?;
        base.redo = None;
        Ok(())
    }

    /// The end of a transaction that begins now.
    fn soon(&self) -> Instant {
        Instant::now() + self.etcd.servers().patience
    }

    fn operations(&self, edit: &Edit) -> Vec<TxnOp> {
        let key = |name: &String| self.etcd.servers().key(name);
        let puts = edit.put.iter();
        let puts = puts.map(|(name, value)| TxnOp::put(key(name), &value[..], None));
        let deletes = edit.delete.iter();
        puts.chain(deletes.map(|name| TxnOp::delete(key(name), None)))
            .collect()
    }

    fn delete_below(&self, name: &str) -> TxnOp {
        let all = DeleteOptions::new().with_prefix();
        TxnOp::delete(self.etcd.servers().key(name), Some(all))
    }

    fn check_sizes(&self, edit: &Edit) -> Result<(), StoreError> {
        let large = edit.put.iter().find(|(_, value)| value.len() > MAX_BYTES);
        large.map_or(Ok(()), |(key, value)| {
            Err(failed(EtcdError::TooLarge {
                record: key.clone(),
                bytes: value.len(),
                most: MAX_BYTES,
            }))
        })
    }

    fn damaged(&self, error: &RecordError) -> StoreError {
        failed(EtcdError::Damaged {
            prefix: self.etcd.servers().prefix.clone(),
            reason: error.to_string(),
        })
    }

    fn explain(&self, fenced: Fenced) -> StoreError {
        let (error, is_doubtful) = match fenced {
            Fenced::Deposed {
                leader,
                is_doubtful,
            } => (StoreError::Deposed { leader }, is_doubtful),
            Fenced::Overtaken => (failed(EtcdError::Overtaken), true),
            Fenced::Failed(failure) => (failed(failure.error), failure.is_doubtful),
        };
        if is_doubtful {
            StoreError::Doubtful(Box::new(error))
        } else {
            error
        }
    }
}

impl Store for EtcdStore {
    fn load(&mut self) -> Result<Records, StoreError> {
        self.read()
    }

    fn commit(&mut self, changes: &Changes) -> Result<(), StoreError> {
        self.change(changes)
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EtcdStore { tenure, .. } = self;
        f.debug_struct("EtcdStore")
            .field("tenure", tenure)
            .finish_non_exhaustive()
    }
}

fn failed(error: EtcdError) -> StoreError {
    StoreError::Etcd(error.refusal())
}

/// Identifier that no other change has.
fn identifier() -> String {
    format!("{:032x}", fastrand::u128(..))
}
