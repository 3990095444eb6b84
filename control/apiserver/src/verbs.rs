//! Requests on objects: who may, which kind, which verb.

mod apply;
mod create;
mod delete;
mod list;
mod patch;
mod read;
mod scale;
mod update;
mod watch;
mod write;

pub(crate) use delete::{DeleteOptions, FOREGROUND, ORPHAN, delete_one};
pub(crate) use write::{is_finalized, replace_if_unchanged};

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use bytes::Bytes;
use control_identity::principal::Principal;
use http_body_util::{BodyExt, Limited};

use crate::access;
use crate::context::Call;
use crate::negotiate;
use crate::render;
use crate::request::{Query, Target, Verb};
use crate::review;
use crate::server::{ApiServer, Inner, Subresource, SubresourceKey};
use crate::status::ApiError;

/// Largest request body, as in kube-apiserver.
const BODY_LIMIT: usize = 3 << 20;

/// Answers one request below `/api/v1/` or `/apis/GROUP/VERSION/`.
pub(crate) async fn serve(
    server: &ApiServer,
    who: Principal,
    request: Request<Body>,
) -> Response<Body> {
    match dispatch(&server.inner, who, request).await {
        Ok(response) => response,
        Err(error) => error.response(),
    }
}

async fn dispatch(
    inner: &Inner,
    who: Principal,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let (path, watch) = plain_path(request.uri().path());
    let target = Target::parse(&path).ok_or(ApiError::NoPage)?;
    let mut query = Query::parse(request.uri().query().unwrap_or_default())?;
    query.watch |= watch;
    let verb = Verb::of(request.method(), &target, &query).ok_or(ApiError::MethodNotAllowed)?;
    access::check(inner, &who, verb, &target, &name_asked_for(verb, &target, &query))?;
    let catalog = inner.catalog.load_full();
    let resource = catalog
        .find(&target.group, &target.version, &target.resource)
        .ok_or_else(|| catalog.nothing_at(&target.group, &target.version))?;
    if !resource.namespaced() && target.namespace.is_some() {
        return Err(catalog.nothing_at(&target.group, &target.version));
    }
    check_name(&target)?;
    query.check(verb)?;
    if let Some(extension) = extension(inner, &target) {
        return Ok(extension.call(target, request).await);
    }
    let (parts, body) = request.into_parts();
    let shape = negotiate::shape(&parts.headers).map_err(|refused| {
        // Built-in kinds are routed by media type before anything looks at the request.
        if resource.builtin { negotiate::no_representation(verb) } else { refused }
    })?;
    let body = read(body).await?;
    let headers = parts.headers;
    let call = Call { inner, who, verb, target, query, resource, shape, headers, body };
    let mut response = Box::pin(run(&call, verb)).await?;
    if let Some(warning) = &call.resource.deprecation {
        render::add_warnings(&mut response, std::slice::from_ref(warning));
    }
    Ok(response)
}

/// The path without the `watch` that older clients put before the resource, and whether it was there.
fn plain_path(path: &str) -> (Cow<'_, str>, bool) {
    let version = if path.starts_with("/api/") { 2 } else { 3 };
    let mut parts: Vec<&str> = path.split('/').collect();
    if parts.get(version + 1) != Some(&"watch") || parts.len() <= version + 2 {
        return (Cow::Borrowed(path), false);
    }
    parts.remove(version + 1);
    (Cow::Owned(parts.join("/")), true)
}

/// A name that could not be a segment of a key in the store.
fn check_name(target: &Target) -> Result<(), ApiError> {
    let Some(name) = &target.name else { return Ok(()) };
    let problems = control_schema::names::path_segment(name);
    if problems.is_empty() {
        return Ok(());
    }
    Err(ApiError::bad(format!("Name parameter invalid: {name:?}: {}", problems.join(";"))))
}

/// The object that authorisation is about; a list of one name is about that one.
fn name_asked_for(verb: Verb, target: &Target, query: &Query) -> String {
    if let Some(name) = &target.name {
        return name.clone();
    }
    if !matches!(verb, Verb::List | Verb::Watch | Verb::DeleteCollection) {
        return String::new();
    }
    let fields: Result<control_schema::selector::FieldSelector, _> = query.field_selector.parse();
    fields.ok().and_then(|f| f.required("metadata.name").map(str::to_owned)).unwrap_or_default()
}

fn extension(inner: &Inner, target: &Target) -> Option<Arc<dyn Subresource>> {
    target.name.as_ref()?;
    let key = SubresourceKey {
        group: target.group.clone(),
        resource: target.resource.clone(),
        // `proxy/any/path` belongs to `proxy`.
        subresource: target.subresource.as_deref()?.split('/').next()?.to_owned(),
    };
    inner.subresources.get(&key).map(Arc::clone)
}

async fn read(body: Body) -> Result<Bytes, ApiError> {
    match Limited::new(body, BODY_LIMIT).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            Err(ApiError::TooLarge { limit: BODY_LIMIT })
        }
        Err(error) => Err(ApiError::bad(format!("cannot read the request body: {error}"))),
    }
}

async fn run(call: &Call<'_>, verb: Verb) -> Result<Response<Body>, ApiError> {
    let resource = &call.resource;
    if let Some(subresource) = call.subresource() {
        return subresource_verb(call, verb, subresource).await;
    }
    // Without a namespace in the path only lists and watches of a namespaced kind make sense.
    let lacks_namespace = resource.namespaced() && call.namespace().is_none();
    if lacks_namespace && call.target.name.is_some() {
        return Err(call.nothing_here());
    }
    if lacks_namespace && !matches!(verb, Verb::List | Verb::Watch) {
        return Err(if resource.builtin { ApiError::MethodNotAllowed } else { ApiError::NoPage });
    }
    if !resource.verbs.iter().any(|v| v == verb.as_str()) {
        return Err(call.not_allowed(verb));
    }
    let unnamed = call.target.name.is_none();
    if unnamed && !resource.builtin && matches!(verb, Verb::Update | Verb::Patch) {
        return Err(ApiError::bad("name must be provided"));
    }
    match verb {
        Verb::Get => read::get(call),
        Verb::List => list::list(call),
        Verb::Watch => watch::watch(call),
        Verb::Create if call.target.name.is_some() => Err(ApiError::MethodNotAllowed),
        Verb::Create if review::is_review(resource) => review::create(call),
        Verb::Create => create::create(call).await,
        Verb::Update | Verb::Patch if unnamed => Err(ApiError::MethodNotAllowed),
        Verb::Update => update::update(call, crate::admission::Part::Main).await,
        Verb::Patch => patch::patch(call, crate::admission::Part::Main).await,
        Verb::Delete => delete::delete(call).await,
        Verb::DeleteCollection => delete::delete_collection(call).await,
    }
}

async fn subresource_verb(
    call: &Call<'_>,
    verb: Verb,
    subresource: &str,
) -> Result<Response<Body>, ApiError> {
    let part = crate::admission::Part::Status;
    match (subresource, verb) {
        ("status", Verb::Get) if call.resource.status => read::get(call),
        ("status", Verb::Update) if call.resource.status => update::update(call, part).await,
        ("status", Verb::Patch) if call.resource.status => patch::patch(call, part).await,
        ("status", _) if call.resource.status => Err(call.not_allowed(verb)),
        ("scale", _) if call.resource.scale.is_some() => scale::serve(call, verb).await,
        ("finalize", Verb::Update) if call.target.resource == "namespaces" => {
            update::finalize_namespace(call).await
        }
        // A definition that gives no such subresource answers for the object.
        _ if !call.resource.builtin && call.target.name.is_some() => Err(call.not_found()),
        _ => Err(call.nothing_here()),
    }
}
