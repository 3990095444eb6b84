//! The product's own processes in a lab: a server at the hub, and at each site a machine with
//! `rlark-node` and `rlark-agent`, joined by tokens as a person would join them.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{
    cgroup::Cgroup,
    command::{output, stdout},
    forward::forward,
    lab::Lab,
    net::Netns,
    pod::RunningPod,
    process::{Process, Start, pinned},
    sites::{HUB, Internet, Place, SITE_CIDR, Site},
    wait::eventually,
};

const API_PORT: u16 = 8443;
const RELAY_PORT: u16 = 7443;

/// One machine at one site. Drop order: its programs before its namespace.
#[derive(Debug)]
pub struct Machine {
    pub cluster: String,
    pub name: String,
    pub agent: Process,
    pub node: Process,
    pub dir: PathBuf,
    pub cgroup: PathBuf,
    pub place: Place,
    agent_start: Again,
    node_start: Again,
}

/// How a program was started, to start it again.
#[derive(Debug, Clone)]
struct Again {
    name: String,
    program: PathBuf,
    args: Vec<String>,
    cpu: Option<usize>,
    log: PathBuf,
}

impl Again {
    fn run(&self, netns: &Netns, cgroup: &Path) -> Result<Process> {
        Process::start(Start {
            name: &self.name,
            program: &self.program,
            args: self.args.clone(),
            env: vec![],
            netns: Some(netns),
            cgroup: Some(cgroup),
            cpu: self.cpu,
            log: self.log.clone(),
        })
    }
}

/// Drop order is the order of the fields: machines, server, namespaces, cgroup, directory.
#[derive(Debug)]
pub struct Product {
    pub machines: Vec<Machine>,
    pub server: Option<Process>,
    pub sites: BTreeMap<String, Site>,
    pub internet: Internet,
    pub cgroup: Cgroup,
    programs: PathBuf,
    kubectl: PathBuf,
    /// Where this machine reaches the API.
    api: Option<SocketAddr>,
    /// How many CPUs the machines are spread over; 0 when each may use all.
    cpus: usize,
    pub lab: Lab,
}

impl Product {
    /// Namespaces only; nothing runs yet. `programs` holds the built binaries.
    pub fn new(programs: &Path, kubectl: PathBuf) -> Result<Self> {
        let lab = Lab::new()?;
        let internet = Internet::new(&lab)?;
        let cgroup = Cgroup::new(lab.id())?;
        let programs = programs.to_owned();
        Ok(Self {
            machines: vec![],
            server: None,
            sites: BTreeMap::new(),
            internet,
            cgroup,
            programs,
            kubectl,
            api: None,
            cpus: 0,
            lab,
        })
    }

    /// Gives every machine that joins from now on one CPU, in turns, and the server the first's.
    /// For measuring: machines do not share CPUs, but one kernel that runs them all would heap the
    /// chain of a relayed flow on one of its CPUs and leave the other idle.
    pub fn spread_over_cpus(&mut self) {
        self.cpus = std::thread::available_parallelism().map_or(1, usize::from);
    }

    /// The CPU of the given machine, if it has one of its own.
    #[must_use]
    pub fn cpu(&self, machine: usize) -> Option<usize> {
        machine.checked_rem(self.cpus)
    }

    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    fn data(&self) -> PathBuf {
        self.lab.dir().join("server")
    }

    /// Starts the server (again, on the same data) and waits until it is ready.
    pub fn start_server(&mut self) -> Result<()> {
        let data = self.data();
        fs::create_dir_all(&data)?;
        let args = [
            format!("--data-dir={}", data.display()),
            format!("--listen={HUB}:{API_PORT}"),
            format!("--relay-listen={HUB}:{RELAY_PORT}"),
            format!("--advertise-address={HUB}"),
        ];
        let program = self.program("rlark-server");
        self.server = None;
        self.server = Some(Process::start(Start {
            name: "rlark-server",
            program: &program,
            args: args.into(),
            env: vec![],
            netns: Some(&self.internet.hub),
            cgroup: Some(self.cgroup.path()),
            cpu: self.cpu(0),
            log: self.lab.dir().join("server.log"),
        })?);
        if self.api.is_none() {
            let to = SocketAddr::new(HUB.parse()?, API_PORT);
            self.api = Some(forward(&self.internet.hub, to)?);
        }
        eventually("the server to be ready", Duration::from_secs(30), || {
            self.server_alive()?;
            if self.write_kubeconfig().is_err() {
                return Ok(None); // not written yet
            }
            Ok(output(&mut self.kubectl(["get", "--raw", "/readyz"])).ok())
        })?;
        Ok(())
    }

    fn server_alive(&mut self) -> Result<()> {
        self.server.as_mut().map_or(Ok(()), Process::check)
    }

    /// An error if any program has ended by itself.
    pub fn alive(&mut self) -> Result<()> {
        self.server_alive()?;
        for m in &mut self.machines {
            m.node.check()?;
            m.agent.check()?;
        }
        Ok(())
    }

    /// For tools of this machine, outside the lab's namespaces.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.lab.dir().join("kubeconfig")
    }

    fn write_kubeconfig(&self) -> Result<()> {
        let text = fs::read_to_string(self.data().join("admin.kubeconfig"))?;
        let api = self.api.context("no server was started")?;
        let lines = text.lines().map(|l| match l.split_once("server:") {
            Some((indent, _)) => format!("{indent}server: https://{api}"),
            None => l.to_owned(),
        });
        fs::write(self.kubeconfig(), lines.collect::<Vec<_>>().join("\n") + "\n")?;
        Ok(())
    }

    #[must_use]
    pub fn kubectl<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut c = Command::new(&self.kubectl);
        // A cache of its own: what kubectl remembers of another server must not matter.
        c.arg("--cache-dir").arg(self.lab.dir().join("kubectl-cache"));
        c.args(args).env("KUBECONFIG", self.kubeconfig()).stdin(std::process::Stdio::null());
        c
    }

    #[must_use]
    pub fn rlark<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut c = Command::new(self.program("rlark"));
        c.args(args).env("KUBECONFIG", self.kubeconfig()).stdin(std::process::Stdio::null());
        c
    }

    /// `kubectl get WORDS -o json`.
    pub fn get(&self, words: &str) -> Result<Value> {
        let mut c = self.kubectl(["get"]);
        Ok(serde_json::from_str(&stdout(c.args(words.split_whitespace()).args(["-o", "json"]))?)?)
    }

    /// `kubectl apply` of a manifest text, in which the example's program path becomes the built one.
    pub fn apply(&self, manifest: &str) -> Result<String> {
        let traffic = self.program("rlark-traffic").display().to_string();
        let text = manifest.replace("/opt/rlark/bin/rlark-traffic", &traffic);
        let file = self.lab.dir().join("manifest.yaml");
        fs::write(&file, text)?;
        stdout(self.kubectl(["apply", "-f"]).arg(&file))
    }

    fn token(&self, cluster: &str) -> Result<String> {
        let args = ["token", "create", "--cluster", cluster, "--uses", "1", "--quiet"];
        Ok(stdout(&mut self.rlark(args))?.trim().to_owned())
    }

    /// One more machine `node` at the site `cluster`, which is made when it is new, and its two
    /// programs started.
    pub fn join(&mut self, cluster: &str, node: &str, labels: &[(&str, &str)]) -> Result<()> {
        self.join_with(cluster, node, labels, &[])
    }

    /// As [`Self::join`], with more options for `rlark-node`.
    pub fn join_with(
        &mut self,
        cluster: &str,
        node: &str,
        labels: &[(&str, &str)],
        options: &[&str],
    ) -> Result<()> {
        self.join_with_both(cluster, node, labels, options, &[])
    }

    /// As [`Self::join_with`], and with more options for `rlark-agent`.
    pub fn join_with_both(
        &mut self,
        cluster: &str,
        node: &str,
        labels: &[(&str, &str)],
        node_options: &[&str],
        agent_options: &[&str],
    ) -> Result<()> {
        if !self.sites.contains_key(cluster) {
            let site = self.internet.site(cluster)?;
            self.sites.insert(cluster.to_owned(), site);
        }
        let site = self.sites.get_mut(cluster).context("the site")?;
        let place = site.machine(self.lab.id())?;
        let same = self.machines.iter().filter(|m| m.cluster == cluster).count();
        let unique = if same == 0 { cluster.to_owned() } else { format!("{cluster}-{same}") };
        let dir = self.lab.dir().join(&unique);
        let cgroup = self.cgroup.path().join(&unique);
        fs::create_dir_all(&dir)?;
        fs::create_dir_all(&cgroup)?;
        let socket = format!("{}/node.sock", dir.display());
        let cpu = self.cpu(self.machines.len());
        let start = |program: &str, extra: Vec<String>| -> Result<Again> {
            let token = dir.join(format!("{program}.token"));
            fs::write(&token, self.token(cluster)?)?;
            let mut args = vec![
                format!("--server=https://{HUB}:{API_PORT}"),
                format!("--name={node}"),
                format!("--token-file={}", token.display()),
                format!("--data-dir={}", dir.join(program).display()),
            ];
            // A node without hooks is given nowhere to put them.
            if !extra.iter().any(|o| o == "--no-hooks") {
                args.push(format!("--cgroup={}", cgroup.display()));
            }
            args.extend(extra);
            Ok(Again {
                name: format!("{program} of {unique}"),
                program: self.program(program),
                args,
                cpu,
                log: self.lab.dir().join(format!("{program}-{unique}.log")),
            })
        };
        let own = [format!("--socket={socket}")].into_iter();
        let options = node_options.iter().map(|o| (*o).to_owned());
        let node_start = start("rlark-node", own.chain(options).collect())?;
        let mut agent_args = vec![
            format!("--node-socket={socket}"),
            format!("--run-dir={}", dir.join("run").display()),
            format!("--pod-cidr={}", place.pod_cidr),
            format!("--site-cidr={SITE_CIDR}"),
            format!("--hide={}", self.lab.dir().display()),
        ];
        agent_args.extend(agent_options.iter().map(|o| (*o).to_owned()));
        agent_args.extend(labels.iter().map(|(k, v)| format!("--labels={k}={v}")));
        let agent_start = start("rlark-agent", agent_args)?;
        let all = self.cgroup.path();
        self.machines.push(Machine {
            cluster: cluster.to_owned(),
            name: node.to_owned(),
            node: node_start.run(&place.netns, all)?,
            agent: agent_start.run(&place.netns, all)?,
            dir,
            cgroup,
            place,
            agent_start,
            node_start,
        });
        Ok(())
    }

    fn machine(&mut self, machine: usize) -> Result<&mut Machine> {
        self.machines.get_mut(machine).context("no such machine")
    }

    /// Starts a machine's `rlark-node` again, on the same data.
    pub fn start_node(&mut self, machine: usize) -> Result<()> {
        let all = self.cgroup.path().to_owned();
        let m = self.machine(machine)?;
        m.node = m.node_start.run(&m.place.netns, &all)?;
        Ok(())
    }

    /// Starts a machine's `rlark-agent` again, on the same data.
    pub fn start_agent(&mut self, machine: usize) -> Result<()> {
        let all = self.cgroup.path().to_owned();
        let m = self.machine(machine)?;
        m.agent = m.agent_start.run(&m.place.netns, &all)?;
        Ok(())
    }

    /// As [`Self::start_agent`], without an option that it had, from now on.
    pub fn start_agent_without(&mut self, machine: usize, option: &str) -> Result<()> {
        let args = &mut self.machine(machine)?.agent_start.args;
        let before = args.len();
        args.retain(|a| a != option);
        ensure!(args.len() < before, "it was not started with {option}");
        self.start_agent(machine)
    }

    /// A pod on a machine, by its name: a program can be run in it.
    pub fn pod(&self, machine: usize, name: &str) -> Result<RunningPod> {
        let m = self.machines.get(machine).context("no such machine")?;
        RunningPod::find(&m.dir.join("rlark-agent/pods"), name)
    }

    /// Waits until every machine's Node is Online.
    pub fn online(&mut self) -> Result<()> {
        eventually("every node to be Online", Duration::from_secs(60), || {
            self.alive()?;
            let Ok(nodes) = self.get("rlnode -A") else { return Ok(None) };
            let nodes = nodes.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
            let online = nodes.iter().filter(|n| text(n, "/status/phase") == "Online").count();
            Ok((online == self.machines.len()).then_some(()))
        })
    }

    pub fn job_phase(&self, name: &str) -> Result<String> {
        let job = self.get(&format!("rljob {name}"))?;
        Ok(text(&job, "/status/phase").to_owned())
    }

    /// Everything the tasks of a job have said, each line with its pod's name in front.
    pub fn logs(&self, job: &str) -> Result<String> {
        stdout(&mut self.rlark(["logs", &format!("job/{job}")]))
    }

    /// A program inside a machine: in its namespace and cgroup.
    pub fn at_machine(&self, machine: usize, program: &Path) -> Result<Command> {
        let m = self.machines.get(machine).context("no such machine")?;
        Ok(pinned(Some(&m.place.netns), Some(&m.cgroup), self.cpu(machine), program))
    }

    /// User and system time of all the product's processes (not of tasks), in seconds.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let server = self.server.iter().map(Process::pid);
        let machines = self.machines.iter().flat_map(|m| [m.agent.pid(), m.node.pid()]);
        let mut ticks = 0;
        for pid in server.chain(machines) {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
            let after = stat.rsplit_once(')').map_or("", |(_, a)| a);
            let words: Vec<&str> = after.split_whitespace().collect();
            let field = |i: usize| words.get(i).and_then(|w| w.parse::<u32>().ok()).unwrap_or(0);
            ticks += field(11) + field(12);
        }
        // USER_HZ is 100 on every Linux that Rust runs on.
        Ok(f64::from(ticks) / 100.0)
    }

    /// An error with the logs' ends: what a person needs when a scenario fails.
    pub fn explain(&mut self, e: anyhow::Error) -> anyhow::Error {
        let mut text = String::new();
        let all = self.server.iter().chain(self.machines.iter().flat_map(|m| [&m.node, &m.agent]));
        for p in all {
            text += &format!("\n── {} ({}):\n{}\n", p.name, p.log().display(), p.tail(12));
        }
        e.context(text)
    }
}

/// The text at a JSON pointer, empty when there is none.
#[must_use]
pub fn text<'a>(v: &'a Value, pointer: &str) -> &'a str {
    v.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The `RESULT` objects in a job's logs.
pub fn results(logs: &str) -> Result<Vec<Value>> {
    let lines = logs.lines().filter_map(|l| l.split_once("RESULT ").map(|(_, json)| json));
    let all: Vec<Value> = lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(!all.is_empty(), "the tasks reported no result:\n{logs}");
    Ok(all)
}
