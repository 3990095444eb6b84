//! The redb file and the lock on the directory it lies in.

use std::any::Any;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use redb::{ReadableDatabase, ReadableTable, TableDefinition};

use crate::backend::{Backend, Loaded};
use crate::error::OpenError;
use crate::key::{Key, Scope};
use crate::log::{Event, EventKind};
use crate::object::Object;
use crate::workspace::Options;

/// The state is in memory; the page cache only serves commits.
const CACHE_BYTES: usize = 32 << 20;

type Objects<'a> = TableDefinition<'a, &'static str, (u64, &'static [u8])>;
type History<'a> = TableDefinition<'a, u64, (u8, &'static str, &'static [u8])>;
type Counters<'a> = TableDefinition<'a, &'static str, u64>;

const REVISION: &str = "revision";
const FLOOR: &str = "floor";

/// A data directory, held exclusively while this value or a workspace of it lives.
#[derive(Debug, Clone)]
pub struct Database {
    held: Arc<Held>,
}

#[derive(Debug)]
struct Held {
    /// None while it could not be opened again after a failed write.
    redb: RwLock<Option<redb::Database>>,
    path: PathBuf,
    // Released by the kernel when the process dies, whatever kills it.
    _lock: File,
}

impl Database {
    /// Opens or creates `state.redb` in `directory`.
    ///
    /// # Errors
    /// [`OpenError::Locked`] when another process uses the directory.
    pub fn open(directory: &Path) -> Result<Self, OpenError> {
        let path = directory.to_path_buf();
        fs::create_dir_all(directory)
            .map_err(|source| OpenError::Directory { path: path.clone(), source })?;
        let lock_path = directory.join("LOCK");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(|source| OpenError::Lock { path: path.clone(), source })?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::Locked { path, lock: lock_path });
            }
            Err(TryLockError::Error(source)) => return Err(OpenError::Lock { path, source }),
        }
        let file = directory.join("state.redb");
        let redb = guarded(&file, || create(&file))?
            .map_err(|e| OpenError::Database { path: file.clone(), source: Box::new(e) })?;
        let redb = RwLock::new(Some(redb));
        Ok(Self { held: Arc::new(Held { redb, path: file, _lock: lock }) })
    }

    pub(crate) fn load(
        &self,
        workspace: &str,
        options: &Options,
    ) -> Result<(Disk, Loaded), OpenError> {
        let disk = Disk::new(Arc::clone(&self.held), workspace, options);
        let wrap = |source: redb::Error| OpenError::Read {
            workspace: workspace.to_owned(),
            source: Box::new(source),
        };
        let read = || disk.create_tables().and_then(|()| disk.read());
        let (loaded, damaged) = guarded(&self.held.path, read)?.map_err(wrap)?;
        match damaged {
            Some((key, source)) => Err(OpenError::Damaged {
                workspace: workspace.to_owned(),
                key: format!("{key:?}"),
                source,
            }),
            None => Ok((disk, loaded)),
        }
    }

    /// The database file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.held.path
    }
}

fn create(file: &Path) -> Result<redb::Database, redb::Error> {
    Ok(redb::Database::builder().set_cache_size(CACHE_BYTES).create(file)?)
}

/// Runs code that reads the file. redb panics on some kinds of damage; the database is not used after that.
fn guarded<T>(file: &Path, read: impl FnOnce() -> T) -> Result<T, OpenError> {
    catch_unwind(AssertUnwindSafe(read))
        .map_err(|panic| OpenError::Corrupt { path: file.to_path_buf(), reason: said(&*panic) })
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given").to_owned()
}

impl Held {
    /// The open database; one that failed before is opened again.
    fn database(&self) -> Result<RwLockReadGuard<'_, Option<redb::Database>>, redb::Error> {
        let open = self.redb.read().unwrap_or_else(PoisonError::into_inner);
        if open.is_some() {
            return Ok(open);
        }
        drop(open);
        self.reopen()?;
        Ok(self.redb.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// After an I/O error redb refuses everything until it is closed and opened again.
    fn reopen(&self) -> Result<(), redb::Error> {
        let mut slot = self.redb.write().unwrap_or_else(PoisonError::into_inner);
        // The old one goes first: it holds a lock on the file.
        *slot = None;
        *slot = Some(create(&self.path)?);
        Ok(())
    }
}

/// What redb says itself of a database that is not open.
fn not_open() -> redb::Error {
    redb::Error::PreviousIo
}

type Damaged = Option<(Key, serde_json::Error)>;

/// The tables of one workspace.
#[derive(Debug)]
pub(crate) struct Disk {
    held: Arc<Held>,
    objects: String,
    history: String,
    counters: String,
    keep: usize,
    volatile: Vec<Scope>,
}

impl Disk {
    fn new(held: Arc<Held>, workspace: &str, options: &Options) -> Self {
        Self {
            held,
            objects: format!("{workspace}/objects"),
            history: format!("{workspace}/history"),
            counters: format!("{workspace}/counters"),
            keep: options.history,
            volatile: options.volatile.clone(),
        }
    }

    fn create_tables(&self) -> Result<(), redb::Error> {
        let open = self.held.database()?;
        let tx = open.as_ref().ok_or_else(not_open)?.begin_write()?;
        tx.open_table(Objects::new(&self.objects))?;
        tx.open_table(History::new(&self.history))?;
        tx.open_table(Counters::new(&self.counters))?;
        Ok(tx.commit()?)
    }

    fn read(&self) -> Result<(Loaded, Damaged), redb::Error> {
        let mut loaded = Loaded::default();
        let open = self.held.database()?;
        let tx = open.as_ref().ok_or_else(not_open)?.begin_read()?;
        let counters = tx.open_table(Counters::new(&self.counters))?;
        loaded.revision = counters.get(REVISION)?.map_or(0, |v| v.value());
        loaded.floor = counters.get(FLOOR)?.map_or(0, |v| v.value());
        for row in tx.open_table(Objects::new(&self.objects))?.iter()? {
            let (key, value) = row?;
            let (revision, json) = value.value();
            let key = Key::from_stored(key.value());
            match Object::from_stored(key.clone(), revision, json) {
                Ok(object) => loaded.objects.push(Arc::new(object)),
                Err(source) => return Ok((loaded, Some((key, source)))),
            }
        }
        for row in tx.open_table(History::new(&self.history))?.iter()? {
            let (revision, value) = row?;
            let (kind, key, json) = value.value();
            let key = Key::from_stored(key);
            match Object::from_stored(key.clone(), revision.value(), json) {
                Ok(object) => loaded.history.push((decode_kind(kind), Arc::new(object))),
                Err(source) => return Ok((loaded, Some((key, source)))),
            }
        }
        Ok((loaded, None))
    }

    /// The last revision on disk.
    fn revision(&self) -> Result<u64, redb::Error> {
        let open = self.held.database()?;
        let tx = open.as_ref().ok_or_else(not_open)?.begin_read()?;
        Ok(tx.open_table(Counters::new(&self.counters))?.get(REVISION)?.map_or(0, |v| v.value()))
    }

    fn write(&self, batch: &[Event]) -> Result<(), redb::Error> {
        let open = self.held.database()?;
        let tx = open.as_ref().ok_or_else(not_open)?.begin_write()?;
        {
            let mut objects = tx.open_table(Objects::new(&self.objects))?;
            let mut history = tx.open_table(History::new(&self.history))?;
            let mut counters = tx.open_table(Counters::new(&self.counters))?;
            for event in batch {
                let object = &event.object;
                let key = object.key.as_str();
                if event.kind == EventKind::Deleted {
                    objects.remove(key)?;
                } else {
                    objects.insert(key, (object.revision, &*object.json))?;
                }
                if !self.volatile.iter().any(|scope| scope.contains(&object.key)) {
                    let row = (encode_kind(event.kind), key, &*object.json);
                    history.insert(object.revision, row)?;
                }
                counters.insert(REVISION, object.revision)?;
            }
            let mut floor = None;
            let surplus =
                redb::ReadableTableMetadata::len(&history)?.saturating_sub(self.keep as u64);
            for _ in 0..surplus {
                floor = history.pop_first()?.map(|(revision, _)| revision.value());
            }
            if let Some(floor) = floor {
                counters.insert(FLOOR, floor)?;
            }
        }
        Ok(tx.commit()?)
    }
}

impl Backend for Disk {
    fn commit(&mut self, batch: &[Event]) -> Result<(), String> {
        let Err(error) = self.write(batch) else { return Ok(()) };
        // An error at the very end leaves open whether the batch is on disk: the file knows.
        let durable = self.held.reopen().and_then(|()| self.revision());
        let last = batch.last().map_or(0, |event| event.object.revision);
        match durable {
            Ok(revision) if revision >= last => Ok(()),
            Ok(_) | Err(_) => Err(error.to_string()),
        }
    }
}

fn encode_kind(kind: EventKind) -> u8 {
    match kind {
        EventKind::Added => 0,
        EventKind::Modified => 1,
        EventKind::Deleted => 2,
    }
}

fn decode_kind(kind: u8) -> EventKind {
    match kind {
        0 => EventKind::Added,
        1 => EventKind::Modified,
        _ => EventKind::Deleted,
    }
}
