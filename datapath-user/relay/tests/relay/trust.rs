//! Who is not who he says gets nothing.

use std::{
    borrow::Cow,
    io::{ErrorKind, Read, Write},
    sync::Arc,
    time::Duration,
};

use datapath_relay::{DomainIdentity, Lane, Path, Reason, RelayError};
use russh::{
    Preferred, cipher, client,
    keys::{Algorithm, Certificate, PrivateKey, PublicKeyOrCertificate},
};

use crate::pair::{
    Pair, VIP_A, VIP_B, certify, domain, echo_server, eventually, failed, identity, new_key, node,
};

fn pair_with(a: impl Fn(&Pair) -> DomainIdentity, b: impl Fn(&Pair) -> DomainIdentity) -> Pair {
    let p = Pair::strangers(|c| c.open_timeout = Duration::from_millis(700));
    p.a.set_identity(&domain(), a(&p)).unwrap();
    p.b.set_identity(&domain(), b(&p)).unwrap();
    p
}

fn nothing_crosses(p: &Pair) {
    let mut s = p.connect(echo_server());
    drop(s.write_all(b"x"));
    assert_eq!(s.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(failed(&p.a.counters(), Reason::Timeout), 1);
    let (a, b) = (p.a.counters(), p.b.counters());
    assert!(a.peers_refused + b.peers_refused > 0);
    assert_eq!((a.carriers_up, b.carriers_up, b.flows_accepted), (0, 0, 0));
}

#[test]
fn a_server_of_another_authority_is_refused() {
    nothing_crosses(&pair_with(|p| identity(&p.ca, "east/a"), |_| identity(&new_key(), "west/b")));
}

/// Dials `p.a` as node `west/b` with this certificate, by a client that trusts anybody.
fn is_admitted(p: &Pair, key: PrivateKey, certificate: Certificate) -> bool {
    let (here, there) = crate::pair::tcp_pair().unwrap();
    p.a.accept(&domain(), &node("west/b"), Lane::Interactive, Path::hub(here)).unwrap();
    there.set_nonblocking(true).unwrap();
    let only: Cow<'static, [Algorithm]> = Cow::Owned(vec![Algorithm::Ed25519]);
    let preferred = Preferred {
        key: only.clone(),
        host_key_certificates: only,
        cipher: Cow::Owned(vec![cipher::AES_128_GCM]),
        ..Preferred::default()
    };
    let config = Arc::new(client::Config { preferred, ..Default::default() });
    let work = async {
        let tcp = tokio::net::TcpStream::from_std(there).unwrap();
        let mut session = client::connect_stream(config, tcp, Credulous).await.unwrap();
        let user = format!("{}:interactive", domain());
        session.authenticate_openssh_cert(user, Arc::new(key), certificate).await.unwrap().success()
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

struct Credulous;
impl client::Handler for Credulous {
    type Error = russh::Error;
    async fn check_server_key(&mut self, _: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        Ok(true)
    }
}

#[test]
fn a_client_of_another_authority_is_refused() {
    let p = Pair::new();
    let (forger, key) = (new_key(), new_key());
    // All else is right: name, principal, times, and the key is its own.
    let forged = certify(&forger, &key, "west/b", (-60, 3600));
    assert!(!is_admitted(&p, key.clone(), forged));
    eventually("counted", || p.a.counters().peers_refused == 1);
    assert_eq!(p.a.counters().carriers_up, 0);
    let signed = certify(&p.ca, &key, "west/b", (-60, 3600));
    assert!(is_admitted(&p, key, signed), "the authority is all that was wrong");
}

#[test]
fn a_node_cannot_take_an_identity_of_another_authority() {
    let p = Pair::strangers(|_| {});
    let (forger, key) = (new_key(), new_key());
    let certificate = certify(&forger, &key, "east/a", (-60, 3600));
    let forged = DomainIdentity { key, certificate, ca: p.ca.public_key().clone() };
    let e = p.a.set_identity(&domain(), forged);
    assert!(matches!(e, Err(RelayError::BadIdentity { .. })));
}

#[test]
fn an_expired_certificate_is_refused() {
    nothing_crosses(&pair_with(
        |p| {
            let key = new_key();
            let certificate = certify(&p.ca, &key, "east/a", (-7200, -3600));
            DomainIdentity { key, certificate, ca: p.ca.public_key().clone() }
        },
        |p| identity(&p.ca, "west/b"),
    ));
}

#[test]
fn a_node_cannot_take_an_identity_for_another_name() {
    let p = Pair::strangers(|_| {});
    let e = p.a.set_identity(&domain(), identity(&p.ca, "east/other"));
    assert!(matches!(e, Err(RelayError::BadIdentity { .. })));
}

#[test]
fn a_true_node_that_is_not_the_expected_one_is_refused() {
    // B has a good certificate, but A is told that the connection is from somebody else.
    let p = Pair::new();
    let (here, there) = crate::pair::tcp_pair().unwrap();
    p.a.accept(&domain(), &node("west/c"), Lane::Interactive, Path::hub(here)).unwrap();
    let way = there;
    // The dialling side is B's own SSH client: have it dial through the wrong socket.
    let q = OneWay::new(way);
    let b =
        datapath_relay::Relay::new(crate::pair::config("west/b"), Arc::new(Nobody), Arc::new(q))
            .unwrap();
    b.set_identity(&domain(), identity(&p.ca, "west/b")).unwrap();
    b.warm(&domain(), &node("east/a"));
    eventually("A refused", || p.a.counters().peers_refused == 1);
    assert_eq!(p.a.counters().carriers_up, 0);
}

struct Nobody;
impl datapath_relay::Deliver for Nobody {
    fn deliver<'a>(
        &'a self,
        _: &'a control_api::ids::DomainName,
        _: &'a control_api::ids::NodeRef,
        _: std::net::SocketAddr,
        _: std::net::SocketAddr,
    ) -> datapath_relay::BoxFuture<'a, Result<std::net::TcpStream, Reason>> {
        Box::pin(async { Err(Reason::NotHere) })
    }
}

struct OneWay(std::sync::Mutex<Option<std::net::TcpStream>>);
impl OneWay {
    fn new(s: std::net::TcpStream) -> Self {
        Self(std::sync::Mutex::new(Some(s)))
    }
}
impl datapath_relay::Paths for OneWay {
    fn dial<'a>(
        &'a self,
        _: &'a control_api::ids::DomainName,
        _: &'a control_api::ids::NodeRef,
        _: Lane,
    ) -> datapath_relay::BoxFuture<'a, std::io::Result<Path>> {
        let s = self.0.lock().unwrap().take();
        Box::pin(async { s.map(Path::hub).ok_or_else(|| ErrorKind::NotConnected.into()) })
    }
}

#[test]
fn a_forged_source_is_refused_counted_and_disturbs_nobody() {
    let p = Pair::new();
    let port = echo_server();
    let mut good = p.connect(port);
    good.write_all(b"x").unwrap();
    good.read_exact(&mut [0]).unwrap();
    let mut bad = p.connect_from(([10, 90, 0, 77], 40_000).into(), (VIP_B, port).into());
    assert_eq!(bad.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(failed(&p.b.counters(), Reason::SourceForged), 1);
    let mut gone = p.connect_from((VIP_A, 40_000).into(), ([10, 90, 0, 99], port).into());
    assert_eq!(gone.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(failed(&p.b.counters(), Reason::NotHere), 1);
    good.write_all(b"y").unwrap();
    good.read_exact(&mut [0]).unwrap();
}

#[test]
fn without_an_identity_nothing_is_opened_or_accepted() {
    let p = Pair::strangers(|_| {});
    let mut s = p.connect(1);
    assert_eq!(s.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(failed(&p.a.counters(), Reason::Denied), 1);
}

#[test]
fn a_dropped_peer_loses_its_flows_at_once_on_both_ends() {
    let p = Pair::new();
    let mut s = p.connect(echo_server());
    s.write_all(b"x").unwrap();
    s.read_exact(&mut [0]).unwrap();
    p.b.drop_peer(&domain(), &node("east/a"));
    assert_eq!(s.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    eventually("both forgot", || p.a.counters().flows_now == 0 && p.b.counters().flows_now == 0);
    assert_eq!(failed(&p.a.counters(), Reason::PeerGone), 1);
    eventually("A lost the carrier", || p.a.counters().carriers_lost == 1);
    // And may come back.
    let mut s = p.connect(echo_server());
    s.write_all(b"x").unwrap();
    s.read_exact(&mut [0]).unwrap();
}

#[test]
fn a_renewed_identity_keeps_carriers_and_a_new_authority_ends_them() {
    let p = Pair::new();
    let mut s = p.connect(echo_server());
    s.write_all(b"x").unwrap();
    s.read_exact(&mut [0]).unwrap();
    p.a.set_identity(&domain(), identity(&p.ca, "east/a")).unwrap();
    s.write_all(b"y").unwrap();
    s.read_exact(&mut [0]).unwrap();
    assert_eq!(p.a.counters().carriers_lost, 0);
    p.a.set_identity(&domain(), identity(&new_key(), "east/a")).unwrap();
    eventually("cut", || p.a.counters().carriers_lost == 1 && p.b.counters().carriers_lost == 1);
}
