//! The data path: one thread that waits for all TAPs, uplinks and tunnels of the host and moves frames
//! between them.
//!
//! Nothing needs to be held back here. Writing to a TAP goes all the next_hop up through the receiver's
//! kernel and returns when the packet is in a socket, or was thrown away because that is full: of
//! 75,751 writes to a node whose sockets nobody read, none waited or said `EAGAIN`. Its kernel
//! counted 75,529 datagrams lost, and TCP's window stopped the stream. While the switch writes it
//! does not read, so what others send waits in their own queues, and what does not fit there is
//! their kernels' to drop. Only a tunnel may take less than it is given, and has an send_queue for the rest.
//!
//! It alone owns the [`Bridges`], so nothing is locked. Whoever wants a change hands it a piece
//! of work ([`SwitchHandle::call`]), which it does between two batches of frames.

pub(crate) mod busy_poll;
mod tunnels;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use toroid_fabric::{Epoch, NodeId, Partition, Place};
use toroid_model::ethernet::DropReason;
use toroid_protocol::driver::{PlugFailure, Port, PortDrops, Uplink as Outside};
use tracing::warn;

use crate::forward::{Action, AttachError, Bridges, Ingress, NextHop};
use crate::offload::Capabilities;
use crate::offload::segmentation::{FrameParts, Segmenter};
use crate::offload::udp_gro::UdpGro;
use crate::port::stack_socket::StackSocket;
use crate::port::tap::Tap;
use crate::port::uplink::{Uplink, is_down};
use crate::port::{SwitchPort, is_gone};
use crate::tunnel::HostId;
use busy_poll::BusyPoll;
use tunnels::{ActiveTunnel, Tunnels, Via};
pub use tunnels::{LostStream, StreamEvent, TunnelEvent, TunnelId};

/// Frames that one TAP may have sent before others get their turn: 0.1 ms at 9000 bytes. One that
/// goes to many, or is many, counts as many.
const BATCH: usize = 64;

/// Ready TAPs to take signal of at once.
const EVENTS: usize = 64;

/// The event of the doorbell. No port, tunnel or stream has it: those fit 59 bits.
const DOORBELL: u64 = u64::MAX;

/// In the event of an uplink.
const OUTSIDE: u64 = 1 << 56;

/// In the event of a tunnel, with the host's number.
const TUNNEL: u64 = 1 << 57;

/// In the event of the stream of a tunnel, with the host's number.
const RDMA_STREAM: u64 = 1 << 58;

/// Something for the switch to do.
type Work = Box<dyn FnOnce(&mut Switch) + Send>;

/// Moves frames between the TAPs of its ports.
pub struct Switch {
    epoll: Epoll,
    bridges: Bridges<SwitchPort>,
    tunnels: Tunnels,
    /// Other hosts of which more has come, this next_hop, than their turns were long.
    unread: BTreeSet<(HostId, Via)>,
    /// Is told what becomes of tunnels.
    events: Sender<(TunnelId, TunnelEvent)>,
    busy_poll: BusyPoll,
    work: Receiver<Work>,
    doorbell: Arc<EventFd>,
}

/// Hands work to a [`Switch`] in another thread. The switch ends when its handle is dropped.
#[derive(Debug)]
pub struct SwitchHandle {
    work: Option<Sender<Work>>,
    doorbell: Arc<EventFd>,
}

/// The switch has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the switch has ended")]
pub struct SwitchEnded;

/// Why a port could not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// It may not be a member.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// Its egress port cannot be waited for.
    #[error("cannot wait for its packets: {0}")]
    Epoll(io::Error),
}

impl SwitchHandle {
    /// Lets the switch do `work` and waits for its result.
    ///
    /// # Errors
    /// [`SwitchEnded`].
    pub fn call<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Switch) -> R + Send + 'static,
    ) -> Result<R, SwitchEnded> {
        let (result, results) = mpsc::sync_channel(1);
        let work = move |switch: &mut Switch| {
            // Nobody waits for it only when the caller's thread has ended.
            let _ = result.send(work(switch));
        };
        let queue = self.work.as_ref().ok_or(SwitchEnded)?;
        queue.send(Box::new(work)).map_err(|_| SwitchEnded)?;
        self.ring();
        results.recv().map_err(|_| SwitchEnded)
    }

    fn ring(&self) {
        // It fails only when 2^64 rings were not heard; one is enough.
        let _ = self.doorbell.write(1);
    }
}

impl Drop for SwitchHandle {
    fn drop(&mut self) {
        self.work = None;
        self.ring();
    }
}

impl Switch {
    /// A switch without ports, and the handle that ends it. It tells what becomes of tunnels by
    /// themselves.
    ///
    /// # Errors
    /// The system's: out of descriptors.
    pub fn new(events: Sender<(TunnelId, TunnelEvent)>) -> io::Result<(Self, SwitchHandle)> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let doorbell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        epoll.add(&doorbell, EpollEvent::new(EpollFlags::EPOLLIN, DOORBELL))?;
        let doorbell = Arc::new(doorbell);
        let (sender, work) = mpsc::channel();
        let handle = SwitchHandle {
            work: Some(sender),
            doorbell: Arc::clone(&doorbell),
        };
        let switch = Switch {
            epoll,
            bridges: Bridges::default(),
            tunnels: Tunnels::default(),
            unread: BTreeSet::new(),
            events,
            busy_poll: BusyPoll::default(),
            work,
            doorbell,
        };
        Ok((switch, handle))
    }

    /// Moves frames until the [`SwitchHandle`] is dropped.
    ///
    /// # Errors
    /// The system's, of waiting. What goes wrong with one TAP is that port's matter.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let mut scratch = Scratch::default();
        loop {
            let ready = self.wait(&mut events)?;
            // Before others get their turn with what is left of these by then.
            let unread = std::mem::take(&mut self.unread);
            for event in &events[..ready] {
                match event.data() {
                    DOORBELL => match self.work() {
                        Ok(()) => {}
                        Err(SwitchEnded) => return Ok(()),
                    },
                    stream if stream & RDMA_STREAM != 0 => {
                        self.on_stream_ready(HostId(stream as u32), &mut scratch)
                    }
                    tunnel if tunnel & TUNNEL != 0 => {
                        self.on_tunnel_ready(HostId(tunnel as u32), event.events(), &mut scratch);
                    }
                    port => self.serve_port(port, &mut scratch),
                }
            }
            for (host, via) in unread {
                match via {
                    Via::Tcp => self.read_tunnel(host, &mut scratch),
                    Via::Rdma => self.read_stream(host, &mut scratch),
                }
            }
            self.flush();
        }
    }

    /// Lets a port send and receive.
    ///
    /// # Errors
    /// [`JoinError`]; the egress port is closed then, and the interface of a TAP stays.
    pub fn attach(&mut self, port: Port, egress: SwitchPort) -> Result<(), JoinError> {
        let event = event_of(Partition(port.domain_id), port.place);
        self.watch(&egress, event).map_err(JoinError::Epoll)?;
        Ok(self.bridges.attach(port, egress)?)
    }

    /// Adds a member that another host carries, or changes it.
    ///
    /// # Errors
    /// [`AttachError`].
    pub fn attach_remote(&mut self, port: Port, host: HostId) -> Result<(), AttachError> {
        self.bridges.attach_remote(port, host)
    }

    /// Answers what was asked about a member before it was one. Its kernel has to receive packets by then:
    /// askers send at once what they have kept.
    pub fn answer_pending(&self, partition: Partition, place: Place) {
        for (egress, answer) in self.bridges.pending_replies(partition, place) {
            // An asker that takes nothing at this moment asks again.
            let _ = egress.send_frame(&FrameParts([&answer, &[], &[]]));
        }
    }

    /// Gives a process the link of a port.
    ///
    /// # Errors
    /// [`PlugFailure`]; the stack socket is closed then.
    pub fn plug(
        &mut self,
        partition: Partition,
        node: NodeId,
        stack_socket: StackSocket,
    ) -> Result<(), PlugFailure> {
        let place = self.bridges.place_of(partition, node);
        let place = place.ok_or(PlugFailure::NoStack)?;
        match self.bridges.egress_mut(partition, place) {
            Some(SwitchPort::Stack(Some(present))) if !present.is_cut() => Err(PlugFailure::Taken),
            Some(SwitchPort::Stack(_)) => {
                let egress = SwitchPort::Stack(Some(stack_socket));
                let event = event_of(partition, place);
                self.watch(&egress, event)
                    .map_err(|_| PlugFailure::System)?;
                // Closing the one before ends its events.
                if let Some(place) = self.bridges.egress_mut(partition, place) {
                    *place = egress;
                }
                Ok(())
            }
            _ => Err(PlugFailure::NoStack),
        }
    }

    /// Cuts a port and returns its egress port, if there was one.
    pub fn detach(&mut self, partition: Partition, node: NodeId) -> Option<SwitchPort> {
        let egress = self.bridges.detach(partition, node)?;
        self.unwatch(&egress);
        Some(egress)
    }

    /// Makes a domain one Ethernet with what is outside.
    ///
    /// # Errors
    /// The system's: it cannot be waited for.
    pub fn connect(&mut self, to: &Outside, uplink: Uplink) -> io::Result<()> {
        let event = OUTSIDE | event_of(Partition(to.domain_id), Place { x: 0, y: 0, z: 0 });
        let event = EpollEvent::new(EpollFlags::EPOLLIN, event);
        self.epoll.add(&uplink, event)?;
        // The one before is closed, and so not waited for any longer.
        self.bridges.connect(to, SwitchPort::Uplink(uplink));
        Ok(())
    }

    /// Ends that.
    pub fn disconnect(&mut self, partition: Partition) {
        self.bridges.disconnect(partition);
    }

    /// Sets whether a port's member is limited.
    pub fn set_limited(&mut self, partition: Partition, place: Place, limited: bool) {
        self.bridges.set_limited(partition, place, limited);
    }

    /// Lets a port's member hear every group.
    pub fn receive_all(&mut self, partition: Partition, place: Place) {
        self.bridges.receive_all(partition, place);
    }

    /// Sets by whom packets of a port's member leave the domain.
    pub fn set_gateway(&mut self, partition: Partition, place: Place, gateway: Option<Ipv4Addr>) {
        self.bridges.set_gateway(partition, place, gateway);
    }

    /// Sets whether a port's domain has routers.
    pub fn set_forward(&mut self, partition: Partition, place: Place, forward: bool) {
        self.bridges.set_forward(partition, place, forward);
    }

    /// Sets what may be left undone in packets from and for a port.
    ///
    /// # Errors
    /// The system's: its interface is gone.
    pub fn set_capabilities(
        &mut self,
        partition: Partition,
        place: Place,
        capabilities: Capabilities,
    ) -> io::Result<()> {
        match self.bridges.egress_mut(partition, place) {
            Some(SwitchPort::Tap(tap)) if tap.capabilities() != capabilities => {
                tap.set_capabilities(capabilities)
            }
            _ => Ok(()),
        }
    }

    /// What became of frames that nobody received.
    pub fn drops(&self, partition: Partition) -> Vec<PortDrops> {
        self.bridges.drops(partition)
    }

    /// The same of what other hosts have sent.
    pub fn remote_drops(&self, partition: Partition) -> Vec<(HostId, BTreeMap<DropReason, u64>)> {
        self.bridges.remote_drops(partition)
    }

    /// Raises the epoch of a partition.
    pub fn raise_epoch(&mut self, partition: Partition, epoch: Epoch) {
        self.bridges.raise_epoch(partition, epoch);
    }

    /// Looks for ready TAPs as long as that may pay, then sleeps until there are some.
    fn wait(&mut self, events: &mut [EpollEvent]) -> io::Result<usize> {
        let began = Instant::now();
        let polling_ends = began + self.busy_poll.duration(began);
        let mut now = began;
        loop {
            let timeout = if now < polling_ends || !self.unread.is_empty() {
                EpollTimeout::ZERO
            } else {
                EpollTimeout::NONE
            };
            match self.epoll.wait(events, timeout) {
                Ok(0) if !self.unread.is_empty() => return Ok(0),
                Ok(0) => now = self.yield_once(),
                Ok(ready) => {
                    self.busy_poll.record_wait(began, Instant::now());
                    return Ok(ready);
                }
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn yield_once(&mut self) -> Instant {
        let before = Instant::now();
        thread::yield_now();
        let after = Instant::now();
        self.busy_poll.yielded(before, after);
        after
    }

    fn work(&mut self) -> Result<(), SwitchEnded> {
        // It fails when an earlier look has emptied it.
        let _ = self.doorbell.read();
        loop {
            match self.work.try_recv() {
                Ok(work) => work(self),
                Err(mpsc::TryRecvError::Empty) => return Ok(()),
                Err(mpsc::TryRecvError::Disconnected) => return Err(SwitchEnded),
            }
        }
    }

    /// Takes frames from a port, until it has no more or its turn ends.
    fn serve_port(&mut self, event: u64, scratch: &mut Scratch) {
        let (partition, place) = port_of(event);
        // A port may have left after it was found ready.
        let ingress = match event & OUTSIDE {
            0 => self.bridges.ingress(partition, place),
            _ => self.bridges.outside(partition),
        };
        let Some((ingress, egress)) = ingress.and_then(|ingress| {
            let egress = ingress.egress()?;
            Some((ingress, egress))
        }) else {
            return;
        };
        let mut turn = Turn {
            ingress: &ingress,
            tunnels: &self.tunnels,
            scratch,
            gro_tap: None,
            gro_packets: 0,
        };
        let Err(error) = turn.forward_all(egress) else {
            if turn.gro_packets > 0 {
                // Nothing holds back who sends datagrams, and a socket keeps some hundred: more of them
                // than its process reads before it runs again would be carried in vain.
                thread::yield_now();
            }
            return;
        };
        if error.kind() == io::ErrorKind::WouldBlock {
            return ingress.record_empty();
        }
        if is_down(&error) {
            return warn!(?partition, "an uplink is down");
        }
        if matches!(egress, SwitchPort::Tap(_)) {
            warn!(?partition, %place, %error, "an interface of a port has gone");
        }
        self.unwatch(egress);
        if event & OUTSIDE == 0 {
            self.unplug(partition, place);
        }
    }

    /// The process that had the link of a port has gone: another may have it.
    fn unplug(&mut self, partition: Partition, place: Place) {
        if let Some(SwitchPort::Stack(stack_socket)) = self.bridges.egress_mut(partition, place) {
            *stack_socket = None;
        }
    }

    /// Waits for an egress port, if anything can come from there.
    fn watch(&self, egress: &SwitchPort, event: u64) -> io::Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, event);
        let add = |source| self.epoll.add(source, event);
        Ok(egress.source().map_or(Ok(()), add)?)
    }

    /// Stops waiting for an egress port.
    fn unwatch(&self, egress: &SwitchPort) {
        if let Some(source) = egress.source() {
            // It fails when this was done already.
            let _ = self.epoll.delete(source);
        }
    }
}

/// What packets pass over.
#[derive(Default)]
struct Scratch {
    gro: UdpGro,
    segmenter: Segmenter,
}

/// The turn of a port.
struct Turn<'a, 't> {
    ingress: &'t Ingress<'a, SwitchPort>,
    tunnels: &'t Tunnels,
    scratch: &'t mut Scratch,
    /// Destination of the datagrams collected.
    gro_tap: Option<&'a Tap>,
    /// Number of GSO packets begun in this turn.
    gro_packets: usize,
}

impl<'a> Turn<'a, '_> {
    /// Carries packets on, as long as the turn lasts.
    ///
    /// # Errors
    /// Those of [`SwitchPort::receive`]: there are no more, or the port cannot be read.
    fn forward_all(&mut self, egress: &SwitchPort) -> io::Result<()> {
        let mut sent = 0;
        let end = loop {
            if sent >= BATCH {
                break Ok(());
            }
            match egress.receive(self.scratch.gro.space()) {
                Ok(len) => {
                    self.ingress.record_read();
                    sent += self.forward(len).max(1);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.flush_gro();
        end
    }

    /// Carries a packet of `len` bytes on that was read; returns how many frames it became.
    fn forward(&mut self, len: usize) -> usize {
        let gro = &mut self.scratch.gro;
        let at = gro.filled();
        let action = self.ingress.decide(gro.packet(at, len));
        let gro_tap = match &action {
            Action::Forward(NextHop::Port(egress)) => egress.accepts_udp_gso(),
            _ => None,
        };
        if let (Some(tap), Some(before)) = (gro_tap, self.gro_tap)
            && std::ptr::eq(tap, before)
            && gro.add(len)
        {
            return 1;
        }
        self.flush_gro();
        let Scratch { gro, segmenter } = &mut *self.scratch;
        if gro_tap.is_some() && gro.begin(at, len) {
            self.gro_tap = gro_tap;
            self.gro_packets += 1;
            return 1;
        }
        let packet = gro.packet(at, len);
        execute(self.ingress, action, packet, segmenter, self.tunnels)
    }

    /// Sends the collected datagrams, if there are any.
    fn flush_gro(&mut self) {
        let gro = &mut self.scratch.gro;
        if let (Some(tap), Some((parts, datagrams))) = (self.gro_tap.take(), gro.take())
            && let Err(error) = tap.send_parts(&parts)
        {
            (0..datagrams).for_each(|_| self.ingress.count(reason(&error)));
        }
    }
}

/// Carries a packet on; returns how many frames it became.
fn decide_and_execute(
    ingress: &Ingress<'_, SwitchPort>,
    packet: &[u8],
    segmenter: &mut Segmenter,
    tunnels: &Tunnels,
) -> usize {
    let action = ingress.decide(packet);
    execute(ingress, action, packet, segmenter, tunnels)
}

/// Does with a packet what was decided; returns how many frames it became.
fn execute(
    ingress: &Ingress<'_, SwitchPort>,
    action: Action<'_, SwitchPort>,
    packet: &[u8],
    segmenter: &mut Segmenter,
    tunnels: &Tunnels,
) -> usize {
    let mut deliver = |next_hop: NextHop<'_, SwitchPort>| {
        let delivered = match next_hop {
            NextHop::Port(egress) => egress.deliver(packet, segmenter),
            NextHop::Host(host) => send_remote(ingress, packet, tunnels.get(&host)).map(|()| 1),
        };
        delivered.unwrap_or_else(|error| {
            ingress.count(reason(&error));
            1
        })
    };
    match action {
        Action::Forward(next_hop) => deliver(next_hop),
        Action::Flood(ways) => {
            let frames = ways.map(|next_hop| match next_hop {
                Ok(next_hop) => deliver(next_hop),
                Err(reason) => {
                    ingress.count(reason);
                    0
                }
            });
            frames.sum()
        }
        Action::Reply(frame) => {
            let answer = FrameParts([&frame, &[], &[]]);
            let sent = ingress
                .egress()
                .map_or(Ok(()), |egress| egress.send_frame(&answer));
            if let Err(error) = sent {
                ingress.count(reason(&error));
            }
            1
        }
        Action::Drop(reason) => {
            ingress.count(reason);
            0
        }
    }
}

fn send_remote(
    ingress: &Ingress<'_, SwitchPort>,
    packet: &[u8],
    connected: Option<&ActiveTunnel>,
) -> io::Result<()> {
    match (ingress.header(), connected) {
        (Some(tag), Some(connected)) => connected.tunnel.send(&tag, packet),
        _ => Err(io::ErrorKind::NotConnected.into()),
    }
}

fn reason(error: &io::Error) -> DropReason {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM) => DropReason::Full,
        // Of an send_queue.
        None if error.kind() == io::ErrorKind::WouldBlock => DropReason::Full,
        Some(Errno::EIO | Errno::ENETDOWN | Errno::ENXIO) => DropReason::Down,
        Some(Errno::EMSGSIZE) => DropReason::TooLong,
        _ if is_gone(error) => DropReason::Down,
        _ => DropReason::Refused,
    }
}

/// ```text
///  63  59     58       57        56          24   16   8    0
///  +---+------+--------+---------+-----------+----+----+----+
///  | 0 | stream | tunnel | outside | partition | x  | y  | z  |
///  +---+------+--------+---------+-----------+----+----+----+
///                                | 0         | host         |
/// ```
fn event_of(partition: Partition, place: Place) -> u64 {
    let [x, y, z] = [place.x, place.y, place.z].map(u64::from);
    u64::from(partition.0) << 24 | x << 16 | y << 8 | z
}

fn event_of_tunnel(host: HostId) -> u64 {
    TUNNEL | u64::from(host.0)
}

fn event_of_stream(host: HostId) -> u64 {
    RDMA_STREAM | u64::from(host.0)
}

fn port_of(event: u64) -> (Partition, Place) {
    let [_, a, b, c, d, x, y, z] = event.to_be_bytes();
    let partition = Partition(u32::from_be_bytes([a, b, c, d]));
    (partition, Place { x, y, z })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_its_port() {
        let port = (Partition(u32::MAX), Place { x: 1, y: 2, z: 255 });
        assert_eq!(port_of(event_of(port.0, port.1)), port);
        assert_ne!(event_of(port.0, port.1), DOORBELL);
    }

    #[test]
    fn a_switch_works_for_its_remote_and_ends_with_it() {
        let (switch, handle) = Switch::new(mpsc::channel().0).unwrap();
        let thread = std::thread::spawn(|| switch.run());
        let left = handle.call(|switch| switch.detach(Partition(1), NodeId(1)).is_some());
        assert_eq!(left, Ok(false));
        drop(handle);
        thread.join().unwrap().unwrap();
    }
}
