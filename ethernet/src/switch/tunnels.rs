//! What the switch does with connections to the drivers of other hosts, and with the lines beside them.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{SyncSender, TrySendError};

use nix::sys::epoll::{EpollEvent, EpollFlags};
use toroid_fabric::RdmaStream;

use super::{BATCH, Desk, Switch, carry, event_of_line, event_of_tunnel};
use crate::forward::UnknownDomain;
use crate::tunnel::rdma_stream::LineEnd;
use crate::tunnel::signal::{Notice, Word};
use crate::tunnel::{HostId, Inbox, Item, Nonsense, Tunnel};

pub(super) type Tunnels = HashMap<HostId, Connected>;

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
    /// Whether packets go by its line, both ways.
    Line(bool),
}

/// What concerns whoever sees to the line of a tunnel.
#[derive(Debug)]
pub enum LineEvent {
    /// The other side has said so. Beginnings, and ends of lines that there are, are seen to here.
    Said(Notice),
    /// A line has ended. To drop it may take its time.
    Lost(LostLine),
}

/// A line that has ended.
#[derive(Debug)]
pub struct LostLine {
    /// What the two sides called it.
    pub number: u32,
    /// The line.
    pub line: Box<dyn RdmaStream>,
    /// Whether packets went by it, both ways.
    pub was_up: bool,
    /// Why.
    pub why: String,
}

/// A tunnel in use.
pub(super) struct Connected {
    pub(super) tunnel: Tunnel,
    number: u64,
    /// Whether its room is waited for.
    awaits_room: bool,
    /// Who sees to its line, if there may be one.
    keeper: Option<SyncSender<LineEvent>>,
}

/// How something comes from another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Via {
    /// Over the connection.
    Stream,
    /// By the line.
    Line,
}

/// What has become of the packets in an inbox.
enum Taken {
    All,
    /// There are more, but others come first.
    Some,
    /// This comes before the others.
    Notice(Notice),
}

impl Switch {
    /// Connects to the driver of another host, in place of the connection before. It may have lines if
    /// there is somebody to see to them.
    ///
    /// # Errors
    /// The system's: it cannot be waited for.
    pub fn connect_tunnel(
        &mut self,
        id: TunnelId,
        tunnel: Tunnel,
        keeper: Option<SyncSender<LineEvent>>,
    ) -> io::Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, event_of_tunnel(id.host));
        self.epoll.add(&tunnel, event)?;
        let connected = Connected {
            tunnel,
            number: id.number,
            awaits_room: false,
            keeper,
        };
        // The one before is closed, and so not waited for any longer.
        self.cut_tunnel(id.host);
        self.tunnels.insert(id.host, connected);
        Ok(())
    }

    /// Cuts the connection to another host.
    pub fn cut_tunnel(&mut self, host: HostId) {
        self.discard_line(host, "its connection is cut");
        self.tunnels.remove(&host);
    }

    /// Says something about the line of a tunnel, if that is still there.
    pub fn tell_tunnel(&mut self, id: TunnelId, notice: Notice) {
        if let Some(connected) = self.tunnel_mut(id) {
            connected.tunnel.tell(notice);
        }
    }

    /// Gives a tunnel its line, and says so: packets for the other host go by it when this is a
    /// [beginning](Word::Begin), or when the other side has said that theirs do.
    ///
    /// # Errors
    /// The line, if it cannot be used.
    pub fn connect_line(
        &mut self,
        id: TunnelId,
        line: Box<dyn RdmaStream>,
        notice: Notice,
    ) -> Result<(), Box<dyn RdmaStream>> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, event_of_line(id.host));
        if self.tunnel_mut(id).is_none() || self.epoll.add(line.wake_fd(), event).is_err() {
            return Err(line);
        }
        self.discard_line(id.host, "there is another");
        if let Some(connected) = self.tunnel_mut(id) {
            let mut line = LineEnd::new(notice.number, line);
            line.sends = notice.word == Word::Begin;
            connected.tunnel.tell(notice);
            connected.tunnel.line = Some(line);
        }
        Ok(())
    }

    /// Uses the line with this number no more, which the other side has ended.
    pub fn drop_line(&mut self, id: TunnelId, number: u32) {
        let connected = self.tunnel_mut(id);
        let line = connected.and_then(|connected| connected.tunnel.line.as_ref());
        if line.is_some_and(|line| line.number == number) {
            self.discard_line(id.host, "the other host says so");
        }
    }

    /// Looks after a tunnel that has brought something, or has room.
    pub(super) fn attend(&mut self, host: HostId, events: EpollFlags, desk: &mut Desk) {
        // It may have been cut after it was found ready.
        let Some(Connected { tunnel, .. }) = self.tunnels.get_mut(&host) else {
            return;
        };
        if events.contains(EpollFlags::EPOLLOUT) {
            tunnel.has_room();
        }
        // What came before has to be taken in first.
        if events == EpollFlags::EPOLLOUT || tunnel.inbox.has_next() {
            return;
        }
        match tunnel.receive() {
            Ok(_) => self.take_in(host, desk),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                _ => self.end_tunnel(host, &error),
            },
        }
    }

    /// Takes in what has come over the connection with another host, until there is no more or its turn
    /// ends.
    pub(super) fn take_in(&mut self, host: HostId, desk: &mut Desk) {
        loop {
            match self.take_packets(host, Via::Stream, desk) {
                Ok(Taken::All) => return,
                Ok(Taken::Some) => {
                    self.unread.insert((host, Via::Stream));
                    return;
                }
                Ok(Taken::Notice(notice)) => self.note(host, notice),
                Err(nonsense) => return self.end_tunnel(host, &io::Error::other(nonsense)),
            }
        }
    }

    /// Looks after a line that has brought something, or has room.
    pub(super) fn attend_line(&mut self, host: HostId, desk: &mut Desk) {
        // It may have been dropped after it was found ready.
        let Some(line) = self.line_mut(host) else {
            return;
        };
        match line.attend() {
            Ok(()) => self.read_line(host, desk),
            Err(error) => self.lose_line(host, &error),
        }
    }

    /// Takes in what has come by a line, as much as one turn has.
    pub(super) fn read_line(&mut self, host: HostId, desk: &mut Desk) {
        let Some(line) = self.line_mut(host).filter(|line| line.receives) else {
            return;
        };
        // What came before has to be taken in first.
        if !line.inbox.has_next()
            && let Err(error) = line.receive()
        {
            return self.lose_line(host, &error);
        }
        match self.take_packets(host, Via::Line, desk) {
            // Somebody has looked whether it arrives.
            Ok(Taken::All | Taken::Some | Taken::Notice(_)) => {}
            Err(nonsense) => return self.lose_line(host, &io::Error::other(nonsense)),
        }
        if self.line_mut(host).is_some_and(|line| line.has_more()) {
            self.unread.insert((host, Via::Line));
        }
    }

    /// Takes in packets from an inbox.
    fn take_packets(&mut self, host: HostId, via: Via, desk: &mut Desk) -> Result<Taken, Nonsense> {
        let Some(inbox) = self.inbox_mut(host, via) else {
            return Ok(Taken::All);
        };
        // Looked at while others are written to, which it itself never is.
        let mut inbox = std::mem::take(inbox);
        let (mut taken, mut strays, mut packets) = (0, 0, 0);
        let end = loop {
            if taken >= BATCH {
                break Ok(Taken::Some);
            }
            let (tag, packet) = match inbox.next_item() {
                Ok(Some(Item::Packet(tag, packet))) => (tag, packet),
                Ok(Some(Item::Notice(notice))) => break Ok(Taken::Notice(notice)),
                Ok(None) => break Ok(Taken::All),
                Err(nonsense) => break Err(nonsense),
            };
            let frames = match self.segments.remote_ingress(host, &tag) {
                Ok(Some(ingress)) => carry(&ingress, packet, &mut desk.segmenter, &self.tunnels),
                Ok(None) => 0,
                Err(UnknownDomain) => {
                    strays += 1;
                    0
                }
            };
            packets += 1;
            taken += frames.max(1);
        };
        if let Some(Connected { tunnel, .. }) = self.tunnels.get_mut(&host) {
            tunnel.strays += strays;
            if via == Via::Line {
                tunnel.count_by_rdma(packets);
            }
        }
        if let Some(place) = self.inbox_mut(host, via) {
            *place = inbox;
        }
        end
    }

    /// What the other side says about the line.
    fn note(&mut self, host: HostId, notice: Notice) {
        let Notice { number, word } = notice;
        let line = self.line_mut(host).filter(|line| line.number == number);
        match (word, line) {
            (Word::Begin, Some(line)) if !line.receives => {
                line.receives = true;
                // Then ours do, too.
                if !std::mem::replace(&mut line.sends, true)
                    && let Some(Connected { tunnel, .. }) = self.tunnels.get(&host)
                {
                    tunnel.tell(notice);
                }
                self.unread.insert((host, Via::Line));
                self.report(host, TunnelEvent::Line(true));
            }
            (Word::Begin, _) => {}
            // What comes next over the connection must not come before what is still there.
            (Word::End, Some(_)) => self.discard_line(host, "the other host says so"),
            _ => self.tell_keeper(host, LineEvent::Said(notice)),
        }
    }

    /// Sends what waits at tunnels, and lets those that take no more tell when they do.
    pub(super) fn flush(&mut self) {
        self.flush_lines();
        let mut ended = Vec::new();
        for (host, connected) in &mut self.tunnels {
            let Connected { tunnel, .. } = connected;
            tunnel.flush();
            if tunnel.has_ended() {
                ended.push(*host);
            } else if tunnel.is_stuck() != connected.awaits_room {
                connected.awaits_room = tunnel.is_stuck();
                let mut awaited = EpollFlags::EPOLLIN;
                awaited.set(EpollFlags::EPOLLOUT, connected.awaits_room);
                let mut event = EpollEvent::new(awaited, event_of_tunnel(*host));
                if self.epoll.modify(&*tunnel, &mut event).is_err() {
                    ended.push(*host);
                }
            }
        }
        for host in ended {
            self.end_tunnel(host, &io::ErrorKind::BrokenPipe.into());
        }
    }

    /// Before connections, over which it is said that a line has ended.
    fn flush_lines(&mut self) {
        let has_ended = |connected: &Connected| {
            let line = connected.tunnel.line.as_ref();
            line.is_some_and(|line| !line.flush())
        };
        let tunnels = self.tunnels.iter();
        let ended = tunnels.filter(|(_, connected)| has_ended(connected));
        let ended: Vec<_> = ended.map(|(host, _)| *host).collect();
        for host in ended {
            self.lose_line(host, &io::ErrorKind::BrokenPipe.into());
        }
    }

    /// It has broken, or is of no use any more.
    fn end_tunnel(&mut self, host: HostId, why: &io::Error) {
        self.discard_line(host, "its connection has ended");
        if let Some(Connected { tunnel, number, .. }) = self.tunnels.remove(&host) {
            let why = match tunnel.strays {
                0 => why.to_string(),
                strays => format!("{why}; {strays} packets were of domains without members here"),
            };
            let id = TunnelId { host, number };
            // Nobody wants to know only when the driver ends.
            let _ = self.events.send((id, TunnelEvent::Ended(why)));
        }
    }

    /// It has broken: packets go over the connection again, from here on both ways.
    fn lose_line(&mut self, host: HostId, why: &io::Error) {
        if let Some(Connected { tunnel, .. }) = self.tunnels.get(&host)
            && let Some(line) = &tunnel.line
        {
            let (number, word) = (line.number, Word::End);
            tunnel.tell(Notice { number, word });
        }
        self.discard_line(host, &why.to_string());
    }

    /// Uses a line no more. What waits for it, and what has come and was not read, is lost.
    fn discard_line(&mut self, host: HostId, why: &str) {
        let line = self.tunnels.get_mut(&host);
        let Some(line) = line.and_then(|connected| connected.tunnel.line.take()) else {
            return;
        };
        let lost = LostLine {
            number: line.number,
            was_up: line.is_up(),
            line: line.into_line(),
            why: why.into(),
        };
        // It fails when there is no such descriptor any more, which is as good.
        let _ = self.epoll.delete(lost.line.wake_fd());
        self.report(host, TunnelEvent::Line(false));
        self.tell_keeper(host, LineEvent::Lost(lost));
    }

    fn report(&self, host: HostId, event: TunnelEvent) {
        if let Some(Connected { number, .. }) = self.tunnels.get(&host) {
            let number = *number;
            let _ = self.events.send((TunnelId { host, number }, event));
        }
    }

    /// Who says more than can be seen to at a time does not keep to the rules.
    fn tell_keeper(&mut self, host: HostId, event: LineEvent) {
        let connected = self.tunnels.get_mut(&host);
        let keeper = connected.and_then(|connected| connected.keeper.as_ref());
        if let Some(Err(TrySendError::Full(_))) = keeper.map(|keeper| keeper.try_send(event)) {
            self.end_tunnel(host, &io::Error::other(Nonsense));
        }
    }

    fn tunnel_mut(&mut self, id: TunnelId) -> Option<&mut Connected> {
        let connected = self.tunnels.get_mut(&id.host);
        connected.filter(|connected| connected.number == id.number)
    }

    fn line_mut(&mut self, host: HostId) -> Option<&mut LineEnd> {
        self.tunnels.get_mut(&host)?.tunnel.line.as_mut()
    }

    fn inbox_mut(&mut self, host: HostId, via: Via) -> Option<&mut Inbox> {
        match via {
            Via::Stream => Some(&mut self.tunnels.get_mut(&host)?.tunnel.inbox),
            Via::Line => Some(&mut self.line_mut(host)?.inbox),
        }
    }
}
