//! What a restarted node must remember: which pods were handed over, and the Domains' numbers.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use control_api::{attach::AttachRequest, ids::DomainName};
use serde::{Deserialize, Serialize};

use crate::{
    persist::{self, PersistError},
    plan::desired::DomainIds,
};

/// One handed-over pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Record {
    pub domain: DomainName,
    pub netns: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<PathBuf>,
    /// Tells whether the path still names the same namespace, or cgroup.
    pub netns_cookie: u64,
}

impl Record {
    pub(super) fn new(request: &AttachRequest, netns_cookie: u64) -> Self {
        Self {
            domain: request.domain.clone(),
            netns: request.netns.clone(),
            cgroup: request.cgroup.clone(),
            hosts: request.hosts.clone(),
            netns_cookie,
        }
    }
}

/// The content of `attachments.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Saved {
    #[serde(default)]
    pub(super) ids: DomainIds,
    #[serde(default)]
    pub(super) pods: BTreeMap<String, Record>,
}

/// The two files of the data directory that the keeper owns.
#[derive(Clone, Debug)]
pub(super) struct Files {
    attachments: PathBuf,
    routes: PathBuf,
}

impl Files {
    pub(super) fn new(data_dir: &Path) -> Self {
        Self {
            attachments: data_dir.join("attachments.json"),
            routes: data_dir.join("routes.json"),
        }
    }

    pub(super) fn load(&self) -> Result<Saved, PersistError> {
        Ok(persist::load(&self.attachments)?.unwrap_or_default())
    }

    pub(super) fn save(&self, saved: &Saved) -> Result<(), PersistError> {
        persist::store(&self.attachments, saved)
    }

    pub(super) fn routes(&self) -> Result<Option<control_api::session::RouteUpdate>, PersistError> {
        persist::load(&self.routes)
    }

    pub(super) fn save_routes(
        &self,
        snapshot: &control_api::session::RouteUpdate,
    ) -> Result<(), PersistError> {
        persist::store(&self.routes, snapshot)
    }
}
