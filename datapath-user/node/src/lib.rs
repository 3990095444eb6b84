//! `rlark-node`: the data path of one machine. Brings pods into their Domains, keeps the kernel's
//! maps in step with the hub's routes, and carries flows between nodes.
//!
//! ```text
//!  hub ── routes ──▶ session ─▶ keeper ─▶ kernel (maps, guards, rl0, names)
//!  hub ── ports of others ──▶ mirror ─▶ kernel ─ events ─▶ report ──▶ hub
//!  runtime ─ PUT ─▶ attach  ─▶   │ view
//!                                ▼
//!  pod ── guard ─▶ landing ─▶ open ─▶ relay ══ SSH ══ relay ─▶ deliver ─▶ pod
//!  hooks ── refusals, direct flows ──▶ events ──▶ readers (node.sock)
//!  pod ── rl0 ────▶ packets ────────▶ relay ══ SSH ══ relay ─▶ packets ─▶ pod
//! ```
//!
//! [`keeper`] is the only writer; [`plan`] decides without I/O; [`kernel`] is the seam to the
//! machine. The library exists for the tests; the binary is the product.

pub mod attach;
pub mod carriers;
pub mod certificates;
pub mod config;
pub mod deliver;
mod descriptors;
pub mod direct;
pub mod events;
pub mod hosts;
pub mod keeper;
pub mod kernel;
pub mod landing;
pub mod local;
pub mod metrics;
pub mod mirror;
pub mod node;
pub mod observe;
pub mod open;
pub mod packets;
pub mod persist;
pub mod plan;
pub mod refusals;
pub mod report;
pub mod roaming;
pub mod session;
