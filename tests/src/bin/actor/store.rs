//! A client of the store that does what each line of its input says, and
//! answers with a line, until it is killed. For stories that kill it, or its server.
//!
//! ```text
//! connect         connect to the only server of the only domain
//! set KEY VALUE   "stored"
//! get KEY         the value, or "nothing"
//! fill COUNT      sets so many other keys to values of 10,000 bytes: "filled"
//! large KEY LEN   sets the key to as many bytes: "stored"
//! both KEY LEN    the same, twice in one go: "stored", if both were
//! borrow KEY      keeps a view of the value: "borrowed", or "nothing"
//! look            reads all views: their values, one behind the other
//! hoard COUNT     "begun", then borrows the values of that many fills for ever, 60 at a time
//! hammer KEY      "begun", then sets the key for ever, each time to as many bytes of one letter
//! ```
//!
//! What fails is answered with "error: " and why.

use std::io::{self, BufRead, Write};

use toroid_client::member::{Domain, Member};
use toroid_kv::Change;
use toroid_kv::{Client, View};

use crate::Result;

/// Lengths that are set in turn: some travel with their message, and some are fetched.
const LENGTHS: [usize; 4] = [100, 100_000, 4096, 50_000];

/// Views that are kept while others are borrowed.
const HOARD: usize = 60;

pub fn serve() -> Result<()> {
    let member = Member::attach()?;
    let domain = member.domain_or_only(None)?;
    let (mut client, mut views) = (None, Vec::new());
    for line in io::stdin().lock().lines() {
        let answer = match obey(&domain, &mut client, &mut views, &line?) {
            Ok(answer) => answer,
            Err(error) => format!("error: {error}"),
        };
        say(&answer)?;
    }
    Ok(())
}

fn say(answer: &str) -> io::Result<()> {
    let mut output = io::stdout();
    writeln!(output, "{answer}")?;
    output.flush()
}

fn obey(
    domain: &Domain,
    client: &mut Option<Client>,
    views: &mut Vec<View>,
    line: &str,
) -> Result<String> {
    let words: Vec<&str> = line.split(' ').collect();
    if words == ["connect"] {
        *client = Some(Client::connect(domain, None)?);
        return Ok("connected".into());
    }
    let client = client.as_mut().ok_or("not connected")?;
    match words[..] {
        ["large", key, len] => {
            client.set(key.as_bytes(), 0, 0, &vec![b'l'; len.parse()?])?;
            Ok("stored".into())
        }
        ["both", key, len] => {
            let value = vec![b'b'; len.parse()?];
            let change = Change::set(key.as_bytes(), false);
            let mut failed = None;
            client.store_many(&[(change, &value), (change, &value)], |_, outcome| {
                failed = failed.take().or(outcome.err());
            })?;
            failed.map_or(Ok("stored".into()), |error| Err(error.into()))
        }
        ["borrow", key] => Ok(match client.borrow(key.as_bytes())? {
            Some(view) => {
                views.push(view);
                "borrowed".into()
            }
            None => "nothing".into(),
        }),
        ["look"] => {
            let values: Vec<_> = views
                .iter()
                .map(View::to_vec)
                .collect::<std::result::Result<_, _>>()?;
            Ok(String::from_utf8_lossy(&values.concat()).into_owned())
        }
        ["hoard", count] => {
            say("begun")?;
            let count: u32 = count.parse()?;
            for number in (0..count).cycle() {
                views.extend(client.borrow(format!("fill{number}").as_bytes())?);
                views.drain(..views.len().saturating_sub(HOARD));
            }
            Ok("done".into())
        }
        ["set", key, value] => {
            client.set(key.as_bytes(), 0, 0, value.as_bytes())?;
            Ok("stored".into())
        }
        ["get", key] => Ok(match client.get(key.as_bytes())? {
            Some(value) => String::from_utf8_lossy(&value.data).into_owned(),
            None => "nothing".into(),
        }),
        ["fill", count] => {
            for number in 0..count.parse::<u32>()? {
                client.set(format!("fill{number}").as_bytes(), 0, 0, &[b'f'; 10_000])?;
            }
            Ok("filled".into())
        }
        ["hammer", key] => {
            say("begun")?;
            for (len, letter) in LENGTHS.iter().zip(b'a'..=b'd').cycle() {
                client.set(key.as_bytes(), 0, 0, &vec![letter; *len])?;
            }
            Ok("done".into())
        }
        _ => Err("nobody understands that".into()),
    }
}
