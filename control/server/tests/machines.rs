//! Machines against a whole server over real TLS on loopback: enrolment and its refusals, sessions,
//! routes, tickets and the relay.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's way to fail; its futures live for one test"
)]

use std::{
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use aws_lc_rs::digest;
use axum::{
    Json, Router,
    body::Body,
    extract::State,
    routing::{get, post},
};
use control_api::{
    direct::ExpectRequest,
    ids::NodeRef,
    session::{
        CarrierRequest, CarrierTicket, DialRequest, DomainCertificateRequest,
        DomainCertificateResponse, EnrollRequest, EnrollResponse, Lane, MachineRole,
        MachineSession, NodeUpdate, RELAY_HELLO, RELAY_PAIRED, RenewRequest, RenewResponse,
        RouteUpdate, TokenRequest, TokenResponse, hub, machine,
    },
    v1alpha1::{Domain, DomainSpec, Pod, PodPhase, PodSpec, PodStatus, Task, TaskSpec},
};
use control_identity::{
    client::{CallError, Client, ServerAddress},
    machine::{EnrolError, Identity, MachineConfig},
    peer::Peer,
    principal::Principal,
    session::{self, SessionState},
    tls,
    token::JoinToken,
};
use futures::StreamExt as _;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use rlark_server::{Config, Server, ServerError};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::{Mutex, mpsc, watch},
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

#[path = "machines/access.rs"]
mod access;
#[path = "machines/direct.rs"]
mod direct;
#[path = "machines/removal.rs"]
mod removal;

const PATIENCE: Duration = Duration::from_secs(20);

/// A running server and what a test needs of it.
struct Lab {
    dir: tempfile::TempDir,
    url: String,
    relay: SocketAddr,
    client: kube::Client,
    admin: Client,
    stop: CancellationToken,
    serving: JoinHandle<Result<(), ServerError>>,
}

fn config(dir: &Path, listen: SocketAddr) -> Config {
    Config {
        data_dir: dir.join("server"),
        listen,
        relay_listen: ([127, 0, 0, 1], 0).into(),
        advertise_address: "127.0.0.1".to_owned(),
        tls_san: Vec::new(),
        metrics_address: None,
        halt_poll_us: 0,
        log: "info".to_owned(),
    }
}

impl Lab {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self::start_in(dir, ([127, 0, 0, 1], 0).into()).await
    }

    async fn start_in(dir: tempfile::TempDir, listen: SocketAddr) -> Self {
        let server = timeout(PATIENCE, unlocked(config(dir.path(), listen))).await.unwrap();
        let url = format!("https://{}", server.address());
        let (relay, client) = (server.relay_address(), server.client());
        let stop = CancellationToken::new();
        let serving = tokio::spawn(server.serve(stop.clone()));
        let admin = admin(&dir.path().join("server"), &url);
        Self { dir, url, relay, client, admin, stop, serving }
    }

    async fn stop(self) -> tempfile::TempDir {
        self.stop.cancel();
        self.serving.await.unwrap().unwrap();
        self.dir
    }

    async fn token(&self, cluster: &str, ttl_seconds: u64, uses: u32) -> JoinToken {
        let request = TokenRequest { cluster: cluster.parse().unwrap(), ttl_seconds, uses };
        let answer: TokenResponse = self.admin.post(hub::TOKENS, &request).await.unwrap();
        answer.token.parse().unwrap()
    }

    fn machine(&self, dir: &str, role: MachineRole, name: &str) -> MachineConfig {
        MachineConfig {
            dir: self.dir.path().join(dir),
            server: ServerAddress::parse(&self.url).unwrap(),
            role,
            name: name.parse().unwrap(),
        }
    }

    async fn node(&self, cluster: &str, name: &str) -> Identity {
        self.enrolled(MachineRole::Node, cluster, name).await
    }

    async fn enrolled(&self, role: MachineRole, cluster: &str, name: &str) -> Identity {
        let config = self.machine(&format!("{cluster}-{name}-{role:?}"), role, name);
        Identity::open(&config, Some(&self.token(cluster, 60, 1).await)).await.unwrap()
    }

    async fn sessions(&self) -> Vec<MachineSession> {
        self.admin.get(hub::SESSIONS).await.unwrap()
    }
}

/// In one process the last users of an earlier server's store (buffers of its clients) end a moment
/// after it; between processes the kernel frees the lock.
async fn unlocked(config: Config) -> Server {
    loop {
        match Server::start(config.clone()).await {
            Err(ServerError::Store(control_store::OpenError::Locked { .. })) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            started => return started.unwrap(),
        }
    }
}

fn admin(data: &Path, url: &str) -> Client {
    let ca = std::fs::read_to_string(data.join("ca.pem")).unwrap();
    let text = std::fs::read_to_string(data.join("admin.kubeconfig")).unwrap();
    let user = kube::config::Kubeconfig::from_yaml(&text).unwrap().auth_infos.remove(0);
    let user = serde_json::to_value(user.auth_info.unwrap()).unwrap();
    let pem = |field: &str| {
        use base64::Engine as _;
        let text = user[field].as_str().unwrap();
        String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text).unwrap()).unwrap()
    };
    let (cert, key) = (pem("client-certificate-data"), pem("client-key-data"));
    let config = tls::client_config(&ca, Some((&cert, &key)), &tls::HTTP_ALPN).unwrap();
    Client::new(ServerAddress::parse(url).unwrap(), "127.0.0.1", config)
}

fn reason(error: EnrolError) -> String {
    match error {
        EnrolError::Call(CallError::Refused { refusal, .. }) => refusal.reason,
        other => panic!("not a refusal: {other:?}"),
    }
}

#[tokio::test]
async fn a_machine_enrols_and_is_what_the_server_says_whatever_its_request_claims() {
    let lab = Lab::start().await;
    let token = lab.token("site-a", 60, 1).await;
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["rlark-server".to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "rlark:admins");
    params.distinguished_name.push(rcgen::DnType::CommonName, "root");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let request = EnrollRequest {
        token: token.reveal(),
        role: MachineRole::Agent,
        name: "n1".parse().unwrap(),
        csr_pem: params.serialize_request(&key).unwrap().pem().unwrap(),
    };
    let pinned = tls::pinned_client_config(token.ca).unwrap();
    let client = Client::new(ServerAddress::parse(&lab.url).unwrap(), "rlark-server", pinned);
    let answer: EnrollResponse = client.post(hub::ENROLL, &request).await.unwrap();
    let der = CertificateDer::from_pem_slice(answer.certificate_pem.as_bytes()).unwrap();
    let peer = Peer::parse(&der).unwrap();
    assert_eq!(peer.principal, Principal::Agent("site-a/n1".parse().unwrap()));
    let has = |text: &[u8]| der.as_ref().windows(text.len()).any(|w| w == text);
    assert!(!has(b"rlark:admins") && !has(b"rlark-server"));
    // No BasicConstraints at all (2.5.29.19): the certificate signs nothing.
    assert!(!has(&[0x55, 0x1d, 0x13]));
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(lab.client.clone());
    assert!(namespaces.get_opt("rlark-site-a").await.unwrap().is_some());
    lab.stop().await;
}

#[tokio::test]
async fn tokens_and_names_are_refused_for_their_own_reasons() {
    let lab = Lab::start().await;
    let token = lab.token("site-a", 60, 1).await;
    let config = lab.machine("d1", MachineRole::Node, "n1");
    let first = Identity::open(&config, Some(&token)).await.unwrap();
    // Loading needs no token and no server.
    assert_eq!(Identity::load(&config).unwrap().machine(), first.machine());

    let other = lab.machine("d2", MachineRole::Node, "n2");
    assert_eq!(reason(Identity::open(&other, Some(&token)).await.unwrap_err()), "token-used-up");

    let fresh = lab.token("site-a", 60, 1).await;
    let same_name = lab.machine("d3", MachineRole::Node, "n1");
    let error = Identity::open(&same_name, Some(&fresh)).await.unwrap_err();
    assert!(error.to_string().contains("site-a/n1"), "{error}");
    assert_eq!(reason(error), "name-taken");
    // The refusal has not used the token up; another role is another machine.
    let agent = lab.machine("d4", MachineRole::Agent, "n1");
    Identity::open(&agent, Some(&fresh)).await.unwrap();

    let short = lab.token("site-a", 1, 1).await;
    let until = SystemTime::now() + Duration::from_millis(1100);
    tokio::time::sleep(until.duration_since(SystemTime::now()).unwrap()).await;
    let late = lab.machine("d5", MachineRole::Node, "n5");
    assert_eq!(reason(Identity::open(&late, Some(&short)).await.unwrap_err()), "token-expired");

    let text = lab.token("site-a", 60, 1).await.reveal();
    let moved: JoinToken = text.replace("site-a", "site-b").parse().unwrap();
    assert_eq!(
        reason(Identity::open(&late, Some(&moved)).await.unwrap_err()),
        "token-wrong-cluster"
    );

    // Without an answer the same machine repeats its request with the same key and used-up token.
    std::fs::remove_file(config.dir.join("cert.pem")).unwrap();
    Identity::open(&config, Some(&token)).await.unwrap();
    lab.stop().await;
}

#[tokio::test]
async fn a_server_of_another_authority_gets_no_secret() {
    let lab = Lab::start().await;
    let text = lab.token("site-a", 60, 1).await.reveal();
    let (front, _) = text.rsplit_once('.').unwrap();
    let forged: JoinToken = format!("{front}.{}", "ab".repeat(32)).parse().unwrap();
    let config = lab.machine("d1", MachineRole::Node, "n1");
    let error = Identity::open(&config, Some(&forged)).await.unwrap_err();
    assert!(matches!(error, EnrolError::Call(CallError::Unreachable { .. })), "{error:?}");
    lab.stop().await;
}

#[tokio::test]
async fn a_machine_renews_with_its_own_key_until_an_admin_removes_it() {
    let lab = Lab::start().await;
    let node = lab.node("site-a", "n1").await;
    let before = node.pems().certificate;
    let changed = node.changed();
    node.renew().await.unwrap();
    assert_ne!(node.pems().certificate, before);
    assert!(changed.has_changed().unwrap());
    // Another key than the certificate's is not signed.
    let csr = rcgen::CertificateParams::default()
        .serialize_request(&rcgen::KeyPair::generate().unwrap())
        .unwrap();
    let request = RenewRequest { csr_pem: csr.pem().unwrap() };
    let stolen: Result<RenewResponse, _> = node.http_client().post(hub::RENEW, &request).await;
    assert_eq!(stolen.unwrap_err().reason(), Some("other-key"));
    // A node has no right to what admins may.
    let listed: Result<Vec<MachineSession>, _> = node.http_client().get(hub::SESSIONS).await;
    assert_eq!(listed.unwrap_err().reason(), Some("forbidden"));

    let records: Api<ConfigMap> = Api::namespaced(lab.client.clone(), "rlark-system");
    records.delete("machine.node.site-a.n1", &DeleteParams::default()).await.unwrap();
    assert_eq!(reason(node.renew().await.unwrap_err()), "machine-removed");
    lab.stop().await;
}

/// A node that serves its session and keeps what it is told.
struct Connected {
    identity: Identity,
    state: watch::Receiver<SessionState>,
    lines: mpsc::Receiver<RouteUpdate>,
    /// What it is told of the machines behind its peers.
    peers: mpsc::Receiver<RouteUpdate>,
    dials: mpsc::Receiver<DialRequest>,
    expected: mpsc::Receiver<ExpectRequest>,
    /// What it says of itself, beside the ports.
    says: mpsc::Sender<NodeUpdate>,
    stop: CancellationToken,
}

#[derive(Clone)]
struct Told {
    lines: mpsc::Sender<RouteUpdate>,
    peers: mpsc::Sender<RouteUpdate>,
    dials: mpsc::Sender<DialRequest>,
    expected: mpsc::Sender<ExpectRequest>,
    says: Arc<Mutex<mpsc::Receiver<NodeUpdate>>>,
}

async fn on_routes(State(told): State<Told>, body: Body) {
    let mut body = body;
    let mut text = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        text.extend_from_slice(frame.data_ref().unwrap());
        while let Some(end) = text.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let update = serde_json::from_slice(&line).unwrap();
            let to = match &update {
                RouteUpdate::KeepAlive => continue,
                RouteUpdate::Peers { .. } | RouteUpdate::Peer { .. } => &told.peers,
                _ => &told.lines,
            };
            if to.send(update).await.is_err() {
                return;
            }
        }
    }
}

async fn on_dial(State(told): State<Told>, Json(request): Json<DialRequest>) -> http::StatusCode {
    told.dials.send(request).await.unwrap();
    http::StatusCode::ACCEPTED
}

async fn on_expect(
    State(told): State<Told>,
    Json(request): Json<ExpectRequest>,
) -> http::StatusCode {
    told.expected.send(request).await.unwrap();
    http::StatusCode::ACCEPTED
}

/// The report of a node without ports: a line each second, and what the test has it say.
async fn on_report(State(told): State<Told>) -> Body {
    let line = |update: &NodeUpdate| serde_json::to_string(update).unwrap() + "\n";
    let first = line(&NodeUpdate::Snapshot { pods: vec![], relayed_only: false });
    let rest = futures::stream::unfold(told.says, move |says| async move {
        let next = async { says.lock().await.recv().await };
        let update = match timeout(Duration::from_secs(1), next).await {
            Ok(Some(update)) => update,
            Ok(None) => return None,
            Err(_quiet) => NodeUpdate::KeepAlive,
        };
        Some((line(&update), says))
    });
    let all = futures::stream::iter([first]).chain(rest);
    Body::from_stream(all.map(Ok::<_, std::convert::Infallible>))
}

fn connect(identity: Identity) -> Connected {
    let (lines_in, lines) = mpsc::channel(64);
    let (peers_in, peers) = mpsc::channel(64);
    let (dials_in, dials) = mpsc::channel(64);
    let (expected_in, expected) = mpsc::channel(64);
    let (says, said) = mpsc::channel(64);
    let app = Router::new()
        .route(machine::ROUTES, post(on_routes))
        .route(machine::DIAL, post(on_dial))
        .route(machine::EXPECT, post(on_expect))
        .route(machine::REPORT, get(on_report))
        .with_state(Told {
            lines: lines_in,
            peers: peers_in,
            dials: dials_in,
            expected: expected_in,
            says: Arc::new(Mutex::new(said)),
        });
    let (state_in, state) = watch::channel(SessionState::Connecting);
    let stop = CancellationToken::new();
    tokio::spawn(session::run(identity.clone(), app, state_in, stop.clone()));
    Connected { identity, state, lines, peers, dials, expected, says, stop }
}

impl Connected {
    async fn reaches(&mut self, state: SessionState) {
        timeout(PATIENCE, self.state.wait_for(|s| *s == state)).await.unwrap().unwrap();
    }

    async fn next(&mut self) -> RouteUpdate {
        timeout(PATIENCE, self.lines.recv()).await.unwrap().unwrap()
    }

    async fn knows_two_members(&mut self) {
        let mut known = std::collections::BTreeSet::new();
        while known.len() < 2 {
            let members = match self.next().await {
                RouteUpdate::Snapshot { domains } => {
                    domains.into_iter().flat_map(|d| d.members).collect()
                }
                RouteUpdate::Domain { domain } => domain.members,
                RouteUpdate::Member { member, .. } => vec![member],
                other => panic!("unexpected {other:?}"),
            };
            known.extend(members.into_iter().map(|m| m.uid));
        }
    }
}

#[tokio::test]
async fn a_session_returns_after_the_server_and_after_a_renewal() {
    let lab = Lab::start().await;
    let mut node = connect(lab.node("site-a", "n1").await);
    node.reaches(SessionState::Connected).await;
    assert!(matches!(node.next().await, RouteUpdate::Snapshot { .. }));
    assert_eq!(lab.sessions().await.len(), 1);
    // The renewed certificate's session takes the place of the old one.
    node.identity.renew().await.unwrap();
    assert!(matches!(node.next().await, RouteUpdate::Snapshot { .. }));
    assert_eq!(lab.sessions().await.len(), 1);

    let address: SocketAddr = lab.url.trim_start_matches("https://").parse().unwrap();
    let dir = lab.stop().await;
    node.reaches(SessionState::Connecting).await;
    let lab = Lab::start_in(dir, address).await;
    node.reaches(SessionState::Connected).await;
    assert!(matches!(node.next().await, RouteUpdate::Snapshot { .. }));
    node.stop.cancel();
    lab.stop().await;
}

/// A Task of the Domain and the Pod that an agent made for it.
async fn place(lab: &Lab, cluster: &str, uid: &str, name: &str) {
    let namespace = format!("rlark-{cluster}");
    let tasks: Api<Task> = Api::namespaced(lab.client.clone(), &namespace);
    let spec = TaskSpec { domain: "d".to_owned(), ..TaskSpec::default() };
    tasks.create(&PostParams::default(), &Task::new(name, spec)).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(lab.client.clone(), &namespace);
    let spec = PodSpec {
        domain: "d".to_owned(),
        task_namespace: namespace,
        task_name: name.to_owned(),
        pod_namespace: "rlark-system".to_owned(),
        pod_name: name.to_owned(),
    };
    pods.create(&PostParams::default(), &Pod::new(uid, spec)).await.unwrap();
    let status = PodStatus {
        phase: Some(PodPhase::Pending),
        node: "n1".to_owned(),
        ip: "10.9.0.2".to_owned(),
        ..PodStatus::default()
    };
    let patch = serde_json::json!({ "status": status });
    pods.patch_status(uid, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}

#[tokio::test]
async fn two_nodes_of_a_domain_meet_on_the_relay_and_a_third_does_not() {
    let lab = Lab::start().await;
    let mut a = connect(lab.node("site-a", "n1").await);
    let mut b = connect(lab.node("site-b", "n1").await);
    let c = connect(lab.node("site-c", "n1").await);
    let domains: Api<Domain> = Api::all(lab.client.clone());
    let spec = DomainSpec { cidr: "10.0.1.0/24".to_owned(), ..DomainSpec::default() };
    domains.create(&PostParams::default(), &Domain::new("d", spec)).await.unwrap();
    place(&lab, "site-a", "u1", "actor-0").await;
    place(&lab, "site-b", "u2", "rollout-0").await;

    // The real controllers give addresses; both nodes then learn both members.
    for node in [&mut a, &mut b] {
        node.knows_two_members().await;
    }
    let ask = |peer: &str| CarrierRequest {
        domain: "d".parse().unwrap(),
        peer: peer.parse::<NodeRef>().unwrap(),
        lane: Lane::Bulk,
    };
    let stranger: Result<CarrierTicket, _> =
        c.identity.http_client().post(hub::CARRIERS, &ask("site-a/n1")).await;
    assert_eq!(stranger.unwrap_err().reason(), Some("not-a-host"));
    let certificate = |n: &Connected| {
        let client = n.identity.http_client();
        async move {
            let public_key =
                "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ"
                    .to_owned();
            let request = DomainCertificateRequest { domain: "d".parse().unwrap(), public_key };
            client.post::<_, DomainCertificateResponse>(hub::DOMAIN_CERTIFICATES, &request).await
        }
    };
    assert!(certificate(&a).await.unwrap().certificate.starts_with("ssh-ed25519-cert-v01"));
    assert_eq!(certificate(&c).await.unwrap_err().reason(), Some("not-a-host"));

    let ticket: CarrierTicket =
        a.identity.http_client().post(hub::CARRIERS, &ask("site-b/n1")).await.unwrap();
    let dial = timeout(PATIENCE, b.dials.recv()).await.unwrap().unwrap();
    assert_eq!(dial.peer, "site-a/n1".parse().unwrap());
    assert_eq!(dial.ticket.ticket, ticket.ticket);
    let (mut one, mut two) =
        tokio::join!(relay(lab.relay, &ticket.ticket), relay(lab.relay, &dial.ticket.ticket));
    // The ticket is spent: a third connection is closed without a word.
    assert!(try_relay(lab.relay, &ticket.ticket).await.is_err());
    assert!(try_relay(lab.relay, &"0".repeat(64)).await.is_err());
    carries_64_mib(&mut one, &mut two).await;
    drop(one);
    assert_eq!(two.read(&mut [0; 1]).await.unwrap(), 0);

    // What was given to a machine ends with it.
    let ticket: CarrierTicket =
        a.identity.http_client().post(hub::CARRIERS, &ask("site-b/n1")).await.unwrap();
    let dial = timeout(PATIENCE, b.dials.recv()).await.unwrap().unwrap();
    let (mut one, _two) =
        tokio::join!(relay(lab.relay, &ticket.ticket), relay(lab.relay, &dial.ticket.ticket));
    let records: Api<ConfigMap> = Api::namespaced(lab.client.clone(), "rlark-system");
    records.delete("machine.node.site-b.n1", &DeleteParams::default()).await.unwrap();
    let end = timeout(removal::AT_ONCE, one.read(&mut [0; 1])).await.unwrap();
    assert!(matches!(end, Ok(0) | Err(_)));
    for node in [&a, &b, &c] {
        node.stop.cancel();
    }
    lab.stop().await;
}

async fn try_relay(relay: SocketAddr, ticket: &str) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(relay).await?;
    stream.write_all(format!("{RELAY_HELLO}{ticket}\n").as_bytes()).await?;
    let mut answer = vec![0; RELAY_PAIRED.len()];
    stream.read_exact(&mut answer).await?;
    assert_eq!(answer, RELAY_PAIRED);
    Ok(stream)
}

async fn relay(relay: SocketAddr, ticket: &str) -> TcpStream {
    timeout(PATIENCE, try_relay(relay, ticket)).await.unwrap().unwrap()
}

async fn carries_64_mib(from: &mut TcpStream, to: &mut TcpStream) {
    const SIZE: usize = 64 << 20;
    let data: Arc<[u8]> = (0..SIZE).map(|i| u8::try_from(i * 31 % 251).unwrap()).collect();
    let sent = digest::digest(&digest::SHA256, &data);
    let mut got = vec![0; SIZE];
    let both = async { tokio::join!(from.write_all(&data), to.read_exact(&mut got)) };
    let (written, read) = timeout(PATIENCE, both).await.unwrap();
    written.unwrap();
    read.unwrap();
    assert_eq!(digest::digest(&digest::SHA256, &got).as_ref(), sent.as_ref());
}
