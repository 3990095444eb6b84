//! Names that are made of other names.

use control_api::{labels, v1alpha1::Domain};

/// The Task of a Job's template.
#[must_use]
pub fn task(job: &str, template: &str) -> String {
    format!("{job}-{template}")
}

/// The Job of a Workflow's template.
#[must_use]
pub fn job(workflow: &str, template: &str) -> String {
    format!("{workflow}-{template}")
}

/// How an allocation names a pod: `<control-plane namespace>/<pod namespace>/<pod name>`.
#[must_use]
pub fn pod_key(namespace: &str, pod_namespace: &str, pod: &str) -> String {
    format!("{namespace}/{pod_namespace}/{pod}")
}

/// The Secret with a Domain's SSH authority, in the system namespace.
#[must_use]
pub fn domain_ca_secret(domain: &str) -> String {
    format!("{}{domain}", labels::DOMAIN_CA_PREFIX)
}

/// A Domain's name, empty for an object without one.
#[must_use]
pub fn of_domain(domain: &Domain) -> &str {
    domain.metadata.name.as_deref().unwrap_or_default()
}
