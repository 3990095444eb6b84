//! Paths and operations of a kind.

use serde_json::{Map, Value, json};

use super::schemas::{gvk, reference};
use crate::resource::Resource;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// Query parameters by name: type and description.
const PARAMETERS: &[(&str, &str, &str)] = &[
    (
        "allowWatchBookmarks",
        "boolean",
        "allowWatchBookmarks requests watch events with type \"BOOKMARK\".",
    ),
    (
        "continue",
        "string",
        "The continue option should be set when retrieving more results from the server.",
    ),
    (
        "dryRun",
        "string",
        "When present, indicates that modifications should not be persisted. Valid values are: - All: all dry run stages will be processed",
    ),
    (
        "fieldManager",
        "string",
        "fieldManager is a name associated with the actor or entity that is making these changes.",
    ),
    (
        "fieldSelector",
        "string",
        "A selector to restrict the list of returned objects by their fields. Defaults to everything.",
    ),
    (
        "fieldValidation",
        "string",
        "fieldValidation instructs the server on how to handle objects in the request (POST/PUT/PATCH) containing unknown or duplicate fields. Valid values are: - Ignore - Warn - Strict",
    ),
    (
        "force",
        "boolean",
        "Force is going to \"force\" Apply requests. It means user will re-acquire conflicting fields owned by other people.",
    ),
    (
        "gracePeriodSeconds",
        "integer",
        "The duration in seconds before the object should be deleted.",
    ),
    (
        "labelSelector",
        "string",
        "A selector to restrict the list of returned objects by their labels. Defaults to everything.",
    ),
    ("limit", "integer", "limit is a maximum number of responses to return for a list call."),
    ("orphanDependents", "boolean", "Deprecated: please use the PropagationPolicy."),
    ("pretty", "string", "If 'true', then the output is pretty printed."),
    (
        "propagationPolicy",
        "string",
        "Whether and how garbage collection will be performed. Acceptable values are: 'Orphan', 'Background', 'Foreground'.",
    ),
    (
        "resourceVersion",
        "string",
        "resourceVersion sets a constraint on what resource versions a request may be served from.",
    ),
    (
        "resourceVersionMatch",
        "string",
        "resourceVersionMatch determines how resourceVersion is applied to list calls.",
    ),
    ("sendInitialEvents", "boolean", "sendInitialEvents=true may be set together with watch=true."),
    ("timeoutSeconds", "integer", "Timeout for the list/watch call."),
    (
        "watch",
        "boolean",
        "Watch for changes to the described resources and return them as a stream of add, update, and remove notifications.",
    ),
];

const LIST: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];
const CREATE: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
const PATCH: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force"];
const DELETE: &[&str] = &["dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy"];
const DELETE_COLLECTION: &[&str] = &[
    "continue",
    "dryRun",
    "fieldSelector",
    "gracePeriodSeconds",
    "labelSelector",
    "limit",
    "orphanDependents",
    "propagationPolicy",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
];

/// What one operation is about.
struct Op<'a> {
    /// `x-kubernetes-action`.
    action: &'static str,
    query: &'static [&'static str],
    body: Option<&'a str>,
    answer: &'a str,
    /// Status codes that carry `answer`.
    codes: &'static [&'static str],
}

pub(super) fn of_resource(resource: &Resource, schema: &str, paths: &mut Map<String, Value>) {
    let root = super::root(&resource.group, &resource.version);
    let plural = &resource.plural;
    let collection = if resource.namespaced() {
        format!("{root}/namespaces/{{namespace}}/{plural}")
    } else {
        format!("{root}/{plural}")
    };
    let list = format!("{schema}List");
    let status = format!("{META}.Status");
    let options = format!("{META}.DeleteOptions");
    let has = |verb: &str| resource.verbs.iter().any(|v| v == verb);
    let list_op = Op { action: "list", query: LIST, body: None, answer: &list, codes: &["200"] };
    let mut item = Map::new();
    if has("list") {
        item.insert("get".to_owned(), operation(resource, &list_op));
    }
    if has("create") {
        let op = Op {
            action: "post",
            query: CREATE,
            body: Some(schema),
            answer: schema,
            codes: &["200", "201", "202"],
        };
        item.insert("post".to_owned(), operation(resource, &op));
    }
    if has("deletecollection") {
        let op = Op {
            action: "deletecollection",
            query: DELETE_COLLECTION,
            body: Some(&options),
            answer: &status,
            codes: &["200"],
        };
        item.insert("delete".to_owned(), operation(resource, &op));
    }
    add(paths, collection.clone(), item, resource, false);
    if resource.namespaced() && has("list") {
        let mut item = Map::new();
        item.insert("get".to_owned(), operation(resource, &list_op));
        paths.insert(format!("{root}/{plural}"), path_item(item, &[]));
    }
    if has("get") {
        let delete = has("delete").then_some((options.as_str(), status.as_str()));
        add(
            paths,
            format!("{collection}/{{name}}"),
            object_operations(resource, schema, delete),
            resource,
            true,
        );
        if resource.status {
            let item = object_operations(resource, schema, None);
            add(paths, format!("{collection}/{{name}}/status"), item, resource, true);
        }
    }
}

fn object_operations(
    resource: &Resource,
    schema: &str,
    delete: Option<(&str, &str)>,
) -> Map<String, Value> {
    let patch = format!("{META}.Patch");
    let mut item = Map::new();
    let mut put =
        |method: &str, op: &Op<'_>| item.insert(method.to_owned(), operation(resource, op));
    put(
        "get",
        &Op { action: "get", query: &["pretty"], body: None, answer: schema, codes: &["200"] },
    );
    put(
        "put",
        &Op {
            action: "put",
            query: CREATE,
            body: Some(schema),
            answer: schema,
            codes: &["200", "201"],
        },
    );
    put(
        "patch",
        &Op {
            action: "patch",
            query: PATCH,
            body: Some(&patch),
            answer: schema,
            codes: &["200", "201"],
        },
    );
    if let Some((options, status)) = delete {
        let op = Op {
            action: "delete",
            query: DELETE,
            body: Some(options),
            answer: status,
            codes: &["200", "202"],
        };
        put("delete", &op);
    }
    item
}

fn add(
    paths: &mut Map<String, Value>,
    path: String,
    item: Map<String, Value>,
    resource: &Resource,
    named: bool,
) {
    let mut parameters = Vec::new();
    if named {
        parameters.push(("name", format!("name of the {}", resource.kind)));
    }
    if resource.namespaced() {
        parameters.push((
            "namespace",
            "object name and auth scope, such as for teams and projects".to_owned(),
        ));
    }
    paths.insert(path, path_item(item, &parameters));
}

fn path_item(mut item: Map<String, Value>, parameters: &[(&str, String)]) -> Value {
    let list: Vec<Value> = parameters
        .iter()
        .map(|(name, text)| {
            json!({"name": name, "in": "path", "description": text, "required": true,
                   "schema": {"type": "string", "uniqueItems": true}})
        })
        .collect();
    item.insert("parameters".to_owned(), Value::Array(list));
    Value::Object(item)
}

fn operation(resource: &Resource, op: &Op<'_>) -> Value {
    let parameters: Vec<Value> = PARAMETERS
        .iter()
        .filter(|(name, ..)| op.query.contains(name))
        .map(|(name, ty, text)| {
            json!({"name": name, "in": "query", "description": text, "schema": {"type": ty, "uniqueItems": true}})
        })
        .collect();
    let mut responses = Map::new();
    for code in op.codes {
        let text = match *code {
            "201" => "Created",
            "202" => "Accepted",
            _ => "OK",
        };
        responses.insert(
            (*code).to_owned(),
            json!({"description": text, "content": {"application/json": {"schema": reference(op.answer)}}}),
        );
    }
    responses.insert("401".to_owned(), json!({"description": "Unauthorized"}));
    let mut value = json!({
        "description": format!("{} {}", op.action, resource.kind),
        "operationId": operation_id(resource, op.action),
        "tags": [tag(resource)],
        "parameters": parameters,
        "responses": responses,
        "x-kubernetes-action": op.action,
        "x-kubernetes-group-version-kind": gvk(resource, &resource.kind),
    });
    if let (Some(body), Value::Object(map)) = (op.body, &mut value) {
        let types: &[&str] = if op.action == "patch" {
            &[
                "application/apply-patch+yaml",
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/strategic-merge-patch+json",
            ]
        } else {
            &["application/json", "application/yaml"]
        };
        let strategic = |ty: &&&str| resource.builtin || !ty.contains("strategic");
        let content: Map<String, Value> = types
            .iter()
            .filter(strategic)
            .map(|ty| ((*ty).to_owned(), json!({"schema": reference(body)})))
            .collect();
        map.insert("requestBody".to_owned(), json!({"content": content, "required": op.action != "delete" && op.action != "deletecollection"}));
    }
    value
}

/// `rlinfIo_v1alpha1`.
fn tag(resource: &Resource) -> String {
    let group = if resource.group.is_empty() { "core" } else { &resource.group };
    let mut text = String::new();
    for (index, label) in group.split('.').enumerate() {
        if index == 0 {
            text.push_str(label);
        } else {
            capitalise(label, &mut text);
        }
    }
    format!("{text}_{}", resource.version)
}

fn capitalise(label: &str, into: &mut String) {
    let mut letters = label.chars();
    into.extend(letters.next().map(|c| c.to_ascii_uppercase()));
    into.push_str(letters.as_str());
}

fn operation_id(resource: &Resource, action: &str) -> String {
    let verb = match action {
        "post" => "create",
        "put" => "replace",
        "get" => "read",
        other => other,
    };
    let mut id = verb.to_owned();
    for part in tag(resource).split('_') {
        capitalise(part, &mut id);
    }
    if resource.namespaced() {
        id.push_str("Namespaced");
    }
    id.push_str(&resource.kind);
    id
}
