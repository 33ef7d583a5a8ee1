//! Emulation of links on this host, independent of domains.

use serde::{Deserialize, Serialize};
use toroid_fabric::Torus;
use toroid_model::directory::Directory;
use toroid_model::link::{FabricProfile, Time, TorusLinks};

use crate::config::Config;
use crate::error::AgentError;

/// Processor time that the driver may spend on waiting for due frames, in percent of a core.
pub const DEFAULT_PRECISION: u8 = 30;

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
            if let Some(domain) = domains.find(|domain| !domain.links.is_empty()) {
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
        })
    }
}
