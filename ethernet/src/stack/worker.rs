//! The thread of a stack: receives packets, serves timers, and asks for another stack socket when
//! the driver has closed one.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::core::{Next, Shared};
use super::{Connector, Unavailable};

/// Pauses between attempts to get another stack socket grow from the first to the second: a driver
/// restarts within some 50 ms.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(250)];

/// Works until the end of the stack.
pub(super) fn run(shared: &Arc<Shared>, connector: &mut dyn Connector) {
    let mut pause = BACK_OFF[0];
    loop {
        let next = shared.lock().next();
        match next {
            Next::End => return,
            Next::Idle => sleep(shared, None, None),
            Next::Wait {
                stack_socket,
                is_blocked,
                timeout,
            } => {
                let mut flags = PollFlags::POLLIN;
                flags.set(PollFlags::POLLOUT, is_blocked);
                let stack_socket = PollFd::new(stack_socket.as_fd(), flags);
                sleep(shared, Some(stack_socket), timeout);
            }
            Next::Plug => match connector.connect() {
                Ok(stack_socket) => {
                    shared.lock().plug(stack_socket);
                    pause = BACK_OFF[0];
                }
                Err(Unavailable::Revoked) => shared.lock().revoke(),
                Err(Unavailable::NotYet) => {
                    sleep(shared, None, Some(pause));
                    pause = BACK_OFF[1].min(pause * 2);
                }
            },
        }
    }
}

fn sleep(shared: &Shared, stack_socket: Option<PollFd<'_>>, timeout: Option<Duration>) {
    let doorbell = PollFd::new(shared.doorbell.as_fd(), PollFlags::POLLIN);
    let mut waiting = vec![doorbell];
    waiting.extend(stack_socket);
    let timeout = timeout.map_or(PollTimeout::NONE, |timeout| {
        // Whole milliseconds, rounded up.
        let millis = timeout.as_nanos().div_ceil(1_000_000);
        PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
    });
    // An interrupted sleep is a short one.
    let _ = poll(&mut waiting, timeout);
    // Fails if nothing has rung.
    let _ = shared.doorbell.read();
}
