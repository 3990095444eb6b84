//! The vocabulary every part of RLark shares: the objects of `rlinf.io/v1alpha1`, names and
//! labels, validation, and the messages between hub, machines and runtimes. Pure: no sockets,
//! no files, no clocks.

pub mod attach;
pub mod cidr;
pub mod crds;
pub mod direct;
pub mod events;
pub mod ids;
pub mod labels;
pub mod names;
mod open_enum;
pub mod ports;
pub mod session;
pub mod v1alpha1;
pub mod validate;
