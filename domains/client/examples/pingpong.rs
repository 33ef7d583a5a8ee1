//! One process exports memory, another in a second node reads, writes and counts in it:
//! `toroid exec 0,0,0 -- pingpong blue` prints KEY and waits for
//! `toroid exec 1,0,0 -- pingpong blue 0,0,0 KEY`.

use toroid_client::member::Member;
use toroid_fabric::{Access, Completion, Endpoint, Operation, Region};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let member = Member::attach()?;
    let mut text = [0; 4];
    match &arguments[..] {
        [domain] => {
            let region = member.domain(domain)?.alloc(4096, Access::all())?;
            region.write(8, b"ping")?;
            println!("{}", region.remote_key().ok_or("no key")?);
            while region.load(0)? == 0 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            region.read(8, &mut text)?;
        }
        [domain, place, key] => {
            let domain = member.domain(domain)?;
            let remote = domain.open(key.parse()?, Access::all())?;
            let mut pair = domain.queue_pair(place.parse()?, 3)?;
            let local = Region::local(8)?;
            local.write(4, b"pong")?;
            pair.post(0, Operation::read(&remote, 8, &local, 0..4))?;
            pair.post(1, Operation::write(&remote, 8, &local, 4..8))?;
            pair.post(2, Operation::fetch_add(&remote, 0, 1))?;
            pair.flush();
            let mut done = [Completion::default(); 3];
            while pair.wait(std::time::Duration::from_secs(1)) {
                let count = pair.poll(&mut done);
                for completion in &done[..count] {
                    println!("operation {}: {}", completion.id, completion.result?);
                }
            }
            local.read(0, &mut text)?;
        }
        _ => return Err("usage: pingpong DOMAIN [PLACE KEY]".into()),
    }
    println!("{}", String::from_utf8_lossy(&text));
    Ok(())
}
