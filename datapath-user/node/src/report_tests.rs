use futures::channel::mpsc;

use super::*;
use crate::{deliver::tests::view, kernel::fake::Fake};

fn tcp(at: &str) -> Socket {
    Socket { cookie: 77, udp: false, at: at.parse().unwrap() }
}

fn ports(tcp: &[u16], udp: &[u16]) -> Ports {
    Ports { tcp: tcp.to_vec(), udp_vip: udp.to_vec(), ..Ports::default() }
}

#[test]
fn what_peers_can_reach_is_told_and_nothing_else() {
    let view = view();
    let sockets = [
        tcp("[::]:80"),
        tcp("0.0.0.0:80"),
        tcp("10.2.0.1:81"),
        tcp("127.0.0.1:82"),
        tcp("[::1]:83"),
        tcp("10.2.0.9:84"),
        Socket { cookie: 78, ..tcp("[::]:85") },
        Socket { udp: true, ..tcp("[::]:53") },
    ];
    let open = open(view.pods.values().map(Arc::as_ref), &sockets.into());
    let key = ("d".parse().unwrap(), "here".to_owned());
    assert_eq!(open, Open::from([(key, ports(&[80, 81], &[53]))]));
}

#[test]
fn a_listener_is_told_to_the_families_that_reach_it() {
    let mut view = view();
    let pod = Arc::make_mut(view.pods.get_mut("here").unwrap());
    pod.join.pod.faces.push(Face {
        cidr: "fd00:2::/64".parse().unwrap(),
        vip: "fd00:2::1".parse().unwrap(),
        real: Some("fd72::1".parse().unwrap()),
    });
    let sockets = [
        tcp("[::]:80"),
        tcp("0.0.0.0:81"),
        tcp("10.2.0.1:82"),
        tcp("[fd00:2::1]:83"),
        tcp("[fd72::1]:84"),
        tcp("[::ffff:10.2.0.1]:85"),
        Socket { at: (ANY_V6_ONLY, 86).into(), ..tcp("[::]:0") },
    ];
    let open = open(view.pods.values().map(Arc::as_ref), &sockets.into());
    let told = open.values().next().unwrap();
    assert_eq!(told.tcp, [80, 81, 82, 85]);
    assert_eq!(told.tcp6, [80, 83, 84, 86]);
}

#[test]
fn peers_are_told_of_an_address_what_all_its_sockets_together_make_of_it() {
    let (view, domain) = (view(), "d".parse::<DomainName>().unwrap());
    let other = Socket { cookie: 78, ..tcp("[::]:83") };
    let open = [tcp("0.0.0.0:80"), tcp("10.2.0.1:81"), tcp("127.0.0.1:82"), other];
    let of = |sockets: &[Socket]| turned(&view, sockets, |s| open.contains(s));
    let at = |vip: &str, open| vec![(domain.clone(), vip.parse().unwrap(), open)];
    assert_eq!(of(&[tcp("0.0.0.0:80")]), at("10.2.0.1:80", true));
    assert_eq!(of(&[tcp("[::]:80"), tcp("0.0.0.0:80")]), at("10.2.0.1:80", true), "one has ended");
    assert_eq!(of(&[tcp("[::]:81")]), at("10.2.0.1:81", true), "another is at the VIP");
    assert_eq!(of(&[tcp("[::]:84")]), at("10.2.0.1:84", false));
    assert_eq!(of(&[tcp("127.0.0.1:82"), other]), []);
}

#[test]
fn only_what_changed_is_told_after_the_snapshot() {
    let key = |uid: &str| ("d".parse::<DomainName>().unwrap(), uid.to_owned());
    let old = Open::from([(key("a"), ports(&[1], &[])), (key("b"), ports(&[2], &[]))]);
    let new = Open::from([(key("b"), ports(&[2], &[])), (key("c"), ports(&[], &[3]))]);
    let first = updates(None, &old, false);
    assert!(matches!(&*first, [NodeUpdate::Snapshot { pods, .. }] if pods.len() == 2));
    let got = updates(Some(&old), &new, false);
    assert!(matches!(&got[0], NodeUpdate::PodGone { uid, .. } if uid == "a"));
    assert!(matches!(&got[1], NodeUpdate::Pod { pod } if pod.uid == "c"));
    assert_eq!(got.len(), 2);
    assert!(updates(Some(&new), &new, false).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_report_begins_with_all_goes_on_with_changes_and_never_falls_silent() {
    let (publish, open) = watch::channel(Arc::new(Open::new()));
    let mut lines = std::pin::pin!(lines(open, false));
    let mut next = async || {
        let line = lines.next().await.unwrap().unwrap();
        serde_json::from_slice::<NodeUpdate>(line.trim_ascii_end()).unwrap()
    };
    assert!(matches!(next().await, NodeUpdate::Snapshot { relayed_only: false, .. }));
    assert_eq!(next().await, NodeUpdate::KeepAlive);
    let key = ("d".parse().unwrap(), "u".to_owned());
    publish.send_replace(Arc::new(Open::from([(key, ports(&[80], &[]))])));
    assert!(matches!(next().await, NodeUpdate::Pod { pod } if pod.ports.tcp == [80]));
}

/// Nothing is said of ports, so nobody is refused; that the node lives and has no hooks is.
#[tokio::test(start_paused = true)]
async fn without_hooks_the_report_goes_on_and_says_so() {
    let kernel = Arc::new(Fake::default());
    kernel.state.lock().unwrap().sockets = [tcp("[::]:80")].into();
    let (keeper, _inbox) = Keeper::new("s1/n1".parse().unwrap());
    let (keeper, _views) = keeper.with_view(view());
    let (publish, open) = watch::channel(Arc::default());
    let _work = tokio::spawn(follow(kernel, keeper, publish, || ()));
    let mut lines = std::pin::pin!(lines(open, true));
    let mut next = async || {
        let line = lines.next().await.unwrap().unwrap();
        serde_json::from_slice::<NodeUpdate>(line.trim_ascii_end()).unwrap()
    };
    let first = NodeUpdate::Snapshot { pods: vec![], relayed_only: true };
    assert_eq!(next().await, first);
    for _ in 0..3 {
        assert_eq!(next().await, NodeUpdate::KeepAlive);
    }
}

#[tokio::test]
async fn a_socket_that_comes_or_goes_is_published_at_once() {
    let (events, changes) = mpsc::unbounded();
    let kernel = Arc::new(Fake::default());
    kernel.state.lock().unwrap().changes = Some(changes);
    let (keeper, _inbox) = Keeper::new("s1/n1".parse().unwrap());
    let (keeper, _views) = keeper.with_view(view());
    let (publish, mut open) = watch::channel(Arc::default());
    let (told, tells) = std::sync::mpsc::channel();
    let tell = move || told.send(()).unwrap();
    let work = tokio::spawn(follow(Arc::<Fake>::clone(&kernel) as _, keeper, publish, tell));
    open.changed().await.unwrap();
    assert!(open.borrow_and_update().values().all(|p| *p == Ports::default()));
    let socket = tcp("[::]:8080");
    kernel.state.lock().unwrap().sockets.insert(socket);
    events.unbounded_send(Changed::Socket(socket)).unwrap();
    open.changed().await.unwrap();
    assert!(open.borrow_and_update().values().all(|p| p.tcp == [8080]));
    tells.try_recv().unwrap();
    kernel.state.lock().unwrap().sockets.clear();
    events.unbounded_send(Changed::All).unwrap();
    open.changed().await.unwrap();
    assert!(open.borrow_and_update().values().all(|p| p.tcp.is_empty()));
    work.abort();
}
