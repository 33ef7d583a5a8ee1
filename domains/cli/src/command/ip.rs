//! `toroid ip`: addresses of a node in a domain.

use clap::Args;
use toroid_model::info::{DomainInfo, MemberInfo};

use super::{DONE, Run, Session};
use crate::failure::Failure;
use crate::nodes;
use crate::output::{Show, line};

#[derive(Debug, Args)]
pub(crate) struct Ip {
    /// The node
    node: String,
    /// The domain; may be left out if the node is in only one
    #[arg(short, long)]
    domain: Option<String>,
}

impl Run for Ip {
    fn run(self, session: &Session) -> Result<u8, Failure> {
        let mut agent = session.connect()?;
        let (info, member) = nodes::member(&mut agent, &self.node, self.domain.as_deref())?;
        print(&info, &member, session.show);
        Ok(DONE)
    }
}

fn print(domain: &DomainInfo, member: &MemberInfo, show: Show) {
    if show.json {
        return show.value(member);
    }
    let [x, y, z] = [member.node.x, member.node.y, member.node.z];
    line!("name   {x}-{y}-{z}.{}", domain.name);
    line!("ipv4   {}", member.ipv4);
    line!("ipv6   {}", member.ipv6);
    line!("mac    {}", member.mac);
    if let Some(interface) = &member.ifname {
        line!("dev    {interface}");
    }
}
