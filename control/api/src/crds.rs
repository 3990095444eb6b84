//! The CustomResourceDefinitions of the eight kinds, made from the Rust types.
//!
//! What a derive cannot say is added here: list types (so that server-side apply merges containers
//! by name), kept metadata of embedded templates (which a bare object would prune), the few
//! defaults, and short descriptions in the embedded Kubernetes schema, so that a definition stays
//! small enough for `kubectl apply`, which copies it into an annotation of at most 256 KiB.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

use crate::v1alpha1::{Addon, Domain, DomainPeer, Job, Node, Pod, Task, Workflow};

/// All eight, sorted by plural name.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    let mut all = vec![
        Addon::crd(),
        Domain::crd(),
        DomainPeer::crd(),
        Job::crd(),
        Node::crd(),
        Pod::crd(),
        Task::crd(),
        Workflow::crd(),
    ];
    all.sort_by(|a, b| a.spec.names.plural.cmp(&b.spec.names.plural));
    for crd in &mut all {
        for version in &mut crd.spec.versions {
            if let Some(schema) =
                version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut())
            {
                finish(schema);
            }
        }
    }
    all
}

/// File name of a definition below `deploy/crds`.
#[must_use]
pub fn file_name(crd: &CustomResourceDefinition) -> String {
    format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural)
}

fn finish(root: &mut JSONSchemaProps) {
    Walk { field: "", in_pod_template: false }.walk(root);
    // Objects without a spec were always accepted; they get an empty one, so that they can be read.
    if let Some(spec) = root.properties.as_mut().and_then(|p| p.get_mut("spec"))
        && spec.required.is_none()
    {
        spec.default = Some(JSON(serde_json::json!({})));
        root.required = None;
    }
}

struct Walk<'a> {
    /// The property whose schema is being looked at.
    field: &'a str,
    in_pod_template: bool,
}

impl Walk<'_> {
    fn walk(&self, schema: &mut JSONSchemaProps) {
        schema.default = None;
        if self.in_pod_template {
            shorten(&mut schema.description);
        }
        // Formats of Rust's integers that OpenAPI does not know.
        if schema.format.as_deref().is_some_and(|f| f.starts_with("uint")) {
            schema.format = None;
        }
        if schema.x_kubernetes_int_or_string == Some(true) {
            schema.type_ = None;
            schema.any_of = Some(vec![of_type("integer"), of_type("string")]);
        }
        if let Some(properties) = &mut schema.properties {
            let is_pod_template = self.field == "template";
            let is_claim_template = self.field == "volumeClaimTemplate";
            for (name, child) in properties.iter_mut() {
                if name == "metadata" && (is_pod_template || is_claim_template) {
                    *child = embedded_metadata();
                    continue;
                }
                let inside = self.in_pod_template || is_pod_template;
                Walk { field: name, in_pod_template: inside }.walk(child);
            }
        }
        if let Some(JSONSchemaPropsOrBool::Schema(child)) = &mut schema.additional_properties {
            Walk { field: "", in_pod_template: self.in_pod_template }.walk(child);
        }
        if let Some(JSONSchemaPropsOrArray::Schema(item)) = &mut schema.items {
            Walk { field: "", in_pod_template: self.in_pod_template }.walk(item);
        }
        self.mark_list(schema);
    }

    /// Declares keyed lists, as Kubernetes' own schema does.
    fn mark_list(&self, schema: &mut JSONSchemaProps) {
        let Some(JSONSchemaPropsOrArray::Schema(item)) = &mut schema.items else { return };
        let keys: &[&str] = match (self.in_pod_template, self.field) {
            (_, "conditions") => &["type"],
            (
                true,
                "containers"
                | "initContainers"
                | "ephemeralContainers"
                | "env"
                | "volumes"
                | "imagePullSecrets"
                | "resourceClaims"
                | "claims"
                | "schedulingGates",
            ) => &["name"],
            (true, "hostAliases") => &["ip"],
            (true, "ports") => &["containerPort", "protocol"],
            (true, "topologySpreadConstraints") => &["topologyKey", "whenUnsatisfiable"],
            (true, "volumeMounts") => &["mountPath"],
            (true, "volumeDevices") => &["devicePath"],
            _ => return,
        };
        let Some(properties) = &mut item.properties else { return };
        if !keys.iter().all(|k| properties.contains_key(*k)) {
            return;
        }
        // A key must be there in every item: required, or defaulted.
        let required = item.required.get_or_insert_default();
        for key in keys {
            let Some(property) = properties.get_mut(*key) else { continue };
            property.nullable = None;
            if required.iter().any(|r| r == key) {
                continue;
            }
            match *key {
                "protocol" => property.default = Some(JSON("TCP".into())),
                "name" if self.field == "imagePullSecrets" => {
                    property.default = Some(JSON("".into()));
                }
                _ => required.push((*key).to_owned()),
            }
        }
        item.required = item.required.take().filter(|r| !r.is_empty());
        schema.x_kubernetes_list_type = Some("map".to_owned());
        schema.x_kubernetes_list_map_keys = Some(keys.iter().map(|k| (*k).to_owned()).collect());
    }
}

/// Keeps the first sentence.
fn shorten(description: &mut Option<String>) {
    if let Some(text) = description {
        let end = text.find(". ").or_else(|| text.find('\n')).unwrap_or(text.len());
        text.truncate(end);
        if let Some((cut, _)) = text.char_indices().nth(120) {
            text.truncate(cut);
            text.push_str("...");
        }
    }
}

fn of_type(name: &str) -> JSONSchemaProps {
    JSONSchemaProps { type_: Some(name.to_owned()), ..JSONSchemaProps::default() }
}

/// What an embedded template may say of the objects made from it.
fn embedded_metadata() -> JSONSchemaProps {
    let strings = || JSONSchemaProps {
        additional_properties: Some(JSONSchemaPropsOrBool::Schema(Box::new(of_type("string")))),
        ..of_type("object")
    };
    let list = JSONSchemaProps {
        items: Some(JSONSchemaPropsOrArray::Schema(Box::new(of_type("string")))),
        ..of_type("array")
    };
    let nullable = |schema: JSONSchemaProps| JSONSchemaProps { nullable: Some(true), ..schema };
    let time = JSONSchemaProps { format: Some("date-time".to_owned()), ..of_type("string") };
    let properties = BTreeMap::from([
        ("annotations".to_owned(), nullable(strings())),
        // Tools that marshal Go structs write `creationTimestamp: null` here.
        ("creationTimestamp".to_owned(), nullable(time)),
        ("finalizers".to_owned(), nullable(list)),
        ("generateName".to_owned(), of_type("string")),
        ("labels".to_owned(), nullable(strings())),
        ("name".to_owned(), of_type("string")),
        ("namespace".to_owned(), of_type("string")),
    ]);
    JSONSchemaProps {
        description: Some("Labels and annotations of the objects made from this template.".into()),
        properties: Some(properties),
        nullable: Some(true),
        ..of_type("object")
    }
}

/// `<plural>.<group>` of every kind.
#[must_use]
pub fn names() -> Vec<String> {
    crds().into_iter().filter_map(|c| c.metadata.name).collect()
}

#[cfg(test)]
mod tests;
