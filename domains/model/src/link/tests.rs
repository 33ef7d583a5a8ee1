use proptest::prelude::*;
use toroid_fabric::model::{Jitter, LocalClocks, Path, carry};
use toroid_fabric::routes::Mode as RoutingMode;
use toroid_fabric::routing::{Leg, RouteRecords};
use toroid_fabric::{NodeId, Place};

use super::*;

fn refusal<T: std::str::FromStr<Err = LinkError> + std::fmt::Debug>(text: &str) -> LinkError {
    text.parse::<T>().unwrap_err()
}

#[test]
fn values_are_read_in_every_unit() {
    let times = ["250ns", "5us", "1.5 ms", "2s", "0s"].map(|text| text.parse());
    let nanos = [250, 5_000, 1_500_000, 2_000_000_000, 0];
    assert_eq!(times, nanos.map(|nanos| Ok(Time(nanos))));
    let texts = ["64Kbit", "3.4Gbit", "425MB/s", "8000B/s", "1GB/s"];
    let rates = [8_000, 425_000_000, 425_000_000, 8_000, 1_000_000_000];
    let read = texts.map(|text| text.parse());
    assert_eq!(read, rates.map(|rate| Ok(Rate(rate))));
    let sizes = ["1500", "1500B", "100KB", "64KiB", "2MiB"].map(|text| text.parse());
    let bytes = [1_500, 1_500, 100_000, 65_536, 2_097_152];
    assert_eq!(sizes, bytes.map(|bytes| Ok(Size(bytes))));
    let shares = ["0.1%", "100%", "0%"].map(|text| text.parse());
    let billionths = [1_000_000, 1_000_000_000, 0];
    assert_eq!(shares, billionths.map(|share| Ok(Share(share))));
}

#[test]
fn wrong_values_are_refused_with_the_remedy() {
    for text in [
        "5",
        "5 parsecs",
        "us",
        "-5us",
        "1e3us",
        "0.0001ns",
        "5us5",
        "+5us",
    ] {
        assert_eq!(refusal::<Time>(text), LinkError::NotATime(text.into()));
    }
    for text in ["10", "10Gbps", "1Mb/s", "fast", "99999999999999999999GB/s"] {
        assert_eq!(refusal::<Rate>(text), LinkError::NotARate(text.into()));
    }
    assert_eq!(refusal::<Rate>("0Gbit"), LinkError::TooSlow(Rate(0)));
    assert_eq!(
        refusal::<WantedRate>("101%"),
        LinkError::OverAll("101%".into())
    );
    assert_eq!(
        refusal::<WantedRate>("half"),
        LinkError::NotARate("half".into())
    );
    assert_eq!(
        refusal::<Time>("11s"),
        LinkError::TooLong(Time(11_000_000_000))
    );
    assert_eq!(refusal::<Share>("101%"), LinkError::OverAll("101%".into()));
    assert_eq!(
        refusal::<Share>("999999%"),
        LinkError::OverAll("999999%".into())
    );
    for text in ["0.1", "much", "-1%"] {
        assert_eq!(refusal::<Share>(text), LinkError::NotAShare(text.into()));
    }
    for text in ["half", "pareto", "gamma:1us"] {
        assert_eq!(
            refusal::<Variation>(text),
            LinkError::NotAJitter(text.into())
        );
    }
    assert_eq!(
        refusal::<LinkSpec>("mtu=9000"),
        LinkError::UnknownKey("mtu".into())
    );
    assert_eq!(
        refusal::<LinkSpec>("latency"),
        LinkError::NotATime(String::new())
    );
    assert_eq!(
        refusal::<LinkSpec>("header=-1"),
        LinkError::NotAHeader("-1".into())
    );
    assert_eq!(
        refusal::<LinkSpec>("mode=pad"),
        LinkError::NotAMode("pad".into())
    );
    assert_eq!(refusal::<Pair>("1-2"), LinkError::NotAPair("1-2".into()));
    assert_eq!(refusal::<Pair<Place>>("0,0,0>0,0,0"), LinkError::Loop);
    let refusal = Refusal::from(refusal::<Rate>("0bit"));
    assert_eq!(refusal.message, "a rate of 0bit is too low");
    assert!(
        refusal.remedy.starts_with("write at least 64Kbit"),
        "{refusal}"
    );
}

#[test]
fn a_share_of_a_rate_is_one_of_the_machine() {
    let rate = |text: &str, machine| text.parse::<WantedRate>().unwrap().of(machine);
    assert_eq!(rate("40%", 10_000_000), Ok(Rate(4_000_000)));
    assert_eq!(rate("8Mbit", 10), Ok(Rate(1_000_000)));
    for machine in [10_000_000, u64::MAX] {
        assert_eq!(rate("0%", machine), Err(LinkError::TooSlow(Rate(0))));
    }
}

#[test]
fn properties_that_contradict_each_other_are_refused() {
    let check = |text: &str| text.parse::<LinkSpec>().unwrap().check();
    let above = |jitter, reach, latency| {
        Err(LinkError::JitterAboveLatency {
            jitter: Variation(jitter),
            reach: Time(reach),
            latency: Time(latency),
        })
    };
    let uniform = Jitter::Uniform { spread: 6_000 };
    assert_eq!(
        check("latency=5us jitter=6us"),
        above(uniform, 6_000, 5_000)
    );
    let normal = Jitter::Normal { deviation: 2_000 };
    assert_eq!(
        check("latency=+5us jitter=normal:2us"),
        above(normal, 6_000, 5_000)
    );
    assert_eq!(check("latency=5us jitter=5us"), Ok(()));
    assert_eq!(check("jitter=pareto:5us"), Ok(()));
    assert_eq!(check("limit=1MB"), Err(LinkError::LimitWithoutRate));
    assert_eq!(check("limit=1MB rate=1Gbit"), Ok(()));
    let inside = Err(LinkError::SpinInside(Time(5_000)));
    assert_eq!(check("latency=5us mode=spin"), inside);
    for text in [
        "latency=5us mode=delay",
        "latency=+5us mode=spin",
        "rate=1Gbit mode=spin",
    ] {
        assert_eq!(check(text), Ok(()));
    }
}

#[test]
fn a_gateway_is_complete_or_refused() {
    let check = |text: &str| text.parse::<LinkSpec>().unwrap().check();
    let without = |key| Err(LinkError::WithoutGateway(key));
    assert_eq!(check("direct-above=1Gbit"), without("direct-above"));
    assert_eq!(check("direct-above=1Gbit idle=1s"), without("direct-above"));
    assert_eq!(check("idle=1s rate=1Gbit"), without("idle"));
    let needs = |key| Err(LinkError::GatewayWithout(key));
    let gateway = "gateway=500us,5Gbit";
    assert_eq!(check(gateway), needs("direct-above"));
    assert_eq!(check(&format!("{gateway} idle=1s")), needs("direct-above"));
    let without_idle = format!("{gateway} direct-above=1Gbit");
    assert_eq!(check(&without_idle), needs("idle"));
    let never_idle = format!("{without_idle} idle=0s");
    assert_eq!(check(&never_idle), Err(LinkError::NeverIdle));
    assert_eq!(check(&format!("{without_idle} idle=1ns")), Ok(()));
    for text in ["500us", "", "500us;5Gbit"] {
        let error = LinkError::NotAGateway(text.into());
        assert_eq!(refusal::<FlowGateway>(text), error);
    }
    let error = refusal::<FlowGateway>("+500us,5Gbit");
    assert_eq!(error, LinkError::NotATime("+500us".into()));
    let error = refusal::<FlowGateway>("500us,5");
    assert_eq!(error, LinkError::NotARate("5".into()));
    let error = refusal::<FlowGateway>("500us,0Gbit");
    assert_eq!(error, LinkError::TooSlow(Rate(0)));
    let refusal = Refusal::from(LinkError::WithoutGateway("direct-above"));
    assert!(refusal.message.contains("\"direct-above\""), "{refusal}");
    assert!(refusal.remedy.starts_with("set a gateway"), "{refusal}");
}

#[test]
fn a_mode_alone_leaves_the_link_to_the_machine() {
    let [a, b] = [1, 2].map(NodeId);
    for mode in ["mode=delay", "mode=spin"] {
        let model = LinkModel::Pairs(links(mode, &[("2>1", "header=1")]));
        for path in [Path::Rdma, Path::Ethernet] {
            assert_eq!(model.route(a, b, path), None);
            assert!(model.route(b, a, path).is_some());
        }
    }
}

/// The detour comes after the link, and frames of one sender share it. RDMA has none.
#[test]
fn a_gateway_is_a_stage_of_its_sender() {
    let link = "gateway=500us,1GB/s direct-above=200Mbit idle=100ms";
    let model = LinkModel::Pairs(links(
        &format!("latency=+10us {link}"),
        &[("1>2", "header=100")],
    ));
    let [a, b, c] = [1, 2, 3].map(NodeId);
    let GatewayPath { route, rule } = model.gateway_path(a, b).unwrap();
    assert_eq!((rule.above, rule.idle), (25_000_000, 100_000_000));
    let direct = model.route(a, b, Path::Ethernet).unwrap();
    assert_eq!(route.stages[..1], direct.stages);
    let clocks = LocalClocks::default();
    let arrival = |route, bytes| carry(route, &clocks, 0, bytes, 0).arrival;
    assert_eq!(arrival(&direct, 900), 10_000);
    // Latency of link and gateway, and 1000 bytes at the gateway.
    assert_eq!(arrival(&route, 900), 10_000 + 500_000 + 1_000);
    let other = model.gateway_path(a, c).unwrap().route;
    assert_eq!(arrival(&other, 1_000), 10_000 + 500_000 + 2_000);
    let back = model.gateway_path(b, a).unwrap().route;
    assert_eq!(arrival(&back, 1_000), 10_000 + 500_000 + 1_000);

    let only = LinkModel::Pairs(links(link, &[]));
    assert_eq!(only.route(a, b, Path::Rdma), None);
    assert!(only.route(a, b, Path::Ethernet).is_some());
    assert_eq!(model.route(a, b, Path::Rdma).unwrap().stages, direct.stages);
    assert_eq!(bgp().gateway_path(a, b), None);
    assert_eq!(only.gateway_path(a, a), None);
}

#[test]
fn a_latency_below_the_machine_is_refused_unless_on_top() {
    let check = |text: &str| text.parse::<LinkSpec>().unwrap().check_base(300);
    let (wanted, base) = (Time(200), Time(300));
    assert_eq!(
        check("latency=200ns"),
        Err(LinkError::BelowBase { wanted, base })
    );
    assert_eq!(check("latency=300ns"), Ok(()));
    assert_eq!(check("latency=+200ns"), Ok(()));
    assert_eq!(check("rate=1Gbit"), Ok(()));
}

fn links(default: &str, pairs: &[(&str, &str)]) -> DomainLinks {
    let pairs = pairs.iter().map(|(pair, link)| {
        let pair: Pair = pair.parse().unwrap();
        (pair, link.parse().unwrap())
    });
    DomainLinks {
        default: default.parse().unwrap(),
        pairs: pairs.collect(),
    }
}

#[test]
fn a_pair_takes_absent_properties_from_its_domain() {
    let links = links("latency=5us rate=1Gbit", &[("1>2", "rate=10Mbit")]);
    let link = |from, to| links.link(NodeId(from), NodeId(to)).to_string();
    assert_eq!(link(1, 2), "latency=5us rate=10Mbit");
    assert_eq!(link(2, 1), "latency=5us rate=1Gbit");
}

#[test]
fn the_mode_of_a_pair_has_precedence() {
    let pairs = links("latency=+5us mode=spin", &[("1>2", "mode=delay")]);
    let mode = |model: &LinkModel, from, to| model.mode(NodeId(from), NodeId(to));
    let pairs = LinkModel::Pairs(pairs);
    assert_eq!(mode(&pairs, 2, 1), Mode::Spin);
    assert_eq!(mode(&pairs, 1, 2), Mode::Delay);
    assert_eq!(mode(&bgp(), 1, 2), Mode::Delay);
}

/// A jitter may suit the latency of its domain, but not that of a pair.
#[test]
fn pairs_are_checked_with_the_properties_of_the_domain() {
    let links = links("latency=5us jitter=2us", &[("1>2", "latency=1us")]);
    assert!(matches!(
        links.check(),
        Err(LinkError::JitterAboveLatency {
            latency: Time(1_000),
            ..
        })
    ));
}

#[test]
fn links_keep_their_form_in_json() {
    let links = links(
        "latency=+5us loss=0.1%",
        &[(
            "1>2",
            "rate=10Mbit limit=64KiB header=24 gateway=1ms,1Gbit direct-above=1Mbit idle=1s \
             routing=adaptive3",
        )],
    );
    let json = serde_json::to_string(&links).unwrap();
    assert_eq!(
        json,
        "{\"default\":{\"latency\":\"+5us\",\"loss\":\"0.1%\"},\
         \"pairs\":{\"1>2\":{\"rate\":\"10Mbit\",\"limit\":\"64KiB\",\"header\":24,\
         \"gateway\":\"1ms,1Gbit\",\"direct-above\":\"1Mbit\",\"idle\":\"1s\",\"routing\":\"adaptive3\"}}}"
    );
    assert_eq!(serde_json::from_str::<DomainLinks>(&json).unwrap(), links);
    let torus: toroid_fabric::Torus = "2x2x2".parse().unwrap();
    let places = links.renamed(|node| torus.place(node));
    let json = serde_json::to_value(&places).unwrap();
    assert!(json["pairs"]["1,0,0>0,1,0"].is_object(), "{json}");
    assert_eq!(places.renamed(|place| torus.node(place)), links);
    assert_eq!(
        serde_json::to_string(&DomainLinks::<NodeId>::default()).unwrap(),
        "{}"
    );
}

proptest! {
    #[test]
    fn texts_are_read_as_they_are_printed(
        nanos in 0..=Time::MAX.0,
        rate in Rate::MIN.0..u64::MAX / 8,
        size: u64,
        share in 0..=1_000_000_000_u32,
        header: u16,
        on_top: bool,
        shape in 0..3,
    ) {
        prop_assert_eq!(Rate(rate).to_string().parse(), Ok(Rate(rate)));
        let jitter = match shape {
            0 => Jitter::Uniform { spread: nanos.max(1) },
            1 => Jitter::Normal { deviation: nanos.max(1) },
            _ => Jitter::Pareto { mean: nanos.max(1) },
        };
        let link = LinkSpec {
            latency: Some(Latency { nanos, on_top }),
            rate: Some(Rate(rate)),
            jitter: Some(Variation(jitter)),
            loss: Some(Share(share)),
            limit: Some(Size(size)),
            header: Some(header),
            mode: Some(if on_top { Mode::Spin } else { Mode::Delay }),
            gateway: Some(FlowGateway { latency: Time(nanos), rate: Rate(rate) }),
            direct_above: Some(Rate(rate)),
            idle: Some(Time(nanos)),
            routing: Some(if on_top { Routing::Auto } else { Routing::Mode(RoutingMode::MinHash) }),
        };
        prop_assert_eq!(link.to_string().parse(), Ok(link));
        let json = serde_json::to_string(&link).unwrap();
        prop_assert_eq!(serde_json::from_str::<LinkSpec>(&json).unwrap(), link);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[0-9.+a-zA-Z%/:=> ,]{0,24}") {
        let _ = (text.parse::<LinkSpec>(), text.parse::<Pair>(), FabricProfile::parse(&text));
        let _ = text.parse::<FlowGateway>();
        let _ = (text.parse::<Latency>(), text.parse::<Rate>(), text.parse::<Variation>());
    }
}

#[test]
fn a_profile_is_read_as_it_is_printed() {
    let bgp = FabricProfile::bgp();
    assert_eq!(FabricProfile::parse(&bgp.to_string()), Ok(bgp.clone()));
    let json = serde_json::to_string(&bgp).unwrap();
    assert_eq!(serde_json::from_str::<FabricProfile>(&json).unwrap(), bgp);
    assert_eq!(FabricProfile::built_in("bgp"), Some(bgp));
    assert_eq!(FabricProfile::built_in("bgq"), None);
}

#[test]
fn all_mistakes_of_a_profile_are_reported() {
    let text =
        "name = \"x\"\nrate = \"0Gbit\"\nheader = 70000\n[rdma]\npackets = \"1us\"\nmessage = 5\n";
    let problems = FabricProfile::parse(text).unwrap_err();
    let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        [
            "line 1: the file has no \"hop\"",
            "line 2: a rate of 0bit is too low; write at least 64Kbit, or shrink the domain to send nothing",
            "line 3: 70000 is not from 0 to 65535",
            "line 5: unknown key \"packets\" in rdma; did you mean \"packet\"?",
            "line 6: write a text in quotes, not a value of type integer",
        ]
    );
}

fn bgp() -> LinkModel {
    LinkModel::Torus(TorusLinks {
        profile: FabricProfile::bgp(),
        torus: "8x8x8".parse().unwrap(),
        base: Time(0),
        links: Box::default(),
    })
}

fn close(measured: f64, expected: f64, tolerance: f64) {
    let error = (measured / expected - 1.0).abs();
    assert!(
        error <= tolerance,
        "{measured} is not {expected} within {tolerance}"
    );
}

/// Figure 4 of Appavoo et al., 2010, between neighbours. Microseconds.
#[test]
fn bgp_has_the_latencies_of_the_paper() {
    let arrival = |path, bytes| {
        let route = bgp().route(NodeId(0), NodeId(1), path).unwrap();
        carry(&route, &LocalClocks::default(), 0, bytes, 0).arrival as f64 / 1e3
    };
    close(arrival(Path::Rdma, 200), 1.7, 0.001);
    close(arrival(Path::Rdma, 1_000), 5.3, 0.001);
    // Without the model's fit, the paper's are 33.4, 40.7 and 162.3.
    for (payload, latency) in [(200, 33.5), (1_000, 45.7), (8_000, 161.7)] {
        close(arrival(Path::Ethernet, payload + 42), latency, 0.004);
    }
}

/// The UDP rates of Figure 4 in Mbit/s.
#[test]
fn bgp_has_the_rates_of_the_paper() {
    for (payload, rate) in [(200, 113.6), (1_000, 500.0), (8_000, 1_100.8)] {
        let route = bgp().route(NodeId(0), NodeId(1), Path::Ethernet).unwrap();
        let clocks = LocalClocks::default();
        let frames = (0..1_001).map(|_| carry(&route, &clocks, 0, payload + 42, 0).arrival);
        let arrivals: Vec<_> = frames.collect();
        let taken = (arrivals[1_000] - arrivals[0]) as f64 / 1_000.0;
        close(payload as f64 * 8_000.0 / taken, rate, 0.001);
    }
}

/// The rows of Figure 4 for an external host, in Mbit/s and microseconds.
#[test]
fn bgp_has_the_external_figures_of_the_paper() {
    for (payload, rate, latency) in [
        (200, 198.57, 53.5),
        (1_000, 812.19, 55.8),
        (8_000, 1_832.11, 129.0),
    ] {
        for (from, to) in [(0, 9), (9, 0), (9, 9)] {
            let route = bgp().external_route(NodeId(from), NodeId(to)).unwrap();
            let clocks = LocalClocks::default();
            let frames = (0..1_001).map(|_| carry(&route, &clocks, 0, payload + 42, 0).arrival);
            let arrivals: Vec<_> = frames.collect();
            close(arrivals[0] as f64 / 1e3, latency, 0.06);
            let taken = (arrivals[1_000] - arrivals[0]) as f64 / 1_000.0;
            close(payload as f64 * 8_000.0 / taken, rate, 0.001);
        }
    }
}

/// A torus without costs of gateways, and pairs, have the route to the gateway's node.
#[test]
fn external_frames_travel_to_the_gateway_without_costs_of_its_own() {
    let mut profile = FabricProfile::bgp();
    profile.gateway = None;
    let torus = LinkModel::Torus(TorusLinks {
        profile,
        torus: "8x8x8".parse().unwrap(),
        base: Time(0),
        links: Box::default(),
    });
    let pairs = LinkModel::Pairs(links("", &[("0>9", "latency=5us")]));
    for model in [torus, pairs] {
        for (from, to) in [(NodeId(0), NodeId(9)), (NodeId(9), NodeId(0))] {
            let route = model.route(from, to, Path::Ethernet);
            assert_eq!(model.external_route(from, to), route);
        }
        assert_eq!(model.external_route(NodeId(9), NodeId(9)), None);
    }
}

#[test]
fn the_farthest_node_of_a_large_torus_is_reached_within_the_paper_s_5_us() {
    let torus = LinkModel::Torus(TorusLinks {
        profile: FabricProfile::bgp(),
        torus: "64x32x31".parse().unwrap(),
        base: Time(0),
        links: Box::default(),
    });
    let far = NodeId(32 + 64 * (16 + 32 * 15));
    let route = torus.route(NodeId(0), far, Path::Rdma).unwrap();
    let clocks = LocalClocks::default();
    assert_eq!(route.stages.len(), 1 + 63);
    let arrival = carry(&route, &clocks, 0, 8, 0).arrival;
    assert_eq!(arrival, 1_630 + 63 * 70);
}

/// Both paths use the same links, but the endpoints of each are its own.
#[test]
fn paths_of_a_torus_share_its_links() {
    let clocks = |path| {
        let route = bgp().route(NodeId(0), NodeId(9), path).unwrap();
        let clocks = route.stages.iter().map(|stage| stage.clock);
        clocks.collect::<std::collections::BTreeSet<_>>()
    };
    let shared = clocks(Path::Rdma)
        .intersection(&clocks(Path::Ethernet))
        .count();
    assert_eq!(shared, 2);
}

#[test]
fn a_link_without_properties_has_no_route() {
    let none = LinkModel::Pairs(DomainLinks::default());
    assert_eq!(none.route(NodeId(0), NodeId(1), Path::Rdma), None);
    let links = LinkModel::Pairs(links("latency=5us jitter=2us", &[]));
    assert_eq!(links.route(NodeId(0), NodeId(0), Path::Rdma), None);
    assert_eq!(bgp().route(NodeId(3), NodeId(3), Path::Ethernet), None);
    assert_eq!(bgp().route(NodeId(0), NodeId(512), Path::Ethernet), None);
}

/// A delay from 0 to twice the jitter is added to what is left of the latency.
#[test]
fn jitter_is_taken_from_the_latency_before_it_is_drawn() {
    let links = LinkModel::Pairs(links("latency=5us jitter=2us", &[]));
    let route = links.route(NodeId(0), NodeId(1), Path::Rdma).unwrap();
    assert_eq!(route.stages[0].costs.latency, 3_000);
    assert!(!route.on_top);
    assert!(
        links
            .route(NodeId(0), NodeId(1), Path::Ethernet)
            .unwrap()
            .on_top
    );
}

#[test]
fn only_a_torus_has_routers_and_no_link_is_slower_by_a_choice_of_routes() {
    let link: LinkSpec = "routing=auto".parse().unwrap();
    assert_eq!(link.route(NodeId(0), NodeId(1), Path::Rdma), None);
    assert!(!links("routing=auto", &[]).has_costs());
    assert!(links("rate=1Gbit", &[]).has_costs() && !links("rate=1Gbit", &[]).has_routing());
    let mut torus = TorusLinks {
        profile: FabricProfile::built_in("bgp").unwrap(),
        torus: "2x2x2".parse().unwrap(),
        base: Time(0),
        links: Box::new(links("routing=auto", &[("0>1", "routing=off")])),
    };
    let memory = toroid_fabric::model::SharedClocks::create().unwrap();
    let records = std::sync::Arc::new(RouteRecords::map(&memory).unwrap());
    let has_router = |torus: &TorusLinks, from, to| {
        let (from, to) = (NodeId(from), NodeId(to));
        let model = LinkModel::Torus(torus.clone());
        let leg = Leg {
            from,
            to,
            path: Path::Rdma,
        };
        model
            .router(leg, model.routing(from, to), &records)
            .is_some()
    };
    assert!(has_router(&torus, 1, 0) && !has_router(&torus, 0, 1));
    assert!(!has_router(&torus, 1, 1) && !has_router(&torus, 1, 8));
    *torus.links = DomainLinks::default();
    assert!(!has_router(&torus, 1, 0));
    for text in ["", "Auto", "adaptive4", "on"] {
        let error = text.parse::<Routing>().unwrap_err();
        assert_eq!(error, LinkError::NotARouting(text.into()));
        assert!(error.to_string().contains("min-hash"), "{error}");
    }
}
