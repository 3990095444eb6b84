//! What a live node says at /metrics of traffic whose amount is known.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Child,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use test_e2e::PYTHON;
use test_kit::{command::stdout, pod::RunningPod, product::Product, wait::eventually};

const ADDRESS: &str = "127.0.0.1:9090";
const LIMIT: Duration = Duration::from_secs(40);
/// Labels grow with machines and Domains, never with traffic.
const LABELS: [&str; 8] =
    ["domain", "direction", "lane", "le", "path", "reason", "stat", "verdict"];
/// Echoes, on TCP and UDP.
const SERVER: &str = "import socket,threading
u=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); u.bind(('0.0.0.0',7000))
def echo():
 while 1:
  d,a=u.recvfrom(999); u.sendto(d,a)
threading.Thread(target=echo,daemon=True).start()
s=socket.create_server(('0.0.0.0',7000)); print('serving',flush=True); held=[]
while 1:
 c=s.accept()[0]; c.send(c.recv(9)); held.append(c)";
/// So many connections that say a word each and stay, then so many datagrams of 100 bytes; waits for the end of its input.
const CLIENT: &str = "import socket,sys
host,n,m=sys.argv[1],int(sys.argv[2]),int(sys.argv[3]); held=[]
for i in range(n):
 c=socket.create_connection((host,7000),20); c.send(b'word'); assert c.recv(9)==b'word'; held.append(c)
u=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); u.settimeout(20)
for i in range(m):
 u.sendto(b'x'*100,(host,7000)); u.recv(999)
print('done',flush=True); sys.stdin.read()";
const DATAGRAM: f64 = 128.0;

/// Samples by name and labels.
type Samples = BTreeMap<String, f64>;

fn get(p: &Product, machine: usize, path: &str) -> Result<String> {
    let url = format!("http://{ADDRESS}{path}");
    stdout(p.at_machine(machine, Path::new("curl"))?.args(["-sS", "--fail", "-m", "5", &url]))
}

/// A scrape, whose form is checked.
fn scrape(p: &Product, machine: usize) -> Result<Samples> {
    let text = get(p, machine, "/metrics")?;
    ensure!(text.ends_with("# EOF\n"), "cut short: {text}");
    let families = |kind: &str| -> BTreeSet<String> {
        let lines = text.lines().filter_map(|l| l.strip_prefix(kind)?.split(' ').nth(1));
        lines.map(ToOwned::to_owned).collect()
    };
    let (helped, typed) = (families("# HELP"), families("# TYPE"));
    ensure!(helped == typed, "{helped:?} {typed:?}");
    let mut samples = Samples::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').with_context(|| line.to_owned())?;
        let (family, labels) = name.trim_end_matches('}').split_once('{').unwrap_or((name, ""));
        let suffixes = ["_total", "_bucket", "_count", "_sum", ""];
        let known = |s: &str| family.strip_suffix(s).is_some_and(|f| helped.contains(f));
        ensure!(suffixes.iter().any(|s| known(s)), "{line} is of no family");
        for label in labels.split(',').filter(|l| !l.is_empty()) {
            let (label, _) = label.split_once('=').with_context(|| line.to_owned())?;
            ensure!(LABELS.contains(&label), "{line} has another label");
        }
        let value: f64 = value.parse().with_context(|| line.to_owned())?;
        ensure!(samples.insert(name.to_owned(), value).is_none(), "{line} comes twice");
    }
    Ok(samples)
}

/// Zero if it is not there.
fn of(samples: &Samples, name: &str) -> f64 {
    samples.get(&format!("rlark_node_{name}")).copied().unwrap_or(0.0)
}

/// A program in a pod, ended when dropped.
struct Running(Child);

impl Running {
    fn start(p: &Product, pod: &RunningPod, words: &[&str], says: &str) -> Result<Self> {
        let log = p.lab.dir().join(format!("metrics-{}-{}", pod.vip, words.join("-").len()));
        let mut command = pod.command([PYTHON, "-c"].into_iter().chain(words.iter().copied()));
        let out = std::fs::File::create(&log)?;
        command.stdin(std::process::Stdio::piped()).stdout(out.try_clone()?).stderr(out);
        let running = Self(command.spawn()?);
        let said = eventually(says, LIMIT, || {
            Ok(std::fs::read_to_string(&log)?.contains(says).then_some(()))
        });
        said.with_context(|| std::fs::read_to_string(&log).unwrap_or_default())?;
        Ok(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[test]
fn a_scrape_says_what_crossed_and_how_long_it_took() -> Result<()> {
    let mut p = test_e2e::server()?;
    let run = |p: &mut Product| -> Result<()> {
        let metrics = format!("--metrics-address={ADDRESS}");
        let direct = [&*metrics, "--direct-port=7400"];
        p.join_with("cloud", "gpu-1", &[("site", "cloud")], &direct)?;
        p.join_with("edge", "robot-1", &[("site", "edge")], &[&metrics])?;
        p.join_with("home", "robot-2", &[("site", "home")], &[&metrics])?;
        p.sites.get("cloud").context("cloud")?.forward_port(0, 7400)?;
        p.online()?;
        let tasks = [("a", "cloud"), ("b", "edge"), ("c", "home")];
        let job = test_e2e::idle_job("j", "d", &tasks);
        p.apply(&(test_e2e::domain("d", "10.98.0.0/24") + &job))?;
        test_e2e::phase(p, "j", "Running", LIMIT)?;
        known_traffic(p)
    };
    run(&mut p).map_err(|e| p.explain(e))
}

/// From the edge: to the cloud past the hub, to the other home through it.
fn known_traffic(p: &mut Product) -> Result<()> {
    let pods: Vec<RunningPod> = ["j-a-0", "j-b-0", "j-c-0"]
        .iter()
        .enumerate()
        .map(|(machine, name)| test_e2e::pod(p, machine, name))
        .collect::<Result<_>>()?;
    let [cloud, edge, home] = pods.as_slice() else { anyhow::bail!("three pods") };
    let mut servers = Vec::new();
    for pod in [cloud, home] {
        servers.push(Running::start(p, pod, &[SERVER], "serving")?);
    }
    ensure!(get(p, 1, "/healthz")? == "ok\n", "unhealthy");
    let before = [scrape(p, 0)?, scrape(p, 1)?, scrape(p, 2)?];
    let mut clients = Vec::new();
    for (pod, connections, datagrams) in [(cloud, "3", "5"), (home, "20", "70")] {
        let words = [CLIENT, &pod.vip, connections, datagrams];
        clients.push(Running::start(p, edge, &words, "done")?);
    }
    // Round trips over both ways: PINGs are answered when a carrier begins and every five seconds.
    let trips = |samples: &Samples, path: &str| {
        of(samples, &format!("carrier_round_trip_seconds_count{{path=\"{path}\"}}"))
    };
    let after = eventually("round trips over both ways", LIMIT, || {
        let samples = scrape(p, 1)?;
        let all = ["hub", "direct"].iter().all(|path| trips(&samples, path) > 1.0);
        Ok(all.then_some(samples))
    })?;
    let [near, far] = [scrape(p, 0)?, scrape(p, 2)?];

    let [cloud, edge, home] = &before;
    let expect = |name: &str, before: &Samples, after: &Samples, want: f64| {
        let grown = of(after, name) - of(before, name);
        ensure!(grown == want, "{name} grew by {grown} instead of {want}: {after:#?}");
        Ok(())
    };
    expect("flow_accepted_seconds_count", edge, &after, 23.0)?;
    expect("flow_accepted_seconds_bucket{le=\"+Inf\"}", edge, &after, 23.0)?;
    expect("flows_opened_total", edge, &after, 23.0)?;
    expect("relayed_flows", edge, &after, 23.0)?;
    expect("flows_accepted_total", cloud, &near, 3.0)?;
    expect("flows_accepted_total", home, &far, 20.0)?;
    // Only who opens a flow knows how long that took.
    expect("flow_accepted_seconds_count", home, &far, 0.0)?;
    for (before, after, datagrams) in
        [(edge, &after, 75.0), (cloud, &near, 5.0), (home, &far, 70.0)]
    {
        for direction in ["out", "in"] {
            let labels = format!("{{domain=\"d\",direction=\"{direction}\"}}");
            expect(&format!("packets_total{labels}"), before, after, datagrams)?;
            let bytes = datagrams * DATAGRAM;
            expect(&format!("packet_bytes_total{labels}"), before, after, bytes)?;
        }
    }
    let sum = of(&after, "flow_accepted_seconds_sum");
    ensure!(sum > 0.0 && sum < 23.0 * 5.0, "{sum} s for 23 flows");
    for path in ["hub", "direct"] {
        let bucket = format!("carrier_round_trip_seconds_bucket{{le=\"+Inf\",path=\"{path}\"}}");
        ensure!(of(&after, &bucket) == trips(&after, path), "{path}: {after:#?}");
        ensure!(of(&after, &format!("carriers_by_path{{path=\"{path}\"}}")) >= 1.0, "{after:#?}");
    }
    drop((clients, servers));
    eventually("the end of all flows", LIMIT, || {
        Ok((of(&scrape(p, 1)?, "relayed_flows") == 0.0).then_some(()))
    })?;
    p.alive()
}
