//! A BPF hash map behind `&self`: the kernel orders the accesses, the lock only satisfies aya's `&mut`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::{
    Ebpf, Pod,
    maps::{HashMap, MapData, MapError as AyaError},
};

use crate::error::{LoadError, MapError};

#[derive(Debug)]
pub(crate) struct Table<K: Pod, V: Pod> {
    name: &'static str,
    map: Mutex<HashMap<MapData, K, V>>,
}

impl<K: Pod, V: Pod> Table<K, V> {
    /// Takes the map out of a loaded object.
    pub(crate) fn take(ebpf: &mut Ebpf, name: &'static str) -> Result<Self, LoadError> {
        let map = ebpf.take_map(name).ok_or(LoadError::Incomplete(name))?;
        let map = HashMap::try_from(map)
            .map_err(|source| LoadError::MapShape { map: name, source: Box::new(source) })?;
        Ok(Self { name, map: Mutex::new(map) })
    }

    pub(crate) fn set(&self, key: K, value: V) -> Result<(), MapError> {
        self.lock().insert(key, value, 0).map_err(|source| self.write_error(source))
    }

    /// The value, if there is one.
    pub(crate) fn get(&self, key: &K) -> Result<Option<V>, MapError> {
        match self.lock().get(key, 0) {
            Ok(value) => Ok(Some(value)),
            Err(e) if is_absent(&e) => Ok(None),
            Err(source) => Err(self.read_error(source)),
        }
    }

    /// Deletes the key; whether it was there.
    pub(crate) fn delete(&self, key: &K) -> Result<bool, MapError> {
        match self.lock().remove(key) {
            Ok(()) => Ok(true),
            Err(e) if is_absent(&e) => Ok(false),
            Err(source) => Err(MapError::Delete { map: self.name, source: Box::new(source) }),
        }
    }

    /// All entries. Entries that come or go meanwhile may or may not be in it.
    pub(crate) fn entries(&self) -> Result<Vec<(K, V)>, MapError> {
        let map = self.lock();
        let mut entries = Vec::new();
        for key in map.keys() {
            let key = key.map_err(|source| self.read_error(source))?;
            match map.get(&key, 0) {
                Ok(value) => entries.push((key, value)),
                Err(e) if is_absent(&e) => {}
                Err(source) => return Err(self.read_error(source)),
            }
        }
        Ok(entries)
    }

    fn write_error(&self, source: AyaError) -> MapError {
        MapError::Write { map: self.name, source: Box::new(source) }
    }

    fn read_error(&self, source: AyaError) -> MapError {
        MapError::Read { map: self.name, source: Box::new(source) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<MapData, K, V>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn is_absent(error: &AyaError) -> bool {
    match error {
        AyaError::KeyNotFound | AyaError::ElementNotFound => true,
        AyaError::SyscallError(e) => e.io_error.kind() == std::io::ErrorKind::NotFound,
        _ => false,
    }
}
