//! One-sided operations: bytes, order, errors, atomicity, and the ends of rights.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use toroid_fabric::{
    Access, Completion, Endpoint, OpError, Operation, PostError, Read, Region, Segment, Segments,
};

use super::{FOR_EVER, Rig, complete, each_kind, pattern, run};

pub fn bytes_arrive_as_they_were<R: Rig>(rig: &R) {
    let (owner, remote) = rig.export(1 << 20, Access::all());
    let local = Region::local(1 << 20).unwrap();
    let mut endpoint = rig.endpoint(4);
    for len in [1, 7, 8, 63, 64, 65, 200, 4096, 65_537, 1 << 20] {
        for start in [0, 1, 3, 8] {
            let len = len - start.min(len);
            let (bytes, mut back) = (pattern(len, start as u8), vec![0; len]);
            local.write(0, &bytes).unwrap();
            let end = len as u64;
            let write = Operation::write(&remote, start as u64, &local, 0..end);
            assert_eq!(run(&mut endpoint, write), Ok(end));
            owner.read(start as u64, &mut back).unwrap();
            assert!(back == bytes, "write of {len} bytes at {start}");

            let bytes = pattern(len, 99);
            owner.write(start as u64, &bytes).unwrap();
            let read = Operation::read(&remote, start as u64, &local, 0..end);
            assert_eq!(run(&mut endpoint, read), Ok(end));
            local.read(0, &mut back).unwrap();
            assert!(back == bytes, "read of {len} bytes at {start}");
        }
    }
}

/// Runs of bytes with gaps between them, in turns in two regions; some are empty.
fn scattered(regions: &[Region; 2], count: u64, longest: u64) -> Vec<Segment> {
    let segment = |n: u64| {
        let (len, start) = (n * 37_003 % (longest + 1), n / 2 * (longest + 3) + 1);
        Segment::new(&regions[n as usize % 2], start..start + len)
    };
    (0..count).map(segment).collect()
}

/// The bytes of each segment, one after another.
fn gathered(segments: &[Segment]) -> Vec<u8> {
    let mut all = Vec::new();
    for segment in segments {
        let (region, len) = (&segment.region, segment.len as usize);
        region.read_onto(segment.offset, len, &mut all).unwrap();
    }
    all
}

/// Everything in both regions.
fn all_of(regions: &[Region; 2]) -> [Vec<u8>; 2] {
    [0, 1].map(|n| {
        let region = &regions[n];
        gathered(&[Segment::new(region, 0..region.len())])
    })
}

pub fn scattered_bytes_arrive_as_they_were<R: Rig>(rig: &R) {
    let (owner, remote) = rig.export(1 << 20, Access::all());
    let regions = [
        Region::local(1 << 19).unwrap(),
        Region::local(1 << 19).unwrap(),
    ];
    let before = [1, 2].map(|seed| pattern(1 << 19, seed));
    let mut endpoint = rig.endpoint(4);
    // Each count that one request of a device may have room for, and some that none has.
    let lists = (0..20).chain([64, 200]).map(|count| (count, 100));
    for (count, longest) in lists.chain([(5, 150_000), (3, 100_000)]) {
        let segments = scattered(&regions, count, longest);
        let list: Segments = segments.iter().cloned().collect();
        let len = list.len() as usize;
        for (region, bytes) in regions.iter().zip(&before) {
            region.write(0, bytes).unwrap();
        }
        owner.write(0, &vec![0; 1 << 20]).unwrap();
        let write = Operation::write_from(&remote, 5, list.clone());
        assert_eq!(run(&mut endpoint, write), Ok(len as u64));
        let mut there = vec![0; len + 10];
        owner.read(0, &mut there).unwrap();
        let sent = [vec![0; 5], gathered(&segments), vec![0; 5]].concat();
        assert!(there == sent, "write of {count} segments");

        let bytes = pattern(len, 99);
        owner.write(5, &bytes).unwrap();
        let mut expected = all_of(&regions);
        let mut rest = bytes.as_slice();
        for (n, segment) in segments.iter().enumerate() {
            let (own, behind) = rest.split_at(segment.len as usize);
            let start = segment.offset as usize;
            expected[n % 2][start..start + own.len()].copy_from_slice(own);
            rest = behind;
        }
        let read = Operation::read_into(&remote, 5, list);
        assert_eq!(run(&mut endpoint, read), Ok(len as u64));
        assert!(all_of(&regions) == expected, "read of {count} segments");
    }
}

pub fn a_list_is_refused_as_a_whole<R: Rig>(rig: &R) {
    let limit = 4096;
    let (owner, remote) = rig.export(limit, Access::all());
    let local = Region::local(64).unwrap();
    local.write(0, &[1; 64]).unwrap();
    let part = |bytes| Segment::new(&local, bytes);
    let beyond_local = [part(0..8), part(60..68), part(0..8)];
    let (offset, len) = (60, 8);
    let local_limit = OpError::OutOfBounds {
        offset,
        len,
        limit: 64,
    };
    let (offset, len) = (limit - 15, 16);
    let remote_limit = OpError::OutOfBounds { offset, len, limit };
    let beyond_remote = [part(0..8), part(8..16)];
    for (list, at, error) in [
        (&beyond_local[..], 0, local_limit),
        (&beyond_remote[..], offset, remote_limit),
    ] {
        let list: Segments = list.iter().cloned().collect();
        let write = Operation::write_from(&remote, at, list.clone());
        assert_eq!(run(&mut rig.endpoint(1), write), Err(error));
        let read = Operation::read_into(&remote, at, list);
        assert_eq!(run(&mut rig.endpoint(1), read), Err(error));
    }
    let mut there = vec![1; limit as usize];
    owner.read(0, &mut there).unwrap();
    assert!(there == vec![0; limit as usize], "a part was written");
    assert!(gathered(&[part(0..64)]) == [1; 64], "a part was read");
}

pub fn every_operation_completes_once_in_order<R: Rig>(rig: &R) {
    let (_owner, remote) = rig.export(4096, Access::all());
    let local = Region::local(64).unwrap();
    let mut endpoint = rig.endpoint(64);
    for n in 0..64 {
        let operation = match n % 3 {
            0 => Operation::write(&remote, 64, &local, 0..64),
            1 => Operation::read(&remote, 64, &local, 0..64),
            _ => Operation::fetch_add(&remote, 0, 1),
        };
        endpoint.post(n, operation).unwrap();
    }
    let done = complete(&mut endpoint, 64);
    for (n, completion) in done.iter().enumerate() {
        assert_eq!(completion.id, n as u64);
        let expected = if n % 3 == 2 { n as u64 / 3 } else { 64 };
        assert_eq!(completion.result, Ok(expected));
    }
    assert_eq!(endpoint.poll(&mut [Completion::default()]), 0);
    assert!(
        !endpoint.wait(Duration::ZERO),
        "nothing is left to complete"
    );
}

pub fn a_full_queue_takes_nothing_more<R: Rig>(rig: &R) {
    let (owner, remote) = rig.export(8, Access::all());
    let mut endpoint = rig.endpoint(3);
    for n in 0..3 {
        endpoint
            .post(n, Operation::fetch_add(&remote, 0, 1))
            .unwrap();
    }
    let fourth = Operation::fetch_add(&remote, 0, 100);
    let full = Err(PostError::QueueFull { depth: 3 });
    assert_eq!(endpoint.post(3, fourth.clone()), full);
    endpoint.flush();
    endpoint.wait(FOR_EVER);
    assert_eq!(
        endpoint.post(3, fourth.clone()),
        full,
        "completions not polled take room"
    );
    complete(&mut endpoint, 3);
    assert_eq!(run(&mut endpoint, fourth), Ok(3));
    assert_eq!(owner.load(0), Ok(103));
}

pub fn a_range_outside_is_refused<R: Rig>(rig: &R) {
    let limit = 4096;
    let (owner, remote) = rig.export(limit, Access::all());
    let local = Region::local(8192).unwrap();
    for offset in [limit, limit + 8, 1 << 62, u64::MAX - 7] {
        for (_, operation) in each_kind(&remote, &local, offset, 8) {
            // A rig whose queue pair ends with the first error gets a new one for each.
            let result = run(&mut rig.endpoint(1), operation);
            assert!(
                matches!(result, Err(OpError::OutOfBounds { .. })),
                "{offset}: {result:?}"
            );
        }
    }
    for (_, operation) in &each_kind(&remote, &local, limit - 15, 16)[..2] {
        let result = run(&mut rig.endpoint(1), operation.clone());
        let (offset, len) = (limit - 15, 16);
        assert_eq!(result, Err(OpError::OutOfBounds { offset, len, limit }));
    }
    let beyond_local = Operation::read(&remote, 0, &local, 8190..8194);
    let result = run(&mut rig.endpoint(1), beyond_local);
    assert!(
        matches!(result, Err(OpError::OutOfBounds { limit: 8192, .. })),
        "{result:?}"
    );
    let mut all = vec![0; limit as usize];
    owner.read(0, &mut all).unwrap();
    assert!(
        all.iter().all(|byte| *byte == 0),
        "a refused operation wrote"
    );
}

pub fn a_missing_right_is_refused<R: Rig>(rig: &R) {
    let local = Region::local(8).unwrap();
    for rights in (0..8).map(Access::from_bits_truncate) {
        let (_owner, remote) = rig.export(8, rights);
        for (needed, operation) in each_kind(&remote, &local, 0, 8) {
            let result = run(&mut rig.endpoint(1), operation);
            if rights.contains(needed) {
                assert!(result.is_ok(), "{rights:?} allows {needed:?}: {result:?}")
            } else {
                assert_eq!(result, Err(OpError::MissingRight { needed }))
            }
        }
    }
}

pub fn atomics_are_atomic<R: Rig>(rig: &R) {
    let (owner, remote) = rig.export(16, Access::all());
    let mut endpoint = rig.endpoint(1);
    assert_eq!(
        run(&mut endpoint, Operation::compare_and_swap(&remote, 8, 0, 5)),
        Ok(0)
    );
    assert_eq!(
        run(&mut endpoint, Operation::compare_and_swap(&remote, 8, 0, 6)),
        Ok(5)
    );
    assert_eq!(owner.load(8), Ok(5));
    let wrap = Operation::fetch_add(&remote, 8, u64::MAX);
    assert_eq!(run(&mut endpoint, wrap), Ok(5));
    assert_eq!(owner.load(8), Ok(4));

    const EACH: u64 = 2_000;
    let of_owner = if R::COHERENT_ATOMICS { EACH } else { 0 };
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut endpoint = rig.endpoint(1);
                for _ in 0..EACH {
                    run(&mut endpoint, Operation::fetch_add(&remote, 0, 1)).unwrap();
                }
            });
        }
        for _ in 0..of_owner {
            owner.fetch_add(0, 1).unwrap();
        }
    });
    assert_eq!(owner.load(0), Ok(3 * EACH + of_owner));
}

pub fn atomics_need_an_aligned_word<R: Rig>(rig: &R) {
    let (_owner, remote) = rig.export(64, Access::all());
    for offset in [1, 4, 7, 57] {
        let misaligned = Err(OpError::Misaligned { offset });
        let add = Operation::fetch_add(&remote, offset, 1);
        assert_eq!(run(&mut rig.endpoint(1), add), misaligned);
        let swap = Operation::compare_and_swap(&remote, offset, 0, 1);
        assert_eq!(run(&mut rig.endpoint(1), swap), misaligned);
    }
}

pub fn a_foreign_region_is_refused<R: Rig>(rig: &R) {
    let remote = rig.elsewhere(64);
    let local = Region::local(64).unwrap();
    for (_, operation) in each_kind(&remote, &local, 0, 8) {
        assert_eq!(run(&mut rig.endpoint(1), operation), Err(OpError::WrongKey));
    }
}

/// Whole words are promised for aligned memory only.
#[repr(align(8))]
struct Line([u8; 64]);

pub fn words_are_never_torn<R: Rig>(rig: &R) {
    let (owner, remote) = rig.export(64, Access::all());
    let scattered = Region::local(96).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0u32;
            while !done.load(Ordering::Relaxed) {
                n = n.wrapping_add(1);
                let word = u64::from(n) << 32 | u64::from(n);
                (0..8).for_each(|i| owner.store(8 * i, word).unwrap());
            }
        });
        let mut endpoint = rig.endpoint(1);
        for _ in 0..R::LOOKS {
            let mut line = Line([0; 64]);
            let into = &mut line.0;
            endpoint
                .read_batch(&mut [Read {
                    remote: &remote,
                    offset: 0,
                    into,
                }])
                .unwrap();
            // The same to two places.
            let halves = [64..96, 0..32].map(|to| Segment::new(&scattered, to));
            let read = Operation::read_into(&remote, 0, Vec::from(halves));
            assert_eq!(run(&mut endpoint, read), Ok(64));
            let mut places = [0; 96];
            scattered.read(0, &mut places).unwrap();
            for word in line.0.chunks_exact(8).chain(places.chunks_exact(8)) {
                assert_eq!(word[..4], word[4..], "a word was seen in two halves");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

pub fn a_batch_reads_in_order<R: Rig>(rig: &R) {
    let (owner, remote) = rig.export(4096, Access::all());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0;
            while !done.load(Ordering::Relaxed) {
                n += 1;
                owner.store(2048, n).unwrap();
                owner.store(0, n).unwrap();
            }
        });
        let mut endpoint = rig.endpoint(1);
        for _ in 0..R::LOOKS {
            let (mut second_written, mut first_written) = ([0; 8], [0; 8]);
            let into = &mut second_written;
            let first = Read {
                remote: &remote,
                offset: 0,
                into,
            };
            let into = &mut first_written;
            let second = Read {
                remote: &remote,
                offset: 2048,
                into,
            };
            endpoint.read_batch(&mut [first, second]).unwrap();
            let (earlier, later) = (
                u64::from_le_bytes(second_written),
                u64::from_le_bytes(first_written),
            );
            assert!(
                later >= earlier,
                "read {earlier}, then {later}, which was written before"
            );
        }
        done.store(true, Ordering::Relaxed);
    });
}

pub fn a_batch_stops_at_the_first_error<R: Rig>(rig: &R) {
    let (owner, remote) = rig.export(64, Access::REMOTE_READ);
    owner.write(0, &[7; 64]).unwrap();
    let (mut a, mut b, mut c) = ([0; 4], [0; 4], [0; 4]);
    let at = |offset, into| Read {
        remote: &remote,
        offset,
        into,
    };
    let result = rig
        .endpoint(1)
        .read_batch(&mut [at(60, &mut a), at(61, &mut b), at(0, &mut c)]);
    assert_eq!(
        result,
        Err(OpError::OutOfBounds {
            offset: 61,
            len: 4,
            limit: 64
        })
    );
    assert_eq!((a, c), ([7; 4], [0; 4]));
}

pub fn revoked_operations_fail<R: Rig>(rig: &R) {
    operations_fail_after(rig, R::revoke, OpError::Revoked);
}

pub fn operations_on_a_dead_peer_fail<R: Rig>(rig: &R) {
    operations_fail_after(rig, R::kill_peer, OpError::PeerDead);
}

fn operations_fail_after<R: Rig>(rig: &R, end: fn(&R), error: OpError) {
    let (owner, remote) = rig.export(4096, Access::all());
    let local = Region::local(4096).unwrap();
    local.write(0, &[1; 4096]).unwrap();
    let mut endpoint = rig.endpoint(8);
    for (n, (_, operation)) in each_kind(&remote, &local, 0, 8).into_iter().enumerate() {
        endpoint.post(n as u64, operation).unwrap();
    }
    end(rig);
    for completion in complete(&mut endpoint, 4) {
        assert_eq!(completion.result, Err(error));
    }
    for (_, operation) in each_kind(&remote, &local, 0, 8) {
        assert_eq!(run(&mut rig.endpoint(1), operation), Err(error));
    }
    for list in [vec![], vec![Segment::new(&local, 0..0); 2]] {
        let write = Operation::write_from(&remote, 0, list);
        assert_eq!(run(&mut rig.endpoint(1), write), Err(error));
    }
    let read = Read {
        remote: &remote,
        offset: 0,
        into: &mut [0; 8],
    };
    assert_eq!(rig.endpoint(1).read_batch(&mut [read]), Err(error));
    assert_eq!(owner.load(0), Ok(0), "a failed operation wrote");
}

pub fn revocation_ends_a_transfer_in_flight<R: Rig>(rig: &R) {
    let (_owner, remote) = rig.export(64 << 20, Access::all());
    let local = Region::local(64 << 20).unwrap();
    let posted = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !posted.load(Ordering::Acquire) {
                thread::yield_now();
            }
            rig.revoke();
        });
        let mut endpoint = rig.endpoint(1);
        let start = Instant::now();
        loop {
            assert!(
                start.elapsed() < FOR_EVER,
                "transfers go on after a revocation"
            );
            endpoint
                .post(0, Operation::write(&remote, 0, &local, 0..64 << 20))
                .unwrap();
            posted.store(true, Ordering::Release);
            match complete(&mut endpoint, 1)[0].result {
                Ok(_) => {}
                Err(error) => return assert_eq!(error, OpError::Revoked),
            }
        }
    });
}
