//! What a pod shall be. Pure values, written to disk as they are, so fields are only ever added.

use std::{collections::BTreeMap, fmt, net::IpAddr, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

/// Why a text is not a pod uid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a pod uid: 1 to 63 lower-case letters, digits or '-' are expected")]
pub struct UidError {
    text: String,
}

/// A pod's identity on this machine and the name of its Pod object. It becomes a file name, so
/// its alphabet is narrow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PodUid(String);

impl PodUid {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PodUid {
    type Err = UidError;
    fn from_str(text: &str) -> Result<Self, UidError> {
        let fits = !text.is_empty()
            && text.len() <= 63
            && !text.starts_with('-')
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if fits { Ok(Self(text.to_owned())) } else { Err(UidError { text: text.to_owned() }) }
    }
}

impl TryFrom<String> for PodUid {
    type Error = UidError;
    fn try_from(text: String) -> Result<Self, UidError> {
        text.parse()
    }
}

impl From<PodUid> for String {
    fn from(uid: PodUid) -> Self {
        uid.0
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// When a process that ended is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestartPolicy {
    Never,
    /// On a non-zero exit code or a signal.
    #[default]
    OnFailure,
    Always,
}

/// The machine as a pod on its network sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostNetwork {
    /// The machine's name, for the pod's hosts file.
    pub name: String,
    /// Where that name, and the pod's, lead to.
    pub addresses: Vec<IpAddr>,
}

/// One pod. Idempotent by `uid`: creating the same one twice is one pod.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    pub uid: PodUid,
    /// Host name inside the pod and `POD_NAME`.
    pub name: String,
    /// Absolute path, `file://` or `http(s)://`, optionally with `#sha256=HEX`. Empty: none, and
    /// the entrypoint is a program of the machine.
    #[serde(default)]
    pub artifact: String,
    /// Empty: the artifact itself.
    #[serde(default)]
    pub entrypoint: Vec<String>,
    /// In order; a later value of the same name wins.
    #[serde(default)]
    pub environment: Vec<(String, String)>,
    #[serde(default)]
    pub restart: RestartPolicy,
    /// Restarts before the pod is given up; `None`: for ever.
    #[serde(default)]
    pub backoff_limit: Option<u32>,
    /// From SIGTERM to SIGKILL.
    #[serde(default = "default_grace")]
    pub grace: Duration,
    /// Set: the pod is on the machine's network and has no namespace, interface or address of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_network: Option<HostNetwork>,
    /// Its own name leads to an address that somebody else writes into its hosts file, and to no other.
    #[serde(default)]
    pub named_elsewhere: bool,
    /// The caller's own notes (which Task, which Domain); kept, never read here.
    #[serde(default)]
    pub notes: BTreeMap<String, String>,
}

/// How long a pod may take to end by itself.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(10);

fn default_grace() -> Duration {
    DEFAULT_GRACE
}

impl fmt::Debug for PodSpec {
    /// Environment values may hold secrets of users: only their names are shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.environment.iter().map(|(k, _)| k.as_str()).collect();
        f.debug_struct("PodSpec")
            .field("uid", &self.uid)
            .field("name", &self.name)
            .field("artifact", &self.artifact)
            .field("entrypoint", &self.entrypoint)
            .field("environment", &names)
            .field("host_network", &self.host_network)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_can_never_leave_its_directory() {
        for bad in ["", "..", "a/b", "A", "-rf", "a b", "a.b"] {
            assert!(bad.parse::<PodUid>().is_err(), "{bad:?}");
        }
        assert!("7e1c-0".parse::<PodUid>().is_ok());
    }

    #[test]
    fn values_of_the_environment_are_not_in_debug_output() {
        let spec = PodSpec {
            uid: "a".parse().unwrap(),
            name: "a".into(),
            artifact: String::new(),
            entrypoint: vec![],
            environment: vec![("TOKEN".into(), "hunter2".into())],
            restart: RestartPolicy::Never,
            backoff_limit: None,
            grace: DEFAULT_GRACE,
            host_network: None,
            named_elsewhere: false,
            notes: BTreeMap::new(),
        };
        let text = format!("{spec:?}");
        assert!(text.contains("TOKEN") && !text.contains("hunter2"));
    }
}
