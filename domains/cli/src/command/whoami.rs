//! `toroid whoami`: the node of this process.

use clap::Args;
use serde_json::json;
use toroid_client::admin::Control;
use toroid_protocol::agent::Reply;

use super::{DONE, Run, Session};
use crate::failure::Failure;
use crate::output::line;

#[derive(Debug, Args)]
pub(crate) struct Whoami;

impl Run for Whoami {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        let (torus, node, place, domains) = match Control::of_node()?.whoami()? {
            Reply::Whoami {
                torus,
                node,
                place,
                domains,
            } => (torus.to_string(), node, place.to_string(), domains),
            other => return Err(Failure::unexpected(&other)),
        };
        if session.show.json {
            session
                .show
                .value(&json!({"node": place, "id": node, "torus": torus, "domains": domains}));
            return Ok(DONE);
        }
        line!("node      {place}");
        line!("torus     {torus}");
        line!("domains   {}", domains.join(" "));
        Ok(DONE)
    }
}
