//! Tunnels in the data path, and the RDMA streams beside them.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{SyncSender, TrySendError};

use nix::sys::epoll::{EpollEvent, EpollFlags};
use toroid_fabric::RdmaStream;

use super::event_source::EventSource;
use super::turn::{BATCH, Scratch, decide_and_execute};
use super::{Switch, event};
use crate::forward::UnknownDomain;
use crate::tunnel::rdma_stream::StreamEnd;
use crate::tunnel::signal::{Signal, SignalKind};
use crate::tunnel::{HostId, Message, ProtocolViolation, ReceiveBuffer, Tunnel};

pub(super) type Tunnels = HashMap<HostId, ActiveTunnel>;

/// Identity of a tunnel, distinct from earlier and later tunnels to the same host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TunnelId {
    /// The other host.
    pub(crate) host: HostId,
    /// Number that no other tunnel of the driver has.
    pub(crate) number: u64,
}

/// Change of a tunnel that the control path did not order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TunnelEvent {
    /// The tunnel has ended, for this reason.
    Ended(String),
    /// Whether packets go over RDMA in both directions.
    ByRdma(bool),
}

/// Event for the supervisor of an RDMA stream.
#[derive(Debug)]
pub(crate) enum StreamEvent {
    /// A signal of the other side, except begin signals and end signals of present streams.
    Signal(Signal),
    /// A stream has ended. Dropping it may take long.
    Lost(LostStream),
}

/// An RDMA stream that has ended.
#[derive(Debug)]
pub(crate) struct LostStream {
    /// Number of the stream.
    pub(crate) number: u32,
    /// The stream.
    pub(crate) stream: Box<dyn RdmaStream>,
    /// Whether packets went over it in both directions.
    pub(crate) was_up: bool,
    /// Reason.
    pub(crate) why: String,
}

/// A tunnel in use.
pub(super) struct ActiveTunnel {
    pub(super) tunnel: Tunnel,
    number: u64,
    /// Whether the switch waits for the connection to become writable.
    awaits_writable: bool,
    /// The supervisor of its RDMA streams, if there is one.
    supervisor: Option<SyncSender<StreamEvent>>,
}

/// Path of packets from another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Via {
    /// The connection.
    Tcp,
    /// The RDMA stream.
    Rdma,
}

/// Result of the processing of a receive buffer.
enum Drained {
    All,
    /// The turn has ended before the messages.
    TurnEnded,
    /// This signal comes before the next messages.
    Signal(Signal),
}

impl Switch {
    /// Replaces the tunnel to another host. With a supervisor the tunnel may have RDMA streams.
    ///
    /// # Errors
    /// The system's: the connection cannot be waited for.
    pub(crate) fn connect_tunnel(
        &mut self,
        id: TunnelId,
        tunnel: Tunnel,
        supervisor: Option<SyncSender<StreamEvent>>,
    ) -> io::Result<()> {
        let event = event(EventSource::Tunnel(id.host));
        self.epoll.add(&tunnel, event)?;
        let active = ActiveTunnel {
            tunnel,
            number: id.number,
            awaits_writable: false,
            supervisor,
        };
        // Dropping the former tunnel ends its events.
        self.cut_tunnel(id.host);
        self.tunnels.insert(id.host, active);
        Ok(())
    }

    /// Ends the tunnel to another host.
    pub(crate) fn cut_tunnel(&mut self, host: HostId) {
        self.discard_stream(host, "its connection is cut");
        self.tunnels.remove(&host);
    }

    /// Sends a signal over a tunnel that still exists.
    pub(crate) fn send_signal(&mut self, id: TunnelId, signal: Signal) {
        if let Some(active) = self.tunnel_mut(id) {
            active.tunnel.signal(signal);
        }
    }

    /// Gives a tunnel its RDMA stream, and sends `signal`. Packets go over the stream after a
    /// [begin signal](SignalKind::Begin) of this or the other side.
    ///
    /// # Errors
    /// The stream, if it cannot be used.
    pub(crate) fn connect_stream(
        &mut self,
        id: TunnelId,
        stream: Box<dyn RdmaStream>,
        signal: Signal,
    ) -> Result<(), Box<dyn RdmaStream>> {
        let event = event(EventSource::Stream(id.host));
        if self.tunnel_mut(id).is_none() || self.epoll.add(stream.wake_fd(), event).is_err() {
            return Err(stream);
        }
        self.discard_stream(id.host, "there is another");
        if let Some(active) = self.tunnel_mut(id) {
            let mut stream = StreamEnd::new(signal.number, stream);
            stream.sends = signal.kind == SignalKind::Begin;
            active.tunnel.signal(signal);
            active.tunnel.stream = Some(stream);
        }
        Ok(())
    }

    /// Ends the stream with this number, which the other side has ended.
    pub(crate) fn drop_stream(&mut self, id: TunnelId, number: u32) {
        let active = self.tunnel_mut(id);
        let stream = active.and_then(|active| active.tunnel.stream.as_ref());
        if stream.is_some_and(|stream| stream.number == number) {
            self.discard_stream(id.host, "the other host says so");
        }
    }

    /// Handles an event of a connection.
    pub(super) fn on_tunnel_ready(
        &mut self,
        host: HostId,
        events: EpollFlags,
        scratch: &mut Scratch,
    ) {
        // The tunnel may have ended since the event.
        let Some(ActiveTunnel { tunnel, .. }) = self.tunnels.get_mut(&host) else {
            return;
        };
        if events.contains(EpollFlags::EPOLLOUT) {
            tunnel.set_writable();
        }
        // Messages in the buffer come first.
        if events == EpollFlags::EPOLLOUT || tunnel.received.has_next() {
            return;
        }
        match tunnel.receive() {
            Ok(_) => self.read_tunnel(host, scratch),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                _ => self.end_tunnel(host, &error),
            },
        }
    }

    /// Processes messages from the connection until there are no more, or the turn ends.
    pub(super) fn read_tunnel(&mut self, host: HostId, scratch: &mut Scratch) {
        loop {
            match self.forward_received(host, Via::Tcp, scratch) {
                Ok(Drained::All) => return,
                Ok(Drained::TurnEnded) => {
                    self.unread.insert((host, Via::Tcp));
                    return;
                }
                Ok(Drained::Signal(signal)) => self.on_signal(host, signal),
                Err(violation) => return self.end_tunnel(host, &io::Error::other(violation)),
            }
        }
    }

    /// Handles an event of an RDMA stream.
    pub(super) fn on_stream_ready(&mut self, host: HostId, scratch: &mut Scratch) {
        // The stream may have ended since the event.
        let Some(stream) = self.stream_mut(host) else {
            return;
        };
        match stream.process_events() {
            Ok(()) => self.read_stream(host, scratch),
            Err(error) => self.lose_stream(host, &error),
        }
    }

    /// Processes messages from an RDMA stream for one turn.
    pub(super) fn read_stream(&mut self, host: HostId, scratch: &mut Scratch) {
        let Some(stream) = self.stream_mut(host).filter(|stream| stream.receives) else {
            return;
        };
        // Messages in the buffer come first.
        if !stream.received.has_next()
            && let Err(error) = stream.receive()
        {
            return self.lose_stream(host, &error);
        }
        match self.forward_received(host, Via::Rdma, scratch) {
            // A signal over the stream only shows that bytes arrive.
            Ok(Drained::All | Drained::TurnEnded | Drained::Signal(_)) => {}
            Err(violation) => return self.lose_stream(host, &io::Error::other(violation)),
        }
        if self
            .stream_mut(host)
            .is_some_and(|stream| stream.has_more())
        {
            self.unread.insert((host, Via::Rdma));
        }
    }

    /// Forwards packets from a receive buffer.
    fn forward_received(
        &mut self,
        host: HostId,
        via: Via,
        scratch: &mut Scratch,
    ) -> Result<Drained, ProtocolViolation> {
        let Some(received) = self.received_mut(host, via) else {
            return Ok(Drained::All);
        };
        // Taken out, because forwarding borrows the tunnels. No packet goes into a receive buffer.
        let mut received = std::mem::take(received);
        let (mut taken, mut unknown, mut packets) = (0, 0, 0);
        let end = loop {
            if taken >= BATCH {
                break Ok(Drained::TurnEnded);
            }
            let (tag, packet) = match received.next_message() {
                Ok(Some(Message::Packet(tag, packet))) => (tag, packet),
                Ok(Some(Message::Signal(signal))) => break Ok(Drained::Signal(signal)),
                Ok(None) => break Ok(Drained::All),
                Err(violation) => break Err(violation),
            };
            let frames = match self.bridges.remote_ingress(host, &tag) {
                Ok(Some(ingress)) => {
                    decide_and_execute(&ingress, packet, &mut scratch.segmenter, &self.tunnels)
                }
                Ok(None) => 0,
                Err(UnknownDomain) => {
                    unknown += 1;
                    0
                }
            };
            packets += 1;
            taken += frames.max(1);
        };
        if let Some(ActiveTunnel { tunnel, .. }) = self.tunnels.get_mut(&host) {
            tunnel.unknown_domain += unknown;
            if via == Via::Rdma {
                tunnel.count_by_rdma(packets);
            }
        }
        if let Some(place) = self.received_mut(host, via) {
            *place = received;
        }
        end
    }

    /// Handles a signal of the other side.
    fn on_signal(&mut self, host: HostId, signal: Signal) {
        let Signal { number, kind } = signal;
        let stream = self
            .stream_mut(host)
            .filter(|stream| stream.number == number);
        match (kind, stream) {
            (SignalKind::Begin, Some(stream)) if !stream.receives => {
                stream.receives = true;
                // Packets of this side then go over the stream, too.
                if !std::mem::replace(&mut stream.sends, true)
                    && let Some(ActiveTunnel { tunnel, .. }) = self.tunnels.get(&host)
                {
                    tunnel.signal(signal);
                }
                self.unread.insert((host, Via::Rdma));
                self.notify(host, TunnelEvent::ByRdma(true));
            }
            (SignalKind::Begin, _) => {}
            // Later packets over the connection must not overtake packets in the stream.
            (SignalKind::End, Some(_)) => self.discard_stream(host, "the other host says so"),
            _ => self.notify_supervisor(host, StreamEvent::Signal(signal)),
        }
    }

    /// Flushes send queues, and waits for blocked connections to become writable.
    pub(super) fn flush(&mut self) {
        self.flush_streams();
        let mut ended = Vec::new();
        for (host, active) in &mut self.tunnels {
            let ActiveTunnel { tunnel, .. } = active;
            tunnel.flush();
            if tunnel.has_ended() {
                ended.push(*host);
            } else if tunnel.is_blocked() != active.awaits_writable {
                active.awaits_writable = tunnel.is_blocked();
                let mut awaited = EpollFlags::EPOLLIN;
                awaited.set(EpollFlags::EPOLLOUT, active.awaits_writable);
                let mut event = EpollEvent::new(awaited, EventSource::Tunnel(*host).to_data());
                if self.epoll.modify(&*tunnel, &mut event).is_err() {
                    ended.push(*host);
                }
            }
        }
        for host in ended {
            self.end_tunnel(host, &io::ErrorKind::BrokenPipe.into());
        }
    }

    /// Before the connections, which carry end signals of streams.
    fn flush_streams(&mut self) {
        let has_ended = |active: &ActiveTunnel| {
            let stream = active.tunnel.stream.as_ref();
            stream.is_some_and(|stream| !stream.flush())
        };
        let tunnels = self.tunnels.iter();
        let ended = tunnels.filter(|(_, active)| has_ended(active));
        let ended: Vec<_> = ended.map(|(host, _)| *host).collect();
        for host in ended {
            self.lose_stream(host, &io::ErrorKind::BrokenPipe.into());
        }
    }

    /// Ends a tunnel that has failed.
    fn end_tunnel(&mut self, host: HostId, why: &io::Error) {
        self.discard_stream(host, "its connection has ended");
        if let Some(ActiveTunnel { tunnel, number, .. }) = self.tunnels.remove(&host) {
            let why = match tunnel.unknown_domain {
                0 => why.to_string(),
                unknown => format!("{why}; {unknown} packets were of domains without members here"),
            };
            let id = TunnelId { host, number };
            // Fails only when the driver ends.
            let _ = self.events.send((id, TunnelEvent::Ended(why)));
        }
    }

    /// Ends a failed stream: packets go over the connection again, in both directions.
    fn lose_stream(&mut self, host: HostId, why: &io::Error) {
        if let Some(ActiveTunnel { tunnel, .. }) = self.tunnels.get(&host)
            && let Some(stream) = &tunnel.stream
        {
            let (number, kind) = (stream.number, SignalKind::End);
            tunnel.signal(Signal { number, kind });
        }
        self.discard_stream(host, &why.to_string());
    }

    /// Ends a stream. Queued and unread packets are lost.
    fn discard_stream(&mut self, host: HostId, why: &str) {
        let stream = self.tunnels.get_mut(&host);
        let Some(stream) = stream.and_then(|active| active.tunnel.stream.take()) else {
            return;
        };
        let lost = LostStream {
            number: stream.number,
            was_up: stream.is_up(),
            stream: stream.into_stream(),
            why: why.into(),
        };
        // Fails if the descriptor is closed, which ends its events, too.
        let _ = self.epoll.delete(lost.stream.wake_fd());
        self.notify(host, TunnelEvent::ByRdma(false));
        self.notify_supervisor(host, StreamEvent::Lost(lost));
    }

    fn notify(&self, host: HostId, event: TunnelEvent) {
        if let Some(ActiveTunnel { number, .. }) = self.tunnels.get(&host) {
            let number = *number;
            let _ = self.events.send((TunnelId { host, number }, event));
        }
    }

    /// Notifies the supervisor. A host that sends more signals than fit its queue violates the
    /// protocol.
    fn notify_supervisor(&mut self, host: HostId, event: StreamEvent) {
        let active = self.tunnels.get_mut(&host);
        let supervisor = active.and_then(|active| active.supervisor.as_ref());
        if let Some(Err(TrySendError::Full(_))) =
            supervisor.map(|supervisor| supervisor.try_send(event))
        {
            self.end_tunnel(host, &io::Error::other(ProtocolViolation));
        }
    }

    fn tunnel_mut(&mut self, id: TunnelId) -> Option<&mut ActiveTunnel> {
        let active = self.tunnels.get_mut(&id.host);
        active.filter(|active| active.number == id.number)
    }

    fn stream_mut(&mut self, host: HostId) -> Option<&mut StreamEnd> {
        self.tunnels.get_mut(&host)?.tunnel.stream.as_mut()
    }

    fn received_mut(&mut self, host: HostId, via: Via) -> Option<&mut ReceiveBuffer> {
        match via {
            Via::Tcp => Some(&mut self.tunnels.get_mut(&host)?.tunnel.received),
            Via::Rdma => Some(&mut self.stream_mut(host)?.received),
        }
    }
}
