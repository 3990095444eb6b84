//! One watch per kind. It keeps a store, and after every change tells the queues which objects of
//! theirs the change concerns.

use std::sync::Arc;

use futures::{StreamExt as _, future::BoxFuture};
use kube::{
    Api, Resource,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, ObjectRef, Store, store::Writer},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

/// What an object of a kind must be to be cached.
pub(crate) trait Kind:
    Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static
{
}
impl<K> Kind for K where
    K: Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

type Sink<K> = Box<dyn Fn(&K) -> BoxFuture<'static, ()> + Send + Sync>;

/// The watch of one kind.
pub(crate) struct Cache<K: Kind> {
    store: Store<K>,
    writer: Writer<K>,
    api: Api<DeserializeGuard<K>>,
    config: watcher::Config,
    sinks: Vec<Sink<K>>,
}

impl<K: Kind> Cache<K> {
    pub(crate) fn new(client: &kube::Client, config: watcher::Config) -> Self {
        let (store, writer) = reflector::store();
        Self { store, writer, api: Api::all(client.clone()), config, sinks: Vec::new() }
    }

    pub(crate) fn store(&self) -> Store<K> {
        self.store.clone()
    }

    /// Queues the objects that `map` names for a changed one. When the queue is full the watch
    /// waits, and the API server keeps what follows.
    pub(crate) fn feeds<P: Kind>(
        &mut self,
        queue: &mpsc::Sender<ObjectRef<P>>,
        map: impl Fn(&K) -> Vec<ObjectRef<P>> + Send + Sync + 'static,
    ) {
        let queue = queue.clone();
        self.sinks.push(Box::new(move |object| {
            let keys = map(object);
            let queue = queue.clone();
            Box::pin(async move {
                for key in keys {
                    // A closed queue means that its controller has stopped.
                    if queue.send(key).await.is_err() {
                        return;
                    }
                }
            })
        }));
    }

    /// Watches for ever.
    pub(crate) async fn run(mut self) {
        let kind = K::kind(&());
        let stream = watcher(self.api.clone(), self.config.clone()).default_backoff();
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => self.apply(event).await,
                Err(error) => {
                    tracing::warn!(%kind, error = %shown(&error), "watch failed; trying again");
                }
            }
        }
    }

    async fn apply(&mut self, event: watcher::Event<DeserializeGuard<K>>) {
        let mut changed: Vec<Arc<K>> = Vec::new();
        let event = match event {
            watcher::Event::Apply(guard) => match readable(guard) {
                Some(object) => {
                    // The old version too: what it pointed at may have lost it.
                    changed.extend(self.store.get(&ObjectRef::from_obj(&object)));
                    changed.push(Arc::new(object.clone()));
                    watcher::Event::Apply(object)
                }
                None => return,
            },
            watcher::Event::Delete(guard) => match readable(guard) {
                Some(object) => {
                    changed.push(Arc::new(object.clone()));
                    watcher::Event::Delete(object)
                }
                None => return,
            },
            watcher::Event::InitApply(guard) => match readable(guard) {
                Some(object) => watcher::Event::InitApply(object),
                None => return,
            },
            watcher::Event::Init => watcher::Event::Init,
            watcher::Event::InitDone => {
                changed = self.store.state();
                watcher::Event::InitDone
            }
        };
        let everything_is_new = matches!(event, watcher::Event::InitDone);
        self.writer.apply_watcher_event(&event);
        if everything_is_new {
            changed.extend(self.store.state());
        }
        for object in changed {
            for sink in &self.sinks {
                sink(&object).await;
            }
        }
    }
}

/// One object that cannot be read must not hide all others.
fn readable<K: Kind>(guard: DeserializeGuard<K>) -> Option<K> {
    match guard.0 {
        Ok(object) => Some(object),
        Err(invalid) => {
            tracing::error!(
                kind = %K::kind(&()),
                namespace = invalid.metadata.namespace.as_deref().unwrap_or_default(),
                name = invalid.metadata.name.as_deref().unwrap_or_default(),
                error = %invalid.error,
                "an object cannot be read; it is ignored until it changes"
            );
            None
        }
    }
}

/// An error with its causes on one line.
pub(crate) fn shown(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}
