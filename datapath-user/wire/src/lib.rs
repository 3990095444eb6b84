//! The flow protocol between two nodes, without I/O: bytes in, events out.
//!
//! Frames of many flows share one ordered byte stream (an SSH channel, the *carrier*). A flow is
//! not tied to the carrier it started on: every direction has byte offsets, unacknowledged bytes
//! are kept, and either break or move is the same step, [`Frame::Resume`]. `datapath-relay` owns
//! the sockets and calls this crate; nothing here blocks, allocates without a bound or panics on
//! what a peer sends.
//!
//! * [`frame`]: what crosses the wire, and its encoding;
//! * [`decode`]: the demultiplexer, fed with any split of the stream;
//! * [`flow`]: the two halves of a flow and its life, pure;
//! * [`reason`]: why a flow was refused or ended, for people, programs and errno.

pub mod decode;
pub mod flow;
pub mod frame;
pub mod reason;

pub use decode::{Decoder, WireError};
pub use flow::{FlowError, Phase, RecvHalf, SendHalf};
pub use frame::{Frame, Hello, Open};
pub use reason::Reason;
