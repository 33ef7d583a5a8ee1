//! Groups of requests as patterns.
//!
//! A match on [`Request`] that has arms for one group names the others by their patterns. So the
//! compiler finds every match that lacks an arm for a new request.

use super::Request;

/// Pattern of the requests that change the directory.
#[macro_export]
macro_rules! change_request {
    () => {
        $crate::agent::Request::DomainCreate(_)
            | $crate::agent::Request::DomainGrow { .. }
            | $crate::agent::Request::DomainShrink { .. }
            | $crate::agent::Request::DomainRemove { .. }
            | $crate::agent::Request::DomainManage { .. }
            | $crate::agent::Request::DomainSet { .. }
            | $crate::agent::Request::DomainRate { .. }
            | $crate::agent::Request::GatewayAdd { .. }
            | $crate::agent::Request::GatewayRemove { .. }
            | $crate::agent::Request::LinkSet { .. }
            | $crate::agent::Request::LinkRemove { .. }
            | $crate::agent::Request::NodeAlias { .. }
            | $crate::agent::Request::NodeUnalias { .. }
            | $crate::agent::Request::NodeChown { .. }
            | $crate::agent::Request::NodeConsent { .. }
            | $crate::agent::Request::NodeAlloc(_)
            | $crate::agent::Request::NodeFree { .. }
            | $crate::agent::Request::QuotaSet { .. }
            | $crate::agent::Request::HostAdmit { .. }
            | $crate::agent::Request::HostRemove { .. }
            | $crate::agent::Request::HostRotate { .. }
            | $crate::agent::Request::DirectoryMove { .. }
    };
}

/// Pattern of the requests that read the state of the agent and change nothing.
#[macro_export]
macro_rules! query_request {
    () => {
        $crate::agent::Request::Status
            | $crate::agent::Request::NodeList
            | $crate::agent::Request::DomainList
            | $crate::agent::Request::DomainShow { .. }
            | $crate::agent::Request::DomainDrops { .. }
            | $crate::agent::Request::Links { .. }
            | $crate::agent::Request::ShrinkNeeds { .. }
            | $crate::agent::Request::Events { .. }
            | $crate::agent::Request::QuotaShow { .. }
    };
}

/// Pattern of the requests about a connection, a command or an attached process, but
/// [`Request::Down`](crate::agent::Request::Down). An agent takes a
/// [`Request::Once`](crate::agent::Request::Once) apart first.
#[macro_export]
macro_rules! connection_request {
    () => {
        $crate::agent::Request::Hello { .. }
            | $crate::agent::Request::Once { .. }
            | $crate::agent::Request::Exec { .. }
            | $crate::agent::Request::Descriptors
            | $crate::agent::Request::Signal { .. }
            | $crate::agent::Request::Whoami
            | $crate::agent::Request::Ticket
            | $crate::agent::Request::Resume { .. }
            | $crate::agent::Request::Alloc { .. }
            | $crate::agent::Request::Free { .. }
            | $crate::agent::Request::Open { .. }
            | $crate::agent::Request::Listen { .. }
            | $crate::agent::Request::Unlisten { .. }
            | $crate::agent::Request::Reach { .. }
            | $crate::agent::Request::Connect { .. }
            | $crate::agent::Request::Disconnect { .. }
            | $crate::agent::Request::Stack { .. }
            | $crate::agent::Request::Lookup { .. }
            | $crate::agent::Request::Fence
            | $crate::agent::Request::Fetch { .. }
            | $crate::agent::Request::Ack { .. }
    };
}

impl Request {
    /// Whether the request changes the directory. Such a request waits for its turn, is audited,
    /// and must not be repeated after an agent was killed, unless as [`Request::Once`]: its first
    /// execution may have succeeded.
    pub fn is_change(&self) -> bool {
        match self {
            change_request!() => true,
            query_request!() | connection_request!() | Request::Down => false,
        }
    }
}
