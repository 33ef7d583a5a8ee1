//! Memory that members export, and the operations of their peers on it.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tests::actor::{Event, Request, report, serve};
use tests::process::now_ns;
use toroid_client::member::{Member, MemberError};
use toroid_fabric::emulation::QueuePair;
use toroid_fabric::provider::RemoteRegion;
use toroid_fabric::{Access, Completion, Endpoint, OpError, Operation, Place, Region, RemoteKey};

use super::{PATIENCE, Result, watch_input};

/// Bytes of memory that `own` exports.
const PAGE: u64 = 4096;

pub fn own(domain: &str) -> Result<()> {
    let region = export(domain, PAGE)?;
    report_key(&region)?;
    io::stdin().read_to_end(&mut Vec::new())?;
    end(region.load(0)?)
}

fn export(domain: &str, bytes: u64) -> Result<Region> {
    Ok(Member::attach()?
        .domain(domain)?
        .alloc(bytes, Access::all())?)
}

/// Reports the key under which a region is exported.
pub fn report_key(region: &Region) -> Result<()> {
    let key = region.remote_key().ok_or("no key")?;
    Ok(report(&Event::Key(key.to_string()))?)
}

/// Reports the end of the input.
fn end(count: u64) -> Result<()> {
    Ok(report(&Event::Ended { count, error: None })?)
}

pub fn fill(domain: &str, bytes: u64) -> Result<()> {
    let region = export(domain, bytes)?;
    let words = || (8..bytes).step_by(8);
    words().try_for_each(|at| region.store(at, !at))?;
    report_key(&region)?;
    serve(|request| match request {
        Request::Compare => {
            let mut wrong = Vec::new();
            for at in words() {
                if region.load(at)? != !at {
                    wrong.push(at);
                }
            }
            Ok(Event::Compared {
                wrong: wrong.len(),
                first: wrong.first().copied(),
            })
        }
        other => Err(format!("{other:?} is not for fill").into()),
    })
}

pub fn count(domain: &str, place: Place, key: RemoteKey, at: u64) -> Result<()> {
    let (remote, mut pair) = open_for_adding(domain, place, key)?;
    let mut counted = 0u64;
    loop {
        match complete(&mut pair, Operation::fetch_add(&remote, at, 1))? {
            Ok(_) => counted += 1,
            Err(error) => return fail(counted, error),
        }
    }
}

pub fn tally(domain: &str, place: Place, key: RemoteKey) -> Result<()> {
    let (remote, mut pair) = open_for_adding(domain, place, key)?;
    let has_ended = watch_input();
    let mut counted = 0u64;
    while !has_ended.load(Ordering::Acquire) {
        complete(&mut pair, Operation::fetch_add(&remote, 0, 1))??;
        counted += 1;
    }
    end(counted)
}

pub fn stamp(domain: &str, place: Place, key: RemoteKey, pause: Duration) -> Result<()> {
    let (remote, mut pair) = open_for_adding(domain, place, key)?;
    let local = Region::local(8)?;
    let mut count = 0u64;
    loop {
        thread::sleep(pause);
        local.store(0, now_ns())?;
        match complete(&mut pair, Operation::write(&remote, 0, &local, 0..8))? {
            Ok(_) => count += 1,
            Err(error) => return fail(count, error),
        }
    }
}

pub fn mix(domain: &str, place: Place, key: RemoteKey, at: u64, every: u64) -> Result<()> {
    let domain = Member::attach()?.domain(domain)?;
    let remote = domain.open(key, Access::all())?;
    let mut pair = domain.queue_pair(place, 4)?;
    let local = Region::local(64)?;
    report(&Event::Open)?;
    let has_ended = watch_input();
    let (mut round, mut added) = (0u64, 0u64);
    while !has_ended.load(Ordering::Acquire) {
        round += 1;
        local.store(0, round)?;
        pair.post(0, Operation::write(&remote, at, &local, 0..8))?;
        pair.post(1, Operation::write(&remote, at + 8, &local, 0..8))?;
        pair.post(2, Operation::read(&remote, at, &local, 8..24))?;
        let adds = round.checked_rem(every) == Some(0);
        if adds {
            pair.post(3, Operation::fetch_add(&remote, 0, 1))?;
        }
        pair.flush();
        for id in 0..3 + u64::from(adds) {
            pair.wait(PATIENCE);
            let mut done = [Completion::default()];
            if pair.poll(&mut done) != 1 || done[0].id != id {
                return Err(
                    format!("round {round}: not operation {id} ended, but {done:?}").into(),
                );
            }
            match done[0].result {
                Ok(_) => added += u64::from(id == 3),
                Err(error) => return fail(added, error),
            }
        }
        if (local.load(8)?, local.load(16)?) != (round, round) {
            let found = (local.load(8)?, local.load(16)?);
            return Err(format!("round {round}: read {found:?}").into());
        }
        if round % 64 == 0 {
            report(&Event::Round(round))?;
        }
    }
    end(added)
}

pub fn carry(
    domain: &str,
    place: Place,
    key: RemoteKey,
    bytes: u64,
    connections: u64,
) -> Result<()> {
    let domain = Member::attach()?.domain(domain)?;
    let remote = domain.open(key, Access::all())?;
    let pairs = (0..connections).map(|_| domain.queue_pair(place, 1));
    let pairs = pairs.collect::<std::result::Result<Vec<_>, _>>()?;
    report(&Event::Open)?;
    let each = bytes / connections / PAGE;
    let carry_pages = |mut pair: QueuePair| -> std::result::Result<u64, String> {
        let local = Region::local(PAGE as usize).map_err(|error| error.to_string())?;
        for page in 0..each {
            let operation = if page % 2 == 0 {
                Operation::write(&remote, 0, &local, 0..PAGE)
            } else {
                Operation::read(&remote, 0, &local, 0..PAGE)
            };
            let done = complete(&mut pair, operation).map_err(|error| error.to_string())?;
            done.map_err(|error| format!("page {page}: {error:?}"))?;
        }
        Ok(each * PAGE)
    };
    let carried = thread::scope(|scope| {
        let started = pairs
            .into_iter()
            .map(|pair| scope.spawn(|| carry_pages(pair)));
        let threads: Vec<_> = started.collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        let sums = ended.map(|sum| sum.unwrap_or_else(|_| Err("a thread failed".into())));
        sums.sum::<std::result::Result<u64, String>>()
    });
    end(carried?)
}

fn open_for_adding(
    domain: &str,
    place: Place,
    key: RemoteKey,
) -> Result<(RemoteRegion, QueuePair)> {
    let domain = Member::attach()?.domain(domain)?;
    let remote = domain.open(key, Access::all())?;
    let pair = domain.queue_pair(place, 1)?;
    report(&Event::Open)?;
    Ok((remote, pair))
}

fn complete(
    pair: &mut QueuePair,
    operation: Operation<RemoteRegion>,
) -> Result<std::result::Result<u64, OpError>> {
    pair.post(0, operation)?;
    pair.flush();
    pair.wait(PATIENCE);
    let mut done = [Completion::default()];
    match pair.poll(&mut done) {
        1 => Ok(done[0].result),
        _ => Err("an operation did not complete".into()),
    }
}

pub fn watch(domain: &str, place: Place, key: RemoteKey) -> Result<()> {
    let domain = Member::attach()?.domain(domain)?;
    let to_read = domain.open(key, Access::REMOTE_READ)?;
    let to_add = domain.open(key, Access::all())?;
    let mut pair = domain.queue_pair(place, 1)?;
    let word = Region::local(8)?;
    report(&Event::Open)?;
    let (mut counted, mut known, mut newest) = (0u64, 0, 0);
    let mut errors = [const { None }; 2];
    while errors.contains(&None) {
        let began = now_ns();
        let read = Operation::read(&to_read, 0, &word, 0..8);
        match complete(&mut pair, read)? {
            Ok(_) => {
                known = newer(known, word.load(0)?)?;
                newest = began;
            }
            Err(error) => errors[0] = Some(format!("{error:?}")),
        }
        match complete(&mut pair, Operation::fetch_add(&to_add, 0, 1))? {
            Ok(before) => {
                known = newer(known, before)? + 1;
                counted += 1;
            }
            Err(error) => errors[1] = Some(format!("{error:?}")),
        }
    }
    Ok(report(&Event::Watched {
        count: counted,
        newest_ns: newest,
        errors: errors.map(Option::unwrap_or_default),
    })?)
}

/// A word that only rises is not read as it was before.
fn newer(known: u64, seen: u64) -> Result<u64> {
    if seen >= known {
        Ok(seen)
    } else {
        Err(format!("{seen} was read after {known}").into())
    }
}

/// Reports the error that ended the operations.
fn fail(count: u64, error: OpError) -> Result<()> {
    let error = Some(format!("{error:?}"));
    Ok(report(&Event::Ended { count, error })?)
}

pub fn open(domain: &str, key: RemoteKey) -> Result<()> {
    let domain = Member::attach()?.domain(domain)?;
    domain.open(key, Access::REMOTE_READ)?;
    Ok(report(&Event::Open)?)
}

/// Takes a node out of a domain.
pub fn shrink(domain: &str, node: Place) -> Result<()> {
    Member::attach()?.domain(domain)?.shrink(&[node])?;
    end(1)
}

pub fn manage(domain: &str, place: Place, times: u32) -> Result<()> {
    let domain = Member::attach()?.domain(domain)?;
    let (nodes, own) = ([place], domain.alloc(4096, Access::all())?);
    let is_over = AtomicBool::new(false);
    let ask = || -> std::result::Result<(), MemberError> {
        while !is_over.load(Ordering::Acquire) {
            domain.alloc(4096, Access::all())?;
        }
        Ok(())
    };
    let change = || -> std::result::Result<(), MemberError> {
        for _ in 0..times {
            domain.grow(&nodes)?;
            domain.shrink(&nodes)?;
        }
        Ok(())
    };
    let (asked, changed) = thread::scope(|scope| {
        let asking = scope.spawn(ask);
        let changed = change();
        is_over.store(true, Ordering::Release);
        (asking.join(), changed)
    });
    changed?;
    asked.map_err(|_| "the other thread failed")??;
    end(own.load(0)?)
}
