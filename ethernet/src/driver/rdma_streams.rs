//! Supervision of RDMA streams: keeps a stream beside a tunnel as long as both hosts have a working
//! RDMA device.
//!
//! Each tunnel has a thread for this, because frames do not wait while a device is opened and
//! connected. The thread ends with the tunnel.
//!
//! ```text
//!   offering side                              answering side
//!   prepares its end ── Offer ────────────────> prepares and connects its end
//!   connects its end <────────────── Answer ──
//!                    ══ Begin ════════════════> over the stream
//!                    ── Begin ────────────────> its packets go over the stream, too
//!                    <─────────────── Begin ──
//! ```
//!
//! Packets go over a stream only after bytes have arrived over it: devices connect even if no
//! packet gets from one to the other.
//!
//! A device is opened for each stream and closed with it. The kernel cannot finish the reset or
//! removal of a device that is open.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use toroid_client::rdma::RdmaError;
use toroid_fabric::RdmaStream;
use toroid_fabric::parameters::RdmaStreamParameters;
use toroid_fabric::rdma_stream::PreparedRdmaStream;
use tracing::debug;

use crate::switch::{LostStream, StreamEvent, Switch, SwitchHandle, TunnelId};
use crate::tunnel::signal::{Signal, SignalKind};

/// Pauses between attempts grow from the first to the second.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];

/// A stream that has lasted this long was a success.
const STABLE: Duration = Duration::from_secs(10);

/// Time for the other side to answer. A host without a device may not answer at all.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Time for the first bytes to arrive over a stream. Devices give up sooner.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(10);

/// Capacity of the event queue.
const EVENTS: usize = 64;

/// Prepares one end of a stream at the device of this host.
pub(super) type Prepare =
    Arc<dyn Fn() -> Result<Box<dyn PreparedRdmaStream>, RdmaError> + Send + Sync>;

/// Reports why there is no stream.
pub(super) type ReportFailure = Box<dyn Fn(&str) + Send>;

/// Supervisor of the streams of one tunnel.
pub(super) struct StreamSupervisor {
    id: TunnelId,
    offers: bool,
    events: Receiver<StreamEvent>,
    prepare: Prepare,
    switch: Weak<SwitchHandle>,
    report_failure: ReportFailure,
    /// Number of the last offered stream.
    number: u32,
    /// Whether a failure was reported since packets last went over a stream.
    has_reported: bool,
}

/// State of the offering side.
#[derive(Debug)]
enum State {
    /// No stream; the next offer is due at this time.
    Pause(Instant),
    /// A stream is offered until this time.
    Offered(Box<dyn PreparedRdmaStream>, Instant),
    /// There is a stream since this time.
    Up(Instant),
}

impl StreamSupervisor {
    /// The supervisor of the offering or answering side, and the sender of its events.
    pub(super) fn new(
        id: TunnelId,
        offers: bool,
        prepare: Prepare,
        switch: &Arc<SwitchHandle>,
        report_failure: ReportFailure,
    ) -> (Self, SyncSender<StreamEvent>) {
        let (sender, events) = mpsc::sync_channel(EVENTS);
        let supervisor = StreamSupervisor {
            id,
            offers,
            events,
            prepare,
            switch: Arc::downgrade(switch),
            report_failure,
            number: 0,
            has_reported: false,
        };
        (supervisor, sender)
    }

    /// Starts the thread, after the tunnel is in use.
    pub(super) fn start(self) -> io::Result<()> {
        let keep = move || {
            if self.offers {
                self.run_offering()
            } else {
                self.run_answering()
            }
        };
        thread::Builder::new()
            .name("stream".into())
            .spawn(keep)
            .map(drop)
    }

    /// Runs the offering side.
    fn run_offering(mut self) {
        let mut pause = BACK_OFF[0];
        let mut state = State::Pause(Instant::now());
        loop {
            let event = match state {
                State::Pause(until) | State::Offered(_, until) => self
                    .events
                    .recv_timeout(until.saturating_duration_since(Instant::now())),
                State::Up(_) => self
                    .events
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
            };
            let next = match (event, state) {
                (Err(RecvTimeoutError::Disconnected), _) => return,
                (Err(RecvTimeoutError::Timeout), State::Pause(_)) => self.offer(),
                (Err(RecvTimeoutError::Timeout), State::Offered(..)) => {
                    self.on_failure("no answer")
                }
                (Ok(StreamEvent::Signal(signal)), State::Offered(stream, _))
                    if signal.number == self.number =>
                {
                    match signal.kind {
                        SignalKind::Answer(theirs) => self.connect(stream, &theirs),
                        _ => self.on_failure("the other host has no RDMA device that works"),
                    }
                }
                // The stream has ended there before packets went over it.
                (Ok(StreamEvent::Signal(signal)), State::Up(since))
                    if signal.number == self.number =>
                {
                    self.drop_stream();
                    Some(State::Up(since))
                }
                (Ok(StreamEvent::Lost(lost)), State::Up(since)) if lost.number == self.number => {
                    if since.elapsed() > STABLE {
                        pause = BACK_OFF[0];
                    }
                    self.on_lost(lost)
                }
                (_, unchanged) => Some(unchanged),
            };
            state = next.unwrap_or_else(|| {
                let until = Instant::now() + pause;
                pause = BACK_OFF[1].min(pause * 2);
                State::Pause(until)
            });
        }
    }

    fn offer(&mut self) -> Option<State> {
        match (self.prepare)() {
            Ok(stream) => {
                self.number = self.number.wrapping_add(1);
                self.send(self.number, SignalKind::Offer(stream.parameters()));
                Some(State::Offered(stream, Instant::now() + ANSWER_TIMEOUT))
            }
            Err(error) => self.on_failure(&error.to_string()),
        }
    }

    fn connect(
        &mut self,
        stream: Box<dyn PreparedRdmaStream>,
        theirs: &RdmaStreamParameters,
    ) -> Option<State> {
        let (number, kind) = (self.number, SignalKind::Begin);
        let signal = Signal { number, kind };
        let confirmed = stream
            .connect(theirs)
            .and_then(|stream| confirm(stream, signal));
        match confirmed.and_then(|stream| self.hand_over(stream, signal)) {
            Ok(()) => Some(State::Up(Instant::now())),
            Err(error) => {
                self.send(number, SignalKind::End);
                self.on_failure(&error.to_string())
            }
        }
    }

    fn on_lost(&mut self, lost: LostStream) -> Option<State> {
        self.has_reported &= !lost.was_up;
        self.on_failure(&lost.why)
    }

    /// Reports the first failure since packets last went over a stream.
    fn on_failure(&mut self, why: &str) -> Option<State> {
        debug!("no stream: {why}");
        if !std::mem::replace(&mut self.has_reported, true) {
            (self.report_failure)(why);
        }
        None
    }

    /// Runs the answering side.
    fn run_answering(mut self) {
        while let Ok(event) = self.events.recv() {
            match event {
                StreamEvent::Signal(Signal {
                    number,
                    kind: SignalKind::Offer(theirs),
                }) => {
                    if let Err(why) = self.prepared_for(number, &theirs) {
                        self.send(number, SignalKind::End);
                        self.on_failure(&why.to_string());
                    }
                }
                StreamEvent::Signal(_) => {}
                StreamEvent::Lost(lost) => drop(self.on_lost(lost)),
            }
        }
    }

    fn prepared_for(&self, number: u32, theirs: &RdmaStreamParameters) -> Result<(), RdmaError> {
        let stream = (self.prepare)()?;
        let kind = SignalKind::Answer(stream.parameters());
        let stream = stream.connect(theirs)?;
        Ok(self.hand_over(stream, Signal { number, kind })?)
    }

    /// Hands a stream to the switch.
    fn hand_over(&self, stream: Box<dyn RdmaStream>, signal: Signal) -> io::Result<()> {
        let id = self.id;
        match self.call(move |switch| switch.connect_stream(id, stream, signal)) {
            Some(Ok(())) => Ok(()),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn drop_stream(&self) {
        let (id, number) = (self.id, self.number);
        self.call(move |switch| switch.drop_stream(id, number));
    }

    fn send(&self, number: u32, kind: SignalKind) {
        let (id, signal) = (self.id, Signal { number, kind });
        self.call(move |switch| switch.send_signal(id, signal));
    }

    /// Runs a task in the switch; `None` when the switch has ended. This thread then ends, too.
    fn call<R: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Switch) -> R + Send + 'static,
    ) -> Option<R> {
        self.switch.upgrade()?.call(task).ok()
    }
}

/// Sends a signal over a stream and waits until it has arrived.
fn confirm(mut stream: Box<dyn RdmaStream>, signal: Signal) -> io::Result<Box<dyn RdmaStream>> {
    stream.write_all(&signal.to_message())?;
    let until = Instant::now() + FIRST_BYTES_TIMEOUT;
    loop {
        stream.process_events()?;
        let left = until.saturating_duration_since(Instant::now());
        if stream.is_confirmed() {
            return Ok(stream);
        }
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut fds = [PollFd::new(stream.wake_fd(), PollFlags::POLLIN)];
        // An interrupted sleep is an early wake-up.
        let _ = poll(
            &mut fds,
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX),
        );
    }
}

#[cfg(test)]
mod tests;
