//! The table of built-in kinds.

use std::sync::Arc;

use k8s_openapi::api::{authentication, authorization, coordination, core, events, rbac};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions;
use schemars::JsonSchema;
use serde_json::{Map, Value};

use super::{inline, overlay};
use crate::resource::{Resource, Scope};
use crate::schema::Schema;
use crate::table::Columns;

const RBAC: &str = "rbac.authorization.k8s.io";
const AUTHZ: &str = "authorization.k8s.io";
const AUTHN: &str = "authentication.k8s.io";
const ALL_VERBS: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
/// Namespaces cannot be deleted as a collection.
const NO_COLLECTION: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];
const CREATE: &[&str] = &["create"];
const READ: &[&str] = &["get", "list", "watch"];

/// A built-in kind and how its OpenAPI definitions are made.
pub(super) struct Known {
    pub(super) resource: Resource,
    /// Such as `io.k8s.api.core.v1.ConfigMap`.
    pub(super) definition: String,
    pub(super) define: fn(&mut Map<String, Value>, &str),
}

struct Facts {
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    scope: Scope,
    verbs: &'static [&'static str],
    status: bool,
    selectable: &'static [&'static str],
    categories: &'static [&'static str],
}

const BASE: Facts = Facts {
    group: "",
    kind: "",
    plural: "",
    short: &[],
    scope: Scope::Namespaced,
    verbs: ALL_VERBS,
    status: false,
    selectable: &[],
    categories: &[],
};

const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

const NEW_EVENT_FIELDS: &[&str] = &[
    "regarding.kind",
    "regarding.namespace",
    "regarding.name",
    "regarding.uid",
    "reason",
    "reportingController",
    "type",
];

pub(super) fn all() -> Vec<Known> {
    let mut all = core_kinds();
    all.extend(group_kinds());
    all.extend(review_kinds());
    all
}

fn core_kinds() -> Vec<Known> {
    vec![
        make::<core::v1::ConfigMap>(Facts {
            kind: "ConfigMap",
            plural: "configmaps",
            short: &["cm"],
            ..BASE
        }),
        make::<core::v1::Event>(Facts {
            kind: "Event",
            plural: "events",
            short: &["ev"],
            selectable: EVENT_FIELDS,
            ..BASE
        }),
        make::<core::v1::Namespace>(Facts {
            kind: "Namespace",
            plural: "namespaces",
            short: &["ns"],
            scope: Scope::Cluster,
            verbs: NO_COLLECTION,
            status: true,
            selectable: &["status.phase"],
            ..BASE
        }),
        make::<core::v1::Secret>(Facts {
            kind: "Secret",
            plural: "secrets",
            selectable: &["type"],
            ..BASE
        }),
        // There are none: kubectl looks for them to describe the cluster, and `get all` needs one kind to ask for.
        make::<core::v1::Service>(Facts {
            kind: "Service",
            plural: "services",
            short: &["svc"],
            verbs: READ,
            categories: &["all"],
            ..BASE
        }),
        make::<core::v1::ServiceAccount>(Facts {
            kind: "ServiceAccount",
            plural: "serviceaccounts",
            short: &["sa"],
            ..BASE
        }),
    ]
}

fn group_kinds() -> Vec<Known> {
    let cluster = |kind, plural| Facts { group: RBAC, kind, plural, scope: Scope::Cluster, ..BASE };
    vec![
        make::<events::v1::Event>(Facts {
            group: "events.k8s.io",
            kind: "Event",
            plural: "events",
            short: &["ev"],
            selectable: NEW_EVENT_FIELDS,
            ..BASE
        }),
        make::<coordination::v1::Lease>(Facts {
            group: "coordination.k8s.io",
            kind: "Lease",
            plural: "leases",
            ..BASE
        }),
        make::<rbac::v1::ClusterRoleBinding>(cluster("ClusterRoleBinding", "clusterrolebindings")),
        make::<rbac::v1::ClusterRole>(cluster("ClusterRole", "clusterroles")),
        make::<rbac::v1::RoleBinding>(Facts {
            group: RBAC,
            kind: "RoleBinding",
            plural: "rolebindings",
            ..BASE
        }),
        make::<rbac::v1::Role>(Facts { group: RBAC, kind: "Role", plural: "roles", ..BASE }),
        make::<apiextensions::v1::CustomResourceDefinition>(Facts {
            group: "apiextensions.k8s.io",
            kind: "CustomResourceDefinition",
            plural: "customresourcedefinitions",
            short: &["crd", "crds"],
            categories: &["api-extensions"],
            scope: Scope::Cluster,
            status: true,
            ..BASE
        }),
    ]
}

fn review_kinds() -> Vec<Known> {
    let review = |group, kind, plural| Facts {
        group,
        kind,
        plural,
        scope: Scope::Cluster,
        verbs: CREATE,
        ..BASE
    };
    vec![
        make::<authorization::v1::LocalSubjectAccessReview>(Facts {
            scope: Scope::Namespaced,
            ..review(AUTHZ, "LocalSubjectAccessReview", "localsubjectaccessreviews")
        }),
        make::<authorization::v1::SelfSubjectAccessReview>(review(
            AUTHZ,
            "SelfSubjectAccessReview",
            "selfsubjectaccessreviews",
        )),
        make::<authorization::v1::SelfSubjectRulesReview>(review(
            AUTHZ,
            "SelfSubjectRulesReview",
            "selfsubjectrulesreviews",
        )),
        make::<authorization::v1::SubjectAccessReview>(review(
            AUTHZ,
            "SubjectAccessReview",
            "subjectaccessreviews",
        )),
        make::<authentication::v1::SelfSubjectReview>(review(
            AUTHN,
            "SelfSubjectReview",
            "selfsubjectreviews",
        )),
        make::<authentication::v1::TokenReview>(review(AUTHN, "TokenReview", "tokenreviews")),
    ]
}

fn make<T: JsonSchema>(facts: Facts) -> Known {
    let mut json = inline::structural::<T>();
    overlay::kind(facts.plural, &mut json);
    if let Some(Value::Object(properties)) = json.pointer_mut("/properties") {
        // `metadata` is the same everywhere and is added by the schema itself.
        properties.remove("metadata");
    }
    let schema = Schema::parse(&json).unwrap_or_else(|_| Schema::any());
    let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<String>>();
    let resource = Resource {
        group: facts.group.to_owned(),
        version: "v1".to_owned(),
        kind: facts.kind.to_owned(),
        list_kind: format!("{}List", facts.kind),
        plural: facts.plural.to_owned(),
        singular: facts.kind.to_lowercase(),
        short_names: own(facts.short),
        categories: own(facts.categories),
        scope: facts.scope,
        verbs: own(facts.verbs),
        status: facts.status,
        scale: None,
        storage: true,
        deprecation: None,
        selectable_fields: own(facts.selectable),
        schema: Arc::new(schema),
        open_api: Arc::new(json),
        columns: Arc::new(Columns::builtin(facts.group, facts.plural)),
        builtin: true,
    };
    Known { resource, definition: inline::definition_name::<T>(), define: inline::definition::<T> }
}
