//! Two sites behind NATs, one Domain, and pods in which a test starts programs by hand.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use test_kit::{
    command::output,
    pod::RunningPod,
    product::Product,
    wait::{eventually, pause},
};

use crate::{
    packages::{Kind, PYTHON, Packages},
    program::{Program, last_lines},
};

const JOB: &str = "apps";
const DOMAIN: &str = "apps";
const CIDR: &str = "10.98.0.0/24";
/// For the Job to run and for a server to be reached.
const LIMIT: Duration = Duration::from_secs(60);

/// Asks nothing of the server, but that it is there.
const KNOCK: &str =
    "import socket,sys; socket.create_connection((sys.argv[1],int(sys.argv[2])),5).close()";

/// The two sites; the names of their machines' only pods are a test's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// Machine 0.
    Cloud,
    /// Machine 1.
    Edge,
}

impl Site {
    const fn label(self) -> &'static str {
        match self {
            Self::Cloud => "cloud",
            Self::Edge => "edge",
        }
    }

    const fn machine(self) -> usize {
        match self {
            Self::Cloud => 0,
            Self::Edge => 1,
        }
    }
}

/// The running product, and the pods of one Job.
#[derive(Debug)]
pub struct Sites {
    pub product: Product,
    pub packages: Packages,
    pods: BTreeMap<&'static str, RunningPod>,
    logs: RefCell<Vec<PathBuf>>,
}

/// Runs `test` over two sites with these pods; a failure is shown with the ends of the product's logs.
pub fn between_sites(
    pods: &[(&'static str, Site)],
    test: impl FnOnce(&mut Sites) -> Result<()>,
) -> Result<()> {
    let packages = Packages::open()?;
    let product = test_e2e::two_sites()?;
    let mut sites = Sites { product, packages, pods: BTreeMap::new(), logs: RefCell::default() };
    let outcome = sites.start_pods(pods).and_then(|()| test(&mut sites));
    // What ended by itself is a failure, whatever the programs say.
    let outcome = outcome.and_then(|()| sites.product.alive());
    outcome.map_err(|e| {
        let e = e.context(sites.last_words());
        sites.product.explain(e)
    })
}

impl Sites {
    fn start_pods(&mut self, pods: &[(&'static str, Site)]) -> Result<()> {
        let tasks: Vec<_> = pods.iter().map(|(name, site)| (*name, site.label())).collect();
        let p = &mut self.product;
        let job = test_e2e::idle_job(JOB, DOMAIN, &tasks);
        p.apply(&(test_e2e::domain(DOMAIN, CIDR) + &job))?;
        test_e2e::phase(p, JOB, "Running", LIMIT)?;
        for (name, site) in pods {
            let pod = test_e2e::pod(p, site.machine(), &format!("{JOB}-{name}-0"))?;
            self.pods.insert(name, pod);
        }
        Ok(())
    }

    fn pod(&self, name: &str) -> Result<&RunningPod> {
        self.pods.get(name).with_context(|| format!("no pod {name}"))
    }

    /// A pod's address in the Domain.
    pub fn vip(&self, pod: &str) -> Result<&str> {
        Ok(&self.pod(pod)?.vip)
    }

    /// The name by which all pods know a pod.
    #[must_use]
    pub fn host(&self, pod: &str) -> String {
        format!("{JOB}-{pod}-0.rlark-domain")
    }

    /// A command in a pod, with a pod's rights and nothing of the test's environment.
    pub fn command<'a>(
        &self,
        pod: &str,
        kind: Kind,
        words: impl IntoIterator<Item = &'a str>,
    ) -> Result<Command> {
        let mut c = self.pod(pod)?.command(words);
        c.env_clear().envs(self.packages.environment(kind));
        Ok(c)
    }

    /// As [`Self::command`], for servers that will not run as root. As `daemon`, which every Debian has; systemd calls
    /// `nobody` locked.
    pub fn unprivileged(&self, pod: &str, words: &[&str]) -> Result<Command> {
        let daemon = ["setpriv", "--reuid=daemon", "--regid=daemon", "--clear-groups"];
        // A change of user forgets the signal that a program gets when its parent ends.
        let tied = ["setpriv", "--pdeathsig", "KILL", "--"];
        let words = daemon.into_iter().chain(tied).chain(words.iter().copied());
        self.command(pod, Kind::Debian, words)
    }

    /// Starts what [`Self::command`] made.
    pub fn start(&self, name: &str, command: Command) -> Result<Program> {
        let mut logs = self.logs.borrow_mut();
        let log = self.product.lab.dir().join(format!("{}-{name}.log", logs.len()));
        logs.push(log.clone());
        Program::start(name, command, log)
    }

    /// The ends of what all programs have said: one often fails because of another.
    fn last_words(&self) -> String {
        let mut all = String::new();
        for log in self.logs.borrow().iter() {
            all += &format!("\n── {}:\n{}\n", log.display(), last_lines(log, 20));
        }
        all
    }

    /// A file of `tests/apps/probe` where pods see it.
    pub fn probe(&self, name: &str) -> Result<String> {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("probe").join(name);
        Ok(self.product.lab.share(&from)?.display().to_string())
    }

    /// Waits until something listens there, as a start script would.
    pub fn reachable(
        &self,
        from: &str,
        host: &str,
        port: &str,
        server: &mut Program,
    ) -> Result<()> {
        let what = format!("{host}:{port} to be reachable from {from}");
        eventually(&what, LIMIT, || {
            server.running()?;
            let mut knock = self.command(from, Kind::Debian, [PYTHON, "-c", KNOCK, host, port])?;
            Ok(output(&mut knock).ok().map(drop))
        })
    }

    /// Kills the server, and starts it again on the same data after `away`: relayed flows have to wait for as long.
    /// Gives the time until it was ready again.
    pub fn outage(&mut self, away: Duration) -> Result<Duration> {
        let begin = Instant::now();
        self.product.server.as_mut().context("no server runs")?.kill()?;
        pause(away);
        self.product.start_server()?;
        Ok(begin.elapsed())
    }
}
