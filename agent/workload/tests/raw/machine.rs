//! A machine for one test: namespaces that end with its thread, and guards for the rest.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use agent_workload::{
    lifecycle::Outcome,
    logs::reader::LogOptions,
    raw::{PodView, RawConfig, RawRuntime, Stage, error::SetupError},
    spec::{DEFAULT_GRACE, PodSpec, PodUid, RestartPolicy},
};
use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountPropagationFlags, mount_change};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(30);

/// Runs `test` on a thread with a network and a mount namespace of its own.
pub(crate) fn on_a_machine(test: impl AsyncFnOnce(&Machine) + Send + 'static) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
            .expect("these tests need root and namespaces");
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        let machine = Machine::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test(&machine));
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

pub(crate) struct Machine {
    pub(crate) data: TempDir,
    cgroup: PathBuf,
}

impl Machine {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let cgroup = cgroup2().join(format!("rlark-test-{}-{n}", std::process::id()));
        fs::create_dir(&cgroup).unwrap();
        Self { data: tempfile::tempdir().unwrap(), cgroup }
    }

    pub(crate) fn config(&self) -> RawConfig {
        RawConfig {
            helper: env!("CARGO_BIN_EXE_rlark-raw").into(),
            data_dir: self.data.path().join("data"),
            run_dir: self.data.path().join("run"),
            cgroup: Some(self.cgroup.clone()),
            bridge: "rlark0".into(),
            pod_cidr: "10.244.0.0/24".parse().unwrap(),
            pod_cidr6: None,
            site_cidr: "10.244.0.0/24".parse().unwrap(),
            hide: vec![],
            allow_host_network: true,
        }
    }

    pub(crate) async fn try_open(&self) -> Result<RawRuntime, SetupError> {
        RawRuntime::open(self.config()).await
    }

    pub(crate) async fn open(&self) -> RawRuntime {
        self.try_open().await.unwrap()
    }

    pub(crate) async fn until(
        &self,
        runtime: &RawRuntime,
        uid: &PodUid,
        wanted: impl Fn(&PodView) -> bool,
    ) -> PodView {
        let mut changes = runtime.changes();
        let waiting = async {
            loop {
                let view = runtime.view(uid).unwrap().unwrap();
                if wanted(&view) {
                    return view;
                }
                changes.changed().await.unwrap();
            }
        };
        match tokio::time::timeout(LIMIT, waiting).await {
            Ok(view) => view,
            Err(_) => {
                let dir = self.pod(uid);
                let errors = fs::read_to_string(dir.join("supervisor.log")).unwrap_or_default();
                panic!("still {:?}; supervisor says: {errors}", runtime.view(uid));
            }
        }
    }

    pub(crate) async fn ended(&self, runtime: &RawRuntime, uid: &PodUid) -> PodView {
        self.until(runtime, uid, |v| v.status.stage == Stage::Ended).await
    }

    pub(crate) async fn log(
        &self,
        runtime: &RawRuntime,
        uid: &PodUid,
        options: LogOptions,
    ) -> String {
        let mut reader = runtime.logs(uid, options).unwrap();
        let mut text = Vec::new();
        while let Some(chunk) = tokio::time::timeout(LIMIT, reader.next()).await.unwrap() {
            text.extend_from_slice(&chunk.unwrap());
        }
        String::from_utf8(text).unwrap()
    }

    /// Waits until the pod has written `wanted`.
    pub(crate) async fn logged(&self, runtime: &RawRuntime, uid: &PodUid, wanted: &str) -> PodView {
        let follow = LogOptions { follow: true, ..LogOptions::default() };
        let mut reader = runtime.logs(uid, follow).unwrap();
        let mut text = String::new();
        while !text.contains(wanted) {
            let chunk = tokio::time::timeout(LIMIT, reader.next()).await.unwrap();
            let Some(chunk) = chunk else { panic!("the log ended: {text}") };
            text.push_str(std::str::from_utf8(&chunk.unwrap()).unwrap());
        }
        self.until(runtime, uid, |v| v.status.stage == Stage::Running).await
    }

    fn pod(&self, uid: &PodUid) -> PathBuf {
        self.data.path().join("data/pods").join(uid.as_str())
    }

    pub(crate) fn work(&self, uid: &PodUid) -> PathBuf {
        self.pod(uid).join("work")
    }

    pub(crate) fn kill_supervisor(&self, uid: &PodUid) {
        let pid = fs::read_to_string(self.pod(uid).join("lock")).unwrap().parse().unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)
            .unwrap();
    }

    /// Processes in this machine's cgroup.
    pub(crate) fn processes(&self) -> usize {
        fn count(dir: &Path) -> usize {
            let own = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            own.lines().count() + children(dir).iter().map(|d| count(d)).sum::<usize>()
        }
        count(&self.cgroup)
    }

    pub(crate) fn interfaces(&self) -> Vec<String> {
        let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let name = |line: &str| line.split_once(':').map(|(name, _)| name.trim().to_owned());
        text.lines().filter_map(name).collect()
    }

    /// What the runtime could leave behind.
    pub(crate) fn traces(&self) -> Vec<String> {
        let mut found = self.interfaces();
        let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap();
        found.extend(mounts.lines().filter(|l| l.contains("nsfs")).map(str::to_owned));
        found.extend(children(&self.cgroup).iter().map(|p| p.display().to_string()));
        let nft = std::process::Command::new("nft").args(["list", "tables"]).output().unwrap();
        found.push(String::from_utf8(nft.stdout).unwrap());
        found.push(fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap());
        let pods = self.data.path().join("data/pods");
        found.extend(children(&pods).iter().map(|p| p.display().to_string()));
        found
    }
}

impl Drop for Machine {
    #[expect(clippy::disallowed_methods, reason = "a destructor cannot await the cgroup's event")]
    fn drop(&mut self) {
        fn remove(dir: &Path) {
            children(dir).iter().for_each(|d| remove(d));
            let _ = fs::remove_dir(dir);
        }
        let _ = fs::write(self.cgroup.join("cgroup.kill"), "1");
        for _ in 0..200 {
            if self.processes() == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        remove(&self.cgroup);
    }
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return vec![] };
    entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.is_dir()).collect()
}

fn cgroup2() -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|l| l.split(' ').nth(2) == Some("cgroup2"));
    line.and_then(|l| l.split(' ').nth(1)).expect("a cgroup v2 mount").into()
}

/// A pod that runs a shell script, once more on failure never.
pub(crate) fn spec(name: &str, script: &str) -> PodSpec {
    PodSpec {
        uid: format!("uid-{name}").parse().unwrap(),
        name: name.to_owned(),
        artifact: String::new(),
        entrypoint: vec!["/bin/sh".into(), "-c".into(), script.to_owned()],
        environment: vec![],
        restart: RestartPolicy::Never,
        backoff_limit: None,
        grace: DEFAULT_GRACE,
        host_network: None,
        named_elsewhere: false,
        notes: BTreeMap::new(),
    }
}

/// Code and message of a failure.
pub(crate) fn failed(view: &PodView) -> (Option<i32>, String) {
    match view.outcome() {
        Some(Outcome::Failed { code, message }) => (*code, message.clone()),
        other => panic!("not failed: {other:?}"),
    }
}

/// A pod's own address of IPv4.
pub(crate) fn v4(view: &PodView) -> Ipv4Addr {
    match view.addresses.first() {
        Some(IpAddr::V4(v4)) => *v4,
        other => panic!("no address of IPv4 first: {other:?}"),
    }
}
