//! Access that was granted once and is kept: what a process can do that does not use our library.
//!
//! It asks the agent itself, never acknowledges anything, and holds on to the descriptor of the
//! memory. Reading through a descriptor shows the same pages as a mapping.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use toroid_fabric::{Access, RemoteKey};
use toroid_protocol::agent::{Message, NODE_SOCKET, Reply, Request, VERSION};
use toroid_protocol::wire::{self, Reader, Writer};

use super::member::MemberFailure;

/// The connection on which access was granted.
#[derive(Debug)]
pub struct Grant {
    reader: Reader,
    writer: Writer,
}

/// Opens a region as the protocol says, and keeps what comes with the grant.
///
/// # Errors
/// [`MemberFailure::Refused`], and the system's.
pub fn keep(key: RemoteKey, access: Access) -> Result<(Grant, File), MemberFailure> {
    let address = SocketAddr::from_abstract_name(NODE_SOCKET)?;
    let (reader, writer) = wire::split(UnixStream::connect_addr(&address)?)?;
    let mut grant = Grant { reader, writer };
    grant.ask(&Request::Hello { version: VERSION })?;
    let descriptors = grant.ask(&Request::Open { key, access })?;
    let memory = descriptors.into_iter().next();
    let memory = memory.ok_or(MemberFailure::NotSetUp("a descriptor"))?;
    Ok((grant, memory.into()))
}

impl Grant {
    fn ask(&mut self, request: &Request) -> Result<Vec<OwnedFd>, MemberFailure> {
        self.writer.send(request, &[])?;
        loop {
            match self.reader.receive()? {
                (Message::Reply(Reply::Error(refusal)), _) => {
                    return Err(MemberFailure::Refused(refusal.to_string()));
                }
                (Message::Reply(_), descriptors) => return Ok(descriptors),
                (Message::Event(_), _) => {}
            }
        }
    }
}

/// What there is at the start of the memory, `len` bytes at most.
///
/// # Errors
/// The system's.
pub fn words_from(memory: &File, len: usize) -> Result<Vec<u8>, MemberFailure> {
    let mut bytes = vec![0; len];
    let read = memory.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Writes there as far as the system allows.
pub fn scribble(memory: &File, len: usize, word: u64) {
    // That it is refused is what one would wish for.
    let _ = memory.write_at(&word.to_le_bytes().repeat(len / 8), 0);
}
