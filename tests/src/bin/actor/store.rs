//! A client of the store for stories that kill it, or its server.

use tests::actor::{Event, Request, report};
use toroid_client::member::{Domain, Member};
use toroid_kv::Change;
use toroid_kv::{Client, View};

use super::Result;

/// Lengths of values set in turn: short ones travel with their message, long ones are fetched.
const LENGTHS: [usize; 4] = [100, 100_000, 4096, 50_000];

/// Views that a hoarder keeps, at most.
const HOARD: usize = 60;

/// Carries out each request. Its error is an [`Event::Failed`], and does not end the client.
pub fn serve() -> Result<()> {
    let member = Member::attach()?;
    let domain = member.domain_or_only(None)?;
    let (mut client, mut views) = (None, Vec::new());
    tests::actor::serve(|request| {
        let result = carry_out(&domain, &mut client, &mut views, request);
        Ok(result.unwrap_or_else(|error| Event::Failed(error.to_string())))
    })
}

fn carry_out(
    domain: &Domain,
    client: &mut Option<Client>,
    views: &mut Vec<View>,
    request: Request,
) -> Result<Event> {
    if let Request::Connect = request {
        *client = Some(Client::connect(domain, None)?);
        return Ok(Event::Done);
    }
    let client = client.as_mut().ok_or("not connected")?;
    match request {
        Request::Set { key, value } => client.set(key.as_bytes(), 0, 0, value.as_bytes())?,
        Request::SetTwice { key, value } => {
            let set = (Change::set(key.as_bytes(), false), value.as_bytes());
            let mut failed = None;
            client.store_many(&[set, set], |_, outcome| {
                failed = failed.take().or(outcome.err());
            })?;
            failed.map_or(Ok(()), Err)?;
        }
        Request::Borrow(key) => match client.borrow(key.as_bytes())? {
            Some(view) => views.push(view),
            None => return Ok(Event::Value(None)),
        },
        Request::Views => {
            let values = views.iter().map(View::to_vec);
            let values: Vec<_> = values.collect::<std::result::Result<_, _>>()?;
            return Ok(found(&values.concat()));
        }
        Request::Hoard(count) => {
            report(&Event::Ready)?;
            for number in (0..count).cycle() {
                views.extend(client.borrow(format!("fill{number}").as_bytes())?);
                views.drain(..views.len().saturating_sub(HOARD));
            }
        }
        Request::Get(key) => {
            let value = client.get(key.as_bytes())?;
            return Ok(value.map_or(Event::Value(None), |value| found(&value.data)));
        }
        Request::Fill(count) => {
            for number in 0..count {
                client.set(format!("fill{number}").as_bytes(), 0, 0, &[b'f'; 10_000])?;
            }
        }
        Request::Hammer(key) => {
            report(&Event::Ready)?;
            for (len, letter) in LENGTHS.iter().zip(b'a'..=b'd').cycle() {
                client.set(key.as_bytes(), 0, 0, &vec![letter; *len])?;
            }
        }
        other => return Err(format!("{other:?} is not for a client of the store").into()),
    }
    Ok(Event::Done)
}

fn found(value: &[u8]) -> Event {
    Event::Value(Some(String::from_utf8_lossy(value).into_owned()))
}
