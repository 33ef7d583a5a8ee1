//! Which members of a domain have offload, and which path their frames take.

use tests::cluster::{Cluster, Domain};

/// The two ends of most stories.
pub const PAIR: &[&str] = &["0,0,0", "1,0,0"];

/// The members with offload. Frames between these pass through the kernel alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// All.
    Offloaded,
    /// All, but frames pass through the driver.
    Driver,
    /// None.
    Plain,
    /// Every other one, beginning with the first.
    Mixed,
}

impl Mix {
    /// Creates a domain of these members.
    #[track_caller]
    pub fn domain<'a>(self, cluster: &'a Cluster, name: &'a str, nodes: &[&str]) -> Domain<'a> {
        self.domain_with(cluster, name, nodes, &[])
    }

    /// The same, with options of `toroid domain create`.
    #[track_caller]
    pub fn domain_with<'a>(
        self,
        cluster: &'a Cluster,
        name: &'a str,
        nodes: &[&str],
        options: &[&str],
    ) -> Domain<'a> {
        match self {
            Mix::Offloaded => cluster.domain(name, &[nodes, options].concat()),
            Mix::Driver => {
                let driver = &["--ethernet", "driver"];
                cluster.domain(name, &[nodes, options, driver].concat())
            }
            Mix::Plain => cluster.domain(name, &[nodes, options, OFF].concat()),
            Mix::Mixed => {
                let every_other =
                    |first| -> Vec<&str> { nodes.iter().copied().skip(first).step_by(2).collect() };
                let domain = cluster.domain(name, &[&every_other(0), options].concat());
                domain.grow(&[&every_other(1), OFF].concat());
                domain
            }
        }
    }
}

const OFF: &[&str] = &["--offload", "off"];

/// Makes tests of stories, functions of a mix: one of each story for each mix, with attributes.
macro_rules! for_each_mix {
    ($(#[$attribute:meta])* $story:ident $(, $more:ident)* $(,)?) => {
        for_each_mix!(@ offloaded Offloaded [$(#[$attribute])*] $story $($more)*);
        for_each_mix!(@ driver Driver [$(#[$attribute])*] $story $($more)*);
        for_each_mix!(@ plain Plain [$(#[$attribute])*] $story $($more)*);
        for_each_mix!(@ mixed Mixed [$(#[$attribute])*] $story $($more)*);
    };
    (@ $name:ident $mix:ident $attributes:tt $($story:ident)+) => {
        mod $name {
            $(for_each_mix!(@@ $mix $attributes $story);)+
        }
    };
    (@@ $mix:ident [$($attributes:tt)*] $story:ident) => {
        #[test]
        $($attributes)*
        fn $story() {
            tests::cluster::leaves_nothing(|| super::$story($crate::mix::Mix::$mix));
        }
    };
}
