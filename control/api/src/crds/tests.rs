use serde_json::Value;

use super::*;

/// What the API server of Kubernetes demands of a structural schema.
fn check(schema: &Value, at: &str, faults: &mut Vec<String>) {
    let free = ["x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"];
    let open = free.iter().any(|k| schema.get(k).is_some());
    if schema.get("type").is_none() && !open {
        faults.push(format!("{at}: no type"));
    }
    for key in ["$ref", "allOf", "oneOf", "not"] {
        if schema.get(key).is_some() {
            faults.push(format!("{at}: {key}"));
        }
    }
    if schema.get("anyOf").is_some() && schema.get(free[0]).is_none() {
        faults.push(format!("{at}: anyOf"));
    }
    if schema.get("properties").is_some() && schema.get("additionalProperties").is_some() {
        faults.push(format!("{at}: properties and additionalProperties"));
    }
    if let Some(keys) = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array) {
        let item = &schema["items"];
        for key in keys.iter().filter_map(Value::as_str) {
            let required = item["required"].as_array().is_some_and(|r| r.iter().any(|k| k == key));
            if !required && item["properties"][key].get("default").is_none() {
                faults.push(format!("{at}: key {key} may be missing"));
            }
        }
    }
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        check(child, &format!("{at}.{name}"), faults);
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(child) = schema.get(inner) {
            check(child, &format!("{at}.{inner}"), faults);
        }
    }
}

fn schema(crd: &CustomResourceDefinition) -> Value {
    let schema = crd.spec.versions[0].schema.as_ref().unwrap();
    serde_json::to_value(schema.open_api_v3_schema.as_ref().unwrap()).unwrap()
}

#[test]
fn every_schema_is_structural() {
    for crd in crds() {
        let mut faults = Vec::new();
        check(&schema(&crd), &crd.spec.names.plural, &mut faults);
        assert_eq!(faults, Vec::<String>::new());
    }
}

#[test]
fn a_definition_fits_into_the_annotation_of_kubectl_apply() {
    for crd in crds() {
        let size = serde_json::to_vec(&crd).unwrap().len();
        assert!(size < 250_000, "{} has {size} bytes", crd.spec.names.plural);
    }
}

#[test]
fn names_scopes_and_short_names_are_those_of_older_manifests() {
    let all: Vec<(String, String, String)> = crds()
        .into_iter()
        .map(|c| {
            let names = c.spec.names;
            (names.plural, names.short_names.unwrap_or_default().join(","), c.spec.scope)
        })
        .collect();
    let all: Vec<(&str, &str, &str)> =
        all.iter().map(|(a, b, c)| (a.as_str(), b.as_str(), c.as_str())).collect();
    assert_eq!(
        all,
        [
            ("addons", "rladdon", "Namespaced"),
            ("domainpeers", "rldpeer", "Namespaced"),
            ("domains", "rldomain", "Cluster"),
            ("jobs", "rljob", "Cluster"),
            ("nodes", "rlnode", "Namespaced"),
            ("pods", "rlpod", "Namespaced"),
            ("tasks", "task", "Namespaced"),
            ("workflows", "rlwf", "Cluster"),
        ]
    );
}

#[test]
fn labels_on_templates_are_kept() {
    let crd = crds().into_iter().find(|c| c.spec.names.kind == "Job").unwrap();
    let template = &schema(&crd)["properties"]["spec"]["properties"]["tasks"]["items"]["properties"]
        ["kubernetes"]["properties"]["workload"]["properties"]["template"]["properties"];
    assert_eq!(
        template["metadata"]["properties"]["labels"]["additionalProperties"]["type"],
        "string"
    );
    let claim = &template["spec"]["properties"]["volumes"]["items"]["properties"]["ephemeral"]["properties"]
        ["volumeClaimTemplate"]["properties"];
    assert_eq!(claim["metadata"]["properties"]["annotations"]["type"], "object");
    let ports = &template["spec"]["properties"]["containers"]["items"]["properties"]["ports"];
    assert_eq!(ports["items"]["properties"]["protocol"]["default"], "TCP");
}

#[test]
fn unknown_words_are_read_and_written_back() {
    let text = r#"{"metadata":{"name":"j"},"spec":{"tasks":[{"name":"a","role":"Critic","agentType":"Podman",
        "kubernetes":{"workload":{"kind":"Odd","template":{"metadata":{"labels":{"a":"b"}},
        "spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":2}}}]}}}}}]},
        "status":{"phase":"Paused","tasks":[{"name":"a","phase":""}]}}"#;
    let job: Job = serde_json::from_str(text).unwrap();
    let back = serde_json::to_value(&job).unwrap();
    assert_eq!(back["status"]["phase"], "Paused");
    assert_eq!(back["spec"]["tasks"][0]["agentType"], "Podman");
    assert_eq!(back["spec"]["tasks"][0]["role"], "Critic");
    let workload = &back["spec"]["tasks"][0]["kubernetes"]["workload"];
    assert_eq!(workload["kind"], "Odd");
    assert_eq!(workload["template"]["metadata"]["labels"]["a"], "b");
}
