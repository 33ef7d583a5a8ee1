//! An RDMA client, as the server sees it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, Instant};

use toroid_fabric::channel::{ChannelError, MAX_PAYLOAD};
use toroid_fabric::{Completion, Endpoint, OpError, Operation, PacketChannel, Region, RemoteKey};

use super::borrower::BorrowerGuard;
use crate::network::{Network, Remote};
use crate::protocol::change::{Change, Delta};
use crate::protocol::messages::{
    Awaiting, GetValue, INLINE_LIMIT, Malformed, OVERHEAD, PackedUse, Piece, Refusal, Reply,
    Request, SAMPLED, STAGING_ACCESS, SetValue, TEXT_LIMIT, Use, VERSION, decode_request,
    encode_reply, lengthen, split_message,
};
use crate::server::backend::Backend;
use crate::server::proxied_session::{ProxiedSession, ProxiedSessionError};
use crate::server::sockets::TOO_MANY;
use crate::store::operations::{self, Counted};
use crate::store::shared::Shared;
use crate::store::{Item, SetError, Store};
use crate::text::counts::{Count, Counts};

/// Messages of a node per turn.
pub(super) const TURN: u32 = 64;

/// Bytes of values and texts that count as one message.
const MESSAGE: usize = 4096;

/// Items of a report that are prefetched ahead: each is another cache miss.
const AHEAD: usize = 8;

/// Time that one operation of a client's provider may take.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(1);

/// Time that a client may leave its replies unread when there is no room for more.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest reply in bytes.
const REPLY_LIMIT: usize = TEXT_LIMIT + OVERHEAD;

/// State for all clients.
pub(super) struct RdmaService<N> {
    pub(super) network: N,
    pub(super) backend: Backend,
}

pub(super) struct RemoteClient<N: Network> {
    channel: N::Channel,
    /// Index of the turn of its node.
    turn: usize,
    greeted: bool,
    packet: Vec<u8>,
    /// Bytes of the packet that are answered.
    answered: usize,
    /// Replies that are not sent.
    replies: Vec<u8>,
    /// Time since when the channel has no room for the replies.
    stuck_since: Option<Instant>,
    staging: Option<RemoteStaging<N>>,
    /// Bytes of values and texts of the current message.
    moved: usize,
    /// Sessions of a proxy's clients, by its numbers.
    sessions: HashMap<u32, ProxiedSession>,
    pub(super) borrower: Option<BorrowerGuard>,
}

/// Staging region of a client.
struct RemoteStaging<N: Network> {
    endpoint: N::Endpoint,
    remote: Remote<N>,
    len: u64,
}

impl<N: Network> RemoteClient<N> {
    pub(super) fn new(channel: N::Channel, turn: usize) -> Self {
        RemoteClient {
            channel,
            turn,
            greeted: false,
            packet: Vec::new(),
            answered: 0,
            replies: Vec::new(),
            stuck_since: None,
            staging: None,
            moved: 0,
            sessions: HashMap::new(),
            borrower: None,
        }
    }

    pub(super) fn channel(&self) -> &N::Channel {
        &self.channel
    }

    pub(super) fn channel_mut(&mut self) -> &mut N::Channel {
        &mut self.channel
    }

    /// Index of the turn of its node.
    pub(super) fn turn(&self) -> usize {
        self.turn
    }

    /// Whether the channel has no room for its replies.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck_since.is_some()
    }

    /// Whether its last packet has unanswered messages.
    pub(super) fn is_in_a_turn(&self) -> bool {
        self.answered < self.packet.len()
    }

    #[cfg(test)]
    pub(super) fn has_been_stuck_for_too_long(&mut self) {
        self.stuck_since = Instant::now().checked_sub(PATIENCE);
    }

    /// Answers received messages, up to the rest `left` of its node's turn; returns whether
    /// there was a request, or may be one.
    ///
    /// # Errors
    /// The reason to drop the client.
    pub(super) fn serve(
        &mut self,
        service: &RdmaService<N>,
        left: &mut u32,
    ) -> Result<bool, ClientEnd> {
        let mut was_asked = false;
        while *left > 0 {
            let is_full = self.replies.len() + REPLY_LIMIT > MAX_PAYLOAD;
            if (is_full || self.is_stuck()) && !self.send()? {
                return Ok(was_asked);
            }
            if !self.is_in_a_turn() {
                self.answered = 0;
                if !self.channel.receive(&mut self.packet)? {
                    self.send()?;
                    return Ok(was_asked);
                }
            }
            self.answer_next(service)?;
            let moved = std::mem::take(&mut self.moved) / MESSAGE;
            *left = left.saturating_sub(1 + moved as u32);
            was_asked |= !self.replies.is_empty();
        }
        self.send()?;
        Ok(true)
    }

    /// Sends the replies, if there are any; returns whether there was room.
    fn send(&mut self) -> Result<bool, ClientEnd> {
        if self.replies.is_empty() {
            return Ok(true);
        }
        match self.channel.send(&[&self.replies]) {
            Ok(()) => {
                self.replies.clear();
                self.stuck_since = None;
                Ok(true)
            }
            Err(ChannelError::Full) => {
                let since = *self.stuck_since.get_or_insert_with(Instant::now);
                if since.elapsed() < PATIENCE {
                    Ok(false)
                } else {
                    Err(ClientEnd::Stuck)
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    fn answer_next(&mut self, service: &RdmaService<N>) -> Result<(), ClientEnd> {
        let packet = std::mem::take(&mut self.packet);
        let mut rest = packet.get(self.answered..).unwrap_or_default();
        let answered = split_message(&mut rest)
            .map_err(ClientEnd::from)
            .and_then(|message| self.answer(message, service));
        self.answered = packet.len() - rest.len();
        self.packet = packet;
        answered
    }

    /// Carries a message out and queues the reply.
    fn answer(&mut self, message: &[u8], service: &RdmaService<N>) -> Result<(), ClientEnd> {
        let (number, request) = decode_request(message)?;
        let Backend { store, server } = &service.backend;
        let counts = server.messages();
        let reply = match request {
            Request::Hello { version } if version == VERSION => {
                self.greeted = true;
                let geometry = store.geometry().ok_or(ClientEnd::NotExported)?;
                Reply::Welcome(geometry)
            }
            Request::Hello { .. } => Reply::Refused(Refusal::Version),
            _ if !self.greeted => return Err(ClientEnd::Malformed),
            Request::Stage { key } => self.stage(key, &service.network),
            Request::Borrow { hazards } => self.admit_borrower(hazards, &service.network, store),
            Request::Store { change, value } => self.store(store, counts, &change, value)?,
            Request::Delete { key } => {
                let removed = store.delete(key)?;
                counts.delete(removed);
                done(removed)
            }
            Request::Count { key, delta } => count(store, counts, key, delta)?,
            Request::Touch { key, exptime } => {
                let item = store.with(|store| operations::touch(store, key, exptime))?;
                counts.touch(item.is_some());
                done(item.is_some())
            }
            Request::Flush { delay } => {
                counts.one(Count::FlushCommands);
                flush(&service.backend, delay)?
            }
            Request::Get { key, touch, room } => {
                return self.hand_out(&service.backend, number, key, touch, room);
            }
            Request::Used { gets, hits, uses } => {
                return Ok(store.with(|store| note_uses(store, gets, hits, uses))?);
            }
            Request::Text { session, text } => {
                return self.hear(&service.backend, number, session, text);
            }
            Request::Leave { session } => {
                self.sessions.remove(&session);
                return Ok(());
            }
        };
        encode_reply(&mut self.replies, number, &reply);
        Ok(())
    }

    /// Carries out text of a session.
    fn hear(
        &mut self,
        backend: &Backend,
        number: u32,
        session: u32,
        text: &[u8],
    ) -> Result<(), ClientEnd> {
        let open = || backend.converse_by_proxy(self.channel.peer());
        let session = match self.sessions.entry(session) {
            Entry::Occupied(session) => Some(session),
            Entry::Vacant(vacant) => {
                open().map(|session| vacant.insert_entry(ProxiedSession::new(session)))
            }
        };
        let Some(mut session) = session else {
            let (awaiting, text) = (Awaiting::End, TOO_MANY);
            encode_reply(&mut self.replies, number, &Reply::Said { awaiting, text });
            return Ok(());
        };
        self.moved += text.len();
        let (awaiting, text) = session.get_mut().hear(text)?;
        self.moved += text.len();
        encode_reply(&mut self.replies, number, &Reply::Said { awaiting, text });
        if awaiting == Awaiting::End {
            session.remove();
        }
        Ok(())
    }

    fn stage(&mut self, key: RemoteKey, network: &N) -> Reply<'static> {
        let peer = self.channel.peer();
        let opened = (key.node == peer).then(|| {
            let (remote, len) = network.open(key, STAGING_ACCESS).ok()?;
            Some(RemoteStaging {
                endpoint: network.endpoint(peer).ok()?,
                remote,
                len,
            })
        });
        self.staging = opened.flatten();
        match self.staging {
            Some(_) => Reply::Done,
            None => Reply::Refused(Refusal::Staging),
        }
    }

    fn store(
        &mut self,
        store: &Shared,
        counts: &Counts,
        change: &Change<'_>,
        value: SetValue<'_>,
    ) -> Result<Reply<'static>, OpError> {
        let stored = match value {
            SetValue::Inline(value) => operations::store(store, change, value),
            SetValue::Staged(piece) => {
                operations::store_with(store, change, piece.len as usize, |items, to| {
                    self.fetch(piece, items, to)
                })
            }
        };
        // As in memcached, a value over the limit does not count as a set.
        if stored != Err(SetError::TooLarge) {
            counts.one(Count::SetCommands);
        }
        Ok(match stored {
            Ok(stored) => {
                counts.stored(change.mode, stored);
                Reply::Stored(stored)
            }
            Err(error) => Reply::Refused(refusal(counts, error)?),
        })
    }

    /// Reads a value from the client straight into its item.
    fn fetch(&mut self, from: Piece, items: &Region, to: u64) -> Result<(), SetError> {
        self.moved += from.len as usize;
        let staging = self.staging_with(from).ok_or(SetError::NotFetched)?;
        let place = to..to + u64::from(from.len);
        let operation = Operation::read(&staging.remote, from.offset, items, place);
        if carry_out(&mut staging.endpoint, operation).is_none() {
            self.staging = None;
            return Err(SetError::NotFetched);
        }
        Ok(())
    }

    /// The staging region, if it has this piece. A wrong piece does not cost the client its
    /// region.
    fn staging_with(&mut self, piece: Piece) -> Option<&mut RemoteStaging<N>> {
        let end = piece.offset.checked_add(piece.len.into())?;
        self.staging.as_mut().filter(|staging| end <= staging.len)
    }

    /// Answers a get: a small value travels in the reply, a large one in the client's `room`.
    fn hand_out(
        &mut self,
        Backend { store, server }: &Backend,
        number: u32,
        key: &[u8],
        touch: Option<i64>,
        room: Piece,
    ) -> Result<(), ClientEnd> {
        let (start, counts) = (self.replies.len(), server.messages());
        let mut has_expired = false;
        let find = |store: &mut Store| {
            let (item, expired) = operations::get(store, key, touch)?;
            has_expired = expired;
            Ok(item)
        };
        let given = store.read(find, |item, items| self.give(number, item, items, room))?;
        if has_expired {
            counts.one(Count::GetExpired);
        }
        // A client with too little room asks again.
        if given != Some(false) {
            counts.get(touch.is_some(), given.is_some());
        }
        if given.is_none() {
            self.replies.truncate(start);
            encode_reply(&mut self.replies, number, &Reply::Missing);
        }
        Ok(())
    }

    /// Queues the reply with a value; returns whether there was room for the value.
    fn give(
        &mut self,
        number: u32,
        item: &Item,
        items: &Region,
        room: Piece,
    ) -> Result<bool, OpError> {
        let (start, len) = (self.replies.len(), item.header.value_len);
        let is_small = len as usize <= INLINE_LIMIT;
        let value = if is_small {
            GetValue::Inline(&[])
        } else {
            GetValue::Staged { len }
        };
        let has_room = is_small || self.put(item, items, room).is_some();
        let reply = if has_room {
            Reply::Value {
                flags: item.header.flags,
                cas: item.header.cas,
                location: item.location,
                value,
            }
        } else {
            Reply::Refused(Refusal::Staging)
        };
        encode_reply(&mut self.replies, number, &reply);
        if is_small {
            let into = lengthen(&mut self.replies, start, len as usize);
            items.read(item.value_offset(), into)?;
        }
        Ok(has_room)
    }

    /// Writes a value to the staging region of the client.
    fn put(&mut self, item: &Item, items: &Region, room: Piece) -> Option<()> {
        let len = item.header.value_len;
        self.moved += len as usize;
        let staging = self.staging_with(room).filter(|_| len <= room.len)?;
        let value = item.value_offset()..item.value_offset() + u64::from(len);
        let operation = Operation::write(&staging.remote, room.offset, items, value);
        let put = carry_out(&mut staging.endpoint, operation);
        if put.is_none() {
            self.staging = None;
        }
        put
    }
}

fn done(found: bool) -> Reply<'static> {
    if found { Reply::Done } else { Reply::Missing }
}

fn flush(Backend { store, server }: &Backend, delay: i64) -> Result<Reply<'static>, OpError> {
    if !server.may_flush() {
        return Ok(Reply::Refused(Refusal::Forbidden));
    }
    store.with(|store| operations::flush(store, delay))?;
    Ok(Reply::Done)
}

fn count(
    store: &Shared,
    counts: &Counts,
    key: &[u8],
    delta: Delta,
) -> Result<Reply<'static>, OpError> {
    let counted = match store.with(|store| operations::count(store, key, delta, 0)) {
        Ok(counted) => counted,
        Err(error) => return Ok(Reply::Refused(refusal(counts, error)?)),
    };
    counts.counted(delta, counted);
    Ok(match counted {
        Counted::Done { value, item } => Reply::Counted {
            value,
            location: item.location,
        },
        Counted::NotANumber => Reply::Refused(Refusal::NotANumber),
        Counted::Exists | Counted::NotFound => Reply::Missing,
    })
}

/// Counts the gets that a client reports. A false report only keeps unwanted items.
fn note_uses(store: &mut Store, gets: u32, hits: u32, uses: &[PackedUse]) -> Result<(), OpError> {
    store.count_one_sided(gets.into(), hits.min(gets).into());
    let mut told = uses.iter().map(Use::unpack);
    let mut ahead = told.clone().skip(AHEAD);
    told.try_for_each(|Use { slot, times, word }| {
        if let Some(Use { slot, word, .. }) = ahead.next() {
            store.fetch_ahead(slot, word);
        }
        let times = times.saturating_mul(SAMPLED).min(hits);
        store.used_at(slot, word, times)
    })
}

/// Counts a failure, and returns the refusal for it.
fn refusal(counts: &Counts, error: SetError) -> Result<Refusal, OpError> {
    counts.failed(error);
    Ok(match error {
        SetError::TooLarge => Refusal::TooLarge,
        SetError::OutOfMemory => Refusal::OutOfMemory,
        SetError::NotFetched => Refusal::Staging,
        SetError::Key(_) => Refusal::Malformed,
        SetError::Memory(error) => return Err(error),
    })
}

/// Carries one operation out on an idle queue pair; `None` on failure, after which the queue pair
/// is unusable.
fn carry_out<E: Endpoint>(endpoint: &mut E, operation: Operation<E::Remote>) -> Option<()> {
    endpoint.post(0, operation).ok()?;
    endpoint.flush();
    endpoint.wait(OPERATION_TIMEOUT);
    let mut done = [Completion::default()];
    (endpoint.poll(&mut done) == 1 && done[0].result.is_ok()).then_some(())
}

/// Reason for which a client is disconnected.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientEnd {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("it broke the protocol")]
    Malformed,
    #[error(transparent)]
    Session(#[from] ProxiedSessionError),
    #[error("it does not read its replies")]
    Stuck,
    #[error("the store is in local memory")]
    NotExported,
    #[error("the store broke: {0}")]
    Store(#[from] OpError),
}

impl From<Malformed> for ClientEnd {
    fn from(Malformed: Malformed) -> Self {
        ClientEnd::Malformed
    }
}
