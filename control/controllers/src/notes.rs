//! Events: what people read under `kubectl describe`. Best effort; a lost one changes nothing.

use control_plan::job::Note;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use kube::{Api, Resource, api::PostParams};

use crate::{cache::shown, context::now};

const COMPONENT: &str = "rlark-controllers";
/// Longest message that the API takes.
const MESSAGE_MAX: usize = 1024;

pub(crate) struct Notes {
    client: kube::Client,
}

impl Notes {
    pub(crate) fn new(client: kube::Client) -> Self {
        Self { client }
    }

    /// Publishes `notes` about `object`.
    pub(crate) async fn publish<K>(&self, object: &K, notes: &[Note])
    where
        K: Resource<DynamicType = ()>,
    {
        for note in notes {
            let event = event(object.object_ref(&()), note);
            let namespace = event.metadata.namespace.clone().unwrap_or_default();
            let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
            if let Err(error) = api.create(&PostParams::default(), &event).await {
                tracing::debug!(error = %shown(&error), reason = note.reason, "event not written");
            }
        }
    }
}

fn event(about: ObjectReference, note: &Note) -> Event {
    // Events of cluster-scoped objects live in `default`, as kubectl expects.
    let namespace = about.namespace.clone().unwrap_or_else(|| "default".to_owned());
    let name = about.name.clone().unwrap_or_default();
    let unique = Timestamp::now().as_nanosecond();
    let mut message = note.message.clone();
    if let Some((cut, _)) = message.char_indices().nth(MESSAGE_MAX) {
        message.truncate(cut);
    }
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{unique:x}")),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        involved_object: about,
        reason: Some(note.reason.clone()),
        message: Some(message),
        type_: Some(if note.warning { "Warning" } else { "Normal" }.to_owned()),
        source: Some(EventSource { component: Some(COMPONENT.to_owned()), host: None }),
        reporting_component: Some(COMPONENT.to_owned()),
        first_timestamp: Some(now()),
        last_timestamp: Some(now()),
        count: Some(1),
        ..Event::default()
    }
}
