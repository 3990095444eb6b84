//! SHA-256 fingerprints of public keys, and random bytes from the one crypto provider.

use std::{fmt, str::FromStr};

use aws_lc_rs::{constant_time, digest, rand};

/// SHA-256 of a DER `SubjectPublicKeyInfo`: the identity of a key, whatever certificate it is in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// The fingerprint of a public key in its `SubjectPublicKeyInfo` encoding.
    #[must_use]
    pub fn of_spki(spki_der: &[u8]) -> Self {
        Self(sha256(spki_der))
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}
impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyHash({self})")
    }
}

/// The text is not 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key fingerprint is 64 hexadecimal digits")]
pub struct NotAKeyHash;

impl FromStr for KeyHash {
    type Err = NotAKeyHash;
    fn from_str(s: &str) -> Result<Self, NotAKeyHash> {
        from_hex(s).map(Self).ok_or(NotAKeyHash)
    }
}

pub(crate) fn sha256(data: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, data).as_ref());
    out
}

/// Compares without telling by its duration where the two differ.
pub(crate) fn equal(a: &[u8], b: &[u8]) -> bool {
    constant_time::verify_slices_are_equal(a, b).is_ok()
}

/// The provider's generator failed; nothing that needs a secret can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system's random number generator failed")]
pub struct NoRandomness;

/// `N` bytes nobody can guess.
pub fn random<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut out = [0; N];
    // The provider's error carries nothing.
    if rand::fill(&mut out).is_err() {
        return Err(NoRandomness);
    }
    Ok(out)
}

/// Lower-case hexadecimal digits.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The inverse of [`to_hex`]: exactly `2 * N` lower- or upper-case digits.
pub(crate) fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N {
        return None;
    }
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks(2)) {
        let &[high, low] = pair else { return None };
        let digit = |c: u8| char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok());
        *byte = digit(high)? << 4 | digit(low)?;
    }
    Some(out)
}
