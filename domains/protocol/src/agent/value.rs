//! The values that replies carry, by type.

use std::collections::BTreeMap;

use toroid_fabric::{Place, Torus};
use toroid_model::audit::AuditEvent;
use toroid_model::info::{
    DomainInfo, LinkReport, MemberDrops, NodeInfo, QuotaInfo, ShrinkNeeds, Status,
};

use super::{Reply, StackInfo};

/// A value that one kind of reply carries.
pub trait ReplyValue: Sized {
    /// The value of a reply.
    ///
    /// # Errors
    /// The reply, if it is of another kind.
    fn from_reply(reply: Reply) -> Result<Self, Box<Reply>>;
}

macro_rules! reply_values {
    ($($pattern:pat => $value:expr, $type:ty;)*) => {$(
        impl ReplyValue for $type {
            fn from_reply(reply: Reply) -> Result<Self, Box<Reply>> {
                match reply {
                    $pattern => Ok($value),
                    other => Err(Box::new(other)),
                }
            }
        }
    )*};
}

/// Of a shrink: absent if it is repeated after the caller has left by it.
impl ReplyValue for Option<DomainInfo> {
    fn from_reply(reply: Reply) -> Result<Self, Box<Reply>> {
        match reply {
            Reply::Domain(info) => Ok(Some(info)),
            Reply::Done => Ok(None),
            other => Err(Box::new(other)),
        }
    }
}

reply_values! {
    Reply::Welcome { pid, .. } => pid, u32;
    Reply::Done => (), ();
    Reply::Status(status) => *status, Status;
    Reply::Nodes { nodes } => nodes, Vec<NodeInfo>;
    Reply::Allocated { nodes, domain } => (nodes, domain), (Vec<String>, Option<DomainInfo>);
    Reply::Domain(info) => info, DomainInfo;
    Reply::ShrinkNeeds(needs) => needs, ShrinkNeeds;
    Reply::Domains { domains } => domains, Vec<DomainInfo>;
    Reply::Events { events, next } => (events, next), (Vec<AuditEvent>, u64);
    Reply::Quotas { quotas, missing } => (quotas, missing), (Vec<QuotaInfo>, BTreeMap<String, String>);
    Reply::Links(report) => report, LinkReport;
    Reply::Drops { members, missing } => (members, missing), (Vec<MemberDrops>, BTreeMap<String, String>);
    Reply::Whoami { torus, node, place, domains } => (torus, node, place, domains),
        (Torus, u32, Place, Vec<String>);
    Reply::Ticket { attachment, secret } => (attachment, secret), (u64, String);
    Reply::Stack(info) => info, StackInfo;
    Reply::Listeners { places } => places, Vec<String>;
}
