//! Join tokens: the right of a machine to enrol into one cluster, for a short time.
//!
//! Text form `rlark1.CLUSTER.ID.SECRET.CA`, where CA is the fingerprint of the authority, so that
//! the machine recognises the server before it sends the secret. The server keeps a
//! [`TokenRecord`] with the secret's hash only. Pure: the clock is an argument.

use std::{fmt, str::FromStr, time::Duration};

use control_api::ids::ClusterId;
use serde::{Deserialize, Serialize};

use crate::{
    KeyHash,
    digest::{self, NoRandomness},
};

const VERSION: &str = "rlark1";

/// A token as a person pastes it. The secret is in no `Debug` output.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    pub cluster: ClusterId,
    /// Names the server's record; not secret.
    pub id: String,
    secret: [u8; 32],
    /// Fingerprint of the installation's authority.
    pub ca: KeyHash,
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({}/{})", self.cluster, self.id)
    }
}

/// The text is not a join token; says which part is wrong, never what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a join token: {0}")]
pub struct NotAToken(&'static str);

impl FromStr for JoinToken {
    type Err = NotAToken;
    fn from_str(text: &str) -> Result<Self, NotAToken> {
        let mut parts = text.trim().split('.');
        let mut part = || parts.next().ok_or(NotAToken("it must have five parts"));
        if part()? != VERSION {
            return Err(NotAToken("it must begin with rlark1"));
        }
        let Ok(cluster) = part()?.parse() else {
            return Err(NotAToken("its second part must be a cluster name"));
        };
        let id = part()?;
        if digest::from_hex::<8>(id).is_none() {
            return Err(NotAToken("its third part must be 16 hexadecimal digits"));
        }
        let secret = digest::from_hex(part()?)
            .ok_or(NotAToken("its fourth part must be 64 hexadecimal digits"))?;
        let Ok(ca) = part()?.parse() else {
            return Err(NotAToken("its fifth part must be 64 hexadecimal digits"));
        };
        if parts.next().is_some() {
            return Err(NotAToken("it must have five parts"));
        }
        Ok(Self { cluster, id: id.to_owned(), secret, ca })
    }
}

impl JoinToken {
    /// The text that is given to people, a secret. There is no `Display`, so that no log line
    /// shows a token by accident.
    #[must_use]
    pub fn reveal(&self) -> String {
        let secret = digest::to_hex(&self.secret);
        format!("{VERSION}.{}.{}.{secret}.{}", self.cluster, self.id, self.ca)
    }
}

/// What the server remembers of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenRecord {
    pub id: String,
    pub cluster: ClusterId,
    /// Hexadecimal SHA-256 of the secret.
    pub secret_hash: String,
    /// Seconds since the epoch.
    pub expires: u64,
    pub uses_left: u32,
}

/// Why a token does not let a machine in. The texts name the token's id, never its secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    /// Also for a wrong secret: a guesser learns nothing about ids.
    #[error("join token {id} is unknown; make a new one with `rlark token create`")]
    Unknown { id: String },
    #[error("join token {id} has expired; make a new one with `rlark token create`")]
    Expired { id: String },
    #[error("join token {id} has been used up; make a new one with `rlark token create`")]
    UsedUp { id: String },
    #[error("join token {id} is for cluster {actual}, not {claimed}")]
    WrongCluster { id: String, claimed: ClusterId, actual: ClusterId },
}

impl TokenRefusal {
    /// The stable code of a [`control_api::session::Refusal`].
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "token-unknown",
            Self::Expired { .. } => "token-expired",
            Self::UsedUp { .. } => "token-used-up",
            Self::WrongCluster { .. } => "token-wrong-cluster",
        }
    }
}

/// Makes a token and its record. `now` is the time since the epoch.
pub fn mint(
    cluster: &ClusterId,
    ca: KeyHash,
    now: Duration,
    ttl: Duration,
    uses: u32,
) -> Result<(JoinToken, TokenRecord), NoRandomness> {
    let id = digest::to_hex(&digest::random::<8>()?);
    let secret = digest::random::<32>()?;
    let record = TokenRecord {
        id: id.clone(),
        cluster: cluster.clone(),
        secret_hash: digest::to_hex(&digest::sha256(&secret)),
        expires: now.saturating_add(ttl).as_secs(),
        uses_left: uses,
    };
    Ok((JoinToken { cluster: cluster.clone(), id, secret, ca }, record))
}

impl TokenRecord {
    /// The record after one use, or why there is none. The secret is compared first and in
    /// constant time: who does not hold it learns only "unknown".
    pub fn redeem(&self, token: &JoinToken, now: Duration) -> Result<Self, TokenRefusal> {
        let id = token.id.clone();
        let hash = digest::to_hex(&digest::sha256(&token.secret));
        if self.id != id || !digest::equal(hash.as_bytes(), self.secret_hash.as_bytes()) {
            return Err(TokenRefusal::Unknown { id });
        }
        if self.cluster != token.cluster {
            return Err(TokenRefusal::WrongCluster {
                id,
                claimed: token.cluster.clone(),
                actual: self.cluster.clone(),
            });
        }
        if now.as_secs() >= self.expires {
            return Err(TokenRefusal::Expired { id });
        }
        let Some(uses_left) = self.uses_left.checked_sub(1) else {
            return Err(TokenRefusal::UsedUp { id });
        };
        Ok(Self { uses_left, ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_000_000);

    fn minted(uses: u32) -> (JoinToken, TokenRecord) {
        let ca = KeyHash::of_spki(b"ca");
        mint(&"site-a".parse().unwrap(), ca, NOW, Duration::from_secs(60), uses).unwrap()
    }

    #[test]
    fn a_token_survives_its_text_form_and_debug_hides_the_secret() {
        let (token, _) = minted(1);
        assert_eq!(token.reveal().parse::<JoinToken>().unwrap(), token);
        assert!(!format!("{token:?}").contains(&digest::to_hex(&token.secret)));
        assert!(token.reveal()[..40].parse::<JoinToken>().is_err());
        assert!(format!("{}.x", token.reveal()).parse::<JoinToken>().is_err());
    }

    #[test]
    fn a_token_is_good_for_its_uses_and_no_more() {
        let (token, record) = minted(2);
        let once = record.redeem(&token, NOW).unwrap();
        let twice = once.redeem(&token, NOW).unwrap();
        assert!(matches!(twice.redeem(&token, NOW), Err(TokenRefusal::UsedUp { .. })));
    }

    #[test]
    fn an_expired_token_is_refused_from_the_second_of_its_expiry() {
        let (token, record) = minted(1);
        assert!(record.redeem(&token, NOW + Duration::from_secs(59)).is_ok());
        assert!(matches!(
            record.redeem(&token, NOW + Duration::from_secs(60)),
            Err(TokenRefusal::Expired { .. })
        ));
    }

    #[test]
    fn a_wrong_secret_is_unknown_even_when_the_token_is_expired() {
        let (_, record) = minted(1);
        let (mut other, _) = minted(1);
        other.id.clone_from(&record.id);
        assert!(matches!(
            record.redeem(&other, NOW + Duration::from_secs(600)),
            Err(TokenRefusal::Unknown { .. })
        ));
    }

    #[test]
    fn a_token_edited_to_name_another_cluster_is_refused() {
        let (mut token, record) = minted(1);
        token.cluster = "site-b".parse().unwrap();
        assert!(matches!(record.redeem(&token, NOW), Err(TokenRefusal::WrongCluster { .. })));
    }
}
