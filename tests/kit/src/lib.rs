//! Sites on one machine: network namespaces joined by a routed "internet", NAT without inbound,
//! and the product's processes in them. Used by the demo, the bench and the tests.
//!
//! Everything a [`lab::Lab`] makes (namespaces, cgroups, processes, files) belongs to it and is
//! gone after `drop`; what a killed owner left behind is removed by the next [`lab::Lab::new`].

pub mod cgroup;
pub mod command;
pub mod follow;
pub mod forward;
pub mod go;
pub mod lab;
pub mod net;
pub mod pod;
pub mod process;
pub mod product;
pub mod sites;
pub mod wait;
