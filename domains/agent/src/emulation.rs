//! Emulation of links on this host, independent of domains.

use std::fs;
use std::io;

use serde::{Deserialize, Serialize};
use toroid_fabric::Torus;
use toroid_model::directory::Directory;
use toroid_model::link::{FabricProfile, Time, TorusLinks};

use crate::config::Config;
use crate::error::AgentError;

/// Processor time that the driver may spend on waiting for due frames, in percent of a core.
pub const DEFAULT_PRECISION: u8 = 30;

/// Reason why there is no profile of a torus with a name.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The name is no built-in profile, and no file can be read.
    #[error("neither bgp nor a file that can be read: {0}")]
    Unreadable(#[from] io::Error),
    /// The file has problems, one in each line of this text.
    #[error("{0}")]
    Problems(String),
}

/// The costs of a torus: a built-in profile, or one in a file of TOML.
///
/// # Errors
/// [`ProfileError`].
pub fn read_profile(name: &str) -> Result<FabricProfile, ProfileError> {
    if let Some(profile) = FabricProfile::built_in(name) {
        return Ok(profile);
    }
    let text = fs::read_to_string(name)?;
    FabricProfile::parse(&text).map_err(|problems| {
        let lines = problems
            .iter()
            .map(|problem| format!("{name}:{}: {}", problem.line, problem.message));
        ProfileError::Problems(lines.collect::<Vec<_>>().join("\n        "))
    })
}

/// Emulation of links on this host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Emulation {
    /// Torus whose links all domains share.
    pub(crate) fabric: Option<FabricProfile>,
    /// Percent of a core, see [`DEFAULT_PRECISION`].
    pub(crate) precision: u8,
}

impl Emulation {
    /// Emulation as before, or as configured.
    ///
    /// # Errors
    /// [`AgentError::OtherFabric`] if existing nodes have another torus,
    /// [`AgentError::LinksWithFabric`] if a domain has links of its own beside a torus, and
    /// [`AgentError::FabricOfHosts`] for a torus over several hosts.
    pub(crate) fn of(
        config: &Config,
        before: Option<Emulation>,
        directory: &Directory,
    ) -> Result<Self, AgentError> {
        let name = |fabric: &Option<FabricProfile>| fabric.as_ref().map(|its| its.name.clone());
        let precision = config
            .precision
            .or(before.as_ref().map(|before| before.precision));
        let fabric = match (config.fabric.clone(), before) {
            (Some(fabric), Some(before)) if before.fabric.as_ref() != Some(&fabric) => {
                return Err(AgentError::OtherFabric {
                    asked: fabric.name,
                    kept: name(&before.fabric),
                });
            }
            (None, Some(before)) => before.fabric,
            (configured, _) => configured,
        };
        if let Some(fabric) = name(&fabric) {
            if config.hosts.is_some() {
                return Err(AgentError::FabricOfHosts(fabric));
            }
            let mut domains = directory.domains();
            if let Some(domain) = domains.find(|domain| domain.links.has_costs()) {
                return Err(AgentError::LinksWithFabric {
                    fabric,
                    domain: domain.name.clone(),
                });
            }
        }
        Ok(Emulation {
            fabric,
            precision: precision.unwrap_or(DEFAULT_PRECISION),
        })
    }

    /// Links of the torus, if there is one.
    pub(crate) fn torus(&self, torus: Torus) -> Option<TorusLinks> {
        Some(TorusLinks {
            profile: self.fabric.clone()?,
            torus,
            base: Time::default(),
            links: Box::default(),
        })
    }
}
