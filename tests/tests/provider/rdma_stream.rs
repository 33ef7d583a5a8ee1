//! RDMA streams: what is written at one end is read at the other, and what that does not cost.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use toroid_fabric::RdmaStream as _;
use toroid_fabric::rdma_stream::PreparedRdmaStream as _;
use toroid_fabric::verbs::rdma_stream::RdmaStream;
use toroid_fabric::verbs::{Device, PreparedRdmaStream, RdmaStreamParameters, Selection};

use crate::counters::allocations;

/// No test takes as long.
const FOR_EVER: Duration = Duration::from_secs(120);

fn prepare(device: &str) -> PreparedRdmaStream {
    let selection = Selection {
        device: Some(device.to_owned()),
        ..Selection::default()
    };
    PreparedRdmaStream::new(&Device::open(&selection).unwrap()).unwrap()
}

/// Both ends, after their parameters have travelled.
pub fn streams() -> [RdmaStream; 2] {
    let (here, there) = (prepare("rxe0"), prepare("rxe1"));
    let told = |end: &PreparedRdmaStream| {
        RdmaStreamParameters::from_bytes(&end.parameters().to_bytes()).unwrap()
    };
    let (ours, theirs) = (told(&here), told(&there));
    [
        here.connect(&theirs).unwrap(),
        there.connect(&ours).unwrap(),
    ]
}

/// Sleeps until one of these has something to attend to.
fn sleep(streams: &[&RdmaStream]) {
    let mut fds: Vec<_> = streams
        .iter()
        .map(|stream| PollFd::new(stream.wake_fd(), PollFlags::POLLIN))
        .collect();
    let woken = poll(&mut fds, PollTimeout::try_from(FOR_EVER).unwrap()).unwrap();
    assert_ne!(woken, 0, "nobody is woken");
}

fn or_nothing(result: std::io::Result<usize>) -> usize {
    match result {
        Ok(len) => len,
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        Err(error) => panic!("{error}"),
    }
}

fn byte(n: usize) -> u8 {
    (n.wrapping_mul(2_654_435_761) >> 13) as u8
}

/// In parts of all lengths, much more than a ring has, both ways at once, asleep in between.
#[test]
fn bytes_arrive_whole_and_in_order_both_ways() {
    const LEN: usize = 6 << 20;
    let all: Vec<u8> = (0..LEN).map(byte).collect();
    let mut ends = streams();
    let (mut written, mut read) = ([0; 2], [0; 2]);
    let mut buffer = vec![0; 100_000];
    let lens = [1, 24, 191, 192, 193, 4096, 65_559, 17, 300_000];
    let mut turns = lens.iter().cycle();
    while read != [LEN; 2] {
        let mut is_idle = true;
        for end in [0, 1] {
            let rest = &all[written[end]..];
            let (first, second) = rest.split_at(rest.len().min(*turns.next().unwrap()));
            let parts = [first, &second[..second.len().min(14)]].map(IoSlice::new);
            let len = or_nothing(ends[end].write_vectored(&parts));
            written[end] += len;
            let count = or_nothing(ends[end].read(&mut buffer));
            let expected = &all[read[end]..read[end] + count];
            assert!(buffer[..count] == *expected, "at {}", read[end]);
            read[end] += count;
            is_idle &= len + count == 0;
        }
        if is_idle && read != [LEN; 2] {
            sleep(&[&ends[0], &ends[1]]);
        }
        for stream in &mut ends {
            stream.process_events().unwrap();
        }
    }
    assert!(ends.iter().all(|stream| !stream.has_bytes()));
}

#[test]
fn what_is_polled_for_allocates_nothing_and_asks_for_few_completions() {
    let [mut here, mut there] = streams();
    let (packet, mut buffer) = (vec![7; 9000], vec![0; 9000]);
    let mut round = || {
        here.write_all(&packet).unwrap();
        let mut got = 0;
        let began = Instant::now();
        while got < packet.len() {
            there.process_events().unwrap();
            got += or_nothing(there.read(&mut buffer[got..]));
            assert!(began.elapsed() < FOR_EVER);
        }
        here.process_events().unwrap();
    };
    round();
    let before = allocations();
    (0..64).for_each(|_| round());
    assert_eq!(allocations(), before);
    let counters = here.counters();
    assert_eq!((counters.requests, counters.signalled), (65, 5));
    assert!(here.is_confirmed());
    assert!(
        counters.doorbells <= 65 && counters.inline == 0,
        "{counters:?}"
    );
}

#[test]
fn who_does_not_read_is_sent_no_more_than_a_ring() {
    let [mut here, mut there] = streams();
    let all = vec![1; 1 << 21];
    let written = or_nothing(here.write(&all));
    assert_eq!(written, 1 << 20);
    assert_eq!(here.write(&all).unwrap_err().kind(), ErrorKind::WouldBlock);
    // Also in small ones, of which there may be fewer than fit.
    let small = (0..1000).take_while(|_| there.write(b"x").is_ok()).count();
    assert_eq!(small, 64);
    // Who reads lets it go on.
    let mut buffer = vec![0; 1 << 20];
    let mut got = 0;
    while got < written {
        sleep(&[&there]);
        there.process_events().unwrap();
        got += or_nothing(there.read(&mut buffer));
    }
    while or_nothing(here.write(b"y")) == 0 {
        sleep(&[&here]);
        here.process_events().unwrap();
    }
}

#[test]
fn a_line_whose_other_end_has_gone_ends() {
    let [mut here, there] = streams();
    drop(there);
    here.write_all(b"is anybody there").unwrap();
    let began = Instant::now();
    let end = loop {
        assert!(began.elapsed() < FOR_EVER);
        sleep(&[&here]);
        if let Err(end) = here.process_events() {
            break end;
        }
    };
    assert!(end.to_string().contains("do not reach each other"), "{end}");
    assert!(here.write(b"x").is_err() && here.read(&mut [0]).is_err());
}
