//! Gets in series, each after the last: how much latency does a get take?
//!
//! ```text
//! toroid exec 0,0,0 -- toroid-kv serve &
//! toroid-bench sweep -d blue --latency 0,5us,20us -- toroid exec 1,0,0 -- gets 1024 10000
//! ```

use std::error::Error;

use toroid_client::member::Member;
use toroid_kv::Client;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [bytes, count] = &arguments[..] else {
        return Err("usage: gets BYTES COUNT".into());
    };
    let (value, count): (Vec<u8>, u32) = (vec![7; bytes.parse()?], count.parse()?);
    let domain = Member::attach()?.domain_or_only(None)?;
    let mut client = Client::connect(&domain, None)?;
    client.set(b"gets", 0, 0, &value)?;
    for _ in 0..count {
        let found = client.get(b"gets")?;
        if found.is_none_or(|found| found.data != value) {
            return Err("the value is lost".into());
        }
    }
    Ok(())
}
