//! Reads a pod's captured output as its process wrote it (without time and stream), from the start
//! or the last lines, and follows it through rotation and restarts until the pod has ended.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use tokio::sync::watch;

use super::{ROTATED, attempts, file, format::decode};
use crate::inotify::Watch;

/// What to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Go on until the pod has ended.
    pub follow: bool,
    /// Only this many last lines of what is there.
    pub tail: Option<usize>,
    /// The attempt before the current one; never followed.
    pub previous: bool,
}

/// Why there is nothing to read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("the pod has no previous attempt")]
    NoPrevious,
    #[error("cannot read the pod's log in {dir}")]
    Io {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
}

const CHUNK: usize = 64 * 1024;

/// An open log. `next` gives its bytes in order.
#[derive(Debug)]
pub struct LogReader {
    dir: PathBuf,
    attempt: u32,
    files: VecDeque<File>,
    /// The file being read, kept at its end while following.
    current: Option<File>,
    partial: Vec<u8>,
    /// Whole lines still to be left out, because of `tail`.
    skip: usize,
    follow: Option<Follow>,
    /// Nothing more will be written.
    over: bool,
}

#[derive(Debug)]
struct Follow {
    changes: Watch,
    ended: watch::Receiver<bool>,
}

impl LogReader {
    /// Opens the log in `dir`. `ended` turns true (or its sender goes away) once nothing will be
    /// written any more.
    pub fn open(
        dir: &Path,
        options: LogOptions,
        ended: watch::Receiver<bool>,
    ) -> Result<Self, LogError> {
        let fail = |source| LogError::Io { dir: dir.to_owned(), source };
        // Watch before looking, so that nothing written in between is missed.
        let follow = (options.follow && !options.previous)
            .then(|| Watch::new(dir).map(|changes| Follow { changes, ended }))
            .transpose()
            .map_err(fail)?;
        let found = attempts(dir).map_err(fail)?;
        let attempt = match (options.previous, found.as_slice()) {
            (true, [.., before, _]) => *before,
            (true, _) => return Err(LogError::NoPrevious),
            (false, all) => all.last().copied().unwrap_or(1),
        };
        let files = open_all(dir, attempt).map_err(fail)?;
        let skip = match options.tail {
            Some(wanted) => {
                let there = open_all(dir, attempt).and_then(count_lines).map_err(fail)?;
                there.saturating_sub(wanted)
            }
            None => 0,
        };
        let dir = dir.to_owned();
        Ok(Self {
            dir,
            attempt,
            files,
            current: None,
            partial: Vec::new(),
            skip,
            follow,
            over: false,
        })
    }

    /// The next bytes; `None` at the end. Cancel-safe: dropped between calls, nothing is lost.
    pub async fn next(&mut self) -> Option<Result<Bytes, LogError>> {
        loop {
            match self.read_some() {
                Err(source) => return Some(Err(LogError::Io { dir: self.dir.clone(), source })),
                Ok(Some(bytes)) if bytes.is_empty() => {}
                Ok(Some(bytes)) => return Some(Ok(bytes)),
                Ok(None) if self.over => return None,
                Ok(None) => {
                    // What was written just before the end is still to be read.
                    self.over = match &mut self.follow {
                        None => true,
                        Some(follow) => follow.wait().await,
                    };
                }
            }
        }
    }

    /// Text of the next chunk; `None` when all that is there has been read.
    fn read_some(&mut self) -> io::Result<Option<Bytes>> {
        let mut chunk = vec![0; CHUNK];
        loop {
            if self.current.is_none() {
                self.current = self.files.pop_front();
            }
            let Some(open) = &mut self.current else {
                if !self.take_newer()? {
                    return Ok(None);
                }
                continue;
            };
            let n = open.read(&mut chunk)?;
            if n > 0 {
                return Ok(Some(self.decode(chunk.get(..n).unwrap_or_default())));
            }
            if self.files.is_empty() && !self.take_newer()? {
                return Ok(None);
            }
            self.current = None;
        }
    }

    /// Queues what came after the file at hand: a rotated one's successor or the next attempt.
    fn take_newer(&mut self) -> io::Result<bool> {
        if self.follow.is_none() {
            return Ok(false);
        }
        let successor = file(&self.dir, self.attempt, 0);
        match (&self.current, File::open(&successor)) {
            (Some(mine), Ok(new)) if mine.metadata()?.ino() != new.metadata()?.ino() => {
                self.files.push_back(new);
                return Ok(true);
            }
            (None, Ok(new)) => {
                self.files.push_back(new);
                return Ok(true);
            }
            (_, Err(e)) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        match attempts(&self.dir)?.into_iter().find(|&n| n > self.attempt) {
            Some(next) => {
                self.attempt = next;
                self.files = open_all(&self.dir, next)?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn decode(&mut self, chunk: &[u8]) -> Bytes {
        let mut out = Vec::with_capacity(chunk.len());
        for piece in chunk.split_inclusive(|&b| b == b'\n') {
            self.partial.extend_from_slice(piece);
            if !piece.ends_with(b"\n") {
                break;
            }
            if let Some((text, whole)) = self.partial.strip_suffix(b"\n").and_then(decode) {
                if self.skip == 0 {
                    out.extend_from_slice(text);
                    if whole {
                        out.push(b'\n');
                    }
                } else if whole {
                    self.skip -= 1;
                }
            }
            self.partial.clear();
        }
        Bytes::from(out)
    }
}

impl Follow {
    /// Waits until something was written (false) or nothing will be (true).
    async fn wait(&mut self) -> bool {
        if *self.ended.borrow() {
            return true;
        }
        tokio::select! {
            changed = self.changes.changed() => changed.is_err(),
            _end = self.ended.wait_for(|ended| *ended) => true,
        }
    }
}

/// All files of an attempt, oldest first.
fn open_all(dir: &Path, attempt: u32) -> io::Result<VecDeque<File>> {
    let mut files = VecDeque::new();
    for n in 0..ROTATED {
        match File::open(file(dir, attempt, n)) {
            Ok(open) => files.push_front(open),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(files)
}

fn count_lines(files: VecDeque<File>) -> io::Result<usize> {
    let mut lines = 0;
    for open in files {
        for line in io::BufRead::split(io::BufReader::new(open), b'\n') {
            lines += usize::from(decode(&line?).is_some_and(|(_, whole)| whole));
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::{format::Stream, writer::LogWriter},
        *,
    };

    async fn all(reader: &mut LogReader) -> String {
        let mut text = Vec::new();
        while let Some(chunk) = reader.next().await {
            text.extend_from_slice(&chunk.unwrap());
        }
        String::from_utf8(text).unwrap()
    }

    #[tokio::test]
    async fn the_last_lines_are_the_last_lines() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = LogWriter::open(dir.path(), 1).unwrap();
        for i in 0..10 {
            log.write(Stream::Stdout, format!("{i}\n").as_bytes()).unwrap();
        }
        let (_tx, ended) = watch::channel(false);
        let options = LogOptions { tail: Some(2), ..LogOptions::default() };
        let mut reader = LogReader::open(dir.path(), options, ended).unwrap();
        assert_eq!(all(&mut reader).await, "8\n9\n");
    }

    #[tokio::test]
    async fn following_crosses_attempts_and_stops_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        LogWriter::open(dir.path(), 1).unwrap().write(Stream::Stdout, b"one\n").unwrap();
        let (tx, ended) = watch::channel(false);
        let options = LogOptions { follow: true, ..LogOptions::default() };
        let mut reader = LogReader::open(dir.path(), options, ended).unwrap();
        let path = dir.path().to_owned();
        let writer = async move {
            tokio::time::sleep(Duration::from_millis(30)).await;
            LogWriter::open(&path, 2).unwrap().write(Stream::Stderr, b"two\n").unwrap();
            tx.send(true).unwrap();
        };
        let (text, ()) = tokio::join!(all(&mut reader), writer);
        assert_eq!(text, "one\ntwo\n");
        let (_tx, ended) = watch::channel(false);
        let previous = LogOptions { previous: true, ..LogOptions::default() };
        let mut reader = LogReader::open(dir.path(), previous, ended).unwrap();
        assert_eq!(all(&mut reader).await, "one\n");
    }

    #[test]
    fn a_first_attempt_has_no_previous_one() {
        let dir = tempfile::tempdir().unwrap();
        let (_tx, ended) = watch::channel(false);
        let previous = LogOptions { previous: true, ..LogOptions::default() };
        assert!(matches!(LogReader::open(dir.path(), previous, ended), Err(LogError::NoPrevious)));
    }
}
