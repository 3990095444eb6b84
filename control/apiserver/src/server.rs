//! The server value: a workspace, its kinds, who may do what, and the tasks that tidy up.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::{Request, Response};
use bytes::Bytes;
use control_identity::authorize::Authorizer;
use control_identity::principal::Principal;
use control_store::{WatchError, Workspace, WriteError};
use futures::future::BoxFuture;
use tokio::task::JoinHandle;
use tower::Service;

use crate::catalog::Catalog;
use crate::request::Target;
use crate::{builtin, janitor, openapi, routes};

/// Which subresource an extension serves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SubresourceKey {
    pub group: String,
    pub resource: String,
    pub subresource: String,
}

/// A subresource that somebody else serves, such as `pods/log`. The request has been authenticated
/// and authorised (verb by method, resource `pods`, subresource `log`) when it arrives here.
pub trait Subresource: Send + Sync + 'static {
    fn call(&self, target: Target, request: Request<Body>) -> BoxFuture<'static, Response<Body>>;
}

/// What a server is made of besides its workspace and authorizer.
#[derive(Default)]
pub struct Options {
    subresources: HashMap<SubresourceKey, Arc<dyn Subresource>>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("subresources", &self.subresources.keys()).finish()
    }
}

impl Options {
    /// Registers an extension; the last one for a key wins.
    #[must_use]
    pub fn subresource(
        mut self,
        group: &str,
        resource: &str,
        subresource: &str,
        served_by: Arc<dyn Subresource>,
    ) -> Self {
        let key = SubresourceKey {
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
        };
        self.subresources.insert(key, served_by);
        self
    }
}

/// A workspace that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot create the first objects of the workspace")]
    Bootstrap(#[source] WriteError),
    #[error("cannot follow the workspace")]
    Watch(#[source] WatchError),
}

/// What requests and background tasks share.
pub(crate) struct Inner {
    pub(crate) workspace: Workspace,
    pub(crate) authorizer: Arc<dyn Authorizer>,
    pub(crate) catalog: ArcSwap<Catalog>,
    pub(crate) open_api: openapi::Cache,
    pub(crate) subresources: HashMap<SubresourceKey, Arc<dyn Subresource>>,
    pub(crate) extensions: Vec<SubresourceKey>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("extensions", &self.extensions).finish_non_exhaustive()
    }
}

impl Inner {
    /// Reads the kinds anew after a definition changed.
    pub(crate) fn reload_catalog(&self) {
        self.catalog.store(Arc::new(Catalog::of(&self.workspace.snapshot())));
        self.open_api.clear();
    }
}

/// Ends its task when it goes.
#[derive(Debug)]
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A Kubernetes API server over one workspace. Clones share it; the background work (garbage
/// collection, namespaces, definitions) lives until the last clone, router or service is gone.
#[derive(Clone, Debug)]
pub struct ApiServer {
    pub(crate) inner: Arc<Inner>,
    _janitor: Arc<AbortOnDrop>,
}

impl ApiServer {
    /// Creates the namespaces every workspace has, loads its kinds and starts its background
    /// work. Call it within a tokio runtime.
    pub async fn new(
        workspace: Workspace,
        authorizer: Arc<dyn Authorizer>,
        options: Options,
    ) -> Result<Self, StartError> {
        builtin::bootstrap(&workspace).await.map_err(StartError::Bootstrap)?;
        let catalog = Catalog::of(&workspace.snapshot());
        let mut extensions: Vec<_> = options.subresources.keys().cloned().collect();
        extensions
            .sort_by(|a, b| (&a.resource, &a.subresource).cmp(&(&b.resource, &b.subresource)));
        let inner = Arc::new(Inner {
            workspace,
            authorizer,
            catalog: ArcSwap::from_pointee(catalog),
            open_api: openapi::Cache::default(),
            subresources: options.subresources,
            extensions,
        });
        let janitor = janitor::start(&inner).map_err(StartError::Watch)?;
        Ok(Self { inner, _janitor: Arc::new(AbortOnDrop(janitor)) })
    }

    /// The HTTP API. Expects a [`Principal`] in the request's extensions; a request without one is
    /// anonymous.
    pub fn router(&self) -> Router {
        routes::router(self)
    }

    /// The API as a service for one caller, without a socket:
    /// `kube::Client::new(server.in_process(who), "default")`.
    #[must_use]
    pub fn in_process(&self, who: Principal) -> InProcess {
        InProcess { router: self.router(), who }
    }

    #[must_use]
    pub fn workspace(&self) -> &Workspace {
        &self.inner.workspace
    }
}

/// See [`ApiServer::in_process`].
#[derive(Clone, Debug)]
pub struct InProcess {
    router: Router,
    who: Principal,
}

impl<B> Service<Request<B>> for InProcess
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        request.extensions_mut().insert(self.who.clone());
        let mut router = self.router.clone();
        Box::pin(async move { router.call(request.map(Body::new)).await })
    }
}
