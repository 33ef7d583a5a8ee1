//! Two hosts with a member each. Between them are a connection, and sockets in place of RDMA streams.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::sys::socket::{MsgFlags, recv};
use toroid_fabric::{NodeId, Partition, Place};
use toroid_model::addressing;
use toroid_protocol::driver::Port;

use super::*;
use crate::forward::tests::unique;
use crate::offload::Offload;
use crate::port::SwitchPort;
use crate::port::stack_socket::{StackSocket, tests::pair};
use crate::switch::TunnelEvent;
use crate::tunnel::signal::tests::parameters;
use crate::tunnel::{HostId, Tunnel};

const DOMAIN: u16 = 7;

/// A longer wait is a hang.
const WATCHDOG: Duration = Duration::from_secs(60);

/// RDMA devices of both hosts, and the fabric between them.
#[derive(Debug, Default)]
struct Fabric {
    /// Whether there are devices.
    is_there: AtomicBool,
    /// Whether bytes get from one device to the other.
    carries: AtomicBool,
    next: AtomicU64,
    /// Ends of streams that wait for their other ends, by the addresses of both.
    waiting: Mutex<HashMap<[u64; 2], UnixStream>>,
    /// All ends so far.
    ends: Mutex<Vec<UnixStream>>,
}

impl Fabric {
    fn new() -> Arc<Self> {
        let fabric = Arc::<Self>::default();
        fabric.is_there.store(true, Ordering::SeqCst);
        fabric.carries.store(true, Ordering::SeqCst);
        fabric
    }

    fn prepare(self: &Arc<Self>) -> Prepare {
        let fabric = Arc::clone(self);
        Arc::new(move || {
            if fabric.is_there.load(Ordering::SeqCst) {
                Ok(Box::new(End {
                    address: fabric.next.fetch_add(1, Ordering::SeqCst),
                    fabric: Arc::clone(&fabric),
                }))
            } else {
                Err(RdmaError::NotBuilt)
            }
        })
    }

    /// Ends all streams. Later ones carry no bytes, or there are no devices.
    fn breaks(&self, is_there: bool) {
        self.is_there.store(is_there, Ordering::SeqCst);
        self.carries.store(false, Ordering::SeqCst);
        for end in self.ends.lock().unwrap().drain(..) {
            let _ = end.shutdown(std::net::Shutdown::Both);
        }
    }

    fn works_again(&self) {
        self.is_there.store(true, Ordering::SeqCst);
        self.carries.store(true, Ordering::SeqCst);
    }
}

#[derive(Debug)]
struct End {
    address: u64,
    fabric: Arc<Fabric>,
}

impl PreparedRdmaStream for End {
    fn parameters(&self) -> RdmaStreamParameters {
        RdmaStreamParameters {
            address: self.address,
            ..parameters()
        }
    }

    fn connect(self: Box<Self>, peer: &RdmaStreamParameters) -> io::Result<Box<dyn RdmaStream>> {
        let mut both = [self.address, peer.address];
        both.sort();
        let mut waiting = self.fabric.waiting.lock().unwrap();
        let stream = match waiting.remove(&both) {
            Some(stream) => stream,
            None => {
                let (ours, theirs) = UnixStream::pair()?;
                waiting.insert(both, theirs);
                ours
            }
        };
        stream.set_nonblocking(true)?;
        self.fabric.ends.lock().unwrap().push(stream.try_clone()?);
        Ok(Box::new(Socket {
            stream,
            fabric: Arc::clone(&self.fabric),
        }))
    }
}

#[derive(Debug)]
struct Socket {
    stream: UnixStream,
    fabric: Arc<Fabric>,
}

impl Socket {
    /// Number of waiting bytes, at most one.
    fn peek(&self) -> io::Result<usize> {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        Ok(recv(self.stream.as_raw_fd(), &mut [0], flags)?)
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.read(into)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl RdmaStream for Socket {
    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn process_events(&mut self) -> io::Result<()> {
        match self.peek() {
            _ if !self.is_confirmed() => Err(io::ErrorKind::TimedOut.into()),
            Ok(0) => Err(io::ErrorKind::BrokenPipe.into()),
            _ => Ok(()),
        }
    }

    fn has_bytes(&self) -> bool {
        self.peek().is_ok_and(|len| len > 0)
    }

    fn is_confirmed(&self) -> bool {
        self.fabric.carries.load(Ordering::SeqCst)
    }
}

/// A host with its member, whose stack is this test.
struct Side {
    switch: Arc<SwitchHandle>,
    member: StackSocket,
    events: Receiver<(TunnelId, TunnelEvent)>,
    failures: Receiver<String>,
    by_rdma: Arc<AtomicU64>,
    x: u8,
}

fn place(x: u8) -> Place {
    Place { x, y: 0, z: 0 }
}

fn port(x: u8) -> Port {
    Port {
        stack: true,
        ..unique(DOMAIN, x)
    }
}

/// The host of the other member.
const OTHER: HostId = HostId(0);

impl Side {
    fn new(x: u8, stream: TcpStream, fabric: &Arc<Fabric>) -> Self {
        let (sender, events) = mpsc::channel();
        let (switch, handle) = Switch::new(sender).unwrap();
        thread::spawn(|| switch.run());
        let handle = Arc::new(handle);
        let by_rdma = Arc::<AtomicU64>::default();
        let tunnel = Tunnel::new(stream.into(), None, Arc::clone(&by_rdma)).unwrap();
        let id = TunnelId {
            host: OTHER,
            number: 1,
        };
        let prepare = fabric.prepare();
        let (report_failure, failures) = mpsc::channel();
        let report_failure =
            Box::new(move |why: &str| report_failure.send(why.to_owned()).unwrap());
        let (supervisor, stream_events) =
            StreamSupervisor::new(id, x == 0, prepare, &handle, report_failure);
        let [member, egress] = pair();
        let set_up = move |switch: &mut Switch| {
            switch.attach(port(x), SwitchPort::Stack(None)).unwrap();
            let partition = Partition(DOMAIN.into());
            switch.plug(partition, NodeId(x.into()), egress).unwrap();
            switch.bridges.attach_remote(port(1 - x), OTHER).unwrap();
            switch
                .connect_tunnel(id, tunnel, Some(stream_events))
                .unwrap();
        };
        handle.call(set_up).unwrap();
        supervisor.start().unwrap();
        Side {
            switch: handle,
            member,
            events,
            failures,
            by_rdma,
            x,
        }
    }

    /// Sends a packet with a number to the other member.
    fn send(&self, number: u32) {
        let [to, from] = [1 - self.x, self.x].map(|x| addressing::mac(DOMAIN, place(x)));
        let ethertype = [0x88, 0xb5];
        let parts = [
            &Offload::NONE[..],
            &to,
            &from,
            &ethertype,
            &number.to_le_bytes(),
        ];
        while self.member.send(&parts.concat()).is_err() {
            thread::yield_now();
        }
    }

    /// The number of the next packet, if there is one.
    fn receive(&self) -> Option<u32> {
        let mut packet = [0; 64];
        let len = self.member.receive(&mut packet).ok()?;
        let number = packet[..len].last_chunk()?;
        Some(u32::from_le_bytes(*number))
    }

    fn by_rdma(&self) -> u64 {
        self.by_rdma.load(Ordering::Relaxed)
    }

    /// Waits until the tunnel has counted this number of packets, which follows their arrival.
    #[track_caller]
    fn counts(&self, by_rdma: u64) {
        let began = Instant::now();
        while self.by_rdma() < by_rdma {
            assert!(began.elapsed() < WATCHDOG, "{} counted", self.by_rdma());
            thread::yield_now();
        }
    }

    /// Waits until packets go by a stream, or no longer do.
    #[track_caller]
    fn awaits(&self, by_rdma: bool) {
        let until = Instant::now() + WATCHDOG;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let (_, event) = self.events.recv_timeout(left).expect("an event");
            assert!(matches!(event, TunnelEvent::ByRdma(_)), "{event:?}");
            if event == TunnelEvent::ByRdma(by_rdma) {
                return;
            }
        }
    }

    /// Whether the switch still runs.
    fn is_running(&self) -> bool {
        self.switch.call(|_| ()).is_ok()
    }
}

fn sides(fabric: &Arc<Fabric>) -> [Side; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    [Side::new(0, ours, fabric), Side::new(1, theirs, fabric)]
}

/// Sends packets until the last one arrives, in order of their numbers. Returns its number.
#[track_caller]
fn one_arrives(from: &Side, to: &Side, newest: &mut u32, mut number: u32) -> u32 {
    let began = Instant::now();
    loop {
        number += 1;
        from.send(number);
        let wait = Instant::now() + Duration::from_millis(20);
        while Instant::now() < wait {
            if let Some(arrived) = to.receive() {
                assert!(arrived > *newest, "{arrived} after {newest}");
                *newest = arrived;
                if arrived == number {
                    return number;
                }
            }
        }
        assert!(began.elapsed() < WATCHDOG, "nothing arrives");
    }
}

#[test]
fn packets_use_a_present_stream_and_never_overtake_each_other() {
    let fabric = Fabric::new();
    let sides = sides(&fabric);
    let (mut newest, mut numbers) = ([0; 2], [0; 2]);
    let mut all_arrive = |times: u32| {
        for _ in 0..times {
            for (from, to) in [(0, 1), (1, 0)] {
                numbers[from] =
                    one_arrives(&sides[from], &sides[to], &mut newest[from], numbers[from]);
            }
        }
    };
    for is_there in [true, false, true] {
        // Also while the stream comes up.
        all_arrive(20);
        sides.iter().for_each(|side| side.awaits(true));
        let before = sides.each_ref().map(Side::by_rdma);
        all_arrive(20);
        for (side, before) in sides.iter().zip(before) {
            side.counts(before + 40);
        }
        fabric.breaks(is_there);
        sides.iter().for_each(|side| side.awaits(false));
        let before = sides.each_ref().map(Side::by_rdma);
        all_arrive(20);
        assert_eq!(sides.each_ref().map(Side::by_rdma), before);
        fabric.works_again();
    }
    for side in &sides {
        for _ in 0..3 {
            side.failures.recv_timeout(WATCHDOG).unwrap();
        }
        assert!(
            side.failures.try_recv().is_err(),
            "one report for each failure"
        );
    }
    assert!(sides.iter().all(Side::is_running));
}

#[test]
fn cutting_a_tunnel_ends_its_stream() {
    let fabric = Fabric::new();
    let sides = sides(&fabric);
    sides.iter().for_each(|side| side.awaits(true));
    sides[0]
        .switch
        .call(|switch| switch.cut_tunnel(OTHER))
        .unwrap();
    sides[1].awaits(false);
    let ended = sides[1].events.recv_timeout(WATCHDOG).unwrap().1;
    assert!(matches!(ended, TunnelEvent::Ended(_)), "{ended:?}");
    // Both threads have dropped the fabric and their streams.
    let began = Instant::now();
    while Arc::strong_count(&fabric) > 1 {
        assert!(began.elapsed() < WATCHDOG);
        thread::yield_now();
    }
    let waiting = fabric.waiting.lock().unwrap();
    assert!(waiting.is_empty());
}
