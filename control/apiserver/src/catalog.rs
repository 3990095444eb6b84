//! The kinds one workspace serves: the built-in ones and those of its CustomResourceDefinitions.

use std::collections::HashMap;
use std::sync::Arc;

use control_schema::{Resource, builtin, schema};
use control_store::{Key, Scope, Snapshot};

use crate::crd;
use crate::status::ApiError;

/// Group and plural of custom resource definitions.
pub(crate) const CRDS: (&str, &str) = ("apiextensions.k8s.io", "customresourcedefinitions");

/// An immutable view of the served kinds; replaced as a whole when a CRD changes.
#[derive(Debug)]
pub(crate) struct Catalog {
    /// In discovery order.
    resources: Vec<Arc<Resource>>,
    by_path: HashMap<String, Arc<Resource>>,
    by_kind: HashMap<String, Arc<Resource>>,
}

fn path_of(group: &str, version: &str, plural: &str) -> String {
    format!("{group}/{version}/{plural}")
}

impl Catalog {
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        let mut resources: Vec<Arc<Resource>> =
            builtin::resources().iter().cloned().map(Arc::new).collect();
        let scope = Scope::resource(CRDS.0, CRDS.1, None);
        for crd in snapshot.iter(&scope, None).filter(|o| crd::established(&o.value)) {
            match schema::resources_of_crd(&crd.value) {
                Ok(of_crd) => resources.extend(of_crd.into_iter().map(Arc::new)),
                // A CRD is checked before it is stored, so this is a file from another version.
                Err(error) => {
                    tracing::error!(crd = crd.key.name(), %error, "definition not served");
                }
            }
        }
        let by_path = resources
            .iter()
            .map(|r| (path_of(&r.group, &r.version, &r.plural), Arc::clone(r)))
            .collect();
        // Of several versions the first listed answers for the kind when the version is not served.
        let mut by_kind = HashMap::new();
        for r in &resources {
            by_kind.entry(format!("{}/{}", r.group, r.kind)).or_insert_with(|| Arc::clone(r));
        }
        Self { resources, by_path, by_kind }
    }

    pub(crate) fn resources(&self) -> &[Arc<Resource>] {
        &self.resources
    }

    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        self.by_path.get(&path_of(group, version, plural)).map(Arc::clone)
    }

    pub(crate) fn find_kind(&self, group: &str, kind: &str) -> Option<Arc<Resource>> {
        self.by_kind.get(&format!("{group}/{kind}")).map(Arc::clone)
    }

    /// What to say of a path below a group and version where nothing is: groups that are built in have a server of
    /// their own, which answers with a Status; everywhere else there is no page.
    pub(crate) fn nothing_at(&self, group: &str, version: &str) -> ApiError {
        let built_in =
            self.resources.iter().any(|r| r.builtin && r.group == group && r.version == version);
        if built_in { ApiError::UnknownPath } else { ApiError::NoPage }
    }

    /// The version a kind is stored in, where it is served.
    pub(crate) fn storage_version(&self, resource: &Resource) -> Option<&Arc<Resource>> {
        self.resources
            .iter()
            .find(|r| r.storage && r.group == resource.group && r.plural == resource.plural)
    }

    pub(crate) fn storage_api_version(&self, resource: &Resource) -> String {
        self.storage_version(resource).map_or_else(|| resource.api_version(), |r| r.api_version())
    }

    /// Every stored kind once.
    pub(crate) fn stored_kinds(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.iter().filter(|r| r.storage && r.verbs.iter().any(|v| v == "list"))
    }
}

/// Events are one kind of object under two groups; every other resource is stored under its own.
pub(crate) fn storage_group(resource: &Resource) -> &str {
    if is_new_event(resource) { "" } else { &resource.group }
}

/// `events.k8s.io`, the form that differs from the stored one.
pub(crate) fn is_new_event(resource: &Resource) -> bool {
    resource.group == "events.k8s.io" && resource.plural == "events"
}

pub(crate) fn key(resource: &Resource, namespace: Option<&str>, name: &str) -> Key {
    Key::new(storage_group(resource), &resource.plural, namespace.unwrap_or_default(), name)
}

pub(crate) fn scope(resource: &Resource, namespace: Option<&str>) -> Scope {
    let namespace = namespace.filter(|_| resource.namespaced());
    if !resource.namespaced() {
        return Scope::resource(storage_group(resource), &resource.plural, None);
    }
    Scope::resource(storage_group(resource), &resource.plural, namespace)
}
