//! Which key holds which machine's name: one ConfigMap per enrolled machine in `rlark-system`.
//!
//! While a record stands and its certificate lives, nobody else can take the name. Deleting the
//! record frees the name and ends all that the machine's certificate was good for, at once: see
//! [`crate::standing`].

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use control_api::{ids::NodeRef, labels::SYSTEM_NAMESPACE, session::MachineRole};
use control_identity::{KeyHash, ca::MACHINE_LIFE};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};

/// Why a machine does not get or keep its name.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MachineError {
    #[error(
        "{role} {machine} is already enrolled with another key; give this machine another name, \
         or delete ConfigMap {SYSTEM_NAMESPACE}/{record} if the other one is gone for good"
    )]
    NameTaken { role: &'static str, machine: NodeRef, record: String },
    #[error("{role} {machine} was removed by an administrator; enrol it again with a join token")]
    Removed { role: &'static str, machine: NodeRef },
    #[error("the record of {role} {machine}: the API server failed")]
    Api {
        role: &'static str,
        machine: NodeRef,
        #[source]
        source: Box<kube::Error>,
    },
}

/// Label of the records: the machine's role.
pub(crate) const ROLE_LABEL: &str = "rlark.io/machine-role";

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    key: String,
    /// Seconds since the epoch.
    not_after: u64,
    /// Id of the join token that let it in.
    token: String,
}

/// What stands in the way of a machine that wants a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Nothing.
    Free,
    /// It is this very machine, which came in with this very token: its first answer was lost.
    Repeated,
    /// Another key holds the name and its certificate lives.
    Taken,
}

/// Pure: may `key`, coming with `token`, have the name that `record` describes?
fn claim(record: Option<&Record>, key: KeyHash, token: &str, now: u64) -> Claim {
    match record {
        None => Claim::Free,
        Some(r) if r.key == key.to_string() => {
            if r.token == token {
                Claim::Repeated
            } else {
                Claim::Free
            }
        }
        Some(r) if r.not_after <= now => Claim::Free,
        Some(_) => Claim::Taken,
    }
}

/// The only reader and writer of the machine records.
pub(crate) struct Machines {
    api: Api<ConfigMap>,
}

impl Machines {
    pub(crate) fn new(client: Client) -> Self {
        Self { api: Api::namespaced(client, SYSTEM_NAMESPACE) }
    }

    /// What stands in the way of `key` taking the name.
    pub(crate) async fn claim(
        &self,
        role: MachineRole,
        machine: &NodeRef,
        key: KeyHash,
        token: &str,
    ) -> Result<Claim, MachineError> {
        let found = self.load(role, machine).await?;
        Ok(claim(found.as_ref().and_then(decode).as_ref(), key, token, now()))
    }

    /// Writes the record for a certificate that is about to be given out. Fails with `NameTaken`
    /// when another machine was faster.
    pub(crate) async fn take(
        &self,
        role: MachineRole,
        machine: &NodeRef,
        key: KeyHash,
        token: &str,
    ) -> Result<(), MachineError> {
        let found = self.load(role, machine).await?;
        if claim(found.as_ref().and_then(decode).as_ref(), key, token, now()) == Claim::Taken {
            return Err(taken(role, machine));
        }
        self.write(role, machine, key, token, found).await
    }

    /// Prolongs the record of a machine that renews; only the key that holds the name may.
    pub(crate) async fn renew(
        &self,
        role: MachineRole,
        machine: &NodeRef,
        key: KeyHash,
    ) -> Result<(), MachineError> {
        let found = self.load(role, machine).await?;
        match found.as_ref().and_then(decode) {
            Some(record) if record.key == key.to_string() => {
                self.write(role, machine, key, &record.token, found).await
            }
            Some(_) => Err(taken(role, machine)),
            None => Err(MachineError::Removed { role: word(role), machine: machine.clone() }),
        }
    }

    async fn load(
        &self,
        role: MachineRole,
        machine: &NodeRef,
    ) -> Result<Option<ConfigMap>, MachineError> {
        let found = self.api.get_opt(&record_name(role, machine)).await;
        found.map_err(|e| api_error(role, machine, e))
    }

    async fn write(
        &self,
        role: MachineRole,
        machine: &NodeRef,
        key: KeyHash,
        token: &str,
        found: Option<ConfigMap>,
    ) -> Result<(), MachineError> {
        let name = record_name(role, machine);
        let record = Record {
            key: key.to_string(),
            not_after: now().saturating_add(MACHINE_LIFE.as_secs()),
            token: token.to_owned(),
        };
        let params = PostParams::default();
        let written = match found {
            // At the version that was read: who was faster wins.
            Some(mut map) => {
                map.data = Some(encode(&record, role, machine));
                self.api.replace(&name, &params, &map).await
            }
            None => {
                let label = (ROLE_LABEL.to_owned(), word(role).to_owned());
                let map = ConfigMap {
                    metadata: ObjectMeta {
                        name: Some(name.clone()),
                        labels: Some(BTreeMap::from([label])),
                        ..ObjectMeta::default()
                    },
                    data: Some(encode(&record, role, machine)),
                    ..ConfigMap::default()
                };
                self.api.create(&params, &map).await
            }
        };
        match written {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => Err(taken(role, machine)),
            Err(e) => Err(api_error(role, machine, e)),
        }
    }
}

pub(crate) fn taken(role: MachineRole, machine: &NodeRef) -> MachineError {
    MachineError::NameTaken {
        role: word(role),
        machine: machine.clone(),
        record: record_name(role, machine),
    }
}

fn api_error(role: MachineRole, machine: &NodeRef, source: kube::Error) -> MachineError {
    MachineError::Api { role: word(role), machine: machine.clone(), source: Box::new(source) }
}

pub(crate) fn word(role: MachineRole) -> &'static str {
    match role {
        MachineRole::Agent => "agent",
        MachineRole::Node => "node",
    }
}

/// A cluster has no dots, so the parts cannot run together. Names that would be too long for an
/// object are hashed.
pub(crate) fn record_name(role: MachineRole, machine: &NodeRef) -> String {
    let plain = format!("machine.{}.{}.{}", word(role), machine.cluster, machine.node);
    if plain.len() <= 253 {
        return plain;
    }
    let hash = KeyHash::of_spki(plain.as_bytes()).to_string();
    format!("machine.{}.{hash}", word(role))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

fn encode(record: &Record, role: MachineRole, machine: &NodeRef) -> BTreeMap<String, String> {
    BTreeMap::from([
        ("role".to_owned(), word(role).to_owned()),
        ("machine".to_owned(), machine.to_string()),
        ("keySha256".to_owned(), record.key.clone()),
        ("notAfter".to_owned(), record.not_after.to_string()),
        ("token".to_owned(), record.token.clone()),
    ])
}

/// The hash of the key that a record is for.
pub(crate) fn key_of(map: &ConfigMap) -> Option<&str> {
    map.data.as_ref()?.get("keySha256").map(String::as_str)
}

fn decode(map: &ConfigMap) -> Option<Record> {
    let data = map.data.as_ref()?;
    Some(Record {
        key: key_of(map)?.to_owned(),
        not_after: data.get("notAfter")?.parse().ok()?,
        token: data.get("token").cloned().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_belongs_to_a_key_until_its_certificate_has_expired() {
        let (a, b) = (KeyHash::of_spki(b"a"), KeyHash::of_spki(b"b"));
        let record = Record { key: a.to_string(), not_after: 100, token: "t1".to_owned() };
        assert_eq!(claim(None, b, "t", 0), Claim::Free);
        assert_eq!(claim(Some(&record), b, "t1", 99), Claim::Taken);
        assert_eq!(claim(Some(&record), b, "t1", 100), Claim::Free);
        assert_eq!(claim(Some(&record), a, "t1", 50), Claim::Repeated);
        assert_eq!(claim(Some(&record), a, "t2", 50), Claim::Free);
    }

    #[test]
    fn records_of_different_machines_have_different_names() {
        let name = |s: &str| record_name(MachineRole::Node, &s.parse().unwrap());
        assert_eq!(name("a-b/c"), "machine.node.a-b.c");
        assert_ne!(name("a-b/c"), name("a/b-c"));
        let long = format!(
            "a/{}",
            ["x".repeat(60), "y".repeat(60), "z".repeat(60), "w".repeat(60)].join(".")
        );
        assert!(name(&long).len() <= 253);
    }
}
