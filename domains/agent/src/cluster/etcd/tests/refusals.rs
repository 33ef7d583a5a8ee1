use toroid_model::hosts::etcd::EtcdConfig;
use toroid_model::refusal::RefusalKind;

use super::server::{Certificates, Valid};
use super::*;
use crate::cluster::etcd::error::TlsFault;

fn refused(config: &EtcdConfig) -> EtcdError {
    let mut servers = match Servers::new(config) {
        Ok(servers) => servers,
        Err(error) => return error,
    };
    servers.patience = Duration::from_secs(1);
    Etcd::open_with(servers, TORUS.parse().unwrap(), None).unwrap_err()
}

#[test]
fn keys_of_something_else_are_refused() {
    let Some(cluster) = Cluster::single(&[]) else {
        return;
    };
    let etcd = open(&cluster);
    let with = |prefix: &str| EtcdConfig {
        prefix: prefix.into(),
        ..cluster.config()
    };
    let put = |key: &'static str, value: &'static str| {
        ask(&etcd, move |mut client| async move {
            client.put(key, value, None).await
        })
        .unwrap();
    };
    put("/registry/pods", "1");
    let foreign = |key: &str| EtcdError::Foreign { key: key.into() };
    assert_eq!(refused(&with("/registry")), foreign("/registry/pods"));
    // Only below the prefix.
    Etcd::open(&with("/regist"), TORUS.parse().unwrap(), None).unwrap();
    put("/x/meta", "yes");
    assert_eq!(refused(&with("/x")), foreign("/x/meta"));
    put("/y/meta", r#"{"format":2,"shape":"ring"}"#);
    let newer = refused(&with("/y"));
    assert_eq!(newer.refusal().kind, RefusalKind::Version, "{newer}");
    let other = Etcd::open(&cluster.config(), "2x1x1".parse().unwrap(), None).unwrap_err();
    let kept = "of a torus 16x16x8, not 2x1x1";
    assert!(other.to_string().contains(kept), "{other}");
    let mut store = etcd.store(&win(&etcd, "a"));
    put("/toroid/test/note", "mine");
    let refusal = store.load().unwrap_err().refusal();
    assert!(refusal.message.contains("/toroid/test/note"), "{refusal}");
    assert!(refusal.remedy.contains("`prefix`"), "{refusal}");
}

#[test]
fn servers_of_two_clusters_are_refused() {
    let clusters = (Cluster::single(&[]), Cluster::single(&[]));
    let (Some(first), Some(second)) = clusters else {
        return;
    };
    let mut config = first.config();
    config.endpoints.extend(second.config().endpoints);
    let [first, second] = [0, 1].map(|index| config.endpoints[index].clone());
    assert_eq!(refused(&config), EtcdError::OtherCluster { first, second });
}

#[test]
fn only_certificates_of_the_authority_are_accepted() {
    let folders = [(); 4].map(|()| tempfile::tempdir().unwrap());
    let valid = [
        Valid::Days(10),
        Valid::Days(10),
        Valid::Days(0),
        Valid::Soon,
    ];
    let made = folders.iter().zip(valid);
    let made = made.filter_map(|(folder, valid)| Certificates::make(folder.path(), valid));
    let made: Vec<Certificates> = made.collect();
    let Ok([own, other, old, new]) = <[Certificates; 4]>::try_from(made) else {
        return;
    };
    let start = |its: &Certificates, strict| Cluster::with_tls(its.clone(), strict);
    let (Some(cluster), Some(expired)) = (start(&own, false), start(&old, false)) else {
        return;
    };
    open(&cluster);
    // Servers that want a certificate, too.
    let Some(strict) = start(&own, true) else {
        return;
    };
    let fault = |config: &EtcdConfig| match refused(config) {
        EtcdError::Tls { fault, .. } => fault,
        error => panic!("{error}"),
    };
    let wrong = EtcdConfig {
        ca: Some(other.ca),
        ..cluster.config()
    };
    assert_eq!(fault(&wrong), TlsFault::OtherAuthority);
    // It expires within a second.
    while Etcd::open(&expired.config(), TORUS.parse().unwrap(), None).is_ok() {}
    assert_eq!(fault(&expired.config()), TlsFault::Expired);
    let Some(early) = start(&new, false) else {
        return;
    };
    assert_eq!(fault(&early.config()), TlsFault::NotYet);
    let mut named = cluster.config();
    named.endpoints[0] = named.endpoints[0].replace("127.0.0.1", "localhost");
    assert_eq!(fault(&named), TlsFault::OtherName);
    let unnamed = fault(&strict.config());
    assert!(matches!(unnamed, TlsFault::Client(_)), "{unnamed}");
    let named = EtcdConfig {
        cert: Some(own.cert),
        key: Some(own.key),
        ..strict.config()
    };
    Etcd::open(&named, TORUS.parse().unwrap(), None).unwrap();
    let lone = EtcdConfig { key: None, ..named };
    assert!(matches!(refused(&lone), EtcdError::File { .. }));
    let lacking = refused(&EtcdConfig {
        ca: None,
        ..cluster.config()
    });
    assert!(lacking.to_string().contains("`ca` is missing"), "{lacking}");
    let no_file = refused(&EtcdConfig {
        ca: Some("/nowhere/ca.pem".into()),
        ..cluster.config()
    });
    assert!(matches!(no_file, EtcdError::File { .. }), "{no_file}");
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let config = EtcdConfig {
        endpoints: vec!["http://127.0.0.1:1".into()],
        prefix: "/toroid".into(),
        ca: None,
        cert: None,
        key: None,
    };
    let error = refused(&config);
    assert!(matches!(error, EtcdError::Unreachable(_)), "{error}");
    assert!(error.to_string().contains("127.0.0.1:1: "), "{error}");
    let bad = EtcdConfig {
        endpoints: vec!["10.0.0.1:2379".into()],
        ..config
    };
    assert!(matches!(refused(&bad), EtcdError::Endpoint { .. }));
}
