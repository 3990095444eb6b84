//! Who is speaking, how they prove it, and what they may do: principals, the certificate
//! authority, join tokens, authorisation; and the machine's side of enrolment and sessions.
//!
//! The server uses [`ca`], [`peer`], [`tls`], [`token`] and [`rbac`]; `rlark-agent` and
//! `rlark-node` use [`machine`] and [`session`]; the CLI uses [`client`].

mod agent;
pub mod authorize;
pub mod ca;
pub mod client;
mod digest;
pub mod files;
pub mod machine;
pub mod peer;
pub mod principal;
pub mod rbac;
pub mod session;
pub mod tls;
pub mod token;

pub use digest::{KeyHash, NoRandomness, random, to_hex};
