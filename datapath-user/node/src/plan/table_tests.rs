use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Addresses of both families have a comma between.
pub(crate) fn member(uid: &str, vip: &str, node: &str, local: Option<&str>) -> Member {
    let all = |text: &str| text.split(',').map(|ip| ip.parse().unwrap()).collect();
    Member {
        uid: uid.into(),
        vips: all(vip),
        pod: format!("pod-{uid}"),
        pod_namespace: "rlark-system".into(),
        node: node.parse().unwrap(),
        local_ips: local.map(all).unwrap_or_default(),
        task: String::new(),
        job: String::new(),
    }
}

pub(crate) fn domain(name: &str, cidr: &str, members: Vec<Member>) -> DomainRoutes {
    DomainRoutes {
        name: name.parse().unwrap(),
        cidr: cidr.into(),
        ssh_ca: "ssh-ed25519 AAAA".into(),
        encrypt_within_site: false,
        allowed_ports: None,
        members,
    }
}

fn name(n: &str) -> DomainName {
    n.parse().unwrap()
}

#[test]
fn a_vip_outside_the_domain_is_refused_and_the_rest_is_taken() {
    let mut t = RouteTable::default();
    let members = vec![member("a", "10.2.0.1", "s/n", None), member("b", "10.3.0.1", "s/n", None)];
    let errors =
        t.apply(RouteUpdate::Snapshot { domains: vec![domain("d", "10.2.0.0/24", members)] });
    assert!(
        matches!(&errors.unwrap_err()[..], [UpdateError::VipOutside { pod, .. }] if pod == "pod-b")
    );
    let d = t.domain(&name("d")).unwrap();
    assert!(d.member("a").is_some() && d.member("b").is_none());
}

#[test]
fn a_member_of_both_families_is_found_by_either_address_until_it_goes() {
    let mut t = RouteTable::default();
    let members = vec![
        member("a", "10.2.0.1,fd00::1", "s/n", None),
        member("b", "fd00::2,fd00::3", "s/n", None),
        member("c", "10.9.0.1,fd00::4", "s/n", None),
    ];
    let errors = t.apply(RouteUpdate::Snapshot {
        domains: vec![domain("d", "10.2.0.0/24,fd00::/64", members)],
    });
    assert_eq!(errors.unwrap_err().len(), 2, "the second of a family, and one outside");
    let holder = |t: &RouteTable, ip: &str| {
        t.domain(&name("d")).unwrap().holder(ip.parse().unwrap()).map(|m| m.uid.clone())
    };
    for (ip, uid) in [
        ("10.2.0.1", Some("a")),
        ("fd00::1", Some("a")),
        ("fd00::2", Some("b")),
        ("fd00::3", None),
        ("fd00::4", Some("c")),
    ] {
        assert_eq!(holder(&t, ip).as_deref(), uid, "{ip}");
    }
    t.apply(RouteUpdate::MemberGone { domain: name("d"), uid: "a".into() }).unwrap();
    assert_eq!((holder(&t, "10.2.0.1"), holder(&t, "fd00::1")), (None, None));
}

#[test]
fn a_bad_network_drops_that_domain_alone() {
    let mut t = RouteTable::default();
    let errors = t.apply(RouteUpdate::Snapshot {
        domains: vec![domain("bad", "10.2.0.0/99", vec![]), domain("good", "10.2.0.0/24", vec![])],
    });
    assert_eq!(errors.unwrap_err().len(), 1);
    assert!(t.domain(&name("good")).is_some() && t.domain(&name("bad")).is_none());
}

#[test]
fn a_delta_for_an_unknown_domain_asks_for_a_snapshot() {
    let mut t = RouteTable::default();
    let update = RouteUpdate::MemberGone { domain: name("d"), uid: "a".into() };
    assert_eq!(t.apply(update), Err(vec![UpdateError::UnknownDomain { domain: name("d") }]));
}

#[test]
fn a_vip_that_changes_hands_always_has_a_holder() {
    let mut t = RouteTable::default();
    let d = domain("d", "10.2.0.0/24", vec![member("a", "10.2.0.1", "s/n", None)]);
    t.apply(RouteUpdate::Snapshot { domains: vec![d] }).unwrap();
    let vip = "10.2.0.1".parse().unwrap();
    let b = member("b", "10.2.0.1", "s/n", None);
    t.apply(RouteUpdate::Member { domain: name("d"), member: b }).unwrap();
    assert_eq!(t.domain(&name("d")).unwrap().holder(vip).unwrap().uid, "a");
    t.apply(RouteUpdate::MemberGone { domain: name("d"), uid: "a".into() }).unwrap();
    assert_eq!(t.domain(&name("d")).unwrap().holder(vip).unwrap().uid, "b");
    t.apply(RouteUpdate::MemberGone { domain: name("d"), uid: "b".into() }).unwrap();
    assert!(t.domain(&name("d")).unwrap().holder(vip).is_none());
}

#[test]
fn a_v4_mapped_address_is_the_v4_address() {
    let mut t = RouteTable::default();
    let d = domain("d", "10.2.0.0/24", vec![member("a", "::ffff:10.2.0.1", "s/n", None)]);
    t.apply(RouteUpdate::Snapshot { domains: vec![d] }).unwrap();
    assert!(t.domain(&name("d")).unwrap().holder("10.2.0.1".parse().unwrap()).is_some());
}

fn any_update() -> impl Strategy<Value = RouteUpdate> {
    let d = prop_oneof![Just("x"), Just("y")];
    let uid = prop_oneof![Just("a"), Just("b"), Just("c"), Just("d")];
    let mem = (uid.clone(), 1u8..5, 0u8..2)
        .prop_map(|(u, v, n)| member(u, &format!("10.2.0.{v}"), &format!("s{n}/n"), None));
    prop_oneof![
        (d.clone(), mem.clone())
            .prop_map(|(d, m)| RouteUpdate::Member { domain: name(d), member: m }),
        (d.clone(), uid)
            .prop_map(|(d, u)| RouteUpdate::MemberGone { domain: name(d), uid: u.to_owned() }),
        d.clone().prop_map(|d| RouteUpdate::DomainGone { name: name(d) }),
        (d, proptest::option::of(mem)).prop_map(|(d, m)| RouteUpdate::Domain {
            domain: domain(d, "10.2.0.0/24", m.into_iter().collect())
        }),
        Just(RouteUpdate::KeepAlive),
    ]
}

proptest! {
    #[test]
    fn deltas_lead_to_the_same_table_as_a_snapshot_of_their_sum(
        updates in prop::collection::vec(any_update(), 0..60)
    ) {
        let mut table = RouteTable::default();
        let mut model: BTreeMap<DomainName, BTreeMap<String, Member>> = BTreeMap::new();
        for update in updates {
            match update.clone() {
                RouteUpdate::Member { domain, member } => {
                    if let Some(d) = model.get_mut(&domain) { d.insert(member.uid.clone(), member); }
                }
                RouteUpdate::MemberGone { domain, uid } => {
                    if let Some(d) = model.get_mut(&domain) { d.remove(&uid); }
                }
                RouteUpdate::DomainGone { name } => { model.remove(&name); }
                RouteUpdate::Domain { domain } => {
                    model.insert(domain.name.clone(),
                        domain.members.into_iter().map(|m| (m.uid.clone(), m)).collect());
                }
                _ => {}
            }
            drop(table.apply(update));
        }
        let domains = model.into_iter().map(|(n, m)|
            domain(n.as_str(), "10.2.0.0/24", m.into_values().collect())).collect();
        let mut whole = RouteTable::default();
        whole.apply(RouteUpdate::Snapshot { domains }).unwrap();
        prop_assert_eq!(&table, &whole);
        let mut again = RouteTable::default();
        again.apply(table.snapshot()).unwrap();
        prop_assert_eq!(table, again);
    }
}
