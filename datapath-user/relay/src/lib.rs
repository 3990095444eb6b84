//! Carriers and flows between nodes. `rlark-node` owns one [`Relay`]; it hands over connections
//! that landed in a pod ([`Relay::open`]) and connections from peers ([`Relay::accept`]), and
//! implements [`Deliver`] and [`Paths`].
//!
//! A *carrier* is one SSH connection with one peer for one Domain and lane; both sides prove
//! themselves by OpenSSH certificates of the Domain during the SSH handshake. On its single channel
//! the frames of `datapath-wire` travel. A *link* holds all flows with one peer in one Domain; they
//! outlive carriers. Each lane has a thread with its own current-thread runtime, on which its
//! carriers and their flows run.

mod api;
mod carrier;
mod flow;
mod histogram;
mod identity;
mod link;
mod listeners;
mod pipe;
mod queue;
mod relay;
mod shared;
mod ssh;

pub use api::{
    BoxFuture, CarrierStats, Counters, Deliver, DirectStats, DomainIdentity, FlowState, FlowStats,
    Lane, Listening, OpenRequest, PacketLoss, Path, Paths, Race, Reason, RelayConfig, RelayError,
    Told, Via,
};
pub use histogram::Times;
pub use relay::{Admitted, Relay};
