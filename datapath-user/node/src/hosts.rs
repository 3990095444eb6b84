//! The node's section of a pod's hosts file: every peer's VIP by name.
//!
//! ```text
//! # BEGIN rlark domain
//! 10.2.0.1 actor-0.rlark-domain actor-0.site-a.demo.rlark actor-0
//! fd00:2::1 actor-0.rlark-domain actor-0.site-a.demo.rlark actor-0
//! # END rlark domain
//! ```
//!
//! A pod's host name is its own name here, so what it says of itself (`hostname -i`, `socket.getfqdn()`) is where peers reach it.
//! Everything outside the markers belongs to others and is kept byte for byte.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::FileExt as _,
    path::Path,
};

use control_api::session::Member;

use crate::plan::table::Domain;

const BEGIN: &str = "# BEGIN rlark domain";
const END: &str = "# END rlark domain";
/// Suffix of the short names.
pub const SHORT: &str = ".rlark-domain";
/// Suffix of the names that are unambiguous across sites and Domains.
pub const LONG: &str = ".rlark";

/// The lines for `own`, sorted by address, its own among them.
///
/// A name that two pods could claim goes to the own pod, for short names else to the only one in
/// the own site, and otherwise to nobody: failing to resolve is better than reaching the wrong pod.
#[must_use]
pub fn section(domain: &Domain, own: &Member) -> String {
    let mut long: BTreeMap<(&str, &str), Vec<&Member>> = BTreeMap::new();
    let mut short: BTreeMap<&str, Vec<&Member>> = BTreeMap::new();
    for m in domain.members().filter(|m| is_host_name(&m.pod)) {
        long.entry((&m.pod, m.node.cluster.as_str())).or_default().push(m);
        short.entry(&m.pod).or_default().push(m);
    }
    let mut lines = BTreeMap::new();
    for m in domain.members().filter(|m| is_host_name(&m.pod)) {
        let same_site: Vec<_> = claimants(&long, &(&m.pod, own.node.cluster.as_str())).to_vec();
        let all = claimants(&short, &m.pod.as_str());
        let in_site = claimants(&long, &(&m.pod, m.node.cluster.as_str()));
        let own_claims = all.iter().any(|c| c.uid == own.uid);
        let gets_short = if own_claims {
            m.uid == own.uid
        } else {
            all.len() == 1 || (same_site.len() == 1 && m.node.cluster == own.node.cluster)
        };
        let gets_long = in_site.len() == 1 || m.uid == own.uid;
        let mut line = String::new();
        if gets_short {
            line += &format!(" {}{SHORT}", m.pod);
        }
        if gets_long {
            line += &format!(" {}.{}.{}{LONG}", m.pod, m.node.cluster, domain.name);
        }
        if gets_short && (m.uid == own.uid || is_plain(&m.pod)) {
            line += &format!(" {}", m.pod);
        }
        if !line.is_empty() {
            for vip in &m.vips {
                lines.insert((*vip, m.uid.as_str()), line.clone());
            }
        }
    }
    lines.into_iter().fold(String::new(), |mut text, ((vip, _), names)| {
        text.push_str(&format!("{vip}{names}\n"));
        text
    })
}

fn claimants<'a, 'b, K: Ord>(of: &'b BTreeMap<K, Vec<&'a Member>>, key: &K) -> &'b [&'a Member] {
    of.get(key).map_or(&[], Vec::as_slice)
}

/// Pod names come from other sites: nothing in them may break out of the line.
fn is_host_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 253
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.')
}

/// Whether the name alone can only mean a pod: a number at its end, as tasks' pods have, and no dot. Another site must not be able to
/// call its pod `localhost`, `db` or `github.com` and be taken for that.
fn is_plain(name: &str) -> bool {
    let Some((task, number)) = name.rsplit_once('-') else { return false };
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    is_number && !task.is_empty() && !task.contains('.')
}

/// `existing` with this section (or without any) in it.
///
/// Where the end marker is missing, only lines that can be ours are taken out: a file that someone
/// cut short must not lose what follows.
#[must_use]
pub fn merge(existing: &[u8], section: Option<&str>) -> Vec<u8> {
    let lines: Vec<&[u8]> = existing.split_inclusive(|b| *b == b'\n').collect();
    let mut out = Vec::with_capacity(existing.len());
    let mut rest = lines.as_slice();
    while let Some((line, tail)) = rest.split_first() {
        rest = tail;
        if !is(line, BEGIN) {
            out.extend_from_slice(line);
            continue;
        }
        let next_begin = rest.iter().position(|l| is(l, BEGIN)).unwrap_or(rest.len());
        let end = rest.iter().position(|l| is(l, END)).filter(|end| *end < next_begin);
        let skip = end.map_or_else(
            || rest.iter().position(|l| !is_ours(l)).unwrap_or(rest.len()),
            |end| end + 1,
        );
        rest = rest.get(skip..).unwrap_or_default();
    }
    let Some(section) = section else { return out };
    if out.last().is_some_and(|b| *b != b'\n') {
        out.push(b'\n');
    }
    out.extend_from_slice(format!("{BEGIN}\n{section}{END}\n").as_bytes());
    out
}

fn is(line: &[u8], marker: &str) -> bool {
    line.trim_ascii() == marker.as_bytes()
}

fn is_ours(line: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(line) else { return false };
    let mut words = text.split_ascii_whitespace();
    let address = words.next().is_some_and(|w| w.parse::<std::net::IpAddr>().is_ok());
    // The bare name stands behind the two others.
    address && words.next().is_some_and(|n| n.ends_with(SHORT) || n.ends_with(LONG))
}

/// Puts the section into the file, or takes it out. Blocking; a few hundred microseconds.
///
/// The inode is kept: a pod sees its hosts file through a bind mount, which follows the inode, so a
/// renamed file would never be seen. The new text goes out in one write, padded with line feeds to
/// the old length first, so that a reader at no time meets the tail of an older version.
///
/// # Errors
/// Those of open, read and write; [`io::ErrorKind::InvalidInput`] when the path is no regular file.
pub fn update(path: &Path, section: Option<&str>) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut old = Vec::new();
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    file.read_to_end(&mut old)?;
    let new = merge(&old, section);
    if new == old {
        return Ok(());
    }
    write_in_place(&file, new, old.len())
}

fn write_in_place(file: &File, mut new: Vec<u8>, old_len: usize) -> io::Result<()> {
    let len = new.len();
    new.resize(len.max(old_len), b'\n');
    file.write_all_at(&new, 0)?;
    if len < old_len {
        file.set_len(len as u64)?;
    }
    Ok(())
}

/// Whether `name` leads to `vip` in this hosts text.
#[must_use]
pub fn resolves(text: &str, name: &str, vip: std::net::IpAddr) -> bool {
    text.lines().filter_map(|l| l.split('#').next()).any(|l| {
        let mut words = l.split_ascii_whitespace();
        words.next().and_then(|w| w.parse().ok()) == Some(vip) && words.any(|w| w == name)
    })
}

#[cfg(test)]
#[path = "hosts_tests.rs"]
mod tests;
