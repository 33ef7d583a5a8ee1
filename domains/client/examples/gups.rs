//! Random updates of a peer's memory with many under way: how much latency does a program hide?
//!
//! ```text
//! toroid exec 0,0,0 -- gups blue &                       # prints KEY
//! toroid-bench sweep -d blue --latency 1us,5us,20us -- \
//!     toroid exec 1,0,0 -- gups blue 0,0,0 KEY 64 100000 # 64 under way, 100,000 in all
//! ```

use std::time::Duration;

use toroid_client::member::Member;
use toroid_fabric::{Access, Completion, Endpoint, Operation};

/// Words of the table.
const WORDS: u64 = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let member = Member::attach()?;
    match &arguments[..] {
        [domain] => {
            let table = member.domain(domain)?;
            let table = table.alloc(WORDS * 8, Access::REMOTE_ATOMIC)?;
            println!("{}", table.remote_key().ok_or("no key")?);
            loop {
                std::thread::park();
            }
        }
        [domain, place, key, depth, count] => {
            let domain = member.domain(domain)?;
            let table = domain.open(key.parse()?, Access::REMOTE_ATOMIC)?;
            let (depth, count): (usize, u64) = (depth.parse()?, count.parse()?);
            let mut pair = domain.queue_pair(place.parse()?, depth)?;
            let mut done = vec![Completion::default(); depth];
            let (mut posted, mut finished, mut word) = (0, 0, 1_u64);
            while finished < count {
                let end = count.min(finished + depth as u64);
                for id in posted..end {
                    // The random numbers of HPC Challenge: shifts by the polynomial x^63+x^2+x+1.
                    word = (word << 1) ^ if word >> 63 == 1 { 7 } else { 0 };
                    pair.post(id, Operation::fetch_add(&table, word % WORDS * 8, 1))?;
                }
                posted = end;
                pair.flush();
                pair.wait(Duration::from_secs(1));
                let polled = pair.poll(&mut done);
                for completion in &done[..polled] {
                    completion.result?;
                }
                finished += polled as u64;
            }
            Ok(())
        }
        _ => Err("usage: gups DOMAIN [PLACE KEY DEPTH COUNT]".into()),
    }
}
