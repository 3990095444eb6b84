//! The authoriser: fixed rules for machines and admins, RBAC objects for everybody else, and
//! deny by default. Pure apart from the swap of its snapshot; called by the API server for each
//! request, fed by whoever watches the RBAC objects.

use std::{collections::HashMap, sync::Arc};

use arc_swap::ArcSwap;
use control_api::ids::ClusterId;
use serde::Deserialize;

use crate::{
    agent,
    authorize::{Attributes, Authorizer, Decision, Refused, Write},
    principal::Principal,
};

/// `rbac.authorization.k8s.io/v1` `PolicyRule`, for resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    pub verbs: Vec<String>,
    pub api_groups: Vec<String>,
    pub resources: Vec<String>,
    pub resource_names: Vec<String>,
}

/// A Role, or a ClusterRole when `metadata.namespace` is empty.
#[derive(Clone, Debug, Deserialize)]
pub struct RoleObject {
    pub metadata: Metadata,
    #[serde(default)]
    pub rules: Vec<Rule>,
}

/// A RoleBinding, or a ClusterRoleBinding when `metadata.namespace` is empty.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BindingObject {
    pub metadata: Metadata,
    pub role_ref: RoleRef,
    #[serde(default)]
    pub subjects: Vec<Subject>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Metadata {
    pub name: String,
    pub namespace: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct RoleRef {
    pub kind: String,
    pub name: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Subject {
    pub kind: String,
    pub name: String,
    #[serde(default)]
    pub namespace: String,
}

/// All RBAC objects at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// By namespace (empty for cluster roles) and name.
    roles: HashMap<(String, String), Vec<Rule>>,
    bindings: Vec<BindingObject>,
}

impl Snapshot {
    #[must_use]
    pub fn new(
        roles: impl IntoIterator<Item = RoleObject>,
        bindings: impl IntoIterator<Item = BindingObject>,
    ) -> Self {
        let roles =
            roles.into_iter().map(|r| ((r.metadata.namespace, r.metadata.name), r.rules)).collect();
        Self { roles, bindings: bindings.into_iter().collect() }
    }

    fn allows(&self, user: &str, groups: &[String], what: &Attributes<'_>) -> bool {
        self.bindings.iter().any(|b| {
            let scope = &b.metadata.namespace;
            // A binding in a namespace speaks for that namespace only; a cluster binding for all.
            (scope.is_empty() || scope == what.namespace)
                && b.subjects.iter().any(|s| names(s, user, groups))
                && self.rules_of(b).iter().any(|r| r.matches(what))
        })
    }

    fn rules_of(&self, binding: &BindingObject) -> &[Rule] {
        let namespace = match binding.role_ref.kind.as_str() {
            "ClusterRole" => "",
            // A cluster binding cannot refer to a namespace's role.
            "Role" if !binding.metadata.namespace.is_empty() => &binding.metadata.namespace,
            _ => return &[],
        };
        let key = (namespace.to_owned(), binding.role_ref.name.clone());
        self.roles.get(&key).map_or(&[], Vec::as_slice)
    }
}

fn names(subject: &Subject, user: &str, groups: &[String]) -> bool {
    match subject.kind.as_str() {
        "User" => subject.name == user,
        "Group" => groups.contains(&subject.name),
        "ServiceAccount" => {
            user == format!("system:serviceaccount:{}:{}", subject.namespace, subject.name)
        }
        _ => false,
    }
}

impl Rule {
    fn matches(&self, what: &Attributes<'_>) -> bool {
        let any = |list: &[String], value: &str| list.iter().any(|x| x == "*" || x == value);
        any(&self.verbs, what.verb)
            && any(&self.api_groups, what.group)
            && self.resources.iter().any(|r| resource_matches(r, what))
            && (self.resource_names.is_empty()
                || (!what.name.is_empty() && self.resource_names.iter().any(|n| n == what.name)))
    }
}

/// `*`, `pods`, `pods/log`, `*/scale`.
fn resource_matches(pattern: &str, what: &Attributes<'_>) -> bool {
    if pattern == "*" {
        return true;
    }
    match pattern.split_once('/') {
        None => what.subresource.is_empty() && pattern == what.resource,
        Some((resource, sub)) => {
            sub == what.subresource && (resource == "*" || resource == what.resource)
        }
    }
}

/// The authoriser of the server. [`Rbac::replace`] takes a new snapshot; readers never wait.
#[derive(Debug, Default)]
pub struct Rbac {
    snapshot: ArcSwap<Snapshot>,
}

impl Rbac {
    #[must_use]
    pub fn new(snapshot: Snapshot) -> Self {
        Self { snapshot: ArcSwap::from_pointee(snapshot) }
    }

    /// Later questions are answered from `snapshot`.
    pub fn replace(&self, snapshot: Snapshot) {
        self.snapshot.store(Arc::new(snapshot));
    }
}

impl Authorizer for Rbac {
    fn authorize(&self, who: &Principal, what: &Attributes<'_>) -> Decision {
        let allowed = match who {
            Principal::Admin { .. } => true,
            Principal::Agent(n) => agent_may(&n.cluster, what) || is_about_oneself(what),
            // The data path gets its routes in its session and needs nothing here.
            Principal::Node(_) => false,
            Principal::User { name, groups } if groups.iter().any(|g| g == "system:masters") => {
                tracing::debug!(user = name, "allowed as a member of system:masters");
                true
            }
            Principal::User { name, .. } => {
                is_about_oneself(what) || self.snapshot.load().allows(name, &who.groups(), what)
            }
            // Discovery and health are no resources; the API server serves them to anybody.
            Principal::Anonymous => false,
        };
        if allowed { Decision::Allow } else { Decision::Deny(refusal(who)) }
    }

    fn admit(&self, who: &Principal, write: &Write<'_>) -> Result<(), Refused> {
        match who {
            Principal::Agent(machine) => agent::check(machine, write),
            _ => Ok(()),
        }
    }
}

/// Questions of callers about themselves (`kubectl auth whoami`, `can-i`): Kubernetes' role
/// `system:basic-user`.
fn is_about_oneself(what: &Attributes<'_>) -> bool {
    what.verb == "create"
        && what.subresource.is_empty()
        && matches!(
            (what.group, what.resource),
            ("authorization.k8s.io", "selfsubjectaccessreviews" | "selfsubjectrulesreviews")
                | ("authentication.k8s.io", "selfsubjectreviews")
        )
}

/// Which verbs an agent has, all of them in the namespace of its own site. What it may write is in
/// [`agent`].
fn agent_may(cluster: &ClusterId, what: &Attributes<'_>) -> bool {
    const READ: &[&str] = &["get", "list", "watch"];
    const EDIT: &[&str] = &["get", "list", "watch", "update", "patch"];
    const MAKE: &[&str] = &["get", "list", "watch", "create", "update", "patch"];
    const OWN: &[&str] = &["get", "list", "watch", "create", "update", "patch", "delete"];
    if what.namespace != cluster.namespace() {
        return false;
    }
    let verbs = match (what.group, what.resource, what.subresource) {
        ("rlinf.io", "pods", "") => OWN,
        // Deleting its Node would undo a cordon.
        ("rlinf.io", "nodes", "") | ("coordination.k8s.io", "leases", "") => MAKE,
        ("rlinf.io", "tasks" | "addons", "")
        | ("rlinf.io", "nodes" | "pods" | "tasks" | "addons", "status") => EDIT,
        ("rlinf.io", "domainpeers", "") => READ,
        ("" | "events.k8s.io", "events", "") => &["create", "update", "patch"],
        _ => return false,
    };
    verbs.contains(&what.verb)
}

/// Added to the API server's sentence; empty where that says it all.
fn refusal(who: &Principal) -> String {
    match who {
        Principal::Agent(n) => {
            format!("an agent may only do its own work in \"{}\"", n.cluster.namespace())
        }
        Principal::Node(_) => "the data path of a machine has no right to any object".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask<'a>(
        verb: &'a str,
        group: &'a str,
        resource: &'a str,
        namespace: &'a str,
    ) -> Attributes<'a> {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Attributes { verb, group, resource, subresource, namespace, name: "" }
    }

    fn allowed(rbac: &Rbac, who: &Principal, what: &Attributes<'_>) -> bool {
        rbac.authorize(who, what) == Decision::Allow
    }

    fn user(name: &str) -> Principal {
        Principal::User { name: name.to_owned(), groups: vec!["dev".to_owned()] }
    }

    #[test]
    fn an_agent_stays_in_the_namespace_of_its_site() {
        let rbac = Rbac::default();
        let agent = Principal::Agent("site-a/n1".parse().unwrap());
        assert!(allowed(&rbac, &agent, &ask("patch", "rlinf.io", "pods/status", "rlark-site-a")));
        assert!(allowed(&rbac, &agent, &ask("create", "", "events", "rlark-site-a")));
        assert!(!allowed(&rbac, &agent, &ask("list", "rlinf.io", "tasks", "rlark-site-b")));
        assert!(!allowed(&rbac, &agent, &ask("list", "rlinf.io", "tasks", "")));
        assert!(!allowed(&rbac, &agent, &ask("get", "", "secrets", "rlark-site-a")));
        assert!(!allowed(&rbac, &agent, &ask("patch", "rlinf.io", "domainpeers", "rlark-site-a")));
        assert!(!allowed(&rbac, &agent, &ask("create", "rlinf.io", "tasks", "rlark-site-a")));
    }

    #[test]
    fn nodes_and_strangers_may_do_nothing_and_admins_everything() {
        let rbac = Rbac::default();
        let what = ask("get", "rlinf.io", "pods", "rlark-site-a");
        assert!(!allowed(&rbac, &Principal::Node("site-a/n1".parse().unwrap()), &what));
        assert!(!allowed(&rbac, &Principal::Anonymous, &what));
        assert!(!allowed(&rbac, &user("eve"), &what));
        let oneself = ask("create", "authorization.k8s.io", "selfsubjectaccessreviews", "");
        assert!(
            allowed(&rbac, &user("eve"), &oneself)
                && !allowed(&rbac, &Principal::Anonymous, &oneself)
        );
        let token = ask("create", "authentication.k8s.io", "tokenreviews", "");
        assert!(!allowed(&rbac, &user("eve"), &token));
        assert!(allowed(&rbac, &Principal::Admin { name: "root".to_owned() }, &what));
    }

    #[test]
    fn a_role_binding_gives_a_cluster_role_in_its_namespace_only() {
        let rules = vec![Rule {
            verbs: vec!["get".into()],
            api_groups: vec!["rlinf.io".into()],
            resources: vec!["jobs".into(), "pods/log".into()],
            resource_names: vec![],
        }];
        let role = RoleObject {
            metadata: Metadata { name: "reader".into(), namespace: String::new() },
            rules,
        };
        let binding = BindingObject {
            metadata: Metadata { name: "b".into(), namespace: "team".into() },
            role_ref: RoleRef { kind: "ClusterRole".into(), name: "reader".into() },
            subjects: vec![Subject {
                kind: "Group".into(),
                name: "dev".into(),
                namespace: String::new(),
            }],
        };
        let rbac = Rbac::default();
        assert!(!allowed(&rbac, &user("ann"), &ask("get", "rlinf.io", "jobs", "team")));
        rbac.replace(Snapshot::new([role], [binding]));
        assert!(allowed(&rbac, &user("ann"), &ask("get", "rlinf.io", "jobs", "team")));
        assert!(allowed(&rbac, &user("ann"), &ask("get", "rlinf.io", "pods/log", "team")));
        assert!(!allowed(&rbac, &user("ann"), &ask("get", "rlinf.io", "pods", "team")));
        assert!(!allowed(&rbac, &user("ann"), &ask("get", "rlinf.io", "jobs", "other")));
        assert!(!allowed(&rbac, &user("ann"), &ask("delete", "rlinf.io", "jobs", "team")));
    }

    #[test]
    fn a_rule_for_named_objects_does_not_allow_listing() {
        let rule = Rule {
            verbs: vec!["*".into()],
            api_groups: vec!["*".into()],
            resources: vec!["*".into()],
            resource_names: vec!["one".into()],
        };
        let mut what = ask("list", "rlinf.io", "jobs", "team");
        assert!(!rule.matches(&what));
        what.name = "one";
        assert!(rule.matches(&what));
    }
}
