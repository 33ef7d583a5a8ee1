//! Two stacks at the ends of one stack socket, without a driver between them.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use super::*;
use crate::port::stack_socket::tests::{kind, pair};

const MTU: u32 = 9000;

/// A source of the stack sockets that a test sends; a closed channel means revoked.
struct Supply(Receiver<StackSocket>);

impl Connector for Supply {
    fn connect(&mut self) -> Result<StackSocket, Unavailable> {
        match self.0.try_recv() {
            Ok(stack_socket) => Ok(stack_socket),
            Err(mpsc::TryRecvError::Empty) => Err(Unavailable::NotYet),
            Err(mpsc::TryRecvError::Disconnected) => Err(Unavailable::Revoked),
        }
    }
}

fn stack(n: u8, stack_socket: StackSocket) -> (Stack, Sender<StackSocket>) {
    let (sender, supply) = mpsc::channel();
    let info = StackInfo {
        mac: [6, 0, 7, n, 0, 0],
        ipv4: [10, 64, 0, n].into(),
        prefix: 24,
        ipv6: [0xfd00, 0, 0, 0, 0, 0, 0, n.into()].into(),
        ipv6_prefix: 64,
        mtu: MTU,
    };
    let stack = Stack::start(info, stack_socket, Box::new(Supply(supply))).unwrap();
    (stack, sender)
}

fn both() -> [(Stack, Sender<StackSocket>); 2] {
    let [here, there] = pair();
    [stack(1, here), stack(2, there)]
}

fn at(address: impl Into<IpAddr>, port: u16) -> SocketAddr {
    SocketAddr::new(address.into(), port)
}

/// A connection from the first to the second.
fn connected(first: &Stack, second: &Stack) -> [TcpStream; 2] {
    let listener = second.listen(80).unwrap();
    let client = first.connect(at(second.ipv4(), 80)).unwrap();
    let (server, peer) = listener.accept().unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    [client, server]
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| ((n * 31) >> 8) as u8).collect()
}

#[test]
fn streams_arrive_whole_in_both_directions_by_both_protocols() {
    let [(first, _one), (second, _two)] = both();
    let listener = second.listen(7).unwrap();
    let echo = thread::spawn(move || {
        for _ in 0..2 {
            let (stream, _) = listener.accept().unwrap();
            let copied = std::io::copy(&mut &stream, &mut &stream).unwrap();
            assert_eq!(copied, 3_000_000);
        }
    });
    for address in [IpAddr::from(second.ipv4()), second.ipv6().into()] {
        let stream = first.connect(at(address, 7)).unwrap();
        let mut writing = stream.try_clone().unwrap();
        let writer = thread::spawn(move || {
            writing.write_all(&bytes(3_000_000)).unwrap();
            writing.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        (&stream).read_to_end(&mut received).unwrap();
        writer.join().unwrap();
        assert!(received == bytes(3_000_000));
    }
    echo.join().unwrap();
}

#[test]
fn written_data_is_sent_after_everything_is_dropped() {
    let [(first, _one), (second, _two)] = both();
    let [client, mut server] = connected(&first, &second);
    let reading = thread::spawn(move || {
        let mut received = Vec::new();
        server.read_to_end(&mut received).map(|_| received.len())
    });
    (&client).write_all(&bytes(400_000)).unwrap();
    drop((client, first));
    assert_eq!(reading.join().unwrap().unwrap(), 400_000);
}

#[test]
fn a_connection_survives_its_stack_socket() {
    let [(first, one), (second, two)] = both();
    let [mut client, mut server] = connected(&first, &second);
    let mut say = |text: &[u8; 4]| {
        client.write_all(text).unwrap();
        let mut received = [0; 4];
        server.read_exact(&mut received).unwrap();
        assert_eq!(received, *text);
    };
    say(b"once");
    for _ in 0..2 {
        let [here, there] = pair();
        one.send(here).unwrap();
        two.send(there).unwrap();
        // Closing one end of the old socket closes the other.
        first.running.shared.lock().cut_for_test();
        say(b"more");
    }
}

#[test]
fn waiting_threads_learn_of_revocation_at_once() {
    let [(first, one), (second, _two)] = both();
    let [client, _server] = connected(&first, &second);
    let listener = first.listen(81).unwrap();
    let datagrams = first.bind_udp(5000).unwrap();
    let waiting = [
        thread::spawn(move || (&client).read(&mut [0; 8]).unwrap_err()),
        thread::spawn(move || listener.accept().unwrap_err()),
        thread::spawn(move || datagrams.recv_from(&mut [0; 8]).unwrap_err()),
    ];
    drop(one);
    first.running.shared.lock().cut_for_test();
    first.running.shared.ring();
    for waiting in waiting {
        assert!(is_revoked(&waiting.join().unwrap()));
    }
    assert!(is_revoked(&first.listen(82).unwrap_err()));
    let again = first.connect(at(second.ipv4(), 80));
    assert!(is_revoked(&again.unwrap_err()));
}

#[test]
fn datagrams_for_missing_nodes_delay_no_others() {
    let [(first, _one), (second, _two)] = both();
    let [here, there] = [&first, &second].map(|stack| stack.bind_udp(5000).unwrap());
    for to in [IpAddr::from(second.ipv4()), second.ipv6().into()] {
        for len in [0, 1, 8000] {
            here.send_to(&bytes(len), at(to, 5000)).unwrap();
            let mut received = vec![0; 9000];
            let (received_len, _) = there.recv_from(&mut received).unwrap();
            assert!(received[..received_len] == bytes(len));
        }
    }
    here.send_to(b"nobody", at([10, 64, 0, 77], 5000)).unwrap();
    there
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    let start = Instant::now();
    loop {
        here.send_to(b"you", at(second.ipv4(), 5000)).unwrap();
        if there.recv_from(&mut [0; 8]).is_ok() {
            break;
        }
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "the datagram never arrives"
        );
    }
}

#[test]
fn errors_are_those_of_std() {
    let [(first, _one), (second, _two)] = both();
    let refused = first.connect(at(second.ipv4(), 9));
    assert_eq!(kind(refused), io::ErrorKind::ConnectionRefused);
    let outside = first.connect(at([192, 0, 2, 1], 9));
    assert_eq!(kind(outside), io::ErrorKind::AddrNotAvailable);
    let _listener = second.listen(80).unwrap();
    assert_eq!(kind(second.listen(80)), io::ErrorKind::AddrInUse);
    assert_eq!(kind(second.listen(0)), io::ErrorKind::InvalidInput);
    let datagrams = first.bind_udp(0).unwrap();
    let long = datagrams.send_to(&bytes(8973), at(second.ipv4(), 9));
    assert_eq!(kind(long), io::ErrorKind::InvalidInput);
    let stream = first.connect(at(second.ipv4(), 80)).unwrap();
    let timeout = Some(Duration::from_millis(10));
    stream.set_read_timeout(timeout).unwrap();
    assert_eq!(kind((&stream).read(&mut [0])), io::ErrorKind::WouldBlock);
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(kind((&stream).write(&[0])), io::ErrorKind::BrokenPipe);
}

#[test]
fn more_connections_than_the_backlog_are_served() {
    let [(first, _one), (second, _two)] = both();
    let listener = second.listen(80).unwrap();
    let serving = thread::spawn(move || {
        for _ in 0..50 {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"hi").unwrap();
        }
    });
    for _ in 0..50 {
        let mut received = String::new();
        let mut stream = first.connect(at(second.ipv4(), 80)).unwrap();
        stream.read_to_string(&mut received).unwrap();
        assert_eq!(received, "hi");
    }
    serving.join().unwrap();
}

#[test]
fn random_bytes_cause_no_failure() {
    let [here, there] = pair();
    let (stack, _supply) = stack(1, here);
    let mut seed = 1u64;
    for len in (0..2000).map(|n| n % 200 + 1) {
        let garbage: Vec<u8> = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            (seed >> 33) as u8
        })
        .take(len)
        .collect();
        // The socket may be full.
        let _ = there.send(&garbage);
    }
    assert!(stack.listen(80).is_ok());
}
