//! One authorised request on objects, and what it selects.

use std::sync::Arc;

use axum::http::HeaderMap;
use bytes::Bytes;
use control_identity::principal::Principal;
use control_schema::Resource;
use control_schema::selector::{FieldSelector, LabelSelector};
use control_store::{Key, Scope};
use serde_json::Value;

use crate::catalog;
use crate::convert;
use crate::crd;
use crate::negotiate::Shape;
use crate::request::{Query, Target, Verb};
use crate::server::Inner;
use crate::status::ApiError;

/// Everything a verb needs.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) inner: &'a Inner,
    pub(crate) who: Principal,
    pub(crate) verb: Verb,
    pub(crate) target: Target,
    pub(crate) query: Query,
    pub(crate) resource: Arc<Resource>,
    pub(crate) shape: Shape,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Call<'_> {
    /// The name in the path; empty for collections.
    pub(crate) fn name(&self) -> &str {
        self.target.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn namespace(&self) -> Option<&str> {
        self.target.namespace.as_deref()
    }

    pub(crate) fn subresource(&self) -> Option<&str> {
        self.target.subresource.as_deref()
    }

    pub(crate) fn key(&self) -> Key {
        catalog::key(&self.resource, self.namespace(), self.name())
    }

    pub(crate) fn scope(&self) -> Scope {
        catalog::scope(&self.resource, self.namespace())
    }

    /// Where kube would keep the object, as some messages tell.
    pub(crate) fn registry_key(&self) -> String {
        let own_prefix = !self.resource.builtin || crd::is_definition(&self.resource);
        let group = Some(self.resource.group.as_str()).filter(|_| own_prefix);
        let namespace = self.namespace().filter(|_| self.resource.namespaced());
        let parts = [group, Some(self.resource.plural.as_str()), namespace, Some(self.name())];
        let path: Vec<&str> = parts.into_iter().flatten().collect();
        format!("/registry/{}", path.join("/"))
    }

    pub(crate) fn not_found(&self) -> ApiError {
        ApiError::NotFound { resource: self.resource.qualified(), name: self.name().to_owned() }
    }

    pub(crate) fn nothing_here(&self) -> ApiError {
        if self.resource.builtin { ApiError::UnknownPath } else { ApiError::NoPage }
    }

    pub(crate) fn not_allowed(&self, verb: Verb) -> ApiError {
        if self.resource.builtin {
            return ApiError::MethodNotAllowed;
        }
        ApiError::MethodNotSupported {
            resource: self.resource.qualified(),
            verb: verb.as_str().to_owned(),
        }
    }

    pub(crate) fn conflict(&self, message: impl Into<String>) -> ApiError {
        ApiError::Conflict {
            resource: self.resource.qualified(),
            name: self.name().to_owned(),
            message: message.into(),
        }
    }
}

/// Refuses fields by which a kind cannot be selected. Built-in kinds without fields of their own say it differently.
fn check_fields(resource: &Resource, selector: &FieldSelector) -> Result<(), ApiError> {
    let plain = resource.builtin && resource.selectable_fields.is_empty();
    let placed = resource.namespaced() || plain;
    for term in &selector.terms {
        let field = term.field.as_str();
        let known = field == "metadata.name"
            || (field == "metadata.namespace" && placed)
            || resource.selectable_fields.iter().any(|f| f == field);
        if !known {
            return Err(ApiError::bad(if plain {
                format!(
                    "{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                )
            } else {
                format!("field label not supported: {field}")
            }));
        }
    }
    Ok(())
}

/// Which objects of a collection a request means.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    labels: LabelSelector,
    fields: FieldSelector,
}

impl Selection {
    /// From the query; a name in the path of a watch counts as `metadata.name=NAME`.
    pub(crate) fn of(call: &Call<'_>) -> Result<Self, ApiError> {
        let bad = |e: control_schema::selector::SelectorError| ApiError::bad(e.to_string());
        let labels: LabelSelector = call.query.label_selector.parse().map_err(bad)?;
        let mut fields: FieldSelector = call.query.field_selector.parse().map_err(bad)?;
        check_fields(&call.resource, &fields)?;
        if let Some(name) = &call.target.name {
            fields.terms.push(control_schema::selector::FieldTerm {
                field: "metadata.name".to_owned(),
                value: name.clone(),
                negated: false,
            });
        }
        Ok(Self { labels, fields })
    }

    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The single name that is asked for, if so.
    pub(crate) fn name(&self) -> Option<&str> {
        self.fields.required("metadata.name")
    }

    /// Whether a stored value is meant.
    pub(crate) fn matches(&self, resource: &Resource, stored: &Value) -> bool {
        self.labels.matches_object(stored)
            && (self.fields.is_empty()
                || self.fields.matches_object(&convert::served(resource, stored)))
    }
}
