//! Keys of labels, annotations and finalizers. Every part that writes or reads one takes it from
//! here, so that a key is spelled once.
//!
//! Ray annotations exist under two prefixes: `rlark.io/` is what we write, `rlinf.io/` is what some
//! manifests carry. Read them through [`ray`], which accepts both.

use std::collections::BTreeMap;

/// API group of every kind.
pub const GROUP: &str = "rlinf.io";
/// The only version.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` of every object.
pub const API_VERSION: &str = "rlinf.io/v1alpha1";

/// Namespace of the control plane's own objects, and of raw pods on the data plane.
pub const SYSTEM_NAMESPACE: &str = "rlark-system";
/// Host names of pods are `<pod>.rlark-domain`.
pub const HOST_SUFFIX: &str = "rlark-domain";
/// Label of the Leases that prove agents alive: one per Node, in its namespace and of its name.
pub const NODE_LEASE: &str = "rlark.io/node-lease";
/// Secrets with a Domain's SSH authority are this plus the Domain's name, in [`SYSTEM_NAMESPACE`].
pub const DOMAIN_CA_PREFIX: &str = "domain-ca-";
/// Annotation of that Secret: the uid of the Domain it was made for. A Domain of the same name that
/// is made later is another one, and has another authority.
pub const DOMAIN_UID: &str = "rlark.io/domain-uid";
/// Data key of the authority's public half in that Secret. The private half is for the hub alone.
pub const DOMAIN_CA_PUBLIC: &str = "ca.pub";

/// Label of a Task: its Job.
pub const JOB: &str = "rlinf.io/job";
/// Label of a Job: its Workflow.
pub const WORKFLOW: &str = "rlinf.io/workflow";
/// Label of a Task: its name within the Job.
pub const TASK_TEMPLATE: &str = "rlark.io/task-template";
/// Annotation of a Raw or Docker Task: the Node that was chosen for it.
pub const NODE: &str = "rlark.io/node";

/// Label of a Node: the namespace `rlark-<cluster>`; annotation of an agent Secret: the cluster.
pub const CLUSTER_ID: &str = "rlark.io/cluster-id";
/// Label of a Node.
pub const AGENT_TYPE: &str = "rlark.io/agent-type";
/// Label of a Node: `true` where its agent lets tasks use the machine's own network, else `false`; absent on those of older agents.
pub const HOST_NETWORK: &str = "rlark.io/host-network";
/// Label of a Node, older form: `cloud`, `edge` or `robot`.
pub const NODE_CATEGORY: &str = "rlark.io/node-category";
/// Labels of a Node, value `true`; several are allowed.
pub const NODE_CATEGORY_CLOUD: &str = "rlark.io/node-category-cloud";
pub const NODE_CATEGORY_EDGE: &str = "rlark.io/node-category-edge";
pub const NODE_CATEGORY_ROBOT: &str = "rlark.io/node-category-robot";
/// Annotations of a Node, kept by people.
pub const CITY: &str = "rlark.io/city";
pub const GPU_MODEL: &str = "rlark.io/gpu-model";
pub const DEVICE_MODEL: &str = "rlark.io/device-model";
/// Older model key: annotation or label of a Node.
pub const MODEL: &str = "rlark.io/model";
/// Label of a Node.
pub const REGION: &str = "rlark.io/region";
/// Label of a Node, older form of [`TASK_NAME`].
pub const EMBODIED_TASK_NAME: &str = "rlark.io/embodied-task-name";

/// Label of a Pod: its Task.
pub const TASK_NAME: &str = "rlark.io/task-name";
/// Labels of a Pod: its name and namespace on the data plane.
pub const LOCAL_POD_NAME: &str = "rlark.io/local-pod-name";
pub const LOCAL_POD_NAMESPACE: &str = "rlark.io/local-pod-namespace";

/// Annotation of a Job: a new value asks for a fresh run.
pub const RESTARTED_AT: &str = "rlark.io/restarted-at";
/// Annotation of a Job, for people.
pub const DISPLAY_NAME: &str = "rlark.io/display-name";

/// Annotations of local objects that link them to their Task.
pub const MANAGEMENT_TASK_NAME: &str = "rlark.io/management-task-name";
pub const MANAGEMENT_TASK_NAMESPACE: &str = "rlark.io/management-task-namespace";
pub const MANAGEMENT_TASK_DOMAIN: &str = "rlark.io/management-task-domain";
pub const MANAGEMENT_TASK_UID: &str = "rlark.io/management-task-uid";
pub const MANAGEMENT_TASK_RESOURCE_VERSION: &str = "rlark.io/management-task-resource-version";
/// Label of a local volume claim: its Task.
pub const PVC_TASK: &str = "rlark.io/task";
pub const PVC_OWNER: &str = "rlark.io/pvc-owner";
pub const PVC_OWNER_TASK: &str = "rlark.io/pvc-owner-task";
/// Labels and annotation of an addon's local objects.
pub const ADDON_NAME: &str = "rlark.io/addon-name";
pub const ADDON_UID: &str = "rlark.io/addon-uid";
pub const ADDON_RESOURCE_VERSION: &str = "rlark.io/addon-resource-version";
/// Annotation of a StorageClass.
pub const DESCRIPTION: &str = "rlark.io/description";
/// Marks on Secrets.
pub const IMAGE_REGISTRY: &str = "rlark.io/image-registry";
pub const REGISTRY: &str = "rlark.io/registry";
pub const USERNAME: &str = "rlark.io/username";
pub const AGENT_CERT: &str = "rlark.io/agent-cert";

/// Finalizer of Tasks and Addons: the agent cleans up first.
pub const AGENT_CLEANUP: &str = "rlark.io/agent-cleanup";

/// Ray annotations of a Task, without their prefix.
pub mod ray {
    use super::BTreeMap;

    /// `head` or `worker`.
    pub const ROLE: &str = "ray-role";
    /// Name of the head's Task.
    pub const HEAD_TASK_NAME: &str = "ray-head-task-name";
    /// Sum of replicas over the Job.
    pub const TOTAL_NODES: &str = "ray-total-nodes";
    /// First rank of this Task's replicas.
    pub const NODE_RANK_START: &str = "ray-node-rank-start";

    /// The key that we write.
    #[must_use]
    pub fn key(name: &str) -> String {
        format!("rlark.io/{name}")
    }

    /// Reads either prefix; `rlark.io/` wins.
    #[must_use]
    pub fn get<'a>(annotations: &'a BTreeMap<String, String>, name: &str) -> Option<&'a str> {
        annotations
            .get(&key(name))
            .or_else(|| annotations.get(&format!("rlinf.io/{name}")))
            .map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ray_annotations_are_read_under_both_prefixes() {
        let mut a = BTreeMap::from([("rlinf.io/ray-role".to_owned(), "worker".to_owned())]);
        assert_eq!(ray::get(&a, ray::ROLE), Some("worker"));
        a.insert("rlark.io/ray-role".to_owned(), "head".to_owned());
        assert_eq!(ray::get(&a, ray::ROLE), Some("head"));
        assert_eq!(ray::get(&a, ray::TOTAL_NODES), None);
    }
}
