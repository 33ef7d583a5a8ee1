//! Programs with an IP stack of their own.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::fd::AsRawFd;
use std::thread;

use clap::Subcommand;
use nix::sys::socket::{MsgFlags, send};
use tests::actor::{Event, Request, report, serve as answer};
use toroid_client::member::Member;
use toroid_ethernet::stack::Stack;
use toroid_ethernet::stack::tcp::TcpStream;

use super::{PATIENCE, Result, watch_input};

/// The page that is served; its bytes differ by their place.
fn page(len: usize) -> Vec<u8> {
    (0..len).map(|n| ((n * 31) >> 8) as u8).collect()
}

/// A use of the stack.
#[derive(Subcommand)]
pub enum Role {
    /// Serve so many bytes, as HTTP, over each connection.
    Serve { port: u16, bytes: usize },
    /// Print the page of a web server.
    Fetch { address: IpAddr, port: u16 },
    /// Send back all bytes of connections and all datagrams.
    Echo { port: u16 },
    /// Send lines over a connection.
    Talk { address: IpAddr, port: u16 },
    /// Send one datagram and wait for the answer.
    Ask { address: IpAddr, port: u16 },
    /// Send nonsense, and read nothing.
    Babble,
}

pub fn run(domain: &str, role: Role) -> Result<()> {
    let domain = Member::attach()?.domain(domain)?;
    if let Role::Babble = role {
        let (_, link) = domain.stack()?;
        return babble(link.as_raw_fd());
    }
    let stack = Stack::open(&domain)?;
    match role {
        Role::Serve { port, bytes } => serve(&stack, port, bytes),
        Role::Fetch { address, port } => fetch(&stack, (address, port).into()),
        Role::Echo { port } => echo(&stack, port),
        Role::Talk { address, port } => talk(&stack, (address, port).into()),
        Role::Ask { address, port } => ask(&stack, (address, port).into()),
        Role::Babble => unreachable!("it has no stack"),
    }
}

fn serve(stack: &Stack, port: u16, count: usize) -> Result<()> {
    let listener = stack.listen(port)?;
    report(&Event::Ready)?;
    loop {
        let (stream, _) = listener.accept()?;
        thread::spawn(move || give(&stream, count));
    }
}

fn give(stream: &TcpStream, count: usize) -> io::Result<()> {
    let mut request = BufReader::new(stream).lines();
    while request
        .next()
        .transpose()?
        .is_some_and(|line| !line.is_empty())
    {}
    let mut to = stream;
    write!(to, "HTTP/1.0 200 OK\r\nContent-Length: {count}\r\n\r\n")?;
    to.write_all(&page(count))?;
    stream.shutdown(Shutdown::Write)
}

fn fetch(stack: &Stack, from: SocketAddr) -> Result<()> {
    let stream = stack.connect(from)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(&stream, "GET /page HTTP/1.0\r\n\r\n")?;
    let mut answer = BufReader::new(&stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        answer.read_line(&mut line)?;
    }
    io::copy(&mut answer, &mut io::stdout())?;
    Ok(())
}

fn echo(stack: &Stack, port: u16) -> Result<()> {
    let listener = stack.listen(port)?;
    let datagrams = stack.bind_udp(port)?;
    thread::spawn(move || -> io::Result<()> {
        let mut datagram = vec![0; 1 << 16];
        loop {
            let (len, from) = datagrams.recv_from(&mut datagram)?;
            datagrams.send_to(&datagram[..len], from)?;
        }
    });
    report(&Event::Ready)?;
    loop {
        let (stream, _) = listener.accept()?;
        thread::spawn(move || io::copy(&mut &stream, &mut &stream));
    }
}

fn talk(stack: &Stack, to: SocketAddr) -> Result<()> {
    let mut stream = stack.connect(to)?;
    stream.set_nodelay(true)?;
    report(&Event::Open)?;
    let mut answers = BufReader::new(stream.try_clone()?);
    answer(|request| match request {
        Request::Say(line) => {
            writeln!(stream, "{line}")?;
            let mut answer = String::new();
            answers.read_line(&mut answer)?;
            Ok(Event::Line(answer.trim_end().to_owned()))
        }
        other => Err(format!("{other:?} is not for a talk").into()),
    })?;
    // A reader learns what becomes of the connection.
    let end = answers.read(&mut [0]);
    let revoked = end.is_err_and(|error| toroid_ethernet::stack::is_revoked(&error));
    Ok(report(&Event::Closed { revoked })?)
}

fn ask(stack: &Stack, to: SocketAddr) -> Result<()> {
    let socket = stack.bind_udp(0)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send_to(&page(8000), to)?;
    let mut answer = vec![0; 9000];
    let (len, _) = socket.recv_from(&mut answer)?;
    let same = answer[..len] == page(8000);
    Ok(report(&Event::Answer { same })?)
}

fn babble(link: i32) -> Result<()> {
    let ended = watch_input();
    report(&Event::Ready)?;
    let mut state = 1u64;
    let mut packet = Vec::new();
    while !ended.load(std::sync::atomic::Ordering::Acquire) {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let len = 1 + (state >> 33) as usize % 70_000;
        packet.clear();
        packet.extend((0..len).map(|n| (state >> (n % 57)) as u8));
        // Half of them have a valid header without offload.
        if state >> 63 == 1 {
            packet.splice(..len.min(10), [0; 10]);
        }
        if send(
            link,
            &packet,
            MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL,
        )
        .is_err()
        {
            thread::yield_now();
        }
    }
    Ok(())
}
