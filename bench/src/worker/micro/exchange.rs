//! The exchanges, written once for live fabrics and for the software adapter.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use super::script::{Message, Nanos, Pattern, SHORTEST, Script, Wait};

const ACKNOWLEDGEMENT: Message = Message::of(SHORTEST);

/// One of two hosts that are connected.
pub trait Host {
    /// The time on this host's clock.
    fn now(&self) -> Nanos;

    /// Computes for some time, without a look at the network.
    fn compute(&mut self, time: Nanos);

    /// Sends a message. Waits only for room.
    fn send(&mut self, message: &Message) -> Result<()>;

    /// Receives a message of that length.
    fn receive(&mut self, message: &Message, wait: Wait) -> Result<()>;

    /// Looks once for a message, receives it and returns whether there was one. The caller knows
    /// whether the peer sends another one.
    fn poll(&mut self, message: &Message, is_expected: bool) -> Result<bool>;

    /// Writes a message into memory of the peer, and waits for the completion.
    fn write(&mut self, _message: &Message, _wait: Wait) -> Result<()> {
        bail!("this host has no one-sided operations")
    }
}

/// Number of measured times, and of exchanges in each: round trips for patterns of single messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    pub samples: u32,
    pub batch: u32,
}

/// The leader's part of a script. Returns the times in nanoseconds.
pub fn lead(host: &mut impl Host, script: &Script, count: Count) -> Result<Vec<f64>> {
    let (message, wait) = (&script.message, script.wait);
    let mut one = || match script.pattern {
        Pattern::PingPong => {
            let start = host.now();
            for _ in 0..count.batch {
                host.send(message)?;
                host.receive(message, wait)?;
            }
            Ok(since(host, start) / f64::from(2 * count.batch))
        }
        Pattern::Delayed { delay } => {
            let start = host.now();
            for _ in 0..count.batch {
                host.send(message)?;
                host.compute(delay);
                host.receive(message, wait)?;
            }
            Ok(since(host, start) / f64::from(count.batch))
        }
        Pattern::Burst { count } => {
            let start = host.now();
            send_all(host, message, count)?;
            host.receive(&ACKNOWLEDGEMENT, wait)?;
            Ok(since(host, start) / f64::from(count))
        }
        Pattern::Sends { count } => {
            let start = host.now();
            send_all(host, message, count)?;
            let elapsed = since(host, start);
            host.receive(&ACKNOWLEDGEMENT, wait)?;
            Ok(elapsed / f64::from(count))
        }
        Pattern::Counting { time, messages } => {
            let (alone, _) = count_for(host, message, time, 0)?;
            host.send(&ACKNOWLEDGEMENT)?;
            let (beside, received) = count_for(host, message, time, messages)?;
            for _ in received..messages {
                host.receive(message, wait)?;
            }
            // Nothing else may come during the loop.
            host.send(&ACKNOWLEDGEMENT)?;
            let lost = (alone as f64 - beside as f64) / alone as f64;
            Ok(lost * time as f64 / f64::from(received.max(1)))
        }
        Pattern::Write => {
            let start = host.now();
            for _ in 0..count.batch {
                host.write(message, wait)?;
            }
            Ok(since(host, start) / f64::from(count.batch))
        }
    };
    let times = (0..count.samples).map(|_| one()).collect::<Result<_>>()?;
    if script.pattern == Pattern::Write {
        // The follower looks at its memory in between.
        host.send(&ACKNOWLEDGEMENT)?;
        host.receive(&ACKNOWLEDGEMENT, wait)?;
    }
    Ok(times)
}

/// The follower's part of a script.
pub fn follow(host: &mut impl Host, script: &Script, count: Count) -> Result<()> {
    let (message, wait) = (&script.message, script.wait);
    for _ in 0..count.samples {
        match script.pattern {
            Pattern::Write => {
                // Polling would take the processor from the thread that serves the writes.
                host.receive(&ACKNOWLEDGEMENT, Wait::Block)?;
                return host.send(&ACKNOWLEDGEMENT);
            }
            Pattern::PingPong | Pattern::Delayed { .. } => {
                for _ in 0..count.batch {
                    host.receive(message, wait)?;
                    host.send(message)?;
                }
            }
            Pattern::Burst { count } | Pattern::Sends { count } => {
                for _ in 0..count {
                    host.receive(message, wait)?;
                }
                host.send(&ACKNOWLEDGEMENT)?;
            }
            Pattern::Counting { messages, .. } => {
                host.receive(&ACKNOWLEDGEMENT, wait)?;
                send_all(host, message, messages)?;
                host.receive(&ACKNOWLEDGEMENT, wait)?;
            }
        }
    }
    Ok(())
}

fn since(host: &impl Host, start: Nanos) -> f64 {
    (host.now() - start) as f64
}

fn send_all(host: &mut impl Host, message: &Message, count: u32) -> Result<()> {
    (0..count).try_for_each(|_| host.send(message))
}

/// Counts for some time, at least to 1, and receives up to `expected` messages meanwhile. Returns the
/// count and the number of messages.
fn count_for(
    host: &mut impl Host,
    message: &Message,
    time: Nanos,
    expected: u32,
) -> Result<(u64, u32)> {
    let end = host.now() + time;
    let (mut count, mut received) = (0, 0);
    loop {
        received += u32::from(host.poll(message, received < expected)?);
        count += 1;
        if host.now() >= end {
            return Ok((count, received));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::script::Layer;
    use super::*;

    /// A host whose process stands still for a second between two looks at the clock.
    struct Standing(Nanos);

    impl Host for Standing {
        fn now(&self) -> Nanos {
            self.0
        }

        fn compute(&mut self, _time: Nanos) {}

        fn send(&mut self, _message: &Message) -> Result<()> {
            Ok(())
        }

        fn receive(&mut self, _message: &Message, _wait: Wait) -> Result<()> {
            Ok(())
        }

        fn poll(&mut self, _message: &Message, is_expected: bool) -> Result<bool> {
            self.0 += 1_000_000_000;
            Ok(is_expected)
        }
    }

    #[test]
    fn a_process_that_stands_still_while_it_counts_gives_a_time() {
        let pattern = Pattern::Counting {
            time: 1000,
            messages: 4,
        };
        let script = Script {
            pattern,
            message: ACKNOWLEDGEMENT,
            wait: Wait::Poll,
            idle: 0,
            queues: 0,
            layer: Layer::Fabric,
        };
        let count = Count {
            samples: 1,
            batch: 1,
        };
        let times = lead(&mut Standing(0), &script, count).unwrap();
        assert!(times.iter().all(|time| time.is_finite()), "{times:?}");
    }
}
