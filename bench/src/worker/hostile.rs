//! A malicious member without the client library.
//!
//! The process asks the agent for access, never acknowledges an epoch, and keeps the descriptor of
//! the memory. Reads through a descriptor show the same pages as a mapping.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use anyhow::{Context, Result, bail};
use toroid_fabric::{Access, RemoteKey};
use toroid_protocol::agent::{Message, NODE_SOCKET, Reply, Request, VERSION};
use toroid_protocol::wire::{self, Reader, Writer};

/// The connection to the agent on which access was granted.
#[derive(Debug)]
pub struct Grant {
    reader: Reader,
    writer: Writer,
}

/// Opens a region by the agent's protocol. Returns connection and descriptor.
pub fn keep(key: RemoteKey, access: Access) -> Result<(Grant, File)> {
    let address = SocketAddr::from_abstract_name(NODE_SOCKET)?;
    let (reader, writer) = wire::split(UnixStream::connect_addr(&address)?)?;
    let mut grant = Grant { reader, writer };
    grant.ask(&Request::Hello { version: VERSION })?;
    let descriptors = grant.ask(&Request::Open { key, access })?;
    let memory = descriptors.into_iter().next();
    let memory = memory.context("no descriptor came")?;
    Ok((grant, memory.into()))
}

impl Grant {
    fn ask(&mut self, request: &Request) -> Result<Vec<OwnedFd>> {
        self.writer.send(request, &[])?;
        loop {
            match self.reader.receive()? {
                (Message::Reply(Reply::Error(refusal)), _) => {
                    bail!("the agent refused: {refusal}");
                }
                (Message::Reply(_), descriptors) => return Ok(descriptors),
                (Message::Event(_), _) => {}
            }
        }
    }
}

/// Reads up to `len` bytes at the start of the memory.
pub fn words_from(memory: &File, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let read = memory.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Writes `word` over the first `len` bytes, as far as the system allows.
pub fn scribble(memory: &File, len: usize, word: u64) {
    scribble_at(memory, 0, len, word);
}

/// Writes `word` over `len` bytes from `offset` on, as far as the system allows.
pub fn scribble_at(memory: &File, offset: u64, len: usize, word: u64) {
    // A refusal is the expected result.
    let _ = memory.write_at(&word.to_le_bytes().repeat(len / 8), offset);
}
