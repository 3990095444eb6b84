//! Where a pod's state lies on disk, and its records. All state of the runtime is here and in the
//! kernel, nothing only in memory: that is why an agent that starts again finds its pods.
//!
//! ```text
//!   DATA/artifacts/<sha256>/NAME        the cache
//!   DATA/pods/<uid>/pod.json            what the pod is: written by the runtime, before all else
//!                  /status.json         how it does: written by its supervisor alone
//!                  /lock                flock held and pid written while a supervisor lives
//!                  /hosts work/ tmp/    what the pod sees as /etc/hosts, its directory, /tmp
//!                  /logs/
//!   RUN/netns/<uid>                     bind mount that names the network namespace: its own, or the machine's
//! ```

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    lifecycle::Outcome,
    spec::{PodSpec, PodUid},
};

/// Where the runtime keeps things.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub data: PathBuf,
    pub run: PathBuf,
}

impl Layout {
    #[must_use]
    pub(crate) fn artifacts(&self) -> PathBuf {
        self.data.join("artifacts")
    }

    #[must_use]
    pub(crate) fn pods(&self) -> PathBuf {
        self.data.join("pods")
    }

    #[must_use]
    pub(crate) fn pod(&self, uid: &PodUid) -> PodDir {
        PodDir(self.pods().join(uid.as_str()))
    }

    #[must_use]
    pub(crate) fn netns(&self, uid: &PodUid) -> PathBuf {
        self.run.join("netns").join(uid.as_str())
    }

    /// Pods that have a directory, whole or not.
    pub(crate) fn uids(&self) -> io::Result<Vec<PodUid>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.pods())? {
            if let Some(uid) = entry?.file_name().to_str().and_then(|n| n.parse().ok()) {
                found.push(uid);
            }
        }
        found.sort();
        Ok(found)
    }
}

/// One pod's directory.
#[derive(Clone, Debug)]
pub(crate) struct PodDir(PathBuf);

impl PodDir {
    #[must_use]
    pub(crate) fn at(path: PathBuf) -> Self {
        Self(path)
    }

    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    #[must_use]
    pub(crate) fn hosts(&self) -> PathBuf {
        self.0.join("hosts")
    }

    #[must_use]
    pub(crate) fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    #[must_use]
    pub(crate) fn work(&self) -> PathBuf {
        self.0.join("work")
    }

    #[must_use]
    pub(crate) fn tmp(&self) -> PathBuf {
        self.0.join("tmp")
    }

    #[must_use]
    pub(crate) fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }

    pub(crate) fn record(&self) -> io::Result<Option<PodRecord>> {
        let record: Option<PodRecord> = read(&self.0.join("pod.json"))?;
        // An unreadable link is no link, to serde; and must not put a pod on the machine's network.
        if record.as_ref().is_some_and(|r| r.link.is_some() == r.spec.host_network.is_some()) {
            let why = "a pod has either addresses of its own or the machine's network";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(record)
    }

    pub(crate) fn write_record(&self, record: &PodRecord) -> io::Result<()> {
        write(&self.0.join("pod.json"), record)
    }

    pub(crate) fn status(&self) -> io::Result<Option<Status>> {
        read(&self.0.join("status.json"))
    }

    pub(crate) fn write_status(&self, status: &Status) -> io::Result<()> {
        write(&self.0.join("status.json"), status)
    }
}

/// A pod's place on the bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodLink {
    /// Its real address on the site's network.
    pub address: Ipv4Addr,
    pub prefix: u8,
    #[serde(default)]
    pub address6: Option<Ipv6Addr>,
    #[serde(default)]
    pub prefix6: Option<u8>,
    pub gateway: Ipv4Addr,
}

impl PodLink {
    /// All its addresses, the first first.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        std::iter::once(self.address.into()).chain(self.address6.map(IpAddr::V6))
    }
}

/// What a pod is on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodRecord {
    pub spec: PodSpec,
    /// Its own place on the site's network; none for a pod on the machine's.
    #[serde(flatten)]
    pub link: Option<PodLink>,
    pub netns: PathBuf,
    pub cgroup: PathBuf,
    /// The fetched artifact, when the spec names one.
    #[serde(default)]
    pub artifact: Option<PathBuf>,
    /// Files and directories of the machine that the pod must not see.
    #[serde(default)]
    pub hidden: Vec<PathBuf>,
    /// Whether a start has been asked for.
    #[serde(default)]
    pub started: bool,
}

/// Where the pod is in its life, as its supervisor writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stage {
    Starting,
    Running,
    BackOff,
    Stopping,
    Ended,
}

/// How a pod does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub stage: Stage,
    /// Attempts begun so far; the number of the current log.
    pub attempt: u32,
    /// Failures in a row, for the back-off.
    pub failures: u32,
    /// When an attempt's entrypoint was first and last executed.
    #[serde(default)]
    pub first_started: Option<jiff::Timestamp>,
    #[serde(default)]
    pub last_started: Option<jiff::Timestamp>,
    #[serde(default)]
    pub ended: Option<jiff::Timestamp>,
    #[serde(default)]
    pub last_exit: Option<i32>,
    /// Set with [`Stage::Ended`].
    #[serde(default)]
    pub outcome: Option<Outcome>,
}

impl Status {
    /// Before the first attempt.
    #[must_use]
    pub fn new() -> Self {
        Self {
            stage: Stage::Starting,
            attempt: 0,
            failures: 0,
            first_started: None,
            last_started: None,
            ended: None,
            last_exit: None,
            outcome: None,
        }
    }
}

impl Default for Status {
    fn default() -> Self {
        Self::new()
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Whole or not at all, also when the machine loses power. Readable by the owner only: the record
/// holds the task's environment.
fn write<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let mut file =
        tempfile::NamedTempFile::new_in(path.parent().unwrap_or_else(|| Path::new(".")))?;
    serde_json::to_writer_pretty(&mut file, value)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As agents wrote it that knew no other pods.
    const OLD: &str = r#"{"spec":{"uid":"u","name":"a-0"},"address":"10.244.0.2","prefix":24,
        "address6":"fd72::2","prefix6":120,"gateway":"10.244.0.1","netns":"/run/n","cgroup":"/c","started":true}"#;

    fn record(text: &str) -> io::Result<PodRecord> {
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("pod.json"), text)?;
        Ok(PodDir::at(dir.path().to_owned()).record()?.unwrap())
    }

    #[test]
    fn records_of_older_agents_are_read_and_written_the_same() {
        let read = record(OLD).unwrap();
        let addresses: Vec<String> =
            read.link.unwrap().addresses().map(|a| a.to_string()).collect();
        assert_eq!(addresses, ["10.244.0.2", "fd72::2"]);
        assert!(read.spec.host_network.is_none() && read.started);
        let text = serde_json::to_value(&read).unwrap();
        let old: serde_json::Value = serde_json::from_str(OLD).unwrap();
        for key in ["address", "prefix", "address6", "prefix6", "gateway", "netns"] {
            assert_eq!(text[key], old[key], "{key}");
        }
    }

    #[test]
    fn a_pod_on_the_machines_network_has_no_addresses_and_no_other_pod_is_without() {
        let old = record(OLD).unwrap();
        let host = crate::spec::HostNetwork { name: "m".into(), addresses: vec![] };
        let spec = PodSpec { host_network: Some(host), ..old.spec.clone() };
        let on_host = PodRecord { spec, link: None, ..old };
        let text = serde_json::to_string(&on_host).unwrap();
        assert!(!text.contains("gateway"), "{text}");
        assert_eq!(record(&text).unwrap(), on_host);
        for broken in [OLD.replace("10.244.0.2", "10.244"), text.replace("hostNetwork", "other")] {
            assert_eq!(record(&broken).unwrap_err().kind(), io::ErrorKind::InvalidData, "{broken}");
        }
    }
}
