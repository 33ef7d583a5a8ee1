//! Choice of routes through a torus.

use std::fmt;
use std::str::FromStr;

use toroid_fabric::routes::policy::{Fixed, Policy, SelectRouting};
use toroid_fabric::routes::{self, Mode};

use super::LinkError;
use super::units::serde_as_text;

/// How the route of each message through a torus is chosen, written as `off`, `auto`, or the name of
/// a mode such as `adaptive0`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routing {
    /// The route is dimension-ordered.
    #[default]
    Off,
    /// Each sender decides the mode by latency and stalls of its former messages.
    Auto,
    /// All messages have this mode.
    Mode(Mode),
}

impl Routing {
    /// The policy of a sender; `None` if routes are not chosen.
    pub fn policy(self) -> Option<Box<dyn Policy>> {
        match self {
            Routing::Off => None,
            Routing::Auto => Some(Box::new(SelectRouting::default())),
            Routing::Mode(mode) => Some(Box::new(Fixed::new(mode))),
        }
    }
}

impl fmt::Display for Routing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Routing::Off => f.write_str("off"),
            Routing::Auto => f.write_str("auto"),
            Routing::Mode(mode) => mode.fmt(f),
        }
    }
}

impl FromStr for Routing {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        match text {
            "off" => Ok(Routing::Off),
            "auto" => Ok(Routing::Auto),
            mode => {
                let not = |_: routes::ParseModeError| LinkError::NotARouting(text.into());
                mode.parse().map(Routing::Mode).map_err(not)
            }
        }
    }
}

serde_as_text!(Routing);
