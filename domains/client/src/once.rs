//! Identifiers of changes, under which these are made once although they are repeated.

use std::io;

use toroid_model::directory::requests::RequestId;
use toroid_protocol::agent::Request;
use toroid_protocol::change_request;

/// Notes that an earlier attempt may have made a change.
pub(crate) fn repeat(request: &mut Request) {
    if let Request::Once { again, .. } = request {
        *again = true;
    }
}

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
            getrandom::fill(&mut id).map_err(|error| io::Error::other(error.to_string()))?;
            Ok(Some(Request::Once {
                id: RequestId(u128::from_ne_bytes(id)),
                again: false,
                change: Box::new(request.clone()),
            }))
        }
        _ => Ok(None),
    }
}
