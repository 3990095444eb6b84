use proptest::prelude::*;

use super::*;

fn cidr(s: &str) -> Subnets {
    s.parse().unwrap()
}
fn claims(keys: &[&str]) -> Vec<Claim> {
    keys.iter().map(|k| Claim { key: (*k).to_owned(), ..Claim::default() }).collect()
}
fn ip_of<'a>(a: &'a Allocated, key: &str) -> &'a str {
    a.allocations.iter().find(|e| e.pod == key).unwrap().ip.as_str()
}

#[test]
fn network_and_broadcast_stay_free_and_point_to_point_subnets_are_used_whole() {
    let a = allocate(&cidr("10.0.1.0/30"), &claims(&["a", "b", "c"]), &[]);
    assert_eq!((ip_of(&a, "a"), ip_of(&a, "b")), ("10.0.1.1", "10.0.1.2"));
    assert_eq!(a.unserved, ["c"]);
    let a = allocate(&cidr("10.0.1.0/31"), &claims(&["a", "b"]), &[]);
    assert_eq!((ip_of(&a, "a"), ip_of(&a, "b")), ("10.0.1.0", "10.0.1.1"));
    let a = allocate(&cidr("10.0.1.7/32"), &claims(&["a", "b"]), &[]);
    assert_eq!(ip_of(&a, "a"), "10.0.1.7");
    assert_eq!(a.unserved, ["b"]);
    let a = allocate(&cidr("fd00::/126"), &claims(&["a", "b", "c"]), &[]);
    assert_eq!((ip_of(&a, "a"), ip_of(&a, "c")), ("fd00::1", "fd00::3"));
    let a = allocate(&cidr("fd00::/127"), &claims(&["a"]), &[]);
    assert_eq!(ip_of(&a, "a"), "fd00::");
}

#[test]
fn a_pod_that_returns_gets_its_address_back() {
    let c = cidr("10.0.1.0/24");
    let one = allocate(&c, &claims(&["a", "b"]), &[]);
    let gone = allocate(&c, &claims(&["b"]), &one.allocations);
    let other = allocate(&c, &claims(&["b", "c"]), &gone.allocations);
    assert_ne!(ip_of(&other, "c"), ip_of(&one, "a"), "a's address waits for it");
    let back = allocate(&c, &claims(&["a", "b", "c"]), &other.allocations);
    assert_eq!(ip_of(&back, "a"), ip_of(&one, "a"));
}

#[test]
fn a_small_subnet_survives_any_number_of_distinct_pod_names() {
    let c = cidr("10.0.1.0/28");
    let mut before = Vec::new();
    for i in 0..200 {
        let key = format!("pod-{i}");
        let a = allocate(&c, &claims(&[&key]), &before);
        assert_eq!(a.unserved, Vec::<String>::new(), "pod {i}");
        before = a.allocations;
    }
    assert_eq!(before.len(), 14);
}

#[test]
fn the_longest_gone_gives_way_first() {
    let c = cidr("10.0.1.0/29");
    let mut a = allocate(&c, &claims(&["a", "b", "c", "d", "e", "f"]), &[]);
    a = allocate(&c, &claims(&["a", "c", "d", "e", "f"]), &a.allocations);
    a = allocate(&c, &claims(&["c", "d", "e", "f"]), &a.allocations);
    let b_had = ip_of(&a, "b").to_owned();
    a = allocate(&c, &claims(&["c", "d", "e", "f", "new"]), &a.allocations);
    assert_eq!(ip_of(&a, "new"), b_had);
    assert!(a.allocations.iter().any(|e| e.pod == "a"));
}

#[test]
fn at_most_128_stale_entries_are_kept() {
    let c = cidr("10.0.0.0/16");
    let keys: Vec<String> = (0..300).map(|i| format!("p{i:03}")).collect();
    let refs: Vec<&str> = keys.iter().map(String::as_str).collect();
    let a = allocate(&c, &claims(&refs), &[]);
    let a = allocate(&c, &[], &a.allocations);
    assert_eq!(a.allocations.len(), STALE_MAX);
    assert_eq!(a.allocations.last().unwrap().pod, "p299");
}

#[test]
fn addresses_outside_a_changed_subnet_are_given_anew() {
    let a = allocate(&cidr("10.0.1.0/24"), &claims(&["a", "b"]), &[]);
    let a = allocate(&cidr("10.0.1.0/24"), &claims(&["a"]), &a.allocations);
    let a = allocate(&cidr("10.9.0.0/24"), &claims(&["a"]), &a.allocations);
    assert_eq!(a.allocations.len(), 1, "the stale one is dropped");
    assert_eq!(ip_of(&a, "a"), "10.9.0.1");
}

#[test]
fn two_pods_of_one_key_are_one() {
    let a = allocate(&cidr("10.0.1.0/24"), &claims(&["a", "a"]), &[]);
    assert_eq!(a.allocations.len(), 1);
}

#[test]
fn job_and_task_are_filled_and_kept() {
    let claim = Claim { key: "a".into(), job: "j".into(), task: "t".into() };
    let a = allocate(&cidr("10.0.1.0/24"), &[claim], &[]);
    assert_eq!((a.allocations[0].job.as_str(), a.allocations[0].task.as_str()), ("j", "t"));
    let a = allocate(&cidr("10.0.1.0/24"), &claims(&["a"]), &a.allocations);
    assert_eq!(a.allocations[0].job, "j");
}

#[test]
fn a_domain_with_both_families_gives_one_of_each_whatever_the_other_lacks() {
    let both = cidr("fd00:1::/64,10.0.1.0/30");
    let a = allocate(&both, &claims(&["a", "b"]), &[]);
    assert_eq!(a.by_key()["a"], ["fd00:1::1", "10.0.1.1"], "in the order of the subnets");
    let more = allocate(&both, &claims(&["a", "b", "c"]), &a.allocations);
    assert_eq!(
        (more.by_key()["c"].as_slice(), more.unserved.as_slice()),
        (["fd00:1::3"].as_slice(), ["c".to_owned()].as_slice())
    );
    let back = allocate(&both, &claims(&["c", "b"]), &more.allocations);
    assert_eq!(back.by_key()["c"], ["fd00:1::3", "10.0.1.1"], "a's, which is gone");
    // An edit from one subnet to two leaves the addresses that were given.
    let one = allocate(&cidr("10.0.1.0/24"), &claims(&["a", "b"]), &[]);
    let two = allocate(&cidr("10.0.1.0/24,fd00::/64"), &claims(&["a", "b"]), &one.allocations);
    assert_eq!(two.by_key()["b"], ["10.0.1.2", "fd00::2"]);
    let again = allocate(&cidr("fd00::/64"), &claims(&["a", "b"]), &two.allocations);
    assert_eq!(again.by_key()["b"], ["fd00::2"]);
}

#[test]
fn a_subnet_of_any_size_takes_no_longer() {
    for huge in ["fd00::/8", "2000::/3", "fd00::/64"] {
        let keys: Vec<String> = (0..1000).map(|i| format!("p{i:04}")).collect();
        let refs: Vec<&str> = keys.iter().map(String::as_str).collect();
        let a = allocate(&cidr(huge), &claims(&refs), &[]);
        assert_eq!((a.allocations.len(), a.unserved.len()), (1000, 0));
        assert_eq!(allocate(&cidr(huge), &claims(&refs), &a.allocations), a);
    }
}

proptest! {
    #[test]
    fn live_pods_never_share_an_address_and_never_lose_one(
        prefix in 24_u8..=30,
        rounds in prop::collection::vec(prop::collection::btree_set(0_u8..40, 0..20), 1..20),
    ) {
        let c = cidr(&format!("10.1.2.0/{prefix}"));
        let room = (1_usize << (32 - prefix)) - 2;
        let mut before: Vec<IpAllocation> = Vec::new();
        let mut had: Vec<(String, String)> = Vec::new();
        for round in rounds {
            let keys: Vec<String> = round.iter().map(|n| format!("p{n}")).collect();
            let refs: Vec<&str> = keys.iter().map(String::as_str).collect();
            let a = allocate(&c, &claims(&refs), &before);
            let mut ips: Vec<&str> = a.allocations.iter().map(|e| e.ip.as_str()).collect();
            ips.sort_unstable();
            let n = ips.len();
            ips.dedup();
            prop_assert_eq!(ips.len(), n);
            prop_assert_eq!(a.unserved.len(), keys.len().saturating_sub(room));
            for (key, ip) in &had {
                if keys.contains(key) {
                    prop_assert_eq!(ip_of(&a, key), ip.as_str());
                }
            }
            let again = allocate(&c, &claims(&refs), &a.allocations);
            prop_assert_eq!(&again, &a, "a second pass changes nothing");
            had = keys.iter().filter(|k| !a.unserved.contains(k))
                .map(|k| (k.clone(), ip_of(&a, k).to_owned())).collect();
            before = a.allocations;
        }
    }
}
