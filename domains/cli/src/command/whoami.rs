//! `toroid whoami`: the node of this process.

use clap::Args;
use serde_json::json;
use toroid_client::admin::Control;

use super::{DONE, Run, Session};
use crate::failure::Failure;
use crate::output::line;

#[derive(Debug, Args)]
pub(crate) struct Whoami;

impl Run for Whoami {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        let (torus, id, place, domains) = Control::of_node()?.whoami()?;
        let (torus, node) = (torus.to_string(), place.to_string());
        if session.show.json {
            let all = json!({"node": node, "id": id, "torus": torus, "domains": domains});
            session.show.value(&all);
            return Ok(DONE);
        }
        line!("node      {node}");
        line!("torus     {torus}");
        line!("domains   {}", domains.join(" "));
        Ok(DONE)
    }
}
