//! One completion queue for many queue pairs: nothing is lost, repeated or out of order.

use std::slice;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use toroid_fabric::{
    Access, Completion, CompletionQueue, Endpoint, NodeId, OpError, Operation, Partition, Pending,
    PostError, QueuedCompletion, Read, Region,
};

use super::{FOR_EVER, Remote, Rig, complete};

/// Queue pairs of a test.
const PAIRS: u64 = 6;

/// The token of a queue pair, unlike its place in the queue.
fn token(pair: u64) -> u64 {
    u64::MAX - 1000 * pair
}

fn queue<R: Rig>(rig: &R, depth: usize) -> CompletionQueue<R::Endpoint> {
    let mut queue = CompletionQueue::new().unwrap();
    for pair in 0..PAIRS {
        attach(&mut queue, token(pair), rig.endpoint(depth));
    }
    queue
}

fn attach<E: Endpoint>(queue: &mut CompletionQueue<E>, token: u64, pair: E) {
    let refused = queue.attach(token, pair).err();
    assert!(refused.is_none(), "the token {token} is in use");
}

fn post<E: Endpoint>(queue: &mut CompletionQueue<E>, token: u64, posts: &[Operation<E::Remote>]) {
    let pair = queue.pair(token).unwrap();
    for (id, operation) in (0..).zip(posts) {
        pair.post(id, operation.clone()).unwrap();
    }
    pair.flush();
}

/// Waits for `count` completions, and takes up to `most` at a time.
fn complete_all<E: Endpoint>(
    queue: &mut CompletionQueue<E>,
    count: usize,
    most: usize,
) -> Vec<QueuedCompletion> {
    let (start, mut done) = (Instant::now(), Vec::new());
    let mut some = vec![QueuedCompletion::default(); most];
    while done.len() < count {
        let came = done.len();
        assert!(start.elapsed() < FOR_EVER, "{came} of {count} came");
        let is_there = queue.wait(FOR_EVER);
        let polled = queue.poll(&mut some);
        assert!(is_there && polled > 0, "{came} of {count}, then {is_there}");
        done.extend_from_slice(&some[..polled]);
    }
    done
}

/// Those of one queue pair, without their token.
fn of(done: &[QueuedCompletion], token: u64) -> Vec<(u64, Result<u64, OpError>)> {
    let its = done.iter().filter(|completion| completion.token == token);
    its.map(|completion| (completion.id, completion.result))
        .collect()
}

pub fn a_queue_has_each_completion_of_all_pairs_once<R: Rig>(rig: &R) {
    const EACH: usize = 20;
    let (owner, remote) = rig.export(8 * PAIRS, Access::all());
    let mut queue = queue(rig, EACH);
    for (round, most) in (0..).zip([1, 7, 1000]) {
        for pair in 0..PAIRS {
            let add = Operation::fetch_add(&remote, 8 * pair, 1);
            post(&mut queue, token(pair), &vec![add; EACH]);
        }
        let done = complete_all(&mut queue, EACH * PAIRS as usize, most);
        for pair in 0..PAIRS {
            let before = round * EACH as u64;
            let expected = (0..EACH as u64).map(|id| (id, Ok(before + id)));
            assert_eq!(of(&done, token(pair)), expected.collect::<Vec<_>>());
            assert_eq!(owner.load(8 * pair), Ok(before + EACH as u64));
        }
        assert_eq!(queue.poll(&mut [QueuedCompletion::default(); 3]), 0);
        assert!(!queue.wait(FOR_EVER), "nothing is left to complete");
    }
}

pub fn a_queue_can_be_polled_without_a_wait<R: Rig>(rig: &R) {
    let (_owner, remote) = rig.export(64, Access::all());
    let mut queue = queue(rig, 1);
    for n in 0..100 {
        let token = token(n % PAIRS);
        post(&mut queue, token, &[Operation::fetch_add(&remote, 0, 1)]);
        let (start, mut done) = (Instant::now(), [QueuedCompletion::default(); 2]);
        while queue.poll(&mut done) == 0 {
            assert!(start.elapsed() < FOR_EVER, "completion {n} has not come");
        }
        let (id, result) = (0, Ok(n));
        assert_eq!(done[0], QueuedCompletion { token, id, result });
        assert_eq!(done[1], QueuedCompletion::default());
    }
}

pub fn an_armed_queue_signals_its_descriptor<R: Rig>(rig: &R) {
    let (_owner, remote) = rig.export(64, Access::all());
    let mut queue = queue(rig, 2);
    for n in 0..50 {
        let token = token(n % PAIRS);
        post(&mut queue, token, &[Operation::fetch_add(&remote, 0, 1)]);
        let (start, mut done) = (Instant::now(), [QueuedCompletion::default(); 2]);
        loop {
            assert!(start.elapsed() < FOR_EVER, "completion {n} has not come");
            let left = queue.arm().min(FOR_EVER);
            let timeout = PollTimeout::try_from(left).unwrap();
            let mut fds = [PollFd::new(queue.wake_fd(), PollFlags::POLLIN)];
            poll(&mut fds, timeout).unwrap();
            if queue.poll(&mut done) > 0 {
                break;
            }
        }
        let (id, result) = (0, Ok(n));
        assert_eq!(done[0], QueuedCompletion { token, id, result });
    }
    // An alarm for an unreachable peer may be left; the descriptor is quiet.
    queue.arm();
    let mut fds = [PollFd::new(queue.wake_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut fds, PollTimeout::ZERO), Ok(0));
}

/// Ended connections kept the descriptor of an idle queue readable: its program took a core.
pub fn an_idle_queue_sleeps_after_the_end_of_its_peer<R: Rig>(rig: &R) {
    let (_owner, remote) = rig.export(64, Access::all());
    let mut queue = queue(rig, 1);
    let mut run = |pairs: u64| {
        let add = Operation::fetch_add(&remote, 0, 1);
        (0..pairs).for_each(|pair| post(&mut queue, token(pair), slice::from_ref(&add)));
        let done = complete_all(&mut queue, pairs as usize, 4);
        assert_eq!(queue.poll(&mut [QueuedCompletion::default()]), 0);
        // An alarm for an unreachable peer may be left, which passes.
        crate::process::eventually("the queue may sleep", || !queue.arm().is_zero());
        let mut fds = [PollFd::new(queue.wake_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, PollTimeout::ZERO), Ok(0));
        done
    };
    assert!(run(PAIRS).iter().all(|done| done.result.is_ok()));
    for end in [R::kill_peer, R::revoke] {
        end(rig);
        // The other ones stay idle.
        assert!(run(PAIRS / 2).iter().all(|done| done.result.is_err()));
    }
}

/// A queue pair that always has another completion does not hide those of the others.
pub fn a_busy_pair_in_a_queue_leaves_turns_to_others<R: Rig>(rig: &R) {
    let (_owner, remote) = rig.export(64, Access::all());
    let mut queue = queue(rig, 2);
    let [busy, other] = [token(0), token(1)];
    let add = Operation::fetch_add(&remote, 0, 1);
    post(&mut queue, busy, &vec![add.clone(); 2]);
    post(&mut queue, other, &[Operation::fetch_add(&remote, 8, 1)]);
    let (start, mut done) = (Instant::now(), [QueuedCompletion::default()]);
    loop {
        assert!(start.elapsed() < FOR_EVER, "the other one had no turn");
        if queue.poll(&mut done) == 0 {
            continue;
        }
        if done[0].token == other {
            return;
        }
        post(&mut queue, busy, slice::from_ref(&add));
    }
}

/// A program that posts as much as there is room, before each look.
pub fn a_pair_that_is_used_before_each_call_completes<R: Rig>(rig: &R) {
    let (owner, remote) = rig.export(64, Access::all());
    let mut queue = queue(rig, 2);
    let (start, mut added, mut came) = (Instant::now(), 0, 0);
    let mut done = [QueuedCompletion::default(); 4];
    while came < 40 {
        assert!(start.elapsed() < FOR_EVER, "{came} of {added} came");
        let pair = queue.pair(token(3)).unwrap();
        while pair
            .post(added, Operation::fetch_add(&remote, 0, 1))
            .is_ok()
        {
            added += 1;
        }
        pair.flush();
        // Half of the time without a wait, otherwise with one that does not sleep.
        if came < 20 || queue.wait(Duration::ZERO) {
            let polled = queue.poll(&mut done);
            for completion in &done[..polled] {
                assert_eq!((completion.id, completion.result), (came, Ok(came)));
                came += 1;
            }
        }
    }
    assert!(owner.load(0).unwrap() >= came);
}

pub fn a_detached_pair_keeps_its_completions<R: Rig>(rig: &R) {
    let (_owner, remote) = rig.export(64, Access::all());
    let mut queue = queue(rig, 4);
    let [leaves, stays] = [token(1), token(2)];
    let refused = queue.attach(leaves, rig.endpoint(1)).unwrap_err();
    assert_eq!(refused.token, leaves);
    assert!(refused.to_string().contains("attached already"));
    for (token, offset) in [(leaves, 0), (stays, 8)] {
        let add = Operation::fetch_add(&remote, offset, 1);
        post(&mut queue, token, &vec![add; 4]);
    }
    // Completions of both are there or on their way.
    assert!(queue.wait(FOR_EVER));
    let mut pair = queue.detach(leaves).unwrap();
    assert!(queue.pair(leaves).is_none() && queue.detach(leaves).is_none());
    let done = complete_all(&mut queue, 4, 3);
    assert_eq!(of(&done, stays), [0, 1, 2, 3].map(|n| (n, Ok(n))));
    let results = complete(&mut pair, 4);
    for (n, completion) in (0..).zip(results) {
        assert_eq!((completion.id, completion.result), (n, Ok(n)));
    }
    // A queue pair with an operation under way takes the free place.
    pair.post(9, Operation::fetch_add(&remote, 0, 1)).unwrap();
    pair.flush();
    attach(&mut queue, 7, pair);
    let done = complete_all(&mut queue, 1, 3);
    assert_eq!((done.len(), of(&done, 7)), (1, vec![(9, Ok(4))]));
}

pub fn a_queue_reports_operations_on_a_dead_peer<R: Rig>(rig: &R) {
    let (_owner, remote) = rig.export(64, Access::all());
    let mut queue = queue(rig, 1);
    let operation = Operation::fetch_add(&remote, 0, 1);
    for pair in 0..PAIRS {
        let pair = queue.pair(token(pair)).unwrap();
        pair.post(3, operation.clone()).unwrap();
    }
    rig.kill_peer();
    (0..PAIRS).for_each(|pair| queue.pair(token(pair)).unwrap().flush());
    let done = complete_all(&mut queue, PAIRS as usize, 4);
    for pair in 0..PAIRS {
        assert_eq!(of(&done, token(pair)), [(3, Err(OpError::PeerDead))]);
    }
}

/// A rig whose operations complete through a queue with idle queue pairs.
pub struct Queued<R>(R);

/// A queue pair in a queue.
pub struct QueuedPair<E>(CompletionQueue<E>);

impl<E: Endpoint> QueuedPair<E> {
    fn pair(&mut self) -> &mut E {
        self.0.pair(token(0)).unwrap()
    }
}

impl<E: Endpoint> Endpoint for QueuedPair<E> {
    type Remote = E::Remote;

    fn peer(&self) -> NodeId {
        super::THERE
    }

    fn partition(&self) -> Partition {
        super::PARTITION
    }

    fn post(&mut self, id: u64, operation: Operation<E::Remote>) -> Result<(), PostError> {
        self.pair().post(id, operation)
    }

    fn flush(&mut self) {
        self.pair().flush();
    }

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        let mut some = vec![QueuedCompletion::default(); into.len()];
        let count = self.0.poll(&mut some);
        for (slot, completion) in into.iter_mut().zip(&some[..count]) {
            assert_eq!(completion.token, token(0));
            let QueuedCompletion { id, result, .. } = *completion;
            *slot = Completion { id, result };
        }
        count
    }

    fn wait(&mut self, timeout: Duration) -> bool {
        self.0.wait(timeout)
    }

    fn pending(&mut self, sleeps: bool) -> Pending {
        self.pair().pending(sleeps)
    }

    fn read_batch(&mut self, reads: &mut [Read<'_, E::Remote>]) -> Result<(), OpError> {
        self.pair().read_batch(reads)
    }
}

impl<R: Rig> Rig for Queued<R> {
    type Endpoint = QueuedPair<R::Endpoint>;
    type Channel = R::Channel;
    const LOOKS: usize = 5_000;
    const COHERENT_ATOMICS: bool = R::COHERENT_ATOMICS;

    fn new() -> Self {
        Queued(R::new())
    }

    fn export(&self, len: u64, rights: Access) -> (Region, Remote<Self>) {
        self.0.export(len, rights)
    }

    fn elsewhere(&self, len: u64) -> Remote<Self> {
        self.0.elsewhere(len)
    }

    fn endpoint(&self, depth: usize) -> Self::Endpoint {
        let mut queue = CompletionQueue::new().unwrap();
        for pair in 0..2 {
            attach(&mut queue, token(pair), self.0.endpoint(depth));
        }
        QueuedPair(queue)
    }

    fn channel(&self) -> (R::Channel, R::Channel) {
        self.0.channel()
    }

    fn revoke(&self) {
        self.0.revoke();
    }

    fn kill_peer(&self) {
        self.0.kill_peer();
    }
}
