//! Generated declarations: printing, parsing, planning and executing the plan.

use proptest::prelude::*;

use super::*;
use crate::ethernet::EthernetPath;
use crate::link::{LinkSpec, Pair, Rate};

fn declarations() -> impl Strategy<Value = Declaration> {
    let nodes = || prop::collection::btree_set(0..64u32, 0..20);
    let sets = (nodes(), nodes(), nodes(), nodes(), nodes());
    let domain = (sets, any::<bool>(), 0..4u32);
    let name = prop::sample::select(vec!["blue", "red", "a-b", "n0"]);
    let domains = prop::collection::btree_map(name.clone(), domain, 0..4);
    let aliases = prop::collection::btree_map(name, 0..64u32, 0..3);
    let owners = prop::collection::btree_map(0..64u32, 0..9u32, 0..9);
    let resources = prop::sample::select(Resource::ALL.to_vec());
    let limits = prop::collection::btree_map(resources, 0..9u64, 1..4);
    let quotas = prop::collection::btree_map((any::<bool>(), 0..64u32), limits, 0..3);
    (domains, aliases, owners, quotas).prop_map(|(domains, aliases, owners, quotas)| {
        let place = |n: u32| around().torus.place(toroid_fabric::NodeId(n)).unwrap();
        type Set = BTreeSet<u32>;
        type Parts = ((Set, Set, Set, Set, Set), bool, u32);
        let domain = |((nodes, limited, plain, stacks, managers), public, owner): Parts| Declared {
            public,
            forward: public != (owner % 2 == 0),
            sealed: owner % 3 == 0,
            fence: [None, Some(5), Some(10), Some(60)][owner as usize % 4],
            ethernet: [EthernetPath::Auto, EthernetPath::Driver][owner as usize % 2],
            owner: Some(owner),
            members: members(
                &nodes,
                &(&nodes & &limited),
                &(&nodes & &plain),
                &(&nodes & &stacks),
                &(&nodes & &plain)
                    .iter()
                    .map(|n| (*n, Rate(8_000 * u64::from(1 + n % 3 + owner))))
                    .collect(),
            )
            .into_iter()
            .map(|(n, spec)| (place(n), spec))
            .collect(),
            links: links(&nodes.iter().map(|n| place(*n)).collect::<Vec<_>>(), owner),
            managers: managers.iter().map(|n| place(*n)).collect(),
            ..Declared::default()
        };
        let domains: BTreeMap<String, Declared> = domains
            .into_iter()
            .map(|(name, parts)| (name.into(), domain(parts)))
            .collect();
        let gateways = |(name, domain): (&String, &Declared)| {
            let of = |(n, (node, spec)): (usize, (&Place, &MemberSpec))| DeclaredGateway {
                node: *node,
                uplink: format!("to-{name}{n}"),
                kind: if spec.userspace_stack {
                    GatewayKind::Bridge
                } else {
                    GatewayKind::Nat
                },
            };
            let owner = domain.owner.unwrap_or_default();
            let mut all: Vec<_> = domain.members.iter().enumerate().map(of).collect();
            if owner % 2 == 0 {
                all.reverse();
            }
            if all
                .iter()
                .take(3)
                .any(|its| its.kind == GatewayKind::Bridge)
            {
                all.truncate(1);
            }
            all.truncate(1 + owner as usize % 3);
            (!domain.public && !all.is_empty()).then(|| (name.clone(), all))
        };
        Declaration {
            gateways: domains.iter().filter_map(gateways).collect(),
            domains,
            aliases: aliases
                .into_iter()
                .map(|(alias, n)| (alias.into(), place(n)))
                .collect(),
            owners: owners.into_iter().map(|(n, uid)| (place(n), uid)).collect(),
            quotas: quotas
                .into_iter()
                .map(|((is_user, n), limits)| {
                    if is_user {
                        (Holder::User(n), limits)
                    } else {
                        (Holder::Node(place(n)), limits)
                    }
                })
                .collect(),
        }
    })
}

/// Some links between the first of these nodes, different for each kind.
fn links(nodes: &[Place], kind: u32) -> DomainLinks<Place> {
    let link = |text: &str| text.parse().unwrap();
    let pairs = nodes.iter().zip(nodes.iter().skip(1)).take(kind as usize);
    let pairs = pairs.map(|(from, to)| {
        let (from, to) = (*from, *to);
        (Pair { from, to }, link("rate=1Gbit limit=64000B"))
    });
    DomainLinks {
        default: match kind {
            0 => LinkSpec::default(),
            1 => link("latency=20us jitter=2us"),
            2 => link("latency=+5us loss=1% mode=spin"),
            _ => link("gateway=1ms,1Gbit direct-above=8Mbit idle=2s"),
        },
        pairs: pairs.collect(),
    }
}

/// Model of an agent that executes the steps.
fn carry_out(present: &mut Declaration, step: &Step) {
    match step {
        Step::Revoke { domain, nodes } => {
            let domain = present.domains.get_mut(domain).unwrap();
            domain.managers = &domain.managers - &nodes.0;
        }
        Step::Shrink { domain, nodes } => {
            let name_of = domain;
            let domain = present.domains.get_mut(domain).unwrap();
            for node in &nodes.0 {
                assert!(domain.members.remove(node).is_some());
            }
            let stays =
                |pair: &Pair<Place>| !nodes.0.contains(&pair.from) && !nodes.0.contains(&pair.to);
            domain.links.pairs.retain(|pair, _| stays(pair));
            if let Some(its) = present.gateways.get_mut(name_of) {
                its.retain(|gateway| !nodes.0.contains(&gateway.node));
            }
            present.gateways.retain(|_, its| !its.is_empty());
        }
        Step::Remove { domain } => {
            assert!(present.domains.remove(domain).is_some());
            present.gateways.remove(domain);
        }
        Step::Connect {
            domain,
            node,
            uplink,
            kind,
        } => {
            assert!(present.domains[domain].members.contains_key(node));
            let gateway = DeclaredGateway {
                node: *node,
                uplink: uplink.clone(),
                kind: *kind,
            };
            let its = present.gateways.entry(domain.clone()).or_default();
            assert!(its.iter().all(|other| other.node != *node));
            assert!(its.is_empty() || its[0].kind == *kind && *kind == GatewayKind::Nat);
            its.push(gateway);
        }
        Step::Disconnect { domain, node } => {
            let its = present.gateways.get_mut(domain).unwrap();
            let before = its.len();
            its.retain(|gateway| gateway.node != *node);
            assert_eq!(its.len(), before - 1);
            present.gateways.retain(|_, its| !its.is_empty());
        }
        Step::Own { nodes, owner } => {
            let owned = nodes.0.iter().map(|place| (*place, *owner));
            present.owners.extend(owned);
            present.aliases.retain(|_, place| !nodes.0.contains(place));
            for domain in present.domains.values() {
                assert!(!domain.members.keys().any(|node| nodes.0.contains(node)));
                assert!(domain.managers.is_disjoint(&nodes.0));
            }
        }
        Step::Limit { holder, limits } => {
            let amounts = present.quotas.entry(*holder).or_default();
            for (resource, limit) in limits {
                match limit {
                    Some(limit) => amounts.insert(*resource, *limit),
                    None => amounts.remove(resource),
                };
            }
        }
        Step::Unalias { alias } => {
            assert!(present.aliases.remove(alias).is_some());
        }
        Step::Alias { alias, node } => {
            present.aliases.insert(alias.clone(), *node);
        }
        Step::Create {
            domain,
            nodes,
            limited,
            plain,
            stacks,
            rates,
            public,
            sealed,
            fence,
            ethernet,
            owner,
            ..
        } => {
            let rates = rates.iter();
            let rates = rates.flat_map(|(rate, nodes)| nodes.0.iter().map(|n| (*n, *rate)));
            let rates = rates.collect();
            let new = Declared {
                sealed: *sealed,
                fence: *fence,
                ethernet: *ethernet,
                members: members(&nodes.0, &limited.0, &plain.0, &stacks.0, &rates),
                public: *public,
                owner: owner.or(Some(0)),
                ..Declared::default()
            };
            assert_eq!(present.domains.insert(domain.clone(), new), None);
        }
        Step::Set {
            domain,
            public,
            forward,
            sealed,
            fence,
            ethernet,
            owner,
        } => {
            let domain = present.domains.get_mut(domain).unwrap();
            domain.public = public.unwrap_or(domain.public);
            domain.forward = forward.unwrap_or(domain.forward);
            domain.sealed = sealed.unwrap_or(domain.sealed);
            if let Some(fence) = fence {
                domain.fence = Some(*fence).filter(|fence| *fence > 0);
            }
            domain.ethernet = ethernet.unwrap_or(domain.ethernet);
            domain.owner = owner.or(domain.owner);
        }
        Step::Grow {
            domain,
            nodes,
            spec,
        } => {
            let domain = present.domains.get_mut(domain).unwrap();
            for node in &nodes.0 {
                assert_eq!(domain.members.insert(*node, *spec), None);
            }
        }
        Step::Rate {
            domain,
            nodes,
            rate,
        } => {
            let domain = present.domains.get_mut(domain).unwrap();
            for node in &nodes.0 {
                domain.members.get_mut(node).unwrap().rate = *rate;
            }
        }
        Step::Link { domain, links } => {
            let domain = present.domains.get_mut(domain).unwrap();
            let pairs = links.pairs.keys().flat_map(|pair| [pair.from, pair.to]);
            pairs.for_each(|node| assert!(domain.members.contains_key(&node)));
            domain.links = links.clone();
        }
        Step::Manage { domain, nodes } => {
            let domain = present.domains.get_mut(domain).unwrap();
            domain.managers.extend(&nodes.0);
        }
    }
}

proptest! {
    #[test]
    fn the_steps_lead_there(present in declarations(), wanted in declarations()) {
        prop_assume!(!wanted.domains.is_empty());
        let mut now = present.clone();
        for step in plan(&present, &wanted, true).unwrap() {
            carry_out(&mut now, &step);
        }
        prop_assert_eq!(&now.domains, &wanted.domains);
        prop_assert_eq!(&now.gateways, &wanted.gateways);
        for (alias, place) in &wanted.aliases {
            prop_assert_eq!(now.aliases.get(alias), Some(place));
        }
        for (holder, limits) in &wanted.quotas {
            prop_assert_eq!(now.quotas.get(holder), Some(limits));
        }
        prop_assert_eq!(plan(&now, &wanted, true).unwrap(), []);
    }

    #[test]
    fn a_printed_declaration_parses_to_itself(declaration in declarations()) {
        let text = declaration.to_string();
        let mut read = good(&text);
        for domain in read.domains.values_mut() {
            domain.lines = DeclaredLines::default();
        }
        prop_assert_eq!(&read, &declaration);
        prop_assert_eq!(plan(&declaration, &read, true).unwrap(), []);
    }

    #[test]
    fn no_slip_in_a_good_file_makes_it_panic(
        at in 0..FULL.len(),
        len in 0..8usize,
        typed in "[\\PC\n]{0,4}",
    ) {
        let text: String = FULL.chars().take(at).collect();
        let rest: String = FULL.chars().skip(at + len).collect();
        if let Err(problems) = parse(&format!("{text}{typed}{rest}"), &around()) {
            prop_assert!(!problems.is_empty());
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in "[\\[\\]a-z=\"0-9,@*{}.\n -]{0,80}") {
        let _ = parse(&text, &around());
    }
}
