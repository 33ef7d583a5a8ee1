//! Which members of a domain have offload.

use tests::cluster::{Cluster, Domain};

/// Nodes `0,0,0` and `1,0,0` are the two ends of a story, other nodes whoever else is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// All.
    Offloaded,
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
        cluster.domain(name, &[nodes, options].concat())
    }
}

/// Makes tests of stories, functions of a mix: one of each story for each mix.
macro_rules! for_each_mix {
    ($($story:ident),+ $(,)?) => {
        for_each_mix!(@ offloaded Offloaded: $($story),+);
    };
    (@ $name:ident $mix:ident: $($story:ident),+) => {
        mod $name {
            $(
                #[test]
                fn $story() {
                    tests::cluster::leaves_nothing(|| super::$story($crate::mix::Mix::$mix));
                }
            )+
        }
    };
}
