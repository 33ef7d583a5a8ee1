//! Requests to the agent that take more than their share.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;

use toroid_protocol::agent::{NODE_SOCKET, VERSION};

use crate::{PATIENCE, Result};

/// All of each request is sent but its last byte, so the agent has to keep what it takes. Of the
/// answers the payloads are printed, one in a line.
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
    for mut agent in connections {
        let _ = agent.shutdown(Shutdown::Write);
        println!("{}", answer(&mut agent)?);
    }
    Ok(())
}

/// The payload of an agent's next answer, if there is one.
fn answer(agent: &mut UnixStream) -> Result<String> {
    let mut header = [0; 8];
    match agent.read_exact(&mut header) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(String::new()),
        read => read?,
    }
    let [a, b, c, d, ..] = header;
    let mut payload = vec![0; u32::from_le_bytes([a, b, c, d]) as usize];
    agent.read_exact(&mut payload)?;
    Ok(String::from_utf8(payload)?)
}

/// Takes places at a socket that others need too.
pub fn hold(socket: &Path, count: usize) -> Result<()> {
    let connections: io::Result<Vec<_>> = (0..count).map(|_| UnixStream::connect(socket)).collect();
    println!("ready");
    io::copy(&mut io::stdin(), &mut io::sink())?;
    drop(connections?);
    Ok(())
}
