//! Appends to an attempt's log file and rotates it.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use super::{
    ROTATE_AT, ROTATED, attempts, file,
    format::{Splitter, Stream, encode},
};

/// The only writer of one attempt's log.
#[derive(Debug)]
pub struct LogWriter {
    dir: PathBuf,
    attempt: u32,
    out: File,
    size: u64,
    limit: u64,
    stdout: Splitter,
    stderr: Splitter,
}

impl LogWriter {
    /// Opens the log of `attempt` and deletes those of attempts before the previous one.
    pub fn open(dir: &Path, attempt: u32) -> io::Result<Self> {
        Self::open_with_limit(dir, attempt, ROTATE_AT)
    }

    fn open_with_limit(dir: &Path, attempt: u32, limit: u64) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        for old in attempts(dir)?.into_iter().filter(|&n| n.saturating_add(1) < attempt) {
            for n in 0..ROTATED {
                match fs::remove_file(file(dir, old, n)) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                    _ => {}
                }
            }
        }
        let out = File::options().create(true).append(true).open(file(dir, attempt, 0))?;
        let size = out.metadata()?.len();
        let dir = dir.to_owned();
        let (stdout, stderr) = (Splitter::default(), Splitter::default());
        Ok(Self { dir, attempt, out, size, limit, stdout, stderr })
    }

    /// Takes output as it was read. It is in the file when this returns.
    pub fn write(&mut self, stream: Stream, chunk: &[u8]) -> io::Result<()> {
        let now = jiff::Timestamp::now();
        let mut lines = Vec::with_capacity(chunk.len() + 64);
        let splitter = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        splitter.push(chunk, |text, whole| encode(&mut lines, now, stream, text, whole));
        self.append(&lines)
    }

    /// Writes what is left of both streams once they have ended.
    pub fn finish(&mut self) -> io::Result<()> {
        let now = jiff::Timestamp::now();
        let mut lines = Vec::new();
        self.stdout.finish(|t, whole| encode(&mut lines, now, Stream::Stdout, t, whole));
        self.stderr.finish(|t, whole| encode(&mut lines, now, Stream::Stderr, t, whole));
        self.append(&lines)
    }

    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let length = u64::try_from(lines.len()).unwrap_or(u64::MAX);
        if self.size > 0 && self.size.saturating_add(length) > self.limit {
            self.rotate()?;
        }
        self.out.write_all(lines)?;
        self.size = self.size.saturating_add(length);
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        for n in (0..ROTATED - 1).rev() {
            match fs::rename(file(&self.dir, self.attempt, n), file(&self.dir, self.attempt, n + 1))
            {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        self.out =
            File::options().create(true).append(true).open(file(&self.dir, self.attempt, 0))?;
        self.size = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_output_is_dropped_by_whole_files_and_the_newest_stays() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = LogWriter::open_with_limit(dir.path(), 1, 500).unwrap();
        for i in 0..100 {
            log.write(Stream::Stdout, format!("line {i}\n").as_bytes()).unwrap();
        }
        let names: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(names.len(), 3);
        let newest = fs::read_to_string(file(dir.path(), 1, 0)).unwrap();
        assert!(newest.ends_with("stdout F line 99\n"));
        assert!(newest.len() <= 500);
    }

    #[test]
    fn the_attempt_before_is_kept_and_older_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        for attempt in 1..=4 {
            LogWriter::open(dir.path(), attempt).unwrap().write(Stream::Stdout, b"x\n").unwrap();
        }
        assert_eq!(attempts(dir.path()).unwrap(), vec![3, 4]);
    }
}
