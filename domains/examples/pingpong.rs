//! Two processes in two nodes: one exports memory, the other reads, writes and counts in it.
//!
//! ```sh
//! toroid exec 0,0,0 -- pingpong blue                 # prints a place and a key, and waits
//! toroid exec 1,0,0 -- pingpong blue 0,0,0 KEY
//! ```

use std::error::Error;
use std::time::Duration;

use domains::member::Member;
use fabric::{Access, Completion, Endpoint, Operation, Region};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let member = Member::attach()?;
    match &arguments[..] {
        [domain] => {
            let region = member.domain(domain)?.alloc(4096, Access::all())?;
            region.write(8, b"ping")?;
            let key = region.remote_key().ok_or("no key")?;
            println!("{} {key}", member.place());
            while region.load(0)? == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let mut answer = [0; 4];
            region.read(8, &mut answer)?;
            println!("{}", std::str::from_utf8(&answer)?);
        }
        [domain, place, key] => {
            let domain = member.domain(domain)?;
            let remote = domain.open(key.parse()?, Access::all())?;
            let mut pair = domain.queue_pair(place.parse()?, 3)?;
            let local = Region::local(8)?;
            local.write(4, b"pong")?;
            let (to, from) = (local.clone(), local.clone());
            pair.post(
                1,
                Operation::Read {
                    remote: remote.clone(),
                    offset: 8,
                    local: to,
                    local_offset: 0,
                    len: 4,
                },
            )?;
            pair.post(
                2,
                Operation::Write {
                    remote: remote.clone(),
                    offset: 8,
                    local: from,
                    local_offset: 4,
                    len: 4,
                },
            )?;
            pair.post(
                3,
                Operation::FetchAdd {
                    remote,
                    offset: 0,
                    add: 1,
                },
            )?;
            pair.flush();
            let mut done = [Completion {
                id: 0,
                result: Ok(0),
            }; 3];
            while pair.wait(Duration::from_secs(1)) {
                let count = pair.poll(&mut done);
                done[..count]
                    .iter()
                    .try_for_each(|completion| completion.result.map(drop))?;
            }
            let mut text = [0; 4];
            local.read(0, &mut text)?;
            println!("{}", std::str::from_utf8(&text)?);
        }
        _ => return Err("usage: pingpong DOMAIN [PLACE KEY]".into()),
    }
    Ok(())
}
