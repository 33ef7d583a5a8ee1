//! RDMA clients: one thread serves the messages of all.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use fabric::channel::ChannelError;
use fabric::{Completion, Endpoint, OpError, Operation, PacketChannel, Region, RemoteKey};

use super::{ServeError, Stop};
use crate::client::STAGING_ACCESS;
use crate::control::{
    GetValue, INLINE_LIMIT, Refusal, Reply, Request, SetValue, UsedPlace, VERSION, decode_request,
    encode_reply, unpack_used,
};
use crate::network::{Accept, Network, Remote};
use crate::operations::{self, Change, Stored};
use crate::shared::Shared;
use crate::store::{Item, SetError, Store};

/// How long to look for more before falling asleep: about what sleeping and waking costs.
const SPIN: Duration = Duration::from_micros(20);

/// Messages of one client before the next one's turn.
const TURN: usize = 64;

/// How often, in rounds, a busy server looks whether somebody new is there.
const ROUNDS_PER_ACCEPT: u32 = 256;

/// How long a client's provider may take for one operation.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a client may leave its replies unread when there is no room for another.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often to look whether such a client has made room.
const PATIENT_SLEEP: Duration = Duration::from_millis(10);

/// The thread that serves RDMA clients.
pub(super) struct Server<N: Network, L> {
    network: N,
    listener: L,
    store: Shared,
    clients: Vec<Client<N>>,
}

impl<N: Network, L: Accept<Channel = N::Channel>> Server<N, L> {
    pub(super) fn new(network: N, listener: L, store: Shared) -> Self {
        Server {
            network,
            listener,
            store,
            clients: Vec::new(),
        }
    }

    /// Serves until stopped, or until the agent ends.
    pub(super) fn run(mut self, stop: &Stop) -> Result<(), ServeError> {
        loop {
            self.accept()?;
            self.serve_while_busy();
            if self.sleep(stop)? {
                return Ok(());
            }
        }
    }

    fn accept(&mut self) -> Result<(), ServeError> {
        while let Some(channel) = self.listener.accept()? {
            self.clients.push(Client::new(channel));
        }
        Ok(())
    }

    /// Returns when nobody has asked for anything for a while, or it is time to look for new
    /// clients.
    fn serve_while_busy(&mut self) {
        let mut idle_since = None;
        for _ in 0..ROUNDS_PER_ACCEPT {
            if self.serve_all() {
                idle_since = None;
                continue;
            }
            let since = *idle_since.get_or_insert_with(Instant::now);
            if since.elapsed() > SPIN {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// A turn for each client; returns whether anything was done.
    fn serve_all(&mut self) -> bool {
        let (network, store) = (&self.network, &self.store);
        let mut busy = false;
        self.clients
            .retain_mut(|client| match client.serve(network, store) {
                Ok(did) => {
                    busy |= did;
                    true
                }
                Err(end) => {
                    tracing::debug!("client at {} ended: {end}", client.channel.peer());
                    false
                }
            });
        busy
    }

    /// Sleeps until there is something to do; returns whether to stop.
    fn sleep(&mut self, stop: &Stop) -> Result<bool, ServeError> {
        let (mut asleep, mut stuck) = (true, false);
        for client in &mut self.clients {
            // Requests of a client without room for replies are no reason to stay awake.
            match client.stuck_since {
                Some(_) => stuck = true,
                None => asleep &= client.channel.arm(),
            }
        }
        let timeout = match (asleep, stuck) {
            (false, _) => Some(Duration::ZERO),
            (true, true) => Some(PATIENT_SLEEP),
            (true, false) => None,
        };
        let listener = std::iter::once(self.listener.wake_fd());
        let clients = self.clients.iter().map(|client| client.channel.wake_fd());
        let fds: Vec<BorrowedFd<'_>> = listener.chain(clients).collect();
        let woken = stop.wait_or(&fds, timeout);
        for client in &mut self.clients {
            client.channel.disarm();
        }
        Ok(woken?.stopped)
    }
}

struct Client<N: Network> {
    channel: N::Channel,
    greeted: bool,
    packet: Vec<u8>,
    reply: Vec<u8>,
    /// The reply is still to be sent.
    unsent: bool,
    /// Since when the reply has found no room in the channel.
    stuck_since: Option<Instant>,
    staging: Option<Staging<N>>,
}

/// A client's memory for values on their way.
struct Staging<N: Network> {
    endpoint: N::Endpoint,
    remote: Remote<N>,
    len: u64,
}

impl<N: Network> Client<N> {
    fn new(channel: N::Channel) -> Self {
        Client {
            channel,
            greeted: false,
            packet: Vec::new(),
            reply: Vec::new(),
            unsent: false,
            stuck_since: None,
            staging: None,
        }
    }

    /// Answers what has come, up to a turn's worth; returns whether there was anything.
    ///
    /// # Errors
    /// Why the client is to be dropped.
    fn serve(&mut self, network: &N, store: &Shared) -> Result<bool, ClientEnd> {
        for turn in 0..TURN {
            if self.unsent {
                match self.channel.send(&[&self.reply]) {
                    Ok(()) => (self.unsent, self.stuck_since) = (false, None),
                    Err(ChannelError::Full) => {
                        let since = *self.stuck_since.get_or_insert_with(Instant::now);
                        return match since.elapsed() < PATIENCE {
                            true => Ok(turn > 0),
                            false => Err(ClientEnd::Stuck),
                        };
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            if !self.channel.receive(&mut self.packet)? {
                return Ok(turn > 0);
            }
            let packet = std::mem::take(&mut self.packet);
            let answered = self.answer(&packet, network, store);
            self.packet = packet;
            self.unsent = answered?;
        }
        Ok(true)
    }

    /// Carries a message out and leaves the reply in `self.reply`; returns whether there is one.
    fn answer(&mut self, packet: &[u8], network: &N, store: &Shared) -> Result<bool, ClientEnd> {
        let (number, request) = decode_request(packet).map_err(|_| ClientEnd::Malformed)?;
        let mut buffer = [0; INLINE_LIMIT];
        let reply = match request {
            Request::Hello { version } if version == VERSION => {
                self.greeted = true;
                let geometry = store.geometry().ok_or(ClientEnd::NotExported)?;
                Reply::Welcome(geometry)
            }
            Request::Hello { .. } => Reply::Refused(Refusal::Version),
            _ if !self.greeted => return Err(ClientEnd::Malformed),
            Request::Stage { key } => self.stage(key, network),
            Request::Set {
                key,
                flags,
                exptime,
                value,
            } => {
                let change = Change {
                    flags,
                    exptime,
                    ..Change::set(key, false)
                };
                let stored = match value {
                    SetValue::Inline(value) => operations::store(store, &change, value),
                    SetValue::Staged { offset, len } => {
                        operations::store_with(store, &change, len as usize, |items, to| {
                            self.fetch(offset, items, to, len.into())
                        })
                    }
                };
                reply_to_set(stored)
            }
            Request::Delete { key } => match store.delete(key) {
                Ok(true) => Reply::Done,
                Ok(false) => Reply::Missing,
                Err(error) => return Err(ClientEnd::Store(error)),
            },
            Request::Get { key } => {
                let found = store.get(key, |item, items| {
                    Ok(self.value_reply(item, items, &mut buffer))
                });
                found.map_err(ClientEnd::Store)?.unwrap_or(Reply::Missing)
            }
            Request::Used { gets, hits, places } => {
                let used = store.with(|store| note_uses(store, gets, hits, places));
                return used.map(|()| false).map_err(ClientEnd::Store);
            }
        };
        encode_reply(&mut self.reply, number, &reply);
        Ok(true)
    }

    fn stage(&mut self, key: RemoteKey, network: &N) -> Reply<'static> {
        let peer = self.channel.peer();
        let opened = (key.node == peer).then(|| {
            let (remote, len) = network.open(key, STAGING_ACCESS).ok()?;
            Some(Staging {
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

    /// Reads a value from the client straight to where its item is.
    fn fetch(&mut self, offset: u64, items: &Region, to: u64, len: u64) -> Result<(), SetError> {
        let staging = self.staging.as_mut().ok_or(SetError::NotFetched)?;
        let operation = Operation::Read {
            remote: staging.remote.clone(),
            offset,
            local: items.clone(),
            local_offset: to,
            len,
        };
        if carry_out(&mut staging.endpoint, operation).is_none() {
            self.staging = None;
            return Err(SetError::NotFetched);
        }
        Ok(())
    }

    /// A value in the packet if it is small, else in the client's staging region.
    fn value_reply<'a>(
        &mut self,
        item: &Item,
        items: &Region,
        buffer: &'a mut [u8; INLINE_LIMIT],
    ) -> Reply<'a> {
        let (flags, placement) = (item.header.flags, item.placement);
        let len = item.header.value_len;
        if let Some(buffer) = buffer.get_mut(..len as usize) {
            return match items.read(item.value_offset(), buffer) {
                Ok(()) => Reply::Value {
                    flags,
                    placement,
                    value: GetValue::Inline(buffer),
                },
                Err(_) => Reply::Missing,
            };
        }
        let put = self
            .staging
            .as_mut()
            .filter(|staging| staging.len >= len.into());
        let put = put.and_then(|staging| {
            let operation = Operation::Write {
                remote: staging.remote.clone(),
                offset: 0,
                local: items.clone(),
                local_offset: item.value_offset(),
                len: len.into(),
            };
            carry_out(&mut staging.endpoint, operation)
        });
        match put {
            Some(()) => Reply::Value {
                flags,
                placement,
                value: GetValue::Staged { len },
            },
            None => {
                self.staging = None;
                Reply::Refused(Refusal::Staging)
            }
        }
    }
}

/// Counts what a client says that it read. It may say what it likes: the worst is that items stay
/// which nobody wants.
fn note_uses(store: &mut Store, gets: u32, hits: u32, places: &[UsedPlace]) -> Result<(), OpError> {
    store.count_one_sided(gets.into(), hits.min(gets).into());
    let mut places = places.iter().map(unpack_used);
    places.try_for_each(|(slot, word)| store.used_at(slot, word))
}

fn reply_to_set(stored: Result<Stored, SetError>) -> Reply<'static> {
    match stored {
        Ok(Stored::Stored { placement, .. }) => Reply::Stored(placement),
        Ok(_) => Reply::Missing,
        Err(SetError::TooLarge) => Reply::Refused(Refusal::TooLarge),
        Err(SetError::OutOfMemory) => Reply::Refused(Refusal::OutOfMemory),
        Err(SetError::NotFetched | SetError::Memory(_)) => Reply::Refused(Refusal::Staging),
        Err(SetError::Key(_)) => Reply::Refused(Refusal::Malformed),
    }
}

/// One operation on a queue that is empty before and after; `None` when it failed, after which
/// the queue is of no further use.
fn carry_out<E: Endpoint>(endpoint: &mut E, operation: Operation<E::Remote>) -> Option<()> {
    endpoint.post(0, operation).ok()?;
    endpoint.flush();
    endpoint.wait(OPERATION_TIMEOUT);
    let mut done = [Completion::default()];
    (endpoint.poll(&mut done) == 1 && done[0].result.is_ok()).then_some(())
}

/// Why a client is dropped.
#[derive(Debug, thiserror::Error)]
enum ClientEnd {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("it broke the protocol")]
    Malformed,
    #[error("it does not read its replies")]
    Stuck,
    #[error("the store is in local memory")]
    NotExported,
    #[error("the store broke: {0}")]
    Store(OpError),
}

#[cfg(test)]
#[path = "rdma_tests.rs"]
mod tests;
