//! RDMA clients: one thread serves the messages of all.
//!
//! `remote_client`: state of one client, and answers to its messages.

mod accept;
mod borrower;
mod remote_client;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use toroid_fabric::BusyPoll;
use toroid_fabric::{NodeId, PacketChannel};

pub(crate) use self::accept::Accept;
use self::remote_client::{RdmaService, RemoteClient, TURN};
use super::backend::Backend;
use super::{ServeError, Stop};
use crate::network::Network;

/// Period in which a busy server checks for new clients and for its stop.
const LOOK: Duration = Duration::from_millis(1);

/// Time without a request after which memory is populated: longer than a client needs between two
/// requests in turns, and shorter than any busy-polling.
const PAUSE: Duration = Duration::from_micros(5);

/// Period in which stuck clients are checked for room.
const PATIENT_SLEEP: Duration = Duration::from_millis(10);

/// The thread that serves RDMA clients.
pub(super) struct Server<N: Network, L> {
    service: RdmaService<N>,
    listener: L,
    /// Clients in the order of their next turns.
    clients: VecDeque<RemoteClient<N>>,
    /// Nodes that ever had a client, with the rest of their turns.
    turns: Vec<(NodeId, u32)>,
    busy_poll: BusyPoll,
    /// Time of the last request; `None` after a sleep.
    asked: Option<Instant>,
    /// Whether memory for later items may have to be populated.
    populates: bool,
}

impl<N: Network, L: Accept<Channel = N::Channel>> Server<N, L> {
    /// A server of `backend` for the clients of `listener`.
    pub(super) fn new(network: N, listener: L, backend: Backend) -> Self {
        Server {
            service: RdmaService { network, backend },
            listener,
            clients: VecDeque::new(),
            turns: Vec::new(),
            busy_poll: BusyPoll::default(),
            asked: None,
            populates: false,
        }
    }

    /// Serves until stopped, or until the agent ends.
    pub(super) fn run(mut self, stop: &Stop) -> Result<(), ServeError> {
        loop {
            self.accept()?;
            let stopped = if self.serve_while_busy() {
                stop.wait(Duration::ZERO)?
            } else {
                self.sleep(stop)?
            };
            if stopped {
                return Ok(());
            }
        }
    }

    fn accept(&mut self) -> Result<(), ServeError> {
        while let Some(channel) = self.listener.accept()? {
            let peer = channel.peer();
            let known = self.turns.iter().position(|(node, _)| *node == peer);
            let turn = known.unwrap_or_else(|| {
                self.turns.push((peer, TURN));
                self.turns.len() - 1
            });
            self.clients.push_back(RemoteClient::new(channel, turn));
        }
        Ok(())
    }

    /// Serves for a while; returns whether to continue, as requests came recently, or to sleep.
    /// Reports do not count as requests.
    fn serve_while_busy(&mut self) -> bool {
        let start = Instant::now();
        while start.elapsed() < LOOK {
            if self.serve_all() {
                self.busy_poll.count_news();
                self.asked = Some(Instant::now());
                self.populates = true;
                continue;
            }
            let is_idle = |since: Instant| since.elapsed() >= PAUSE;
            if self.populates && self.asked.is_none_or(is_idle) {
                self.populates = self.service.backend.store.populate_ahead();
                continue;
            }
            let goes_on = self
                .asked
                .is_some_and(|since| self.busy_poll.keeps_polling(since));
            if !goes_on {
                return false;
            }
        }
        true
    }

    /// Gives each node a turn, which its clients share, so that more channels or longer values
    /// give a node no more. Another client comes first each time. Returns whether a request was
    /// answered.
    fn serve_all(&mut self) -> bool {
        let (service, turns, mut busy) = (&self.service, &mut self.turns, false);
        if self.clients.len() > 1 {
            self.clients.rotate_left(1);
        }
        turns.iter_mut().for_each(|(_, left)| *left = TURN);
        self.clients.retain_mut(|client| {
            let (peer, left) = &mut turns[client.turn()];
            match client.serve(service, left) {
                Ok(did) => {
                    busy |= did;
                    true
                }
                Err(end) => {
                    tracing::debug!("client at {peer} ended: {end}");
                    false
                }
            }
        });
        busy
    }

    /// Sleeps until there is something to do; returns whether to stop.
    fn sleep(&mut self, stop: &Stop) -> Result<bool, ServeError> {
        let (mut asleep, mut stuck) = (true, false);
        for client in &mut self.clients {
            // A client without room for its replies does not keep the server awake.
            if client.is_stuck() {
                stuck = true
            } else {
                asleep &= !client.is_in_a_turn() && client.channel_mut().arm()
            }
        }
        let timeout = match (asleep, stuck) {
            (false, _) => Some(Duration::ZERO),
            (true, true) => Some(PATIENT_SLEEP),
            (true, false) => None,
        };
        let listener = std::iter::once(self.listener.wake_fd());
        let clients = self.clients.iter().map(|client| client.channel().wake_fd());
        let fds: Vec<BorrowedFd<'_>> = listener.chain(clients).collect();
        let since = self.asked.take().unwrap_or_else(Instant::now);
        let woken = stop.wait_or(&fds, timeout)?;
        self.busy_poll.record_wait(since);
        self.populates = true;
        // The first is the listener. Clients that are not ready stay armed: to disarm each
        // would cost a system call per client.
        for (client, is_ready) in self.clients.iter_mut().zip(woken.ready.iter().skip(1)) {
            if *is_ready {
                client.channel_mut().disarm();
            }
        }
        Ok(woken.stopped)
    }
}

#[cfg(test)]
pub(crate) mod tests;
