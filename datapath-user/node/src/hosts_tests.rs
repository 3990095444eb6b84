use control_api::session::RouteUpdate;
use proptest::prelude::*;

use super::*;
use crate::plan::table::{
    RouteTable,
    tests::{domain, member},
};

fn named(uid: &str, vip: &str, node: &str, pod: &str) -> Member {
    Member { pod: pod.into(), ..member(uid, vip, node, None) }
}

fn section_of(members: Vec<Member>, own: &str) -> String {
    let mut table = RouteTable::default();
    let d = domain("demo", "10.2.0.0/24", members);
    let name = d.name.clone();
    table.apply(RouteUpdate::Snapshot { domains: vec![d] }).unwrap();
    let d = table.domain(&name).unwrap();
    section(d, d.member(own).unwrap())
}

#[test]
fn every_peer_and_the_pod_itself_have_both_names() {
    let text = section_of(
        vec![
            named("b", "10.2.0.10", "s2/n1", "worker-0"),
            named("a", "10.2.0.2", "s1/n1", "actor-0"),
        ],
        "a",
    );
    assert_eq!(
        text,
        "10.2.0.2 actor-0.rlark-domain actor-0.s1.demo.rlark actor-0\n\
         10.2.0.10 worker-0.rlark-domain worker-0.s2.demo.rlark worker-0\n"
    );
}

#[test]
fn a_short_name_in_two_sites_goes_to_the_own_site_and_else_to_nobody() {
    let members = vec![
        named("a", "10.2.0.1", "s1/n1", "ray-head"),
        named("b", "10.2.0.2", "s2/n1", "ray-head"),
        named("c", "10.2.0.3", "s2/n1", "other"),
        named("d", "10.2.0.4", "s3/n1", "third"),
    ];
    let from_s2 = section_of(members.clone(), "c");
    assert!(from_s2.contains("10.2.0.1 ray-head.s1.demo.rlark\n"));
    assert!(from_s2.contains("10.2.0.2 ray-head.rlark-domain ray-head.s2.demo.rlark\n"));
    let from_s3 = section_of(members, "d");
    assert!(!from_s3.contains("ray-head.rlark-domain"));
    assert!(from_s3.contains("10.2.0.2 ray-head.s2.demo.rlark\n"));
}

#[test]
fn a_pod_keeps_its_own_names_while_its_predecessor_fades() {
    let members = vec![
        named("old", "10.2.0.1", "s1/n1", "actor-0"),
        named("new", "10.2.0.2", "s1/n1", "actor-0"),
        named("peer", "10.2.0.3", "s1/n1", "peer"),
    ];
    let own = section_of(members.clone(), "new");
    assert!(own.contains("10.2.0.2 actor-0.rlark-domain actor-0.s1.demo.rlark actor-0\n"));
    assert!(!own.contains("10.2.0.1"));
    let peer = section_of(members, "peer");
    assert!(!peer.contains("actor-0"), "{peer}");
}

#[test]
fn no_peer_is_called_like_something_else() {
    let names = ["localhost", "db", "github.com", "-1", "a-", "node.example-1", "worker-12"];
    let mut members = vec![named("own", "10.2.0.1", "s1/n1", "me")];
    members.extend(names.iter().map(|name| named(name, "10.2.0.2", "s2/n1", name)));
    let text = section_of(members, "own");
    let bare: Vec<&str> = text.lines().filter_map(|l| l.rsplit(' ').next()).collect();
    let bare: Vec<&str> = bare.into_iter().filter(|n| !n.ends_with(LONG)).collect();
    assert_eq!(bare, ["me", "worker-12"], "{text}");
}

#[test]
fn a_pod_name_cannot_smuggle_in_a_line() {
    let text = section_of(
        vec![
            named("a", "10.2.0.1", "s1/n1", "a"),
            named("b", "10.2.0.2", "s2/n1", "x\n6.6.6.6 bank"),
        ],
        "a",
    );
    assert_eq!(text.lines().count(), 1);
}

#[test]
fn the_section_is_replaced_and_removed_without_touching_the_rest() {
    let first = merge(b"127.0.0.1 localhost", Some("10.2.0.1 a.rlark-domain\n"));
    assert_eq!(
        String::from_utf8(first.clone()).unwrap(),
        "127.0.0.1 localhost\n# BEGIN rlark domain\n10.2.0.1 a.rlark-domain\n# END rlark domain\n"
    );
    let mut followed = first;
    followed.extend_from_slice(b"1.1.1.1 mine\n");
    let second = merge(&followed, Some("10.2.0.9 z.rlark-domain\n"));
    let text = String::from_utf8(second.clone()).unwrap();
    assert!(!text.contains("10.2.0.1 ") && text.contains("10.2.0.9") && text.contains("mine"));
    assert_eq!(merge(&second, None), b"127.0.0.1 localhost\n1.1.1.1 mine\n");
}

#[test]
fn a_lost_end_marker_costs_no_foreign_line() {
    let cut = b"# BEGIN rlark domain\n10.2.0.1 a.rlark-domain a.s.d.rlark\n1.1.1.1 mine\n2.2.2.2 b.rlark-domain\n";
    assert_eq!(merge(cut, None), b"1.1.1.1 mine\n2.2.2.2 b.rlark-domain\n");
    let twice = b"# BEGIN rlark domain\n1.1.1.1 mine\n# BEGIN rlark domain\n# END rlark domain\n3.3.3.3 c\n";
    assert_eq!(merge(twice, None), b"1.1.1.1 mine\n3.3.3.3 c\n");
}

#[test]
fn the_file_keeps_its_inode_and_shrinks_clean() {
    use std::os::unix::fs::MetadataExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hosts");
    std::fs::write(&path, "127.0.0.1 localhost\n").unwrap();
    let inode = std::fs::metadata(&path).unwrap().ino();
    update(&path, Some("10.2.0.1 a.rlark-domain\n10.2.0.2 b.rlark-domain\n")).unwrap();
    update(&path, Some("10.2.0.1 a.rlark-domain\n")).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(resolves(&text, "a.rlark-domain", "10.2.0.1".parse().unwrap()));
    assert!(!text.contains("b.rlark-domain") && text.ends_with("# END rlark domain\n"));
    update(&path, None).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "127.0.0.1 localhost\n");
    assert_eq!(std::fs::metadata(&path).unwrap().ino(), inode);
}

#[test]
fn a_directory_is_no_hosts_file() {
    let dir = tempfile::tempdir().unwrap();
    assert!(update(dir.path(), None).is_err());
}

proptest! {
    #[test]
    fn foreign_lines_survive_whatever_state_the_markers_are_in(
        lines in prop::collection::vec(
            prop_oneof![
                Just(BEGIN), Just(END), Just("1.2.3.4 mine"), Just("# comment"),
                Just("10.2.0.1 a.rlark-domain"), Just("")
            ], 0..12)
    ) {
        // Foreign lines between a complete pair of markers are inside our section, so only those
        // that stand outside of every pair are counted.
        let text = lines.join("\n");
        let once = merge(text.as_bytes(), Some("10.2.0.2 b.rlark-domain\n"));
        prop_assert_eq!(&merge(&once, Some("10.2.0.2 b.rlark-domain\n")), &once);
        if !lines.contains(&END) {
            let kept = String::from_utf8(merge(text.as_bytes(), None)).unwrap();
            let count = |t: &str| t.lines().filter(|l| *l == "1.2.3.4 mine").count();
            prop_assert_eq!(count(&kept), count(&text));
        }
    }
}
