//! Requests to the agent that take more than their share.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;

use serde_json::Value;
use tests::actor::{Event, report};
use toroid_protocol::agent::{NODE_SOCKET, VERSION};

use super::{PATIENCE, Result};

/// Sends all of each request but its last byte, so that the agent has to keep what it takes.
pub fn gorge(count: usize, bytes: u32) -> Result<()> {
    let frame = |payload: &[u8], len: u32| [&len.to_le_bytes()[..], &[0; 4], payload].concat();
    let hello = format!(r#"{{"request":"hello","version":{VERSION}}}"#);
    let hello = frame(hello.as_bytes(), hello.len() as u32);
    let request = frame(&vec![b' '; bytes as usize - 1], bytes);
    let address = SocketAddr::from_abstract_name(NODE_SOCKET)?;
    let mut connections = Vec::new();
    for _ in 0..count {
        let mut agent = UnixStream::connect_addr(&address)?;
        agent.set_read_timeout(Some(PATIENCE))?;
        agent.write_all(&hello)?;
        answer(&mut agent)?;
        // An agent that takes no such request ends the connection meanwhile.
        let _ = agent.write_all(&request);
        connections.push(agent);
    }
    let mut answers = Vec::new();
    for mut agent in connections {
        let _ = agent.shutdown(Shutdown::Write);
        answers.push(answer(&mut agent)?);
    }
    Ok(report(&Event::Answers(answers))?)
}

/// The agent's next answer, `None` at the end of the connection.
fn answer(agent: &mut UnixStream) -> Result<Option<Value>> {
    let mut header = [0; 8];
    match agent.read_exact(&mut header) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let [a, b, c, d, ..] = header;
    let mut payload = vec![0; u32::from_le_bytes([a, b, c, d]) as usize];
    agent.read_exact(&mut payload)?;
    Ok(Some(serde_json::from_slice(&payload)?))
}

/// Takes places at a socket that others need too.
pub fn hold(socket: &Path, count: usize) -> Result<()> {
    let connections: io::Result<Vec<_>> = (0..count).map(|_| UnixStream::connect(socket)).collect();
    report(&Event::Ready)?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    drop(connections?);
    Ok(())
}
