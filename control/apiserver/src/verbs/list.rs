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
    /// None for whatever is the latest then: a list that goes on after its own state was forgotten.
    revision: Option<u64>,
    after: String,
}

const VERSION: &str = "meta.k8s.io/v1";

/// Where the text stops being base64.
fn offset(error: &base64::DecodeError, text: &str) -> usize {
    match error {
        base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => {
            *at
        }
        _ => text.len() / 4 * 4,
    }
}

impl Token {
    fn encode(&self) -> String {
        let revision = self.revision.map_or_else(|| json!(-1), |revision| json!(revision));
        let json = json!({"v": VERSION, "rv": revision, "start": self.after});
        BASE64_URL_SAFE_NO_PAD.encode(json.to_string())
    }

    /// The error is what is wrong with the token.
    fn decode(text: &str) -> Result<Self, String> {
        const INVALID: &str = "continue key is not valid";
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|e| {
            format!("{INVALID}: illegal base64 data at input byte {}", offset(&e, text))
        })?;
        let json: Value = serde_json::from_slice(&bytes).map_err(|e| {
            let said = control_schema::golang::syntax_error(&bytes);
            format!("{INVALID}: {}", said.unwrap_or_else(|| e.to_string()))
        })?;
        let version = json.get("v").and_then(Value::as_str).unwrap_or_default();
        if version != VERSION {
            return Err(format!(
                "{INVALID}: server does not recognize this encoded version {version}"
            ));
        }
        let revision =
            json.get("rv").and_then(Value::as_i64).filter(|rv| *rv != 0).ok_or_else(|| {
                format!("{INVALID}: incorrect encoded start resourceVersion (version {VERSION})")
            })?;
        let after = json.get("start").and_then(Value::as_str).filter(|s| !s.is_empty());
        let after = after
            .ok_or_else(|| format!("{INVALID}: encoded start key empty (version {VERSION})"))?;
        Ok(Self { revision: u64::try_from(revision).ok(), after: after.to_owned() })
    }
}

pub(super) fn list(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let selection = Selection::of(call)?;
    let (snapshot, after) = start(call)?;
    let page = page(call, &selection, &snapshot, after.as_deref());
    let last = page.objects.last().map(|o| o.key.as_str().to_owned());
    let continue_token = last.filter(|_| page.remaining > 0).map(|after| {
        call.inner.workspace.pin(&snapshot);
        Token { revision: Some(snapshot.revision()), after }.encode()
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
            .map_err(|e| ApiError::bad(format!("invalid continue token: {e}")))?;
        let Some(revision) = token.revision else {
            return Ok((workspace.snapshot(), Some(token.after)));
        };
        let Some(snapshot) = workspace.snapshot_at(revision) else {
            let rest = Token { revision: None, after: token.after };
            return Err(ApiError::ContinueExpired { token: rest.encode() });
        };
        return Ok((snapshot, Some(token.after)));
    }
    let snapshot = workspace.snapshot();
    let wanted = revision(&query.resource_version)
        .map_err(|e| ApiError::bad(format!("invalid resource version: {e}")))?;
    if query.resource_version_match == "Exact" {
        if wanted > snapshot.revision() {
            return Err(ApiError::TooLargeResourceVersion { wanted, current: snapshot.revision() });
        }
        let exact = workspace.snapshot_at(wanted).ok_or_else(|| ApiError::Expired {
            message: "The resourceVersion for the provided list is too old.".to_owned(),
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
