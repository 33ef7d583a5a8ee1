//! Links of a domain of the user's own agent, for programs under test.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use toroid_client::admin::Control;
use toroid_fabric::Place;
use toroid_model::link::{DomainLinks, LinkSpec};

use crate::cluster::ClusterError;
use crate::program::words;
use crate::report::Fields;

// Not a doc comment, which would replace the texts of the commands.
#[derive(Args, Clone, Debug)]
pub struct Under {
    /// The domain whose links change.
    #[arg(short, long)]
    pub domain: String,

    /// State directory of the agent [default: $XDG_RUNTIME_DIR/toroid, or /run/toroid].
    #[arg(long, env = "TOROID_STATE", value_name = "DIR", hide_env_values = true)]
    state: Option<PathBuf>,

    /// Print one JSON object instead of tables.
    #[arg(long)]
    pub json: bool,

    /// The program and its arguments, such as `toroid exec 0,0,0 -- ...`. It gets no input, and its
    /// output is not shown.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl Under {
    /// Fields of reports.
    pub fn fields(&self) -> Fields {
        Fields::default()
            .with("domain", &self.domain)
            .with("command", words(&self.command))
    }

    /// Program and domain in words.
    pub fn text(&self) -> String {
        let command = words(&self.command).join(" ");
        format!("`{command}` in domain {}", self.domain)
    }
}

/// The links of a domain, which are as before when this is dropped.
#[derive(Debug)]
pub struct Links {
    control: Control,
    domain: String,
    /// The links at the beginning; `None` when they are back.
    before: Option<DomainLinks<Place>>,
    now: DomainLinks<Place>,
}

impl Links {
    /// The links of a domain, still unchanged.
    ///
    /// # Errors
    /// The agent's: there is no such domain, or no agent.
    pub fn of(under: &Under) -> Result<Self, ClusterError> {
        let mut control = Control::find(under.state.as_deref())?;
        let now = control.show(&under.domain)?.links;
        Ok(Links {
            control,
            domain: under.domain.clone(),
            before: Some(now.clone()),
            now,
        })
    }

    /// Gives all links of the domain these properties, and starts their record anew.
    ///
    /// # Errors
    /// The agent's.
    pub fn set(&mut self, link: LinkSpec) -> Result<(), ClusterError> {
        // The agent forgets the record of links without properties.
        self.put(DomainLinks::default())?;
        self.put(DomainLinks {
            default: link,
            ..DomainLinks::default()
        })
    }

    /// Share of transfers since the last change that left late: by more than 1 us and 1 % of their
    /// time. `None` without transfers.
    ///
    /// # Errors
    /// The agent's.
    pub fn late_share(&mut self) -> Result<Option<f64>, ClusterError> {
        let report = self.control.links(&self.domain, &[])?;
        let links = report.links.iter();
        let of_paths = links.flat_map(|link| [link.rdma, link.ethernet]);
        let (late, all) = of_paths.fold((0, 0), |(late, all), path| {
            (late + path.late, all + path.transfers)
        });
        Ok((all > 0).then(|| late as f64 / all as f64))
    }

    /// Makes the links what they were at the beginning.
    ///
    /// # Errors
    /// The agent's.
    pub fn restore(mut self) -> Result<(), ClusterError> {
        self.put_back()
    }

    fn put_back(&mut self) -> Result<(), ClusterError> {
        self.before.take().map_or(Ok(()), |before| self.put(before))
    }

    fn put(&mut self, links: DomainLinks<Place>) -> Result<(), ClusterError> {
        if links == self.now {
            return Ok(());
        }
        if links.is_empty() {
            self.control.remove_links(&self.domain, &[])?;
        } else {
            self.control.set_links(&self.domain, &links, false)?;
        }
        self.now = links;
        Ok(())
    }
}

impl Drop for Links {
    /// After an error or a signal. [`Links::restore`] reports errors.
    fn drop(&mut self) {
        if let Err(error) = self.put_back() {
            let domain = &self.domain;
            eprintln!(
                "toroid-bench: the links of {domain} are not as before: {error}; see `toroid link \
                 show -d {domain}`"
            );
        }
    }
}

#[cfg(test)]
pub mod tests {
    use clap::{Args, Parser};

    #[derive(Parser)]
    struct Line<T: Args> {
        #[command(flatten)]
        options: T,
    }

    /// Options of a command on the domain blue, or the text of the error.
    pub fn parse<T: Args>(line: &str) -> Result<T, String> {
        let words = "command -d blue ".to_owned() + line;
        let parsed = Line::try_parse_from(words.split_whitespace());
        let parsed = parsed.map(|line| line.options);
        parsed.map_err(|error| error.to_string())
    }
}
