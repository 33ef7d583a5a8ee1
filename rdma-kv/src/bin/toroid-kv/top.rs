//! `toroid-kv top`: the most used keys.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use toroid_kv::Client;

/// Escape sequence that clears a terminal.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Period of the server's figures.
const PERIOD: Duration = Duration::from_secs(1);

/// Shows this many keys, once or periodically.
pub fn show(client: &mut Client, keys: u32, once: bool) -> Result<()> {
    let mut output = std::io::stdout();
    loop {
        let mut screen = String::new();
        if output.is_terminal() && !once {
            screen.push_str(CLEAR);
        }
        screen.push_str("  GETS/S  KEY\n");
        for (key, rate) in client.most_used(keys)? {
            writeln!(screen, "{rate:>8.1}  {key}")?;
        }
        output.write_all(screen.as_bytes())?;
        output.flush()?;
        if once {
            return Ok(());
        }
        sleep(PERIOD);
    }
}
