//! What a workspace does under hardship: damaged files, a full disk, objects that are large.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use control_store::{
    Database, Key, OpenError, Options, Precondition, Scope, WatchError, Workspace, WriteError,
};
use serde_json::{Value, json};

fn key(name: &str) -> Key {
    Key::new("rlinf.io", "jobs", "default", name)
}

fn jobs() -> Scope {
    Scope::resource("rlinf.io", "jobs", None)
}

fn open(directory: &Path) -> Result<Workspace, OpenError> {
    Workspace::open(&Database::open(directory)?, "main", &Options::default())
}

fn number(value: &Value) -> Option<&Value> {
    value.get("n")
}

#[tokio::test]
async fn the_log_leads_back_to_earlier_states() {
    let w = Workspace::in_memory(&Options { history: 4, ..Options::default() }).unwrap();
    let first = w.put(key("a"), json!({"n": 1}), Precondition::Absent).await.unwrap().revision;
    w.put(key("a"), json!({"n": 2}), Precondition::Any).await.unwrap();
    w.put(key("b"), json!({"n": 3}), Precondition::Absent).await.unwrap();
    w.delete(&key("a"), Precondition::Any).await.unwrap();
    let then = w.snapshot_at(first).unwrap();
    assert_eq!(then.revision(), first);
    assert_eq!(then.get(&key("a")).unwrap().value.get("n"), Some(&json!(1)));
    assert!(then.get(&key("b")).is_none());
    let later = w.snapshot_at(first + 2).unwrap();
    assert_eq!(later.iter(&jobs(), None).filter_map(|o| number(&o.value)).count(), 2);
    assert!(w.get(&key("a")).is_none());
    assert!(w.snapshot_at(first + 4).is_none(), "the future is not known");
    w.put(key("c"), json!({}), Precondition::Absent).await.unwrap();
    w.put(key("d"), json!({}), Precondition::Absent).await.unwrap();
    assert!(w.snapshot_at(first).is_none(), "the log has forgotten");
}

#[tokio::test]
async fn large_objects_shorten_the_log_and_the_steps_of_its_readers() {
    let w = Workspace::in_memory(&Options::default()).unwrap();
    let mut slow = w.watch(jobs(), 0).unwrap();
    let large = "x".repeat(1 << 20);
    for n in 0..8 {
        w.put(key("a"), json!({"n": n, "data": large}), Precondition::Any).await.unwrap();
    }
    assert_eq!(slow.ready().unwrap().len(), 1, "one large object is a step");
    for n in 0..100 {
        w.put(key("a"), json!({"n": n, "data": large}), Precondition::Any).await.unwrap();
    }
    assert!(matches!(slow.ready(), Err(WatchError::Expired { .. })));
}

#[tokio::test]
async fn a_damaged_file_is_an_error_and_no_panic() {
    let directory = tempfile::tempdir().unwrap();
    {
        let w = open(directory.path()).unwrap();
        for n in 0..200 {
            let value = json!({"n": n, "data": "y".repeat(500)});
            w.put(key(&format!("o{n}")), value, Precondition::Any).await.unwrap();
        }
    }
    let file = directory.path().join("state.redb");
    let good = fs::read(&file).unwrap();
    let mut damages: Vec<Vec<u8>> =
        vec![b"no database".to_vec(), good[..good.len() / 2].to_vec(), good[..100].to_vec()];
    for at in
        (0..good.len()).step_by(good.len() / 60).chain([0, 9, 12, 16, 64, 128, 200, 320, 4096])
    {
        let mut bad = good.clone();
        for byte in bad.iter_mut().skip(at).take(64) {
            *byte ^= 0xa5;
        }
        damages.push(bad);
    }
    let silent = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut panics = Vec::new();
    for (index, damage) in damages.iter().enumerate() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("state.redb"), damage).unwrap();
        // Damage to what is not in use may go unnoticed; the rest must be said.
        let outcome = catch_unwind(AssertUnwindSafe(|| open(place.path()).map(drop)));
        match outcome {
            Err(_) => panics.push(index),
            Ok(Err(error)) => assert!(error.to_string().starts_with("cannot "), "{error}"),
            Ok(Ok(())) => assert!(index > 0, "a text was taken for a database"),
        }
    }
    std::panic::set_hook(silent);
    assert_eq!(panics, Vec::<usize>::new());
}

/// A file system of its own that is soon full. Only root can make one; the mount goes with the guard.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let done = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=6m", "tmpfs"])
            .arg(directory.path())
            .status();
        done.is_ok_and(|s| s.success()).then_some(Self(directory))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        drop(std::process::Command::new("umount").arg(self.0.path()).status());
    }
}

#[tokio::test]
async fn a_full_disk_refuses_writes_loses_nothing_and_recovers() {
    let Some(small) = Small::mount() else { return };
    let directory = small.0.path().join("data");
    let ballast = small.0.path().join("ballast");
    fs::write(&ballast, vec![0_u8; 3 << 20]).unwrap();
    let w = open(&directory).unwrap();
    let mut kept = Vec::new();
    let refused = loop {
        let name = format!("o{}", kept.len());
        let value = json!({"n": kept.len(), "data": "z".repeat(100_000)});
        match w.put(key(&name), value, Precondition::Absent).await {
            Ok(_) => kept.push(name),
            Err(error) => break error,
        }
        assert!(kept.len() < 1000, "the disk never filled up");
    };
    assert!(matches!(refused, WriteError::Durability { .. }), "{refused}");
    assert!(w.get(&key(&format!("o{}", kept.len()))).is_none(), "what was refused is not there");
    assert!(kept.iter().all(|name| w.get(&key(name)).is_some()));
    fs::remove_file(&ballast).unwrap();
    w.put(key("after"), json!({"n": 0}), Precondition::Absent).await.unwrap();
    drop(w);
    let again = open(&directory).unwrap();
    assert!(again.get(&key("after")).is_some());
    assert!(kept.iter().all(|name| again.get(&key(name)).is_some()));
}
