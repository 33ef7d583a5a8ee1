//! Lines: bytes in both directions between two processes that trust each other, beside a connection
//! that they have anyway.
//!
//! A line is a pair of byte streams that never waits: [`Read`] and [`Write`] say
//! [`io::ErrorKind::WouldBlock`] when there is nothing, or no room. What was written arrives whole and in order, or the
//! line ends, with whatever was under way. Who reads gets a copy that nobody changes any more, and has to check
//! it: whoever has the other end can write anything.

use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;

use crate::core::parameters::LineParameters;

/// One end of a line.
pub trait Line: Read + Write + Debug + Send {
    /// Readable when there may be something to [attend](Line::attend) to.
    fn wake_fd(&self) -> BorrowedFd<'_>;

    /// Notices what has arrived, and what room there is now; the descriptor tells of what comes after that.
    ///
    /// # Errors
    /// Why it has ended.
    fn attend(&mut self) -> io::Result<()>;

    /// Whether there are bytes to read.
    fn has_bytes(&self) -> bool;

    /// Whether what was written first has arrived at the other end, as far as is known here.
    fn is_proven(&self) -> bool;
}

/// One end of a line that is not connected yet.
pub trait PreparedLine: Debug + Send {
    /// What the other end has to know.
    fn parameters(&self) -> LineParameters;

    /// Connects it to the end that has these parameters, which does the same. It may take a second where
    /// there is no way to it.
    ///
    /// # Errors
    /// The system's.
    fn connect(self: Box<Self>, peer: &LineParameters) -> io::Result<Box<dyn Line>>;
}
