//! Every path of the server with its policy, in one table that the router is built from.

use axum::Router;
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HOST, VARY};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use axum::routing::any;
use control_identity::principal::Principal;
use serde_json::json;

use crate::access;
use crate::common::{self, Style};
use crate::discovery;
use crate::negotiate::{self, Discovery};
use crate::openapi;
use crate::server::{ApiServer, Inner};
use crate::status::{ApiError, json_response, page};
use crate::verbs;

/// Who may use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Everybody, anonymous callers too: health, version, and which kinds there are.
    Anyone,
    /// Any caller with a proven identity.
    Authenticated,
    /// What the authorizer allows for the verb and object of the request.
    Authorized,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    Root,
    Health,
    Version,
    Api,
    Apis,
    Group,
    ResourceList,
    OpenApiV2,
    OpenApiIndex,
    OpenApiGroup,
    Objects,
}

/// One route.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub path: &'static str,
    pub policy: Policy,
    served: Served,
}

const fn route(path: &'static str, policy: Policy, served: Served) -> Route {
    Route { path, policy, served }
}

/// All routes; anything else is 404 for those who may ask.
pub const ROUTES: &[Route] = &[
    route("/", Policy::Authenticated, Served::Root),
    route("/healthz", Policy::Anyone, Served::Health),
    route("/healthz/ping", Policy::Anyone, Served::Health),
    route("/livez", Policy::Anyone, Served::Health),
    route("/livez/ping", Policy::Anyone, Served::Health),
    route("/readyz", Policy::Anyone, Served::Health),
    route("/readyz/ping", Policy::Anyone, Served::Health),
    route("/version", Policy::Anyone, Served::Version),
    route("/version/", Policy::Anyone, Served::Version),
    route("/api", Policy::Anyone, Served::Api),
    route("/api/", Policy::Anyone, Served::Api),
    route("/apis", Policy::Anyone, Served::Apis),
    route("/apis/", Policy::Anyone, Served::Apis),
    route("/apis/{group}", Policy::Anyone, Served::Group),
    route("/apis/{group}/", Policy::Anyone, Served::Group),
    route("/api/{version}", Policy::Anyone, Served::ResourceList),
    route("/api/{version}/", Policy::Anyone, Served::ResourceList),
    route("/apis/{group}/{version}", Policy::Anyone, Served::ResourceList),
    route("/apis/{group}/{version}/", Policy::Anyone, Served::ResourceList),
    route("/openapi/v2", Policy::Authenticated, Served::OpenApiV2),
    route("/openapi/v3", Policy::Authenticated, Served::OpenApiIndex),
    route("/openapi/v3/", Policy::Authenticated, Served::OpenApiIndex),
    route("/openapi/v3/{*group_version}", Policy::Authenticated, Served::OpenApiGroup),
    route("/api/{version}/{*object}", Policy::Authorized, Served::Objects),
    route("/apis/{group}/{version}/{*object}", Policy::Authorized, Served::Objects),
];

pub(crate) fn router(server: &ApiServer) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        let (server, route) = (server.clone(), *route);
        router = router.route(
            route.path,
            any(move |request: Request<Body>| {
                let server = server.clone();
                async move { answer(&server, route, request).await }
            }),
        );
    }
    router.fallback(|request: Request<Body>| async move {
        common::finish(match access::caller(&request) {
            _ if access::has_unknown_credentials(&request) => ApiError::Unauthorized.response(),
            Principal::Anonymous => access::path_denied(&Principal::Anonymous, &request).response(),
            _ => ApiError::NoPage.response(),
        })
    })
}

async fn answer(server: &ApiServer, route: Route, request: Request<Body>) -> Response<Body> {
    let style = match route.served {
        Served::OpenApiV2 | Served::OpenApiIndex | Served::OpenApiGroup => Style::Compact,
        _ => Style::of(&request),
    };
    let response = respond(server, route, request).await;
    common::finish(common::present(response, style).await)
}

async fn respond(server: &ApiServer, route: Route, request: Request<Body>) -> Response<Body> {
    if access::has_unknown_credentials(&request) {
        return ApiError::Unauthorized.response();
    }
    let who = match access::effective_caller(&server.inner, &request) {
        Ok(who) => who,
        Err(error) => return error.response(),
    };
    if route.policy == Policy::Authenticated && who == Principal::Anonymous {
        return access::path_denied(&who, &request).response();
    }
    if route.served == Served::Objects {
        // Boxed: the states of all verbs together are large.
        return Box::pin(verbs::serve(server, who, request)).await;
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return ApiError::MethodNotAllowed.response();
    }
    document(&server.inner, route.served, &request).unwrap_or_else(|error| error.response())
}

fn document(
    inner: &Inner,
    served: Served,
    request: &Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let path = request.uri().path().trim_end_matches('/');
    let headers = request.headers();
    let catalog = inner.catalog.load();
    let ok = |value| Ok(json_response(StatusCode::OK, &value));
    let query = request.uri().query().unwrap_or_default();
    let mut segments = path.trim_start_matches('/').split('/').skip(1);
    match served {
        Served::Root => ok(json!({"paths": discovery::paths(&catalog)})),
        Served::Health => Ok(health(path, query)),
        Served::Version => ok(discovery::version()),
        Served::Api | Served::Apis => Ok(root_discovery(inner, served == Served::Api, headers)?),
        Served::Group => {
            let name = segments.next().unwrap_or_default();
            ok(discovery::group(&catalog, name).ok_or(ApiError::NoPage)?)
        }
        Served::ResourceList => {
            let first = segments.next().unwrap_or_default();
            let (group, version) = segments.next().map_or(("", first), |version| (first, version));
            let list = discovery::resource_list(&catalog, &inner.extensions, group, version);
            ok(list.ok_or(ApiError::NoPage)?)
        }
        Served::OpenApiV2 => openapi::v2(inner, &catalog, headers),
        Served::OpenApiIndex => openapi::index(inner, &catalog, headers),
        Served::OpenApiGroup => {
            let path = path.strip_prefix("/openapi/v3/").unwrap_or_default();
            openapi::group_version(inner, &catalog, path, request)
        }
        Served::Objects => Err(ApiError::NoPage),
    }
}

fn root_discovery(
    inner: &Inner,
    core: bool,
    headers: &HeaderMap,
) -> Result<Response<Body>, ApiError> {
    let catalog = inner.catalog.load();
    match negotiate::discovery(headers)? {
        Discovery::Aggregated(version) => {
            let list = discovery::aggregated(&catalog, &inner.extensions, core, version);
            let mut response = common::tagged(list.to_string().into(), headers);
            response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
            if response.status() != StatusCode::OK {
                return Ok(response);
            }
            let media = if version == "v2" {
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            } else {
                "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
            };
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
            Ok(response)
        }
        Discovery::Legacy if core => {
            let host = headers.get(HOST).and_then(|h| h.to_str().ok()).unwrap_or_default();
            Ok(json_response(StatusCode::OK, &discovery::api_versions(host)))
        }
        Discovery::Legacy => Ok(json_response(StatusCode::OK, &discovery::group_list(&catalog))),
    }
}

/// Requests are served only once the store is open and the kinds are loaded, so there is nothing to find out.
fn health(path: &str, query: &str) -> Response<Body> {
    let verbose = query.split('&').any(|p| p.split('=').next() == Some("verbose"));
    if !verbose {
        return page(StatusCode::OK, "ok");
    }
    let name = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    page(StatusCode::OK, format!("[+]ping ok\n[+]store ok\n{name} check passed\n"))
}
