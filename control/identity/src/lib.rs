//! Who is speaking, how they prove it, and what they may do: principals, the certificate
//! authority, join tokens, authorisation; and the machine's side of enrolment and sessions.

pub mod authorize;
pub mod principal;
