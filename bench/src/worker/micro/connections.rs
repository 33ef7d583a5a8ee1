//! The open connections of a live host or rank.

use anyhow::{Result, bail, ensure};

use super::message_layer::{Links, Piece};
use super::script::Wait;
use super::wire::{self, Wire};

/// Opens one more connection to the other process: one side connects, the other accepts.
pub type Another = Box<dyn FnMut() -> Result<Wire> + Send>;

/// Connections by the number of their peer. For a host, the other process stands for all peers.
pub struct Connections {
    wires: Vec<Wire>,
    another: Another,
    /// The connection at which the next look for a message of any peer begins.
    next: usize,
}

impl Connections {
    /// Opens the first connection.
    pub fn new(another: Another) -> Result<Self> {
        let mut connections = Connections {
            wires: Vec::new(),
            another,
            next: 0,
        };
        connections.wire(0)?;
        Ok(connections)
    }

    /// Connections to which none is added.
    pub fn fixed(wires: Vec<Wire>) -> Self {
        Connections {
            wires,
            another: Box::new(|| bail!("there is no such peer")),
            next: 0,
        }
    }

    /// The connection with a peer. Opens it, and those of all peers before, on first use.
    pub fn wire(&mut self, peer: usize) -> Result<&mut Wire> {
        while self.wires.len() <= peer {
            self.wires.push((self.another)()?);
        }
        Ok(&mut self.wires[peer])
    }

    /// Closes all connections but the first `count`.
    pub fn truncate(&mut self, count: usize) {
        self.wires.truncate(count);
    }
}

impl Links for Connections {
    fn send(&mut self, peer: usize, header: &[u8], piece: Piece<'_>) -> Result<()> {
        let parts = [header, piece.bytes];
        let skipped = usize::from(header.is_empty());
        self.wire(peer)?.send(&parts[skipped..])
    }

    fn receive(&mut self, from: Option<usize>, into: &mut Vec<u8>, wait: Wait) -> Result<usize> {
        if let Some(peer) = from {
            self.wire(peer)?.receive(into, wait)?;
            return Ok(peer);
        }
        ensure!(!self.wires.is_empty(), "there is no peer");
        let peer = wire::receive_any(&mut self.wires, self.next, into, wait)?;
        self.next = peer + 1;
        Ok(peer)
    }
}
