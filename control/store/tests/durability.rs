//! What survives: restarts, kill -9, a second server on the same directory.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use control_store::{
    Database, Key, OpenError, Options, Precondition, Scope, WatchError, Workspace,
};
use serde_json::json;

const CHILD: &str = "RLARK_STORE_TEST_CHILD";

fn key(name: &str) -> Key {
    Key::new("rlinf.io", "jobs", "default", name)
}

fn lease() -> Key {
    Key::new("coordination.k8s.io", "leases", "default", "l")
}

fn options() -> Options {
    Options { history: 8, volatile: vec![Scope::resource("coordination.k8s.io", "leases", None)] }
}

fn open(directory: &Path) -> Workspace {
    Workspace::open(&Database::open(directory).unwrap(), "main", &options()).unwrap()
}

#[tokio::test]
async fn a_restart_resumes_revisions_and_watches() {
    let directory = tempfile::tempdir().unwrap();
    let before = {
        let w = open(directory.path());
        for n in 0..20 {
            w.put(key("a"), json!({"n": n}), Precondition::Any).await.unwrap();
        }
        w.put(lease(), json!({}), Precondition::Any).await.unwrap().revision
    };
    let w = open(directory.path());
    assert_eq!(w.snapshot().revision(), before);
    assert_eq!(w.get(&key("a")).unwrap().value.get("n"), Some(&json!(19)));
    assert!(w.get(&lease()).is_some());

    let jobs = Scope::resource("rlinf.io", "jobs", None);
    let events = w.watch(jobs.clone(), before - 4).unwrap().next().await.unwrap();
    let seen: Vec<_> = events.iter().map(|e| e.object.value.get("n").cloned().unwrap()).collect();
    assert_eq!(seen, [json!(17), json!(18), json!(19)]);
    assert!(matches!(w.watch(jobs, 2), Err(WatchError::Expired { .. })));
    let leases = Scope::resource("coordination.k8s.io", "leases", None);
    assert!(matches!(w.watch(leases.clone(), before - 1), Err(WatchError::Expired { .. })));
    assert!(w.watch(leases, before).is_ok());

    let next = w.put(key("b"), json!({}), Precondition::Absent).await.unwrap();
    assert_eq!(next.revision, before + 1);
}

#[tokio::test]
async fn workspaces_of_one_database_do_not_see_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::open(directory.path()).unwrap();
    let a = Workspace::open(&database, "a", &options()).unwrap();
    let b = Workspace::open(&database, "b", &options()).unwrap();
    a.put(key("x"), json!({}), Precondition::Absent).await.unwrap();
    assert!(b.get(&key("x")).is_none());
    assert_eq!(b.snapshot().revision(), 0);
}

#[test]
fn a_second_server_on_the_directory_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let _first = Database::open(directory.path()).unwrap();
    let refused = Database::open(directory.path()).unwrap_err();
    assert!(matches!(refused, OpenError::Locked { .. }));
    assert!(refused.to_string().contains("in use by another server"), "{refused}");
}

/// Not a test of its own: the body of the process that the next test kills.
#[test]
fn child_that_writes_until_killed() {
    let Ok(directory) = std::env::var(CHILD) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let w = open(Path::new(&directory));
        let mut tasks = tokio::task::JoinSet::new();
        for writer in 0..8 {
            let w = w.clone();
            tasks.spawn(async move {
                for n in 0.. {
                    let name = format!("w{writer}-{n}");
                    w.put(key(&name), json!({"n": n}), Precondition::Absent).await.unwrap();
                    let mut out = std::io::stdout().lock();
                    writeln!(out, "\nacked {name}").unwrap();
                    out.flush().unwrap();
                }
            });
        }
        tasks.join_all().await;
    });
}

#[test]
fn every_acknowledged_write_survives_kill_minus_nine() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_writes_until_killed", "--nocapture"])
        .env(CHILD, directory.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut acked = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        if let Some(name) = line.unwrap().strip_prefix("acked ") {
            acked.push(name.to_owned());
        }
        if acked.len() == 200 {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(acked.len() >= 200, "only {} writes were acknowledged", acked.len());
    let w = open(directory.path());
    let lost: Vec<_> = acked.iter().filter(|name| w.get(&key(name)).is_none()).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
}
