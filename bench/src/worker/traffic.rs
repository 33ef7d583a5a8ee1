//! Datagrams and packets with their time of sending. Those sent after the sender left the domain
//! and received nevertheless are leaks.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;
use toroid_client::member::{Domain, Listener};
use toroid_fabric::emulation::Channel;
use toroid_fabric::{PacketChannel, Place, Protocol};

use super::hammer::now_ns;

const PROTOCOL: Protocol = Protocol(0x7ea4);

/// Pause between two sends, which leaves the processor to measured processes.
pub const PAUSE: Duration = Duration::from_micros(200);

/// Longest wait for a datagram before the next check for packets.
const LOOK: Duration = Duration::from_millis(1);

/// A thread that repeats some work until drop.
#[derive(Debug)]
pub struct Repeating {
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Repeating {
    pub fn start(mut work: impl FnMut() + Send + 'static) -> io::Result<Self> {
        let ending = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ending);
        let repeat = move || {
            while !flag.load(Ordering::Relaxed) {
                work();
            }
        };
        Ok(Repeating {
            ending,
            thread: Some(thread::Builder::new().spawn(repeat)?),
        })
    }
}

impl Drop for Repeating {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already.
            let _ = thread.join();
        }
    }
}

/// A receiver of datagrams and packets.
#[derive(Debug)]
pub struct Ear {
    port: u16,
    /// When datagrams and packets were sent.
    times: Arc<Mutex<[Vec<u64>; 2]>>,
    _thread: Repeating,
}

impl Ear {
    /// Listens for datagrams and packets.
    pub fn open(domain: &Domain) -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_read_timeout(Some(LOOK))?;
        let port = socket.local_addr()?.port();
        let times = Arc::new(Mutex::default());
        let (heard, listener) = (Arc::clone(&times), domain.listen(PROTOCOL)?);
        let mut channels = Vec::new();
        let thread = Repeating::start(move || {
            let mut time = [0; 8];
            if let Ok(8) = socket.recv(&mut time) {
                lock(&heard)[0].push(u64::from_le_bytes(time));
            }
            hear_packets(&listener, &mut channels, &heard);
        })?;
        Ok(Ear {
            port,
            times,
            _thread: thread,
        })
    }

    /// UDP port of the datagrams.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Numbers of received datagrams and of packets that were sent after this time. Forgets all of
    /// them.
    pub fn arrived(&self, after: u64) -> [u64; 2] {
        let times = std::mem::take(&mut *lock(&self.times));
        times.map(|times| times.iter().filter(|time| **time > after).count() as u64)
    }
}

fn hear_packets(listener: &Listener, channels: &mut Vec<Channel>, heard: &Mutex<[Vec<u64>; 2]>) {
    if let Ok(Some(channel)) = listener.accept(Duration::ZERO) {
        channels.push(channel);
    }
    let mut packet = Vec::new();
    channels.retain_mut(|channel| {
        loop {
            match channel.receive(&mut packet) {
                Ok(true) => {
                    if let Ok(time) = packet[..].try_into() {
                        lock(heard)[1].push(u64::from_le_bytes(time));
                    }
                }
                Ok(false) => return true,
                Err(_) => return false,
            }
        }
    });
}

fn lock(times: &Mutex<[Vec<u64>; 2]>) -> MutexGuard<'_, [Vec<u64>; 2]> {
    times.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends datagrams and packets, and ignores all errors.
pub fn flood(domain: &Domain, datagrams_to: SocketAddrV4, packets_to: Place) -> Result<Repeating> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let mut channel = domain.connect(packets_to, PROTOCOL)?;
    Ok(Repeating::start(move || {
        // Errors are expected after the member has left; keep trying.
        let _ = socket.send_to(&now_ns().to_le_bytes(), datagrams_to);
        let _ = channel.send(&[&now_ns().to_le_bytes()]);
        thread::sleep(PAUSE);
    })?)
}
