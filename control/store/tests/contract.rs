//! What every workspace promises, run over memory and over redb.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use control_store::{
    Database, EventKind, Key, Options, Precondition, Scope, WatchError, Workspace, WriteError,
};
use serde_json::{Value, json};

fn key(name: &str) -> Key {
    Key::new("rlinf.io", "jobs", "default", name)
}

fn jobs() -> Scope {
    Scope::resource("rlinf.io", "jobs", None)
}

fn object(name: &str, n: u64) -> Value {
    json!({"metadata": {"name": name}, "spec": {"n": n}})
}

/// Keeps the directory of a redb workspace alive beside it.
struct Case {
    workspace: Workspace,
    _directory: Option<tempfile::TempDir>,
}

fn memory(options: &Options) -> Case {
    Case { workspace: Workspace::in_memory(options).unwrap(), _directory: None }
}

fn redb(options: &Options) -> Case {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::open(directory.path()).unwrap();
    Case {
        workspace: Workspace::open(&database, "main", options).unwrap(),
        _directory: Some(directory),
    }
}

mod promises {
    use super::*;

    pub(super) async fn a_write_is_visible_and_stamped_with_its_revision(case: Case) {
        let w = case.workspace;
        let put = w.put(key("a"), object("a", 1), Precondition::Absent).await.unwrap();
        let got = w.get(&key("a")).unwrap();
        assert_eq!(put, got);
        assert_eq!(
            got.value.pointer("/metadata/resourceVersion"),
            Some(&json!(got.revision.to_string()))
        );
        assert_eq!(serde_json::from_slice::<Value>(&got.json).unwrap(), got.value);
        let metadata: Value = serde_json::from_slice(got.metadata_json()).unwrap();
        assert_eq!(Some(&metadata), got.value.get("metadata"));
        assert_eq!(w.snapshot().revision(), got.revision);
    }

    pub(super) async fn preconditions_refuse_and_leave_nothing(case: Case) {
        let w = case.workspace;
        let first = w.put(key("a"), object("a", 1), Precondition::Absent).await.unwrap();
        let again = w.put(key("a"), object("a", 2), Precondition::Absent).await;
        assert!(matches!(again, Err(WriteError::AlreadyExists { .. })));
        let stale =
            w.put(key("a"), object("a", 2), Precondition::Revision(first.revision + 7)).await;
        assert!(matches!(stale, Err(WriteError::Conflict { .. })));
        let missing = w.put(key("b"), object("b", 2), Precondition::Revision(1)).await;
        assert!(matches!(missing, Err(WriteError::NotFound { .. })));
        assert!(matches!(
            w.delete(&key("b"), Precondition::Any).await,
            Err(WriteError::NotFound { .. })
        ));
        assert_eq!(w.snapshot().revision(), first.revision);
    }

    pub(super) async fn of_concurrent_updates_from_one_revision_exactly_one_wins(case: Case) {
        let w = case.workspace;
        let first = w.put(key("a"), object("a", 0), Precondition::Absent).await.unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..32 {
            let (w, revision) = (w.clone(), first.revision);
            tasks.spawn(async move {
                w.put(key("a"), object("a", n), Precondition::Revision(revision)).await
            });
        }
        let won = tasks.join_all().await.into_iter().filter(Result::is_ok).count();
        assert_eq!(won, 1);
    }

    pub(super) async fn a_list_read_in_pages_stays_at_its_revision(case: Case) {
        let w = case.workspace;
        for n in 0..10 {
            let name = format!("j{n}");
            w.put(key(&name), object(&name, n), Precondition::Absent).await.unwrap();
        }
        let snapshot = w.snapshot();
        let first = snapshot.page(&jobs(), None, 4, |_| true);
        w.pin(&snapshot);
        w.delete(&key("j7"), Precondition::Any).await.unwrap();
        w.put(key("j4x"), object("j4x", 0), Precondition::Absent).await.unwrap();
        let pinned = w.snapshot_at(snapshot.revision()).unwrap();
        let last = first.objects.last().unwrap().key.clone();
        let rest = pinned.page(&jobs(), Some(last.as_str()), 0, |_| true);
        let names: Vec<_> = rest.objects.iter().map(|o| o.key.name().to_owned()).collect();
        assert_eq!(names, ["j4", "j5", "j6", "j7", "j8", "j9"]);
        assert_eq!(first.remaining, 6);
        assert!(w.snapshot_at(1_000_000).is_none());
    }

    pub(super) async fn a_watch_sees_each_change_once_and_in_order(case: Case) {
        let w = case.workspace;
        let start = w.snapshot().revision();
        let mut watch = w.watch(jobs(), start).unwrap();
        let follower = tokio::spawn(async move {
            let mut seen = Vec::new();
            while seen.len() < 3 {
                for e in watch.next().await.unwrap() {
                    seen.push((
                        e.kind,
                        e.object.value.pointer("/spec/n").cloned().unwrap(),
                        e.previous.is_some(),
                    ));
                }
            }
            seen
        });
        w.put(key("a"), object("a", 1), Precondition::Absent).await.unwrap();
        w.put(Key::new("", "secrets", "default", "s"), json!({}), Precondition::Any).await.unwrap();
        w.put(key("a"), object("a", 2), Precondition::Any).await.unwrap();
        let gone = w.delete(&key("a"), Precondition::Any).await.unwrap();
        assert_eq!(gone.revision, w.snapshot().revision());
        assert_eq!(
            follower.await.unwrap(),
            [
                (EventKind::Added, json!(1), false),
                (EventKind::Modified, json!(2), true),
                (EventKind::Deleted, json!(2), true)
            ]
        );
    }

    pub(super) async fn a_watch_from_before_the_log_is_expired(case: Case) {
        let w = case.workspace;
        let mut slow = w.watch(jobs(), 0).unwrap();
        for n in 0..30 {
            w.put(key("a"), object("a", n), Precondition::Any).await.unwrap();
        }
        assert!(matches!(w.watch(jobs(), 3), Err(WatchError::Expired { wanted: 3, .. })));
        assert!(matches!(slow.next().await, Err(WatchError::Expired { .. })));
        assert!(w.watch(jobs(), 25).is_ok());
    }

    pub(super) async fn a_watch_ends_with_its_workspace(case: Case) {
        let mut watch = case.workspace.watch(jobs(), 0).unwrap();
        drop(case);
        assert_eq!(watch.next().await.unwrap_err(), WatchError::Closed);
    }
}

macro_rules! contract {
    ($($promise:ident),+ $(,)?) => {
        mod over_memory { $( #[tokio::test] async fn $promise() {
            super::promises::$promise(super::memory(&super::small())).await;
        } )+ }
        mod over_redb { $( #[tokio::test] async fn $promise() {
            super::promises::$promise(super::redb(&super::small())).await;
        } )+ }
    };
}

fn small() -> Options {
    Options { history: 16, volatile: vec![Scope::resource("coordination.k8s.io", "leases", None)] }
}

contract!(
    a_write_is_visible_and_stamped_with_its_revision,
    preconditions_refuse_and_leave_nothing,
    of_concurrent_updates_from_one_revision_exactly_one_wins,
    a_list_read_in_pages_stays_at_its_revision,
    a_watch_sees_each_change_once_and_in_order,
    a_watch_from_before_the_log_is_expired,
    a_watch_ends_with_its_workspace,
);
