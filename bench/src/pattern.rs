//! Data that looks random, differs by seed, costs next to nothing to make and carries a checksum.

use std::io::{self, Read, Write};

use sha2::{Digest as _, Sha256};

const BLOCK: usize = 256 << 10;

fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn block(seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut b = vec![0; BLOCK];
    for word in b.chunks_exact_mut(8) {
        word.copy_from_slice(&xorshift(&mut state).to_le_bytes());
    }
    b
}

/// Writes `len` bytes that depend on `seed` and position, then their SHA-256.
pub(crate) fn send(
    to: &mut impl Write,
    seed: u64,
    len: u64,
    mut progress: impl FnMut(u64),
) -> io::Result<()> {
    let (mut b, mut sum, mut left, mut n) = (block(seed), Sha256::new(), len, 0u64);
    while left > 0 {
        // A counter in each block: a lost, doubled or moved block changes the sum.
        if let Some(head) = b.get_mut(..8) {
            head.copy_from_slice(&n.to_le_bytes());
        }
        let take = usize::try_from(left).unwrap_or(BLOCK).min(BLOCK);
        let part = b.get(..take).unwrap_or(&b);
        sum.update(part);
        to.write_all(part)?;
        left -= take as u64;
        n += 1;
        progress(len - left);
    }
    to.write_all(&sum.finalize())
}

/// Reads `len` bytes and the sum; an error of kind `InvalidData` when they disagree.
pub(crate) fn receive(
    from: &mut impl Read,
    len: u64,
    mut progress: impl FnMut(u64),
) -> io::Result<()> {
    let (mut b, mut sum, mut left) = (vec![0; BLOCK], Sha256::new(), len);
    while left > 0 {
        let take = usize::try_from(left).unwrap_or(BLOCK).min(BLOCK);
        let part = b.get_mut(..take).unwrap_or_default();
        match from.read(part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            got => {
                sum.update(part.get(..got).unwrap_or_default());
                left -= got as u64;
                progress(len - left);
            }
        }
    }
    let mut claimed = [0; 32];
    from.read_exact(&mut claimed)?;
    if sum.finalize().as_slice() == claimed {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum does not match the data"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_is_what_arrives() {
        let mut wire = Vec::new();
        send(&mut wire, 7, 600_001, |_| ()).unwrap();
        assert_eq!(wire.len(), 600_001 + 32);
        receive(&mut wire.as_slice(), 600_001, |_| ()).unwrap();
    }

    #[test]
    fn a_moved_block_is_noticed() {
        let mut wire = Vec::new();
        send(&mut wire, 7, 2 * BLOCK as u64, |_| ()).unwrap();
        let (a, b) = wire.split_at_mut(BLOCK);
        a.swap_with_slice(&mut b[..BLOCK]);
        let e = receive(&mut wire.as_slice(), 2 * BLOCK as u64, |_| ()).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::InvalidData);
    }
}
