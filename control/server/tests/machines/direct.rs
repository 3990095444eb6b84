//! Carriers past the hub: who is told which addresses and tickets, and of whose removal.

use control_api::direct::DirectOffer;

use super::*;

fn ask(peer: &str) -> CarrierRequest {
    CarrierRequest {
        domain: "d".parse().unwrap(),
        peer: peer.parse().unwrap(),
        lane: Lane::Interactive,
    }
}

async fn offer(from: &Connected, peer: &str) -> Result<DirectOffer, CallError> {
    from.identity.http_client().post(hub::DIRECT, &ask(peer)).await
}

async fn expected(by: &mut Connected) -> ExpectRequest {
    timeout(PATIENCE, by.expected.recv()).await.unwrap().unwrap()
}

/// Two nodes with a pod each in one Domain, and a third without.
async fn three(lab: &Lab) -> [Connected; 3] {
    let mut all = [
        connect(lab.node("site-a", "n1").await),
        connect(lab.node("site-b", "n1").await),
        connect(lab.node("site-c", "n1").await),
    ];
    let domains: Api<Domain> = Api::all(lab.client.clone());
    let spec = DomainSpec { cidr: "10.0.1.0/24".to_owned(), ..DomainSpec::default() };
    domains.create(&PostParams::default(), &Domain::new("d", spec)).await.unwrap();
    place(lab, "site-a", "u1", "actor-0").await;
    place(lab, "site-b", "u2", "rollout-0").await;
    for node in &mut all[..2] {
        node.knows_two_members().await;
    }
    all
}

#[tokio::test]
async fn both_ends_of_a_direct_attempt_get_one_ticket_and_each_others_addresses() {
    let lab = Lab::start().await;
    let [mut a, mut b, c] = three(&lab).await;
    let nobody = offer(&a, "site-b/n1").await.unwrap_err();
    assert_eq!(nobody.reason(), Some("no-direct-address"), "neither listens");

    let good: SocketAddr = "192.0.2.9:7400".parse().unwrap();
    let bad = ["127.0.0.1:7400", "169.254.169.254:7400", "192.0.2.9:22"];
    let addresses = bad.iter().map(|a| a.parse().unwrap()).chain([good]).collect();
    b.says.send(NodeUpdate::Direct { addresses, port: None }).await.unwrap();
    let got = async {
        loop {
            match offer(&a, "site-b/n1").await {
                Ok(offer) => return offer,
                Err(e) => assert_eq!(e.reason(), Some("no-direct-address")),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let got = timeout(PATIENCE, got).await.unwrap();
    assert_eq!(got.addresses, [good], "what no peer can be sent to is left out");
    let told = expected(&mut b).await;
    assert_eq!((told.peer.to_string().as_str(), told.lane), ("site-a/n1", Lane::Interactive));
    assert_eq!((told.offer.ticket, told.offer.addresses), (got.ticket.clone(), vec![]));

    // The one who listens asks: there is nothing for it to dial, but the other learns where it is.
    let e = offer(&b, "site-a/n1").await.unwrap_err();
    assert_eq!(e.reason(), Some("no-direct-address"));
    assert_eq!(expected(&mut a).await.offer.addresses, [good]);

    // With a ticket for the relay comes the offer, so that both ways can be tried side by side.
    let ticket: CarrierTicket =
        a.identity.http_client().post(hub::CARRIERS, &ask("site-b/n1")).await.unwrap();
    let dial = timeout(PATIENCE, b.dials.recv()).await.unwrap().unwrap();
    let (mine, theirs) = (ticket.direct.unwrap(), dial.ticket.direct.unwrap());
    assert_eq!((&mine.ticket, &mine.addresses[..]), (&theirs.ticket, &[good][..]));
    assert_ne!(mine.ticket, ticket.ticket, "what crosses in the clear opens nothing at the hub");
    assert!(try_relay(lab.relay, &mine.ticket).await.is_err());
    let ticket: CarrierTicket =
        b.identity.http_client().post(hub::CARRIERS, &ask("site-a/n1")).await.unwrap();
    assert_eq!(ticket.direct, None);
    let dial = timeout(PATIENCE, a.dials.recv()).await.unwrap().unwrap();
    assert_eq!(dial.ticket.direct.unwrap().addresses, [good]);

    let stranger = offer(&c, "site-b/n1").await.unwrap_err();
    assert_eq!(stranger.reason(), Some("not-a-host"));
    b.stop.cancel();
    let gone = async {
        while offer(&a, "site-b/n1").await.unwrap_err().reason() != Some("no-direct-address") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, gone).await.expect("what was said in a session goes with it");
    for node in [&a, &c] {
        node.stop.cancel();
    }
    lab.stop().await;
}

#[tokio::test]
async fn nodes_learn_at_once_that_the_machine_of_a_peer_was_removed_or_replaced() {
    let lab = Lab::start().await;
    let [mut a, b, c] = three(&lab).await;
    let peer = |told: RouteUpdate| match told {
        RouteUpdate::Peers { peers } => {
            peers.into_iter().map(|p| (p.node.to_string(), Some(p.machine))).collect()
        }
        RouteUpdate::Peer { node, machine } => vec![(node.to_string(), machine)],
        other => panic!("unexpected {other:?}"),
    };
    let mut first = None;
    while first.is_none() {
        let told = timeout(PATIENCE, a.peers.recv()).await.unwrap().unwrap();
        let told: Vec<_> = peer(told);
        assert!(told.iter().all(|(node, _)| node == "site-b/n1"), "of its Domain alone: {told:?}");
        first = told.into_iter().next().and_then(|(_, machine)| machine);
    }
    b.identity.renew().await.unwrap();
    let records: Api<ConfigMap> = Api::namespaced(lab.client.clone(), "rlark-system");
    records.delete("machine.node.site-b.n1", &DeleteParams::default()).await.unwrap();
    let told = timeout(removal::AT_ONCE, a.peers.recv()).await.unwrap().unwrap();
    assert_eq!(peer(told), [("site-b/n1".to_owned(), None)], "a renewal was no news");
    let again = lab.machine("again", MachineRole::Node, "n1");
    Identity::open(&again, Some(&lab.token("site-b", 60, 1).await)).await.unwrap();
    let told = timeout(removal::AT_ONCE, a.peers.recv()).await.unwrap().unwrap();
    let [(_, second)] = &peer(told)[..] else { panic!("one line") };
    assert!(second.is_some() && *second != first);
    for node in [&a, &b, &c] {
        node.stop.cancel();
    }
    lab.stop().await;
}
