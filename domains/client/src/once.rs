//! Identifiers of changes, under which these are made once although they are repeated.

use std::io;

use toroid_model::directory::requests::RequestId;
use toroid_protocol::agent::Request;
use toroid_protocol::change_request;

/// A change with a new identifier; `None` for another request.
///
/// # Errors
/// The system's, where it gives no random bytes.
pub(crate) fn once(request: &Request) -> io::Result<Option<Request>> {
    match request {
        // It makes several changes.
        Request::HostRotate { .. } => Ok(None),
        change_request!() => {
            let mut id = [0; 16];
            getrandom::fill(&mut id)?;
            Ok(Some(Request::Once {
                id: RequestId(u128::from_ne_bytes(id)),
                change: Box::new(request.clone()),
            }))
        }
        _ => Ok(None),
    }
}
