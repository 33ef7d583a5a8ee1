//! A process at its limit of descriptors. The limit is one of the process, so this program has no
//! other test.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use toroid_protocol::wire::split;

/// Processes at their limit of descriptors once lost the whole connection.
#[test]
fn descriptors_that_this_process_has_no_room_for_fail_their_message_only() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (_, writer) = split(ours).unwrap();
    let (mut reader, _) = split(theirs).unwrap();
    let file = tempfile::tempfile().unwrap();
    let limit = getrlimit(Resource::Nofile);
    // The second frame finds no room at all, the fourth room for one of its two.
    let free = rustix::io::dup(&file).unwrap();
    let next = free.as_raw_fd() as u64;
    drop(free);
    for (room, count) in [(9, 1), (0, 2), (9, 0), (1, 2), (9, 2)] {
        writer.send(&"before", &[]).unwrap();
        let rights: Vec<_> = std::iter::repeat_n(file.as_fd(), count).collect();
        writer.send(&"granted", &rights).unwrap();
        writer.send(&"after", &[]).unwrap();
        let current = Some(next + room);
        setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
        let expected = if room >= count as u64 { count } else { 0 };
        for (text, count) in [("before", 0), ("granted", expected), ("after", 0)] {
            let (message, descriptors) = reader.receive::<String>().unwrap();
            assert_eq!((message.as_str(), descriptors.len()), (text, count));
        }
        setrlimit(Resource::Nofile, limit).unwrap();
    }
}
