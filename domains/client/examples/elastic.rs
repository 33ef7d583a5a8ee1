//! Takes another node while there is work for it and gives it back, and its own work goes on
//! meanwhile: after `toroid domain create blue 0,0,0` and `toroid domain manage blue 0,0,0`, run
//! `toroid exec 0,0,0 -- elastic blue`.

use std::error::Error;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use toroid_client::member::{Domain, Member};
use toroid_fabric::{Access, Completion, Endpoint, Operation, Region};
use toroid_model::placement::Policy;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let name = std::env::args().nth(1).ok_or("usage: elastic DOMAIN")?;
    let member = Member::attach()?;
    let domain = member.domain(&name)?;
    let stop = Arc::new(AtomicBool::new(false));
    let region = domain.alloc(4096, Access::all())?;
    let work = std::thread::spawn({
        let (domain, region, stop) = (domain.clone(), region.clone(), Arc::clone(&stop));
        move || count(&domain, &region, &stop)
    });
    for _ in 0..3 {
        let nodes = member.alloc_nodes(&name, 1, Policy::Compact)?;
        let host = format!("{}.{name}", nodes[0].to_string().replace(',', "-"));
        let ping = ["-c", "1", "-W", "10", &host];
        let ping = Command::new("ping")
            .args(ping)
            .stdout(Stdio::null())
            .status()?;
        println!("grown to {}", domain.info()?.figures.size);
        println!("{host} answers: {}", ping.success());
        member.free_nodes(&nodes)?;
        println!("shrunk to {}", domain.info()?.figures.size);
    }
    stop.store(true, Ordering::Relaxed);
    let counted = work.join().map_err(|_| "the work failed")??;
    println!("counted to {counted}, lost {}", counted - region.load(0)?);
    Ok(())
}

/// Adds to the first word of a region, as a peer would, and returns how often.
fn count(domain: &Domain, region: &Region, stop: &AtomicBool) -> Result<u64> {
    let key = region.remote_key().ok_or("no key")?;
    let remote = domain.open(key, Access::all())?;
    let mut pair = domain.queue_pair(domain.member().place(), 1)?;
    let mut counted = 0;
    while !stop.load(Ordering::Relaxed) {
        pair.post(0, Operation::fetch_add(&remote, 0, 1))?;
        pair.flush();
        let mut done = [Completion::default()];
        while pair.poll(&mut done) == 0 {
            pair.wait(Duration::from_secs(1));
        }
        done[0].result?;
        counted += 1;
    }
    Ok(counted)
}
