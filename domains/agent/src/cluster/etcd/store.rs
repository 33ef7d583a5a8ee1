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
//! leader from the keys that are missing. These transactions delete `done`, so that earlier ones
//! which come late are refused. The next one that puts something first writes `done` again, so that
//! none which could put a member back compares the revision 0.

use std::fmt;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, DeleteOptions, Txn, TxnOp, TxnOpResponse, TxnResponse};
use tokio::time::Instant;
use toroid_model::directory::records::{Changes, RecordError, Records};

use super::election::{LEADER, Leader, lasts};
use super::error::EtcdError;
use super::layout::Edit;
use super::load::{self, DONE, REDO, Redo, Staged};
use super::servers::{Answer, Failure};
use super::{Etcd, Tenure};
use crate::store::{Store, StoreError};

/// Most operations of one transaction. etcd takes 128.
const MAX_OPERATIONS: usize = 120;

/// Most bytes of keys and values of one transaction, and of one record. etcd takes 1.5 MiB.
const MAX_BYTES: usize = 1 << 20;

/// Bytes of a part of a large change. JSON in JSON needs up to twice as many.
const PART_BYTES: usize = 512 << 10;

/// Time for a transaction that follows a long read.
const LEAST: Duration = Duration::from_secs(1);

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
    redo: Option<Redo>,
}

/// What a transaction does with the key `done`.
#[derive(Clone, Copy)]
enum Mark<'a> {
    /// It is a change with this identifier.
    Put(&'a str),
    /// It is a change where etcd has no space for an identifier.
    Delete,
    /// It is part of the last change, or of none.
    Keep,
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

    /// Runs operations while the tenure lasts and no change came after revision `done`. Returns the
    /// revision of the change that is the last then.
    fn fenced(
        &self,
        done: i64,
        mark: Mark<'_>,
        mut operations: Vec<TxnOp>,
        end: Instant,
    ) -> Result<i64, Fenced> {
        let servers = self.etcd.servers();
        let key = servers.key(DONE);
        let same = Compare::mod_revision(key.clone(), CompareOp::Equal, done);
        match mark {
            Mark::Put(id) => operations.push(TxnOp::put(key.clone(), id, None)),
            Mark::Delete => operations.push(TxnOp::delete(key.clone(), None)),
            Mark::Keep => {}
        }
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
            Ok(match mark {
                Mark::Put(_) => revision,
                Mark::Delete => 0,
                Mark::Keep => done,
            })
        } else {
            self.find_out(mark, &answer, is_doubtful)
        }
    }

    /// Finds out why the comparison of a transaction failed.
    fn find_out(
        &self,
        mark: Mark<'_>,
        answer: &TxnResponse,
        is_doubtful: bool,
    ) -> Result<i64, Fenced> {
        let found = answer.op_responses();
        let pair = |index: usize| match found.get(index) {
            Some(TxnOpResponse::Get(found)) => found.kvs().first(),
            _ => None,
        };
        // An earlier attempt may have had no answer.
        let own = match (mark, pair(1)) {
            (Mark::Put(id), Some(last)) if id.as_bytes() == last.value() => {
                return Ok(last.mod_revision());
            }
            // Otherwise it was one of a former life.
            (Mark::Delete, None) if is_doubtful => Some(0),
            _ => None,
        };
        let leader = pair(0).and_then(|pair| Leader::of(pair).ok());
        match leader {
            Some(leader) if leader.term == self.tenure.term => own.ok_or(Fenced::Overtaken),
            leader => {
                self.etcd.lose(self.tenure.lease);
                Err(Fenced::Deposed {
                    leader: leader.map(|leader| leader.host),
                    is_doubtful,
                })
            }
        }
    }

    /// Reads all, until no transaction of a former life of this host comes in between any more.
    /// What follows the read has time until `end`, but at least a moment; the time for one request
    /// without an end.
    fn read(&mut self, end: Option<Instant>) -> Result<Records, StoreError> {
        self.base = None;
        loop {
            let mut loaded = load::load(&self.etcd).map_err(failed)?;
            let end = end.map_or_else(|| self.soon(), |end| end.max(Instant::now() + LEAST));
            match self.bar(loaded.done, end) {
                Ok(done) => loaded.done = done,
                Err(Fenced::Overtaken) => continue,
                Err(fenced) => return Err(self.explain(fenced)),
            }
            if !loaded.remains.is_empty() {
                let remains = loaded.remains.iter().map(|id| self.delete_parts(id));
                for remains in remains.collect::<Vec<_>>().chunks(MAX_OPERATIONS) {
                    self.fenced(loaded.done, Mark::Keep, remains.into(), end)
                        .map_err(|fenced| self.explain(fenced))?;
                }
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

    /// Lets earlier transactions that come late be refused.
    fn bar(&self, done: i64, end: Instant) -> Result<i64, Fenced> {
        match self.fenced(done, Mark::Put(&identifier()), vec![], end) {
            Err(Fenced::Failed(failure)) if failure.error == EtcdError::NoSpace => {
                self.fenced(done, Mark::Delete, vec![], end)
            }
            barred => barred,
        }
    }

    fn change(&mut self, changes: &Changes) -> Result<(), StoreError> {
        let end = self.soon();
        if self.base.is_none() {
            self.read(Some(end))?;
        }
        // It stays away if the outcome is unknown.
        let Some(mut base) = self.base.take() else {
            return Err(failed(EtcdError::Overtaken));
        };
        let made = self.change_from(&mut base, changes, end);
        if matches!(made, Ok(()) | Err(StoreError::Etcd(_))) {
            self.base = Some(base);
        }
        made
    }

    fn change_from(
        &self,
        base: &mut Base,
        changes: &Changes,
        end: Instant,
    ) -> Result<(), StoreError> {
        let edit = Edit::of(&base.records, changes).map_err(|error| self.damaged(&error))?;
        let mut all = base.owed.clone();
        all.then(&edit);
        let made = match self.prepare(base, end) {
            Ok(()) if all.len() < MAX_OPERATIONS && all.bytes() <= MAX_BYTES => self.fenced(
                base.done,
                Mark::Put(&identifier()),
                self.operations(&all),
                end,
            ),
            Ok(()) => {
                self.check_sizes(&all)?;
                self.stage(base, &all, end)
            }
            // Not of this change.
            Err(Fenced::Failed(failure)) => Err(Fenced::Failed(Failure {
                is_doubtful: false,
                ..failure
            })),
            Err(Fenced::Deposed { leader, .. }) => Err(Fenced::Deposed {
                leader,
                is_doubtful: false,
            }),
            // Others may be there than the records known here.
            Err(Fenced::Overtaken) => Err(Fenced::Overtaken),
        };
        match made {
            Ok(done) => {
                base.done = done;
                base.owed = Edit::default();
            }
            Err(Fenced::Failed(failure))
                if failure.error == EtcdError::NoSpace
                    && !failure.is_doubtful
                    && edit.is_departure(changes)
                    && base
                        .redo
                        .as_ref()
                        .is_none_or(|redo| !redo.edit.puts_any_of(&edit.delete)) =>
            {
                tracing::warn!("{}; only members leave", failure.error.refusal());
                base.done = self.let_leave(base.done, &edit, end)?;
                all.delete.clear();
                base.owed = all;
            }
            Err(fenced) => return Err(self.explain(fenced)),
        }
        changes.apply_to(&mut base.records);
        // It is in effect already; the next change tries again.
        if let Err(fenced) = self.complete(base, end) {
            tracing::warn!("a large change is incomplete: {}", self.explain(fenced));
        }
        Ok(())
    }

    /// Makes what has to come before a change that puts something.
    fn prepare(&self, base: &mut Base, end: Instant) -> Result<(), Fenced> {
        if base.done == 0 {
            base.done = self.fenced(0, Mark::Put(&identifier()), vec![], end)?;
        }
        self.complete(base, end)
    }

    /// Deletes without writing anything. Returns the revision of the last change then.
    fn let_leave(&self, mut done: i64, edit: &Edit, end: Instant) -> Result<i64, StoreError> {
        let deletes = Edit {
            delete: edit.delete.clone(),
            ..Edit::default()
        };
        for (index, part) in deletes.pieces(MAX_OPERATIONS, MAX_BYTES).iter().enumerate() {
            let left = self.fenced(done, Mark::Delete, self.operations(part), end);
            done = left.map_err(|fenced| match self.explain(fenced) {
                error @ StoreError::Etcd(_) if index > 0 => StoreError::Doubtful(Box::new(error)),
                error => error,
            })?;
        }
        Ok(done)
    }

    /// Brings a large change into effect.
    fn stage(&self, base: &mut Base, all: &Edit, end: Instant) -> Result<i64, Fenced> {
        let servers = self.etcd.servers();
        let id = identifier();
        let parts = all.clone().pieces(usize::MAX, PART_BYTES);
        for (index, part) in parts.iter().enumerate() {
            let part = serde_json::to_string(part).expect("texts can be written");
            let key = servers.key(&load::part(&id, index));
            let put = vec![TxnOp::put(key, part, None)];
            let written = self.fenced(base.done, Mark::Keep, put, end);
            // Parts alone change nothing.
            written.map_err(|fenced| match fenced {
                Fenced::Failed(failure) => Fenced::Failed(Failure {
                    is_doubtful: false,
                    ..failure
                }),
                fenced => fenced,
            })?;
        }
        let staged = Staged {
            id,
            parts: parts.len(),
        };
        let value = serde_json::to_string(&staged).expect("texts and numbers can be written");
        let put = vec![TxnOp::put(servers.key(REDO), value, None)];
        let done = self.fenced(base.done, Mark::Put(&staged.id), put, end)?;
        base.redo = Some(Redo {
            id: staged.id,
            edit: all.clone(),
            made: 0,
        });
        Ok(done)
    }

    /// Makes the keys of a large change that is in effect.
    fn complete(&self, base: &mut Base, end: Instant) -> Result<(), Fenced> {
        let Some(redo) = &mut base.redo else {
            return Ok(());
        };
        let pieces = redo.edit.clone().pieces(MAX_OPERATIONS, MAX_BYTES);
        for piece in &pieces[redo.made..] {
            self.fenced(base.done, Mark::Keep, self.operations(piece), end)?;
            redo.made += 1;
        }
        // Not all below: late, it would take the parts of a later change.
        let delete = vec![
            TxnOp::delete(self.etcd.servers().key(REDO), None),
            self.delete_parts(&redo.id),
        ];
        self.fenced(base.done, Mark::Keep, delete, end)?;
        base.redo = None;
        Ok(())
    }

    /// Replaces all records, which were `found` by [`Store::load`], and returns when the keys have
    /// the next ones. The large change that this is has so much time for that, and so has one which
    /// an earlier leader has left incomplete.
    ///
    /// # Errors
    /// [`StoreError`]; the change may be in effect.
    pub(crate) fn replace(
        &mut self,
        found: &Records,
        next: &Records,
        time: Duration,
    ) -> Result<(), StoreError> {
        self.complete_all(time)?;
        self.commit(&Changes::between(found, next))?;
        // Readers of single keys have less time.
        self.complete_all(time)
    }

    fn complete_all(&mut self, time: Duration) -> Result<(), StoreError> {
        let Some(mut base) = self.base.take() else {
            return Err(failed(EtcdError::Overtaken));
        };
        let completed = self.complete(&mut base, Instant::now() + time);
        self.base = Some(base);
        completed.map_err(|fenced| self.explain(fenced))
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

    /// Deletes the parts of a large change.
    fn delete_parts(&self, id: &str) -> TxnOp {
        let all = DeleteOptions::new().with_prefix();
        let key = self.etcd.servers().key(&format!("{REDO}/{id}/"));
        TxnOp::delete(key, Some(all))
    }

    fn check_sizes(&self, edit: &Edit) -> Result<(), StoreError> {
        // In a part, which escapes it.
        let escaped = |value: &String| serde_json::to_string(value).map_or(0, |text| text.len());
        let mut sizes = edit.put.iter().map(|(key, value)| (key, escaped(value)));
        let large = sizes.find(|(_, bytes)| *bytes > MAX_BYTES);
        large.map_or(Ok(()), |(key, bytes)| {
            Err(failed(EtcdError::TooLarge {
                record: key.clone(),
                bytes,
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
        self.read(None)
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
