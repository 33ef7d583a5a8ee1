//! What the switch does with connections to the drivers of other hosts, and with the streams beside them.

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

/// Tells a tunnel from those to the same host before and after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelId {
    /// Where it leads.
    pub host: HostId,
    /// Any number.
    pub number: u64,
}

/// What has become of a tunnel by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunnelEvent {
    /// It has ended, and why.
    Ended(String),
    /// Whether packets go by its stream, both ways.
    ByRdma(bool),
}

/// What concerns whoever sees to the stream of a tunnel.
#[derive(Debug)]
pub enum StreamEvent {
    /// The other side has said so. Beginnings, and ends of streams that there are, are seen to here.
    Signal(Signal),
    /// A stream has ended. To drop it may take its time.
    Lost(LostStream),
}

/// A stream that has ended.
#[derive(Debug)]
pub struct LostStream {
    /// What the two sides called it.
    pub number: u32,
    /// The stream.
    pub stream: Box<dyn RdmaStream>,
    /// Whether packets went by it, both ways.
    pub was_up: bool,
    /// Why.
    pub why: String,
}

/// A tunnel in use.
pub(super) struct ActiveTunnel {
    pub(super) tunnel: Tunnel,
    number: u64,
    /// Whether its room is waited for.
    awaits_room: bool,
    /// Who sees to its stream, if there may be one.
    supervisor: Option<SyncSender<StreamEvent>>,
}

/// How something comes from another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Via {
    /// Over the connection.
    Tcp,
    /// By the stream.
    Rdma,
}

/// What has become of the packets in an received.
enum Drained {
    All,
    /// There are more, but others come first.
    Some,
    /// This comes before the others.
    Signal(Signal),
}

impl Switch {
    /// Connects to the driver of another host, in place of the connection before. It may have streams if
    /// there is somebody to see to them.
    ///
    /// # Errors
    /// The system's: it cannot be waited for.
    pub fn connect_tunnel(
        &mut self,
        id: TunnelId,
        tunnel: Tunnel,
        supervisor: Option<SyncSender<StreamEvent>>,
    ) -> io::Result<()> {
        let event = event(EventSource::Tunnel(id.host));
        self.epoll.add(&tunnel, event)?;
        let connected = ActiveTunnel {
            tunnel,
            number: id.number,
            awaits_room: false,
            supervisor,
        };
        // The one before is closed, and so not waited for any longer.
        self.cut_tunnel(id.host);
        self.tunnels.insert(id.host, connected);
        Ok(())
    }

    /// Cuts the connection to another host.
    pub fn cut_tunnel(&mut self, host: HostId) {
        self.discard_stream(host, "its connection is cut");
        self.tunnels.remove(&host);
    }

    /// Says something about the stream of a tunnel, if that is still there.
    pub fn tell_tunnel(&mut self, id: TunnelId, signal: Signal) {
        if let Some(connected) = self.tunnel_mut(id) {
            connected.tunnel.signal(signal);
        }
    }

    /// Gives a tunnel its stream, and says so: packets for the other host go by it when this is a
    /// [beginning](SignalKind::Begin), or when the other side has said that theirs do.
    ///
    /// # Errors
    /// The stream, if it cannot be used.
    pub fn connect_stream(
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
        if let Some(connected) = self.tunnel_mut(id) {
            let mut stream = StreamEnd::new(signal.number, stream);
            stream.sends = signal.kind == SignalKind::Begin;
            connected.tunnel.signal(signal);
            connected.tunnel.stream = Some(stream);
        }
        Ok(())
    }

    /// Uses the stream with this number no more, which the other side has ended.
    pub fn drop_stream(&mut self, id: TunnelId, number: u32) {
        let connected = self.tunnel_mut(id);
        let stream = connected.and_then(|connected| connected.tunnel.stream.as_ref());
        if stream.is_some_and(|stream| stream.number == number) {
            self.discard_stream(id.host, "the other host says so");
        }
    }

    /// Looks after a tunnel that has brought something, or has room.
    pub(super) fn on_tunnel_ready(
        &mut self,
        host: HostId,
        events: EpollFlags,
        scratch: &mut Scratch,
    ) {
        // It may have been cut after it was found ready.
        let Some(ActiveTunnel { tunnel, .. }) = self.tunnels.get_mut(&host) else {
            return;
        };
        if events.contains(EpollFlags::EPOLLOUT) {
            tunnel.set_writable();
        }
        // What came before has to be taken in first.
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

    /// Takes in what has come over the connection with another host, until there is no more or its turn
    /// ends.
    pub(super) fn read_tunnel(&mut self, host: HostId, scratch: &mut Scratch) {
        loop {
            match self.forward_received(host, Via::Tcp, scratch) {
                Ok(Drained::All) => return,
                Ok(Drained::Some) => {
                    self.unread.insert((host, Via::Tcp));
                    return;
                }
                Ok(Drained::Signal(signal)) => self.note(host, signal),
                Err(violation) => return self.end_tunnel(host, &io::Error::other(violation)),
            }
        }
    }

    /// Looks after a stream that has brought something, or has room.
    pub(super) fn on_stream_ready(&mut self, host: HostId, scratch: &mut Scratch) {
        // It may have been dropped after it was found ready.
        let Some(stream) = self.stream_mut(host) else {
            return;
        };
        match stream.process_events() {
            Ok(()) => self.read_stream(host, scratch),
            Err(error) => self.lose_stream(host, &error),
        }
    }

    /// Takes in what has come by a stream, as much as one turn has.
    pub(super) fn read_stream(&mut self, host: HostId, scratch: &mut Scratch) {
        let Some(stream) = self.stream_mut(host).filter(|stream| stream.receives) else {
            return;
        };
        // What came before has to be taken in first.
        if !stream.received.has_next()
            && let Err(error) = stream.receive()
        {
            return self.lose_stream(host, &error);
        }
        match self.forward_received(host, Via::Rdma, scratch) {
            // Somebody has looked whether it arrives.
            Ok(Drained::All | Drained::Some | Drained::Signal(_)) => {}
            Err(violation) => return self.lose_stream(host, &io::Error::other(violation)),
        }
        if self
            .stream_mut(host)
            .is_some_and(|stream| stream.has_more())
        {
            self.unread.insert((host, Via::Rdma));
        }
    }

    /// Takes in packets from an received.
    fn forward_received(
        &mut self,
        host: HostId,
        via: Via,
        scratch: &mut Scratch,
    ) -> Result<Drained, ProtocolViolation> {
        let Some(received) = self.received_mut(host, via) else {
            return Ok(Drained::All);
        };
        // Looked at while others are written to, which it itself never is.
        let mut received = std::mem::take(received);
        let (mut taken, mut unknown, mut packets) = (0, 0, 0);
        let end = loop {
            if taken >= BATCH {
                break Ok(Drained::Some);
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

    /// What the other side says about the stream.
    fn note(&mut self, host: HostId, signal: Signal) {
        let Signal { number, kind } = signal;
        let stream = self
            .stream_mut(host)
            .filter(|stream| stream.number == number);
        match (kind, stream) {
            (SignalKind::Begin, Some(stream)) if !stream.receives => {
                stream.receives = true;
                // Then ours do, too.
                if !std::mem::replace(&mut stream.sends, true)
                    && let Some(ActiveTunnel { tunnel, .. }) = self.tunnels.get(&host)
                {
                    tunnel.signal(signal);
                }
                self.unread.insert((host, Via::Rdma));
                self.report(host, TunnelEvent::ByRdma(true));
            }
            (SignalKind::Begin, _) => {}
            // What comes next over the connection must not come before what is still there.
            (SignalKind::End, Some(_)) => self.discard_stream(host, "the other host says so"),
            _ => self.notify_supervisor(host, StreamEvent::Signal(signal)),
        }
    }

    /// Sends what waits at tunnels, and lets those that take no more tell when they do.
    pub(super) fn flush(&mut self) {
        self.flush_streams();
        let mut ended = Vec::new();
        for (host, connected) in &mut self.tunnels {
            let ActiveTunnel { tunnel, .. } = connected;
            tunnel.flush();
            if tunnel.has_ended() {
                ended.push(*host);
            } else if tunnel.is_blocked() != connected.awaits_room {
                connected.awaits_room = tunnel.is_blocked();
                let mut awaited = EpollFlags::EPOLLIN;
                awaited.set(EpollFlags::EPOLLOUT, connected.awaits_room);
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

    /// Before connections, over which it is said that a stream has ended.
    fn flush_streams(&mut self) {
        let has_ended = |connected: &ActiveTunnel| {
            let stream = connected.tunnel.stream.as_ref();
            stream.is_some_and(|stream| !stream.flush())
        };
        let tunnels = self.tunnels.iter();
        let ended = tunnels.filter(|(_, connected)| has_ended(connected));
        let ended: Vec<_> = ended.map(|(host, _)| *host).collect();
        for host in ended {
            self.lose_stream(host, &io::ErrorKind::BrokenPipe.into());
        }
    }

    /// It has broken, or is of no use any more.
    fn end_tunnel(&mut self, host: HostId, why: &io::Error) {
        self.discard_stream(host, "its connection has ended");
        if let Some(ActiveTunnel { tunnel, number, .. }) = self.tunnels.remove(&host) {
            let why = match tunnel.unknown_domain {
                0 => why.to_string(),
                unknown => format!("{why}; {unknown} packets were of domains without members here"),
            };
            let id = TunnelId { host, number };
            // Nobody wants to know only when the driver ends.
            let _ = self.events.send((id, TunnelEvent::Ended(why)));
        }
    }

    /// It has broken: packets go over the connection again, from here on both ways.
    fn lose_stream(&mut self, host: HostId, why: &io::Error) {
        if let Some(ActiveTunnel { tunnel, .. }) = self.tunnels.get(&host)
            && let Some(stream) = &tunnel.stream
        {
            let (number, kind) = (stream.number, SignalKind::End);
            tunnel.signal(Signal { number, kind });
        }
        self.discard_stream(host, &why.to_string());
    }

    /// Uses a stream no more. What waits for it, and what has come and was not read, is lost.
    fn discard_stream(&mut self, host: HostId, why: &str) {
        let stream = self.tunnels.get_mut(&host);
        let Some(stream) = stream.and_then(|connected| connected.tunnel.stream.take()) else {
            return;
        };
        let lost = LostStream {
            number: stream.number,
            was_up: stream.is_up(),
            stream: stream.into_stream(),
            why: why.into(),
        };
        // It fails when there is no such descriptor any more, which is as good.
        let _ = self.epoll.delete(lost.stream.wake_fd());
        self.report(host, TunnelEvent::ByRdma(false));
        self.notify_supervisor(host, StreamEvent::Lost(lost));
    }

    fn report(&self, host: HostId, event: TunnelEvent) {
        if let Some(ActiveTunnel { number, .. }) = self.tunnels.get(&host) {
            let number = *number;
            let _ = self.events.send((TunnelId { host, number }, event));
        }
    }

    /// Who says more than can be seen to at a time does not keep to the rules.
    fn notify_supervisor(&mut self, host: HostId, event: StreamEvent) {
        let connected = self.tunnels.get_mut(&host);
        let supervisor = connected.and_then(|connected| connected.supervisor.as_ref());
        if let Some(Err(TrySendError::Full(_))) =
            supervisor.map(|supervisor| supervisor.try_send(event))
        {
            self.end_tunnel(host, &io::Error::other(ProtocolViolation));
        }
    }

    fn tunnel_mut(&mut self, id: TunnelId) -> Option<&mut ActiveTunnel> {
        let connected = self.tunnels.get_mut(&id.host);
        connected.filter(|connected| connected.number == id.number)
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
