//! The raw runtime: a pod is a process tree in namespaces and a cgroup of its own, on a bridge of
//! the machine or on the machine's network itself, without a container engine.
//!
//! [`RawRuntime`] is what the agent calls. It keeps nothing in memory that is not on disk
//! ([`layout`]), and each pod's process is held by a supervisor of its own ([`helper`]), so pods
//! outlive the agent and a new one takes them over by [`RawRuntime::open`]. Needs root and
//! Linux 5.4 (5.14 for killing a tree at once).

pub mod address;
mod babysit;
mod cgroup;
pub mod error;
pub mod helper;
mod init;
mod layout;
mod link;
mod mountinfo;
mod mounts;
mod nat;
mod netns;
mod pid1;
mod report;
mod secrets;
mod shim;
mod supervisor;

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    net::{IpAddr, Ipv4Addr},
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use cidr::{Ipv4Cidr, Ipv6Cidr};
use tokio::sync::{Mutex, watch};

pub use self::layout::{Stage, Status};
use self::{
    address::PodNetwork,
    cgroup::PodCgroup,
    error::{PodError, SetupError},
    layout::{Layout, PodDir, PodLink, PodRecord},
    supervisor::Supervisors,
};
use crate::{
    artifact::Artifact,
    lifecycle::Outcome,
    logs::reader::{LogOptions, LogReader},
    spec::{PodSpec, PodUid},
};

/// How long killed processes may take to be gone.
const DYING: Duration = Duration::from_secs(20);

/// Where and how to run pods.
#[derive(Clone, Debug)]
pub struct RawConfig {
    /// The program that has [`helper::dispatch`] in it.
    pub helper: PathBuf,
    pub data_dir: PathBuf,
    pub run_dir: PathBuf,
    /// A directory of a cgroup v2 hierarchy; default: where one is mounted.
    pub cgroup: Option<PathBuf>,
    /// The bridge's interface name.
    pub bridge: String,
    /// The pods' addresses; the first is the bridge's.
    pub pod_cidr: Ipv4Cidr,
    /// Where the pods have their IPv6 addresses, on a machine that has IPv6; `None`: derived from the other
    /// ([`address::derived`]). They reach each other by them and nothing else.
    pub pod_cidr6: Option<Ipv6Cidr>,
    /// Where pods are reached without being masqueraded: the site's pod ranges.
    pub site_cidr: Ipv4Cidr,
    /// Files and directories that no pod may see, beside this runtime's own and the machine's secrets.
    pub hide: Vec<PathBuf>,
    /// Whether pods may be on the machine's own network. Without it those that run go on: what starts again does not stop what it
    /// finds. None is started anew.
    pub allow_host_network: bool,
}

/// A pod as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    pub spec: PodSpec,
    /// Its own on the site's network, the one of IPv4 first. None of a pod on the machine's network.
    pub addresses: Vec<IpAddr>,
    /// Names the pod's network namespace, or the machine's own.
    pub netns: PathBuf,
    /// The cgroup v2 directory that holds its processes from their first moment on, and nothing else.
    pub cgroup: PathBuf,
    /// The file behind the pod's `/etc/hosts`. Others may change it, in place.
    pub hosts: PathBuf,
    /// Whether [`RawRuntime::start`] was called.
    pub started: bool,
    pub status: Status,
}

impl PodView {
    /// How it ended, if it has.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        self.status.outcome.as_ref()
    }
}

/// Runs pods on this machine. The only writer of its data directory, except for what supervisors
/// write.
#[derive(Debug)]
pub struct RawRuntime {
    config: RawConfig,
    layout: Layout,
    network: PodNetwork,
    group: PathBuf,
    /// Serialises what allocates and removes; held across slow steps of one pod only by `create`.
    allocation: Mutex<()>,
    supervisors: Supervisors,
    _lock: File,
}

impl RawRuntime {
    /// Prepares the machine, takes over pods that run, starts those again whose supervisor was
    /// lost, and removes what a predecessor left half made.
    pub async fn open(config: RawConfig) -> Result<Self, SetupError> {
        if !rustix::process::geteuid().is_root() {
            return Err(SetupError::NotRoot);
        }
        if !link::is_link_name(&config.bridge) {
            return Err(SetupError::BridgeName { name: config.bridge });
        }
        let cidr = config.pod_cidr;
        let v6 = link::has_ipv6().then(|| config.pod_cidr6.or_else(|| address::derived(cidr)));
        let network = PodNetwork::new(cidr, v6.flatten()).ok_or_else(|| {
            let v6 = config.pod_cidr6.map(|v6| format!(",{v6}"));
            SetupError::SmallCidr { cidr: format!("{cidr}{}", v6.unwrap_or_default()) }
        })?;
        let group = cgroup::base(config.cgroup.as_deref())?.join("rlark");
        let layout = Layout { data: config.data_dir.clone(), run: config.run_dir.clone() };
        let lock = take_directories(&layout)?;
        mounts::prepare_machine().map_err(|source| SetupError::Io {
            what: "create",
            path: "/run/rlark".into(),
            source,
        })?;
        link::ensure_bridge(&config.bridge, network).await?;
        nat::enable_forwarding(&layout.data.join("forwarding-was-off"))?;
        nat::ensure(&config.bridge, network, config.site_cidr).await?;
        let supervisors = Supervisors::new(config.helper.clone(), config.allow_host_network);
        let runtime = Self {
            config,
            layout,
            network,
            group,
            allocation: Mutex::new(()),
            supervisors,
            _lock: lock,
        };
        runtime.adopt().await?;
        Ok(runtime)
    }

    async fn adopt(&self) -> Result<(), SetupError> {
        let fail = |source| SetupError::Io { what: "list", path: self.layout.pods(), source };
        for uid in self.layout.uids().map_err(fail)? {
            let dir = self.layout.pod(&uid);
            let whole = dir.record().ok().flatten();
            let done = match whole {
                Some(record) if record.started => self.adopt_one(&dir, &record).await,
                // Created and not started, or not even that: its maker will make it again.
                _ => self.remove(&uid).await,
            };
            if let Err(error) = done {
                tracing::warn!(%uid, error = &error as &dyn std::error::Error, "cannot take over a pod");
            }
        }
        Ok(())
    }

    async fn adopt_one(&self, dir: &PodDir, record: &PodRecord) -> Result<(), PodError> {
        let status = dir.status().map_err(io_at("read the status in", dir.path()))?;
        if status.is_some_and(|s| s.stage == Stage::Ended) {
            return Ok(());
        }
        // The namespace is gone after the machine was restarted.
        self.connect(record).await?;
        self.supervisors.take_over(dir, record).await
    }

    /// Makes everything a pod needs, up to the point where its process could start. Idempotent.
    pub async fn create(&self, spec: PodSpec) -> Result<PodView, PodError> {
        check(&spec)?;
        let uid = spec.uid.clone();
        let dir = self.layout.pod(&uid);
        if let Some(view) = self.view(&uid)? {
            return Ok(view);
        }
        if spec.host_network.is_some() && !self.config.allow_host_network {
            return Err(PodError::HostNetwork { uid });
        }
        let artifact = match spec.artifact.as_str() {
            "" => None,
            text => {
                let artifact: Artifact =
                    text.parse().map_err(crate::artifact::ArtifactError::from)?;
                Some(artifact.fetch(&self.layout.artifacts()).await?)
            }
        };
        let record = {
            let _one_at_a_time = self.allocation.lock().await;
            let record = self.allocate(spec, artifact)?;
            make_directories(&dir, &record)?;
            dir.write_record(&record).map_err(io_at("write the record in", dir.path()))?;
            record
        };
        let group = PodCgroup::at(&record.cgroup);
        group.create().map_err(io_at("create cgroup", &record.cgroup))?;
        self.connect(&record).await?;
        self.supervisors.changed();
        self.view(&uid)?.ok_or(PodError::Unknown { uid })
    }

    fn allocate(&self, spec: PodSpec, artifact: Option<PathBuf>) -> Result<PodRecord, PodError> {
        let link = match &spec.host_network {
            Some(_) => None,
            None => Some(self.allocate_link(&spec.uid)?),
        };
        Ok(PodRecord {
            link,
            netns: self.layout.netns(&spec.uid),
            cgroup: self.group.join(spec.uid.as_str()),
            artifact,
            hidden: [&self.layout.data, &self.layout.run]
                .into_iter()
                .chain(&self.config.hide)
                .cloned()
                .collect(),
            started: false,
            spec,
        })
    }

    fn allocate_link(&self, uid: &PodUid) -> Result<PodLink, PodError> {
        let records = self.records()?;
        let taken: BTreeSet<Ipv4Addr> =
            records.iter().filter_map(|(_, record)| Some(record.link?.address)).collect();
        let address = self.network.allocate(&taken).ok_or_else(|| PodError::NoAddress {
            uid: uid.clone(),
            cidr: self.network.cidr().to_string(),
        })?;
        let v6 = self.network.v6(address);
        Ok(PodLink {
            address,
            address6: v6.map(|(address, _)| address),
            prefix6: v6.map(|(_, prefix)| prefix),
            prefix: self.network.prefix(),
            gateway: self.network.gateway(),
        })
    }

    async fn connect(&self, record: &PodRecord) -> Result<(), PodError> {
        let Some(link) = record.link else { return Ok(netns::name_own(&record.netns)?) };
        netns::create(&record.netns)?;
        link::connect_pod(&record.spec.uid, &record.netns, link, &self.config.bridge).await?;
        Ok(())
    }

    /// Starts the pod's process. Idempotent; what becomes of it is seen in [`Self::view`].
    pub async fn start(&self, uid: &PodUid) -> Result<(), PodError> {
        let dir = self.layout.pod(uid);
        let record = dir.record().map_err(io_at("read the record in", dir.path()))?;
        let mut record = record.ok_or_else(|| PodError::Unknown { uid: uid.clone() })?;
        if record.started {
            return Ok(());
        }
        record.started = true;
        dir.write_record(&record).map_err(io_at("write the record in", dir.path()))?;
        self.supervisors.spawn(&dir, &record).await
    }

    /// Adds variables that are known only after [`Self::create`]; before [`Self::start`].
    pub fn add_environment(
        &self,
        uid: &PodUid,
        more: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(), PodError> {
        let dir = self.layout.pod(uid);
        let record = dir.record().map_err(io_at("read the record in", dir.path()))?;
        let mut record = record.ok_or_else(|| PodError::Unknown { uid: uid.clone() })?;
        for (name, value) in more {
            // What the user set stays as the user set it.
            if !record.spec.environment.iter().any(|(n, _)| *n == name) {
                record.spec.environment.push((name, value));
            }
        }
        dir.write_record(&record).map_err(io_at("write the record in", dir.path()))
    }

    /// SIGTERM, the grace period, SIGKILL; returns when no process of the pod is left. Its record
    /// and logs stay. Idempotent.
    pub async fn stop(&self, uid: &PodUid) -> Result<(), PodError> {
        let dir = self.layout.pod(uid);
        let record = dir.record().map_err(io_at("read the record in", dir.path()))?;
        let Some(record) = record else { return Ok(()) };
        self.supervisors.stop(&dir, &record).await?;
        let group = PodCgroup::at(&record.cgroup);
        let fail = || io_at("kill cgroup", &record.cgroup);
        group.kill_all().map_err(fail())?;
        if !group.emptied(DYING).await.map_err(fail())? {
            return Err(PodError::Undying { uid: uid.clone(), seconds: DYING.as_secs() });
        }
        Ok(())
    }

    /// Stops the pod and removes all that was made for it. Idempotent.
    pub async fn remove(&self, uid: &PodUid) -> Result<(), PodError> {
        self.stop(uid).await?;
        let dir = self.layout.pod(uid);
        let group = self.group.join(uid.as_str());
        PodCgroup::at(&group).remove().map_err(io_at("remove cgroup", &group))?;
        link::remove(&link::host_link(uid)).await?;
        netns::remove(&self.layout.netns(uid))?;
        match fs::remove_dir_all(dir.path()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(io_at("remove", dir.path())(e));
            }
            _ => {}
        }
        self.supervisors.changed();
        Ok(())
    }

    /// A pod as it is now; `None` when there is none of this uid.
    pub fn view(&self, uid: &PodUid) -> Result<Option<PodView>, PodError> {
        let dir = self.layout.pod(uid);
        let record = dir.record().map_err(io_at("read the record in", dir.path()))?;
        record.map(|record| view_of(&dir, record)).transpose()
    }

    /// All pods, by uid.
    pub fn list(&self) -> Result<Vec<PodView>, PodError> {
        self.records()?.into_iter().map(|(dir, record)| view_of(&dir, record)).collect()
    }

    fn records(&self) -> Result<Vec<(PodDir, PodRecord)>, PodError> {
        let pods = self.layout.pods();
        let mut found = Vec::new();
        for uid in self.layout.uids().map_err(io_at("list", &pods))? {
            let dir = self.layout.pod(&uid);
            if let Some(record) = dir.record().map_err(io_at("read the record in", dir.path()))? {
                found.push((dir, record));
            }
        }
        Ok(found)
    }

    /// Counts up whenever some pod may have changed.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.supervisors.changes()
    }

    /// Opens a pod's captured output.
    pub fn logs(&self, uid: &PodUid, options: LogOptions) -> Result<LogReader, PodError> {
        let view = self.view(uid)?.ok_or_else(|| PodError::Unknown { uid: uid.clone() })?;
        let ended = self.supervisors.ended(uid, view.status.stage == Stage::Ended);
        Ok(LogReader::open(&self.layout.pod(uid).logs(), options, ended)?)
    }

    /// Ends this runtime's part in the machine's network, once no pod is left: bridge, table,
    /// forwarding. With pods left it does nothing.
    pub async fn close(&self) -> Result<(), SetupError> {
        let fail = |source| SetupError::Io { what: "list", path: self.layout.pods(), source };
        if !self.layout.uids().map_err(fail)?.is_empty() {
            return Ok(());
        }
        nat::remove(&self.config.bridge).await?;
        link::remove(&self.config.bridge).await?;
        nat::restore_forwarding(&self.layout.data.join("forwarding-was-off"))?;
        // Shared with other agents of the machine: it stays while they have pods.
        crate::ignore(fs::remove_dir(&self.group));
        Ok(())
    }
}

fn view_of(dir: &PodDir, record: PodRecord) -> Result<PodView, PodError> {
    let status = dir.status().map_err(io_at("read the status in", dir.path()))?;
    Ok(PodView {
        spec: record.spec,
        addresses: record.link.iter().flat_map(PodLink::addresses).collect(),
        netns: record.netns,
        cgroup: PodCgroup::at(&record.cgroup).processes(),
        hosts: dir.hosts(),
        started: record.started,
        status: status.unwrap_or_default(),
    })
}

fn io_at(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PodError {
    let path = path.to_owned();
    move |source| PodError::Io { what, path, source }
}

/// What can be seen to be wrong before anything is made.
fn check(spec: &PodSpec) -> Result<(), PodError> {
    let uid = || spec.uid.clone();
    if spec.artifact.is_empty() && spec.entrypoint.is_empty() {
        return Err(PodError::NothingToRun { uid: uid() });
    }
    let host = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.';
    if spec.name.is_empty() || spec.name.len() > 63 || !spec.name.bytes().all(host) {
        return Err(PodError::HostName { uid: uid(), name: spec.name.clone() });
    }
    if let Some(machine) = spec.host_network.as_ref().filter(|m| !m.name.bytes().all(host)) {
        return Err(PodError::HostName { uid: uid(), name: machine.name.clone() });
    }
    let bad = |(name, value): &&(String, String)| {
        name.is_empty() || name.contains(['=', '\0']) || value.contains('\0')
    };
    if let Some((name, _)) = spec.environment.iter().find(bad) {
        return Err(PodError::Environment { uid: uid(), name: name.clone() });
    }
    Ok(())
}

/// Makes the runtime's directories, readable by root alone, and locks them against a second agent.
fn take_directories(layout: &Layout) -> Result<File, SetupError> {
    for path in [&layout.data, &layout.pods(), &layout.run.join("netns")] {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(|source| SetupError::Io { what: "create", path: path.clone(), source })?;
    }
    let path = layout.data.join("agent.lock");
    let fail = |source| SetupError::Io { what: "lock", path: path.clone(), source };
    let lock = File::create(&path).map_err(fail)?;
    match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(SetupError::InUse { path: layout.data.clone() }),
        Err(e) => Err(fail(e.into())),
    }
}

fn make_directories(dir: &PodDir, record: &PodRecord) -> Result<(), PodError> {
    for path in [dir.path().to_owned(), dir.work(), dir.tmp(), dir.logs()] {
        fs::create_dir_all(&path).map_err(io_at("create", &path))?;
    }
    let open_to_all = fs::Permissions::from_mode(0o1777);
    fs::set_permissions(dir.tmp(), open_to_all).map_err(io_at("set the mode of", &dir.tmp()))?;
    fs::write(dir.hosts(), hosts(record)).map_err(io_at("write", &dir.hosts()))
}

/// The pod's hosts file before others add to it: itself, unless they are to, and, if it is on the machine's network, the machine.
fn hosts(record: &PodRecord) -> String {
    let own = (!record.spec.named_elsewhere).then_some(record.spec.name.as_str());
    let mut text = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n".to_owned();
    if let Some((link, own)) = record.link.zip(own) {
        text += &format!("{}\t{own}\n", link.address);
    }
    if let Some(machine) = &record.spec.host_network {
        let names: Vec<&str> = [machine.name.as_str()].into_iter().chain(own).collect();
        for address in &machine.addresses {
            text += &format!("{address}\t{}\n", names.join(" "));
        }
    }
    text
}
