//! The product's own processes in a lab: a server at the hub, and at each site a machine with
//! `rlark-node` and `rlark-agent`, joined by tokens as a person would join them.

use std::{
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
    process::{Process, Start, wrapped},
    sites::{HUB, Internet, POD_CIDR, Site},
    wait::eventually,
};

const API_PORT: u16 = 8443;
const RELAY_PORT: u16 = 7443;

/// One machine at one site. Drop order: its programs before its namespace.
#[derive(Debug)]
pub struct Machine {
    pub cluster: String,
    pub agent: Process,
    pub node: Process,
    pub dir: PathBuf,
    pub cgroup: PathBuf,
    pub site: Site,
}

/// Drop order is the order of the fields: machines, server, namespaces, cgroup, directory.
#[derive(Debug)]
pub struct Product {
    pub machines: Vec<Machine>,
    pub server: Option<Process>,
    pub internet: Internet,
    pub cgroup: Cgroup,
    programs: PathBuf,
    kubectl: PathBuf,
    /// Where this machine reaches the API.
    api: Option<SocketAddr>,
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
            internet,
            cgroup,
            programs,
            kubectl,
            api: None,
            lab,
        })
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

    /// A new site `cluster` with one machine `node`, and its two programs started.
    pub fn join(&mut self, cluster: &str, node: &str, labels: &[(&str, &str)]) -> Result<()> {
        let site = self.internet.site(cluster)?;
        let dir = self.lab.dir().join(cluster);
        let cgroup = self.cgroup.path().join(cluster);
        fs::create_dir_all(&dir)?;
        fs::create_dir_all(&cgroup)?;
        let (socket, run) = (dir.join("node.sock"), dir.join("run"));
        let server = format!("--server=https://{HUB}:{API_PORT}");
        let name = format!("--name={node}");
        let group = format!("--cgroup={}", cgroup.display());

        let start = |program: &str, extra: Vec<String>| -> Result<Process> {
            let token = dir.join(format!("{program}.token"));
            fs::write(&token, self.token(cluster)?)?;
            let mut args = vec![server.clone(), name.clone(), group.clone()];
            args.push(format!("--token-file={}", token.display()));
            args.push(format!("--data-dir={}", dir.join(program).display()));
            args.extend(extra);
            let file = self.program(program);
            Process::start(Start {
                name: &format!("{program} of {cluster}"),
                program: &file,
                args,
                env: vec![],
                netns: Some(&site.machine),
                cgroup: Some(self.cgroup.path()),
                log: self.lab.dir().join(format!("{program}-{cluster}.log")),
            })
        };
        let node_args = vec![format!("--socket={}", socket.display())];
        let node = start("rlark-node", node_args)?;
        let mut agent_args = vec![
            format!("--node-socket={}", socket.display()),
            format!("--run-dir={}", run.display()),
            format!("--pod-cidr={POD_CIDR}"),
        ];
        agent_args.extend(labels.iter().map(|(k, v)| format!("--labels={k}={v}")));
        let agent = start("rlark-agent", agent_args)?;
        self.machines.push(Machine { cluster: cluster.to_owned(), agent, node, dir, cgroup, site });
        Ok(())
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
        Ok(wrapped(Some(&m.site.machine), Some(&m.cgroup), program))
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
