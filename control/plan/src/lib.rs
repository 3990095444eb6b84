//! What the control plane decides, as pure functions: given what is observed (objects, the time),
//! what should be done. The controllers observe and act; nothing here waits, asks or writes.

pub mod addresses;
pub mod conditions;
pub mod job;
pub mod liveness;
pub mod names;
pub mod peers;
pub mod placement;
pub mod task;
pub mod workflow;
