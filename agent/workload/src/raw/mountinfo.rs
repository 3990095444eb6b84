//! `/proc/PID/mountinfo` (proc_pid_mountinfo(5)), as far as it is needed here. Pure.

use std::{ffi::OsString, os::unix::ffi::OsStringExt as _, path::PathBuf};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount<'a> {
    pub point: PathBuf,
    /// Per-mount options, such as `rw,nosuid`.
    pub options: &'a str,
    pub fs: &'a str,
}

/// All mounts; lines of another shape are left out.
pub(crate) fn parse(text: &str) -> impl Iterator<Item = Mount<'_>> {
    text.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut fields = left.split(' ').skip(4);
        let point = unescape(fields.next()?);
        let options = fields.next()?;
        Some(Mount { point, options, fs: right.split(' ').next()? })
    })
}

/// Blanks, tabs, line feeds and backslashes stand as three octal digits.
fn unescape(text: &str) -> PathBuf {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = (first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        if let Some(byte) = octal {
            out.push(byte);
            rest = tail.get(3..).unwrap_or_default();
        } else {
            out.push(first);
            rest = tail;
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_in_mount_points_are_read() {
        let line = "36 35 98:0 /a /mnt/my\\040disk rw,nosuid shared:1 - ext4 /dev/sda rw\nbroken";
        let mounts: Vec<_> = parse(line).collect();
        let wanted = Mount { point: "/mnt/my disk".into(), options: "rw,nosuid", fs: "ext4" };
        assert_eq!(mounts, vec![wanted]);
    }
}
