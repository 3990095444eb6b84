//! `list`, whole or page by page at one revision.

use axum::body::Body;
use axum::http::Response;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use control_store::{Page, Snapshot};
use serde_json::{Value, json};

use crate::catalog;
use crate::context::{Call, Selection};
use crate::render::{self, ListMeta};
use crate::status::ApiError;

/// Where a continued list goes on.
struct Token {
    revision: u64,
    after: String,
}

impl Token {
    fn encode(&self) -> String {
        let json = json!({"v": "meta.k8s.io/v1", "rv": self.revision, "start": self.after});
        BASE64_URL_SAFE_NO_PAD.encode(json.to_string())
    }

    fn decode(text: &str) -> Option<Self> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        let json: Value = serde_json::from_slice(&bytes).ok()?;
        Some(Self {
            revision: json.get("rv")?.as_u64()?,
            after: json.get("start")?.as_str()?.to_owned(),
        })
    }
}

pub(super) fn list(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let selection = Selection::of(call)?;
    let (snapshot, after) = start(call)?;
    let page = page(call, &selection, &snapshot, after.as_deref());
    let last = page.objects.last().map(|o| o.key.as_str().to_owned());
    let continue_token = last.filter(|_| page.remaining > 0).map(|after| {
        call.inner.workspace.pin(&snapshot);
        Token { revision: snapshot.revision(), after }.encode()
    });
    let remaining = (page.remaining > 0 && selection.is_everything()).then_some(page.remaining);
    let meta = ListMeta { revision: snapshot.revision(), continue_token, remaining };
    render::list(call, &page.objects, &meta)
}

fn page(call: &Call<'_>, selection: &Selection, snapshot: &Snapshot, after: Option<&str>) -> Page {
    let one_place = !call.resource.namespaced() || call.namespace().is_some();
    if let (Some(name), true, None) = (selection.name(), one_place, after) {
        let key = catalog::key(&call.resource, call.namespace(), name);
        let found = snapshot.get(&key).filter(|o| selection.matches(&call.resource, &o.value));
        return Page { objects: found.into_iter().collect(), remaining: 0 };
    }
    let everything = selection.is_everything();
    snapshot.page(&call.scope(), after, call.query.limit, |object| {
        everything || selection.matches(&call.resource, &object.value)
    })
}

/// The state to list from, and the key to go on after.
fn start(call: &Call<'_>) -> Result<(Snapshot, Option<String>), ApiError> {
    let query = &call.query;
    let workspace = &call.inner.workspace;
    if !query.continue_token.is_empty() {
        if !matches!(query.resource_version.as_str(), "" | "0") {
            return Err(ApiError::bad(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let token = Token::decode(&query.continue_token)
            .ok_or_else(|| ApiError::bad("continue key is not valid"))?;
        let snapshot =
            workspace.snapshot_at(token.revision).ok_or_else(|| ApiError::Expired {
                message: "The provided continue parameter is too old to display a consistent list result. You must start a new list without the continue parameter.".to_owned(),
            })?;
        return Ok((snapshot, Some(token.after)));
    }
    let snapshot = workspace.snapshot();
    let wanted = revision(&query.resource_version)?;
    if query.resource_version_match == "Exact" {
        if wanted == 0 {
            return Err(ApiError::bad(
                "resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"",
            ));
        }
        let exact = workspace.snapshot_at(wanted).ok_or_else(|| ApiError::Expired {
            message: format!("The resourceVersion for the provided list is too old: {wanted}"),
        })?;
        return Ok((exact, None));
    }
    if wanted > snapshot.revision() {
        return Err(ApiError::TooLargeResourceVersion { wanted, current: snapshot.revision() });
    }
    Ok((snapshot, None))
}

/// A resource version as a revision; empty is zero.
pub(super) fn revision(text: &str) -> Result<u64, ApiError> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_not| {
        ApiError::bad(format!(
            "resourceVersion: Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": invalid syntax"
        ))
    })
}
