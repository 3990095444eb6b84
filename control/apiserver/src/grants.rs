//! Nobody gives away rights they do not have: what a new or changed role grants, or a binding passes on, the writer
//! must be allowed to do already, or be allowed to `escalate` or `bind` roles.

use control_identity::authorize::{Attributes, Decision};
use serde_json::Value;

use crate::admission::text;
use crate::context::Call;
use crate::status::ApiError;

const RBAC: &str = "rbac.authorization.k8s.io";

/// Checks a write of a role or a binding; anything else passes.
pub(crate) fn check(call: &Call<'_>, new: &Value, old: Option<&Value>) -> Result<(), ApiError> {
    if !call.resource.builtin || call.resource.group != RBAC {
        return Ok(());
    }
    let plural = call.resource.plural.as_str();
    let name = text(new, "/metadata/name");
    let namespace = call.namespace().unwrap_or_default();
    match plural {
        "roles" | "clusterroles" => {
            let same = old.is_some_and(|old| old.get("rules") == new.get("rules"));
            if same || may(call, "escalate", (RBAC, plural), namespace, name) {
                return Ok(());
            }
            refuse_missing(call, name, namespace, rules(new))
        }
        _ => {
            let same = old.is_some_and(|old| {
                ["subjects", "roleRef"].iter().all(|key| old.get(key) == new.get(key))
            });
            let cluster = text(new, "/roleRef/kind") == "ClusterRole";
            let (roles, place) = if cluster { ("clusterroles", "") } else { ("roles", namespace) };
            let role = text(new, "/roleRef/name");
            if same || may(call, "bind", (RBAC, roles), place, role) {
                return Ok(());
            }
            let key = control_store::Key::new(RBAC, roles, place, role);
            let Some(found) = call.inner.workspace.latest(&key) else {
                return Err(ApiError::NotFound {
                    resource: format!("{roles}.{RBAC}"),
                    name: role.to_owned(),
                });
            };
            refuse_missing(call, name, namespace, rules(&found.value))
        }
    }
}

fn rules(role: &Value) -> &[Value] {
    role.get("rules").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn strings<'a>(rule: &'a Value, key: &str) -> Vec<&'a str> {
    let list = rule.get(key).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

fn may(
    call: &Call<'_>,
    verb: &str,
    (group, resource): (&str, &str),
    namespace: &str,
    name: &str,
) -> bool {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let what = Attributes { verb, group, resource, subresource, namespace, name };
    call.inner.authorizer.authorize(&call.who, &what) == Decision::Allow
}

fn refuse_missing(
    call: &Call<'_>,
    name: &str,
    namespace: &str,
    rules: &[Value],
) -> Result<(), ApiError> {
    let missing: Vec<String> =
        rules.iter().filter(|rule| !held(call, namespace, rule)).map(shown).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let groups: Vec<String> = call.who.groups().iter().map(|g| format!("{g:?}")).collect();
    Err(ApiError::Forbidden {
        resource: call.resource.qualified(),
        name: name.to_owned(),
        message: format!(
            "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
            call.who.user(),
            groups.join(" "),
            missing.join("\n")
        ),
    })
}

/// Whether the writer may do everything that a rule allows. A wildcard is held only by a wildcard.
fn held(call: &Call<'_>, namespace: &str, rule: &Value) -> bool {
    // Paths have no rules here that could be compared: only those who may do everything pass them on.
    if !strings(rule, "nonResourceURLs").is_empty() && !may(call, "*", ("*", "*"), "", "") {
        return false;
    }
    let names = strings(rule, "resourceNames");
    let names = if names.is_empty() { vec![""] } else { names };
    let (groups, resources) = (strings(rule, "apiGroups"), strings(rule, "resources"));
    strings(rule, "verbs").iter().all(|verb| {
        groups.iter().all(|group| {
            resources.iter().all(|resource| {
                names.iter().all(|name| may(call, verb, (group, resource), namespace, name))
            })
        })
    })
}

/// A rule as kube shows it in one line.
fn shown(rule: &Value) -> String {
    let keys = [
        ("apiGroups", "APIGroups"),
        ("resources", "Resources"),
        ("nonResourceURLs", "NonResourceURLs"),
        ("resourceNames", "ResourceNames"),
        ("verbs", "Verbs"),
    ];
    let parts: Vec<String> = keys
        .iter()
        .map(|(key, name)| (strings(rule, key), name))
        .filter(|(list, _)| !list.is_empty())
        .map(|(list, name)| {
            let quoted: Vec<String> = list.iter().map(|text| format!("{text:?}")).collect();
            format!("{name}:[{}]", quoted.join(" "))
        })
        .collect();
    format!("{{{}}}", parts.join(", "))
}
