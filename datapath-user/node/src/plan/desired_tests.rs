use control_api::session::{DomainRoutes, RouteUpdate};
use proptest::prelude::*;

use super::{
    super::{
        diff::{Op, diff},
        table::tests::{domain, member},
    },
    *,
};

fn me() -> NodeRef {
    "s1/n1".parse().unwrap()
}

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn local(uid: &str, domain: &str, netns_cookie: u64) -> Local {
    let face = Face { cidr: "10.2.0.0/24".parse().unwrap(), vip: ip("10.2.0.77"), real: None };
    let stands = Pod { domain: DomainId(1), faces: vec![face], restricted: false };
    Local { uid: uid.into(), domain: domain.parse().unwrap(), netns_cookie, stands }
}

/// 172.16.0.1, .9 and .10 are behind this machine's bridge, the rest of 172.16.0.0/24 off it.
fn reach() -> Reach {
    let mut text = "Iface Destination Gateway Flags RefCnt Use Metric Mask\n\
                    eth0 00000000 0101A8C0 3 0 0 0 00000000\n\
                    eth0 000010AC 0B01A8C0 3 0 0 0 00FFFFFF\n"
        .to_owned();
    for last in ["01", "09", "0A"] {
        text += &format!("rlark0 {last}0010AC 0 1 0 0 0 FFFFFFFF\n");
    }
    Reach::parse(&text, "")
}

fn world(domains: Vec<DomainRoutes>, locals: &[Local]) -> Desired {
    world_at(domains, locals, &reach())
}

fn world_at(domains: Vec<DomainRoutes>, locals: &[Local], reach: &Reach) -> Desired {
    let mut table = RouteTable::default();
    let mut ids = DomainIds::default();
    for d in &domains {
        ids.assign(&d.name);
    }
    table.apply(RouteUpdate::Snapshot { domains }).unwrap();
    desired(&me(), &table, locals, &ids, reach)
}

#[test]
fn the_machines_own_address_is_no_pod_behind_its_interface() {
    let members = vec![
        member("host", "10.2.0.1", "s1/n1", Some("172.16.0.2")),
        member("neighbour", "10.2.0.2", "s1/n2", Some("172.16.0.3")),
    ];
    let way = |cookie: u64| {
        let domains = vec![domain("d", "10.2.0.0/24", members.clone())];
        world(domains, &[local("host", "d", cookie)])
            .vips
            .get(&(DomainId(1), ip("10.2.0.2")))
            .copied()
    };
    let direct =
        matches!(way(1 << 63 | 7), Some(Way::Direct { real, .. }) if real == ip("172.16.0.3"));
    assert!(direct, "the neighbour is behind the same interface as the machine itself");
    assert!(matches!(way(7), Some(Way::Relay { .. })), "the same range on both machines");
}

#[test]
fn a_machine_without_hooks_relays_everything_and_knows_no_listener_of_its_own() {
    let members = vec![
        member("own", "10.2.0.1", "s1/n1", Some("172.16.0.9")),
        member("beside", "10.2.0.2", "s1/n1", Some("172.16.0.10")),
        member("neighbour", "10.2.0.3", "s1/n2", Some("172.16.0.3")),
        member("gone", "10.2.0.4", "s1/n1", None),
    ];
    let locals = [local("own", "d", 7), local("beside", "d", 8)];
    let ways = |steered: bool| {
        let domains = vec![domain("d", "10.2.0.0/24", members.clone())];
        let got = world_at(domains, &locals, &reach().steered(steered));
        assert_eq!(got.reals.is_empty(), !steered);
        let way = |vip: &str| got.vips.get(&(DomainId(1), ip(vip))).copied();
        ["10.2.0.2", "10.2.0.3", "10.2.0.4"].map(way)
    };
    assert!(ways(true)[..2].iter().all(|way| matches!(way, Some(Way::Direct { .. }))));
    let there = Listeners::There(mirror_number(&"d".parse().unwrap(), "neighbour", true));
    let relay = |listeners| Some(Way::Relay { listeners });
    assert_eq!(ways(false), [relay(Listeners::Unknown), relay(there), None]);
}

#[test]
fn a_pod_on_the_host_network_turns_no_neighbour_and_is_led_to_no_local_pod() {
    let members = vec![
        member("host", "10.2.0.1", "s1/n1", Some("172.16.0.2")),
        member("neighbour", "10.2.0.2", "s1/n2", Some("172.16.0.3")),
        member("same-range", "10.2.0.3", "s1/n2", Some("172.16.0.9")),
    ];
    let reach = reach().on(&[ip("172.16.0.2")], &["rlark0"]);
    let ordinary = member("other", "10.2.0.4", "s1/n1", Some("172.16.0.10"));
    let with = |one| members.iter().cloned().chain([one]).collect::<Vec<_>>();
    for (members, attached) in [
        (members.clone(), local("host", "d", 1 << 63 | 7)),
        // The host pod's attachment is still to come, or was refused.
        (with(ordinary), local("other", "d", 9)),
    ] {
        let got = world_at(vec![domain("d", "10.2.0.0/24", members)], &[attached], &reach);
        let way = |vip: &str| got.vips.get(&(DomainId(1), ip(vip))).copied();
        assert!(matches!(way("10.2.0.2"), Some(Way::Direct { .. })));
        assert!(matches!(way("10.2.0.3"), Some(Way::Relay { .. })), "behind the bridge here");
    }
}

#[test]
#[cfg(target_endian = "little")]
fn ipv6_leads_off_a_bridge_only_where_it_is_routed() {
    let members = vec![
        member("host", "fd00::1", "s1/n1", Some("fd10::11")),
        member("apart", "fd00::2", "s1/n1", Some("fd72::2")),
        member("neighbour", "fd00::3", "s1/n2", Some("fd10::12")),
    ];
    // The LAN, and the bridge's range where it has one.
    let (lan, bridge) = ("fd10", "fd72");
    let route = |range: &str, name: &str| {
        let zeros = "0".repeat(32);
        format!("{range}{} 40 {zeros} 00 {zeros} 100 1 0 1 {name}\n", "0".repeat(28))
    };
    let unrouted = Reach::parse("", &route(lan, "eth0"));
    let routed = Reach::parse("", &(route(lan, "eth0") + &route(bridge, "rlark0")));
    let (host, apart) = (local("host", "d", 1 << 63 | 7), local("apart", "d", 7));
    let direct = |reach: &Reach, locals: &[Local], vip: &str| {
        let got = world_at(vec![domain("d", "fd00::/64", members.clone())], locals, reach);
        matches!(got.vips.get(&(DomainId(1), ip(vip))), Some(Way::Direct { .. }))
    };
    let all = ["fd00::1", "fd00::2", "fd00::3"];
    for (reach, locals, want) in [
        (&unrouted, vec![host.clone()], [true, false, true]),
        (&unrouted, vec![apart.clone()], [false, true, false]),
        (&unrouted, vec![host.clone(), apart.clone()], [false; 3]),
        (&routed, vec![host, apart], [true; 3]),
    ] {
        let names: Vec<&str> = locals.iter().map(|l| l.uid.as_str()).collect();
        assert_eq!(all.map(|vip| direct(reach, &locals, vip)), want, "{names:?} {reach:?}");
    }
}

#[test]
fn each_kind_of_peer_gets_its_way() {
    let members = vec![
        member("own", "10.2.0.1", "s1/n1", Some("172.16.0.1")),
        member("same-node", "10.2.0.2", "s1/n1", Some("172.16.0.10")),
        member("same-site", "10.2.0.3", "s1/n2", Some("172.16.0.3")),
        // Its machine uses the same range as this one.
        member("overlapping", "10.2.0.7", "s1/n3", Some("172.16.0.9")),
        member("no-address", "10.2.0.4", "s1/n2", None),
        member("not-attached", "10.2.0.8", "s1/n1", Some("172.16.0.1")),
        // The same real address as same-site's, in another site: it must not count here.
        member("far", "10.2.0.5", "s2/n1", Some("172.16.0.3")),
    ];
    let locals = [local("own", "d", 11), local("same-node", "d", 12)];
    let mut routes = domain("d", "10.2.0.0/24", members);
    let got = world(vec![routes.clone()], &locals);
    let id = DomainId(1);
    let there = |uid: &str| Listeners::There(mirror_number(&"d".parse().unwrap(), uid, true));
    let cases = [
        ("10.2.0.1", Some(Way::Direct { real: ip("172.16.0.1"), listeners: Listeners::Here(11) })),
        ("10.2.0.2", Some(Way::Direct { real: ip("172.16.0.10"), listeners: Listeners::Here(12) })),
        ("10.2.0.3", Some(Way::Direct { real: ip("172.16.0.3"), listeners: there("same-site") })),
        ("10.2.0.4", Some(Way::Relay { listeners: there("no-address") })),
        ("10.2.0.5", Some(Way::Relay { listeners: there("far") })),
        ("10.2.0.6", None),
        ("10.2.0.7", Some(Way::Relay { listeners: there("overlapping") })),
        ("10.2.0.8", None),
    ];
    for (vip, way) in cases {
        assert_eq!(got.vips.get(&(id, ip(vip))).copied(), way, "{vip}");
    }
    assert_eq!(got.reals.get(&(id, ip("172.16.0.3"))), Some(&ip("10.2.0.3")));
    assert_eq!(got.pods.get(&11).unwrap().faces[0].vip, ip("10.2.0.1"));

    routes.encrypt_within_site = true;
    let sealed = world(vec![routes], &locals);
    assert!(
        sealed.vips.values().all(|w| matches!(w, Way::Relay { .. })) && sealed.reals.is_empty()
    );
}

#[test]
fn each_family_has_its_own_way() {
    let members = vec![
        member("own", "fd00::1,10.2.0.1", "s1/n1", Some("172.16.0.1,fd72::1")),
        member("v4-only", "10.2.0.2,fd00::2", "s1/n1", Some("172.16.0.10")),
        member("far", "10.2.0.3,fd00::3", "s2/n1", Some("172.16.0.3,fd72::3")),
    ];
    let locals = [local("own", "d", 11), local("v4-only", "d", 12)];
    let got = world(vec![domain("d", "10.2.0.0/24,fd00::/64", members)], &locals);
    let way = |vip: &str| got.vips.get(&(DomainId(1), ip(vip))).copied().unwrap();
    assert!(matches!(way("fd00::1"), Way::Direct { real, .. } if real == ip("fd72::1")));
    assert!(matches!(way("10.2.0.2"), Way::Direct { real, .. } if real == ip("172.16.0.10")));
    // Rewriting cannot change the family: without a real address of its own it is relayed.
    assert_eq!(way("fd00::2"), Way::Relay { listeners: Listeners::Here(12) });
    let (Way::Relay { listeners: a }, Way::Relay { listeners: b }) =
        (way("10.2.0.3"), way("fd00::3"))
    else {
        panic!()
    };
    assert_ne!(a, b, "a port may be open to one family only");
    let faces = &got.pods.get(&11).unwrap().faces;
    assert_eq!(faces[0].real, Some(ip("fd72::1")), "{faces:?}");
    assert_eq!((faces[1].vip, faces[1].real), (ip("10.2.0.1"), Some(ip("172.16.0.1"))));
    let hosts = got.hosts.get("own").unwrap();
    assert!(hosts.contains("10.2.0.3 pod-far.") && hosts.contains("fd00::3 pod-far."), "{hosts}");
}

#[test]
fn two_domains_with_the_same_addresses_do_not_meet() {
    let got = world(
        vec![
            domain(
                "a",
                "10.2.0.0/24",
                vec![
                    member("a1", "10.2.0.1", "s1/n1", Some("172.16.0.1")),
                    member("a2", "10.2.0.2", "s2/n1", None),
                ],
            ),
            domain(
                "b",
                "10.2.0.0/24",
                vec![
                    member("b1", "10.2.0.1", "s1/n1", Some("172.16.0.9")),
                    member("b2", "10.2.0.2", "s1/n2", Some("172.16.0.8")),
                ],
            ),
        ],
        &[local("a1", "a", 1), local("b1", "b", 2)],
    );
    let peer = ip("10.2.0.2");
    assert!(matches!(got.vips.get(&(DomainId(1), peer)), Some(Way::Relay { .. })));
    assert!(matches!(got.vips.get(&(DomainId(2), peer)), Some(Way::Direct { .. })));
    assert_eq!(got.pods.get(&1).unwrap().domain, DomainId(1));
    assert_eq!(got.pods.get(&2).unwrap().domain, DomainId(2));
}

/// The kernel knows no peer, and of the pod only what makes it refuse what it tries.
fn is_cut_off(got: &Desired, cookie: u64) -> bool {
    let pod = got.pods.get(&cookie).unwrap();
    let last = (pod.domain, pod.faces[0].vip) == (NOWHERE, ip("10.2.0.77"));
    let names = got.hosts.values().all(String::is_empty) && got.hosts.len() == 1;
    last && names && got.pods.len() == 1 && got.vips.is_empty() && got.reals.is_empty()
}

#[test]
fn a_pod_without_a_domain_or_an_address_is_told_that_nobody_is_there() {
    let members = vec![member("x", "10.2.0.1", "s1/n2", Some("172.16.0.1"))];
    let routes = vec![domain("d", "10.2.0.0/24", members)];
    assert!(is_cut_off(&world(routes.clone(), &[local("other", "d", 1)]), 1));
    assert!(is_cut_off(&world(routes.clone(), &[local("x", "d", 1)]), 1), "another node's");
    assert!(is_cut_off(&world(vec![], &[local("x", "d", 1)]), 1));
    assert_eq!(world(routes, &[]), Desired::default(), "a Domain without a pod here");
}

#[test]
fn a_shared_real_address_names_nobody() {
    let members = vec![
        member("own", "10.2.0.1", "s1/n1", Some("172.16.0.1")),
        member("h1", "10.2.0.2", "s1/n2", Some("172.16.0.2")),
        member("h2", "10.2.0.3", "s1/n2", Some("172.16.0.2")),
        member("h3", "10.2.0.4", "s1/n2", Some("172.16.0.2")),
    ];
    let got = world(vec![domain("d", "10.2.0.0/24", members)], &[local("own", "d", 1)]);
    assert_eq!(got.reals.keys().map(|k| k.1).collect::<Vec<_>>(), [ip("172.16.0.1")]);
    assert_eq!(got.vips.len(), 4);
}

#[test]
fn a_pod_enters_after_its_peers_and_leaves_before_them() {
    let members = vec![
        member("own", "10.2.0.1", "s1/n1", Some("172.16.0.1")),
        member("far", "10.2.0.2", "s2/n1", None),
    ];
    let full = world(vec![domain("d", "10.2.0.0/24", members)], &[local("own", "d", 7)]);
    let up = diff(&Desired::default(), &full);
    let pod = up.iter().position(|o| matches!(o, Op::PutPod(..))).unwrap();
    let last_vip = up.iter().rposition(|o| matches!(o, Op::PutVip(..))).unwrap();
    assert!(last_vip < pod);
    let down = diff(&full, &Desired::default());
    assert_eq!(down.first(), Some(&Op::DeletePod(7)));
}

#[test]
fn ids_are_stable_and_never_zero() {
    let mut ids = DomainIds::default();
    let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
    assert_eq!(
        (ids.assign(&b), ids.assign(&a), ids.assign(&b)),
        (DomainId(1), DomainId(2), DomainId(1))
    );
    assert_eq!(ids.name(DomainId(2)), Some(&a));
}

fn any_world() -> impl Strategy<Value = Desired> {
    let m = (1u8..6, 0u8..3, proptest::option::of(1u8..5));
    (prop::collection::btree_map("[a-e]", m, 0..5), any::<bool>(), 0usize..5).prop_map(
        |(members, sealed, locals)| {
            let members: Vec<_> = members
                .into_iter()
                .map(|(uid, (v, n, l))| {
                    let real = l.map(|l| format!("172.16.0.{l}"));
                    member(
                        &uid,
                        &format!("10.2.0.{v}"),
                        ["s1/n1", "s1/n2", "s2/n1"][n as usize],
                        real.as_deref(),
                    )
                })
                .collect();
            let locals: Vec<_> = members
                .iter()
                .take(locals)
                .enumerate()
                .map(|(i, m)| local(&m.uid, "d", i as u64))
                .collect();
            let mut d = domain("d", "10.2.0.0/24", members);
            d.encrypt_within_site = sealed;
            world(vec![d], &locals)
        },
    )
}

proptest! {
    #[test]
    fn carrying_out_the_difference_leads_to_the_new_state(a in any_world(), b in any_world()) {
        let mut state = a.clone();
        for op in diff(&a, &b) {
            state.note(&op);
        }
        // Names are left in the file of a pod that is gone; detaching removes them.
        state.hosts.retain(|uid, _| b.hosts.contains_key(uid));
        prop_assert_eq!(state, b);
    }
}

#[test]
fn a_domain_that_allows_some_ports_restricts_its_pods() {
    let mut routes = domain("d", "10.2.0.0/24", vec![member("own", "10.2.0.1", "s1/n1", None)]);
    let locals = [local("own", "d", 11)];
    let free = world(vec![routes.clone()], &locals);
    assert!(!free.pods.get(&11).unwrap().restricted && free.ports.is_empty());
    let allowed = vec!["22".parse().unwrap()];
    routes.allowed_ports = Some(allowed.clone());
    let some = world(vec![routes], &locals);
    assert!(some.pods.get(&11).unwrap().restricted);
    assert_eq!(some.ports, BTreeMap::from([(DomainId(1), allowed)]));
}
