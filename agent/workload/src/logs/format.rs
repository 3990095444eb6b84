//! One line of a CRI log file. Pure.

use std::io::Write as _;

/// Where a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Longest text of one line in the file; longer output is split into parts.
pub const MAX_TEXT: usize = 16 * 1024;

/// Appends a line to `out`. `text` holds no line feed; `whole` is false when more of the same
/// line follows.
pub fn encode(out: &mut Vec<u8>, time: jiff::Timestamp, stream: Stream, text: &[u8], whole: bool) {
    let tag = if whole { 'F' } else { 'P' };
    // Writing into a Vec cannot fail.
    crate::ignore(write!(out, "{time:.9} {} {tag} ", stream.name()));
    out.extend_from_slice(text);
    out.push(b'\n');
}

/// The text of a line and whether it is whole; `None` for what is not a line of ours.
#[must_use]
pub fn decode(line: &[u8]) -> Option<(&[u8], bool)> {
    let mut fields = line.splitn(4, |&b| b == b' ');
    let (_time, _stream) = (fields.next()?, fields.next()?);
    let whole = match fields.next()? {
        b"F" => true,
        b"P" => false,
        _ => return None,
    };
    Some((fields.next()?, whole))
}

/// Turns chunks of output into lines; one per stream.
#[derive(Debug, Default)]
pub struct Splitter {
    pending: Vec<u8>,
}

impl Splitter {
    /// Calls `emit(text, whole)` for each line or part that `chunk` completes.
    pub fn push(&mut self, chunk: &[u8], mut emit: impl FnMut(&[u8], bool)) {
        for piece in chunk.split_inclusive(|&b| b == b'\n') {
            let (text, ended) = match piece.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (piece, false),
            };
            self.pending.extend_from_slice(text);
            while self.pending.len() > MAX_TEXT {
                let rest = self.pending.split_off(MAX_TEXT);
                emit(&self.pending, false);
                self.pending = rest;
            }
            if ended {
                emit(&self.pending, true);
                self.pending.clear();
            }
        }
    }

    /// Gives out a last line that had no line feed.
    pub fn finish(&mut self, mut emit: impl FnMut(&[u8], bool)) {
        if !self.pending.is_empty() {
            emit(&self.pending, true);
            self.pending.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_reads_as_kubernetes_writes_it() {
        let mut out = Vec::new();
        let time = "2026-11-29T18:33:12.5Z".parse().unwrap();
        encode(&mut out, time, Stream::Stderr, b"a b  c", true);
        assert_eq!(out, b"2026-11-29T18:33:12.500000000Z stderr F a b  c\n");
        assert_eq!(decode(out.trim_ascii_end()), Some((&b"a b  c"[..], true)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_byte_is_lost_however_output_is_cut(
            lines in prop::collection::vec((any::<u8>(), 0..40_000usize), 0..8),
            cut in 1usize..9000,
        ) {
            let line = |(byte, length): &(u8, usize)| [vec![*byte; *length], vec![b'\n']].concat();
            let data: Vec<u8> = lines.iter().flat_map(line).collect();
            let mut splitter = Splitter::default();
            let mut seen = Vec::new();
            let mut emit = |text: &[u8], whole: bool| {
                assert!(text.len() <= MAX_TEXT);
                seen.extend_from_slice(text);
                if whole { seen.push(b'\n'); }
            };
            for chunk in data.chunks(cut) { splitter.push(chunk, &mut emit); }
            splitter.finish(&mut emit);
            let mut wanted = data.clone();
            if wanted.last().is_some_and(|&b| b != b'\n') { wanted.push(b'\n'); }
            prop_assert_eq!(seen, wanted);
        }
    }
}
