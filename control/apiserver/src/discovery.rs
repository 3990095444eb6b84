//! `/api`, `/apis` and what lies below them, in the legacy and in the aggregated form. Pure.

use std::sync::Arc;

use control_schema::{Resource, Scope};
use serde_json::{Value, json};

use crate::catalog::Catalog;
use crate::server::SubresourceKey;

/// What `GET /version` says: the level of the API machinery that clients may expect.
pub(crate) fn version() -> Value {
    json!({
        "major": "1", "minor": "34", "gitVersion": concat!("v1.34.0+rlark-", env!("CARGO_PKG_VERSION")),
        "emulationMajor": "1", "emulationMinor": "34",
        "minCompatibilityMajor": "1", "minCompatibilityMinor": "33",
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "", "compiler": "rustc",
        "platform": concat!("linux/", "amd64"),
    })
}

/// `/api` in legacy form; `address` is the host the client used.
pub(crate) fn api_versions(address: &str) -> Value {
    json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// Groups with their versions, in order of first appearance; core excluded.
fn groups(catalog: &Catalog) -> Vec<(&str, Vec<&str>)> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for r in catalog.resources().iter().filter(|r| !r.group.is_empty()) {
        match groups.iter_mut().find(|(g, _)| *g == r.group) {
            Some((_, versions)) if !versions.contains(&r.version.as_str()) => {
                versions.push(&r.version)
            }
            Some(_) => {}
            None => groups.push((&r.group, vec![&r.version])),
        }
    }
    for (_, versions) in &mut groups {
        versions.sort_by_key(|v| std::cmp::Reverse(priority(v)));
    }
    groups
}

/// Kubernetes' order of versions: stable before beta before alpha, then by number.
fn priority(version: &str) -> (u8, u32, u32) {
    let parse = || {
        let rest = version.strip_prefix('v')?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (major, tail) = rest.split_at(digits);
        let major = major.parse().ok()?;
        let (stage, minor) = match tail {
            "" => (3, 0),
            t if t.starts_with("beta") => (2, t.get(4..)?.parse().ok()?),
            t if t.starts_with("alpha") => (1, t.get(5..)?.parse().ok()?),
            _ => return None,
        };
        Some((stage, major, minor))
    };
    parse().unwrap_or((0, 0, 0))
}

fn group_object(group: &str, versions: &[&str]) -> Value {
    let entries: Vec<Value> = versions
        .iter()
        .map(|v| json!({"groupVersion": format!("{group}/{v}"), "version": v}))
        .collect();
    let preferred = entries.first().cloned().unwrap_or(Value::Null);
    json!({"name": group, "versions": entries, "preferredVersion": preferred})
}

/// `/apis` in legacy form.
pub(crate) fn group_list(catalog: &Catalog) -> Value {
    let groups: Vec<Value> = groups(catalog).iter().map(|(g, v)| group_object(g, v)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`.
pub(crate) fn group(catalog: &Catalog, name: &str) -> Option<Value> {
    let groups = groups(catalog);
    let (_, versions) = groups.iter().find(|(g, _)| *g == name)?;
    let mut object = group_object(name, versions);
    if let Some(map) = object.as_object_mut() {
        map.insert("kind".to_owned(), Value::from("APIGroup"));
        map.insert("apiVersion".to_owned(), Value::from("v1"));
    }
    Some(object)
}

/// Every path that clients may start from, sorted.
pub(crate) fn paths(catalog: &Catalog) -> Vec<String> {
    let fixed = [
        "/api",
        "/api/v1",
        "/apis",
        "/apis/",
        "/healthz",
        "/healthz/ping",
        "/livez",
        "/livez/ping",
        "/openapi/v2",
        "/openapi/v3",
        "/openapi/v3/",
        "/readyz",
        "/readyz/ping",
        "/version",
    ];
    let mut all: Vec<String> = fixed.iter().map(|p| (*p).to_owned()).collect();
    for (group, versions) in groups(catalog) {
        all.push(format!("/apis/{group}"));
        all.extend(versions.iter().map(|v| format!("/apis/{group}/{v}")));
    }
    all.sort();
    all
}

/// A subresource as discovery shows it: name, kind it answers with, verbs.
struct Sub {
    name: String,
    group: String,
    version: String,
    kind: String,
    verbs: Vec<&'static str>,
}

fn subresources(resource: &Resource, extensions: &[SubresourceKey]) -> Vec<Sub> {
    let own = |name: &str, verbs: &[&'static str]| Sub {
        name: name.to_owned(),
        group: resource.group.clone(),
        version: resource.version.clone(),
        kind: resource.kind.clone(),
        verbs: verbs.to_vec(),
    };
    let mut all = Vec::new();
    if resource.group.is_empty() && resource.plural == "namespaces" {
        all.push(own("finalize", &["update"]));
    }
    if resource.status {
        all.push(own("status", &["get", "patch", "update"]));
    }
    if resource.scale.is_some() {
        all.push(Sub {
            name: "scale".to_owned(),
            group: "autoscaling".to_owned(),
            version: "v1".to_owned(),
            kind: "Scale".to_owned(),
            verbs: vec!["get", "patch", "update"],
        });
    }
    for key in
        extensions.iter().filter(|k| k.group == resource.group && k.resource == resource.plural)
    {
        all.push(own(&key.subresource, &["get"]));
    }
    all
}

/// `/api/v1` or `/apis/GROUP/VERSION`.
pub(crate) fn resource_list(
    catalog: &Catalog,
    extensions: &[SubresourceKey],
    group: &str,
    version: &str,
) -> Option<Value> {
    let mut list = Vec::new();
    for r in in_version(catalog, group, version) {
        let mut entry = json!({
            "name": r.plural, "singularName": r.singular, "namespaced": r.namespaced(),
            "kind": r.kind, "verbs": r.verbs,
        });
        if let Some(map) = entry.as_object_mut() {
            if !r.short_names.is_empty() {
                map.insert("shortNames".to_owned(), json!(r.short_names));
            }
            if !r.categories.is_empty() {
                map.insert("categories".to_owned(), json!(r.categories));
            }
        }
        list.push(entry);
        for sub in subresources(r, extensions) {
            let mut entry = json!({
                "name": format!("{}/{}", r.plural, sub.name), "singularName": "",
                "namespaced": r.namespaced(), "kind": sub.kind, "verbs": sub.verbs,
            });
            if sub.group != r.group
                && let Some(map) = entry.as_object_mut()
            {
                map.insert("group".to_owned(), Value::from(sub.group));
                map.insert("version".to_owned(), Value::from(sub.version));
            }
            list.push(entry);
        }
    }
    if list.is_empty() {
        return None;
    }
    let group_version =
        if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list,
    }))
}

fn in_version<'a>(
    catalog: &'a Catalog,
    group: &str,
    version: &str,
) -> impl Iterator<Item = &'a Arc<Resource>> {
    catalog.resources().iter().filter(move |r| r.group == group && r.version == version)
}

/// `/api` (`core`) or `/apis` in the aggregated form of `apidiscovery.k8s.io`.
pub(crate) fn aggregated(
    catalog: &Catalog,
    extensions: &[SubresourceKey],
    core: bool,
    api_version: &str,
) -> Value {
    let groups = if core { vec![("", vec!["v1"])] } else { groups(catalog) };
    let items: Vec<Value> = groups
        .iter()
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    let resources: Vec<Value> = in_version(catalog, group, version)
                        .map(|r| aggregated_resource(r, extensions))
                        .collect();
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            let metadata = if group.is_empty() { json!({}) } else { json!({"name": group}) };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{api_version}"),
        "metadata": {}, "items": items,
    })
}

fn aggregated_resource(r: &Resource, extensions: &[SubresourceKey]) -> Value {
    let scope = match r.scope {
        Scope::Cluster => "Cluster",
        Scope::Namespaced => "Namespaced",
    };
    let mut entry = json!({
        "resource": r.plural,
        "responseKind": {"group": r.group, "version": r.version, "kind": r.kind},
        "scope": scope, "singularResource": r.singular, "verbs": r.verbs,
    });
    let subs: Vec<Value> = subresources(r, extensions)
        .into_iter()
        .map(|s| {
            json!({
                "subresource": s.name,
                "responseKind": {"group": s.group, "version": s.version, "kind": s.kind},
                "verbs": s.verbs,
            })
        })
        .collect();
    if let Some(map) = entry.as_object_mut() {
        for (key, value) in [
            ("shortNames", json!(r.short_names)),
            ("categories", json!(r.categories)),
            ("subresources", json!(subs)),
        ] {
            if value.as_array().is_some_and(|a| !a.is_empty()) {
                map.insert(key.to_owned(), value);
            }
        }
    }
    entry
}
