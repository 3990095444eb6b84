//! What the BPF programs and user space exchange through maps: keys, values and codes, no behaviour.
//!
//! [`layout`] is compiled into both sides: `datapath-prog` includes the file itself (a path dependency
//! would put the build directory into its symbols), `datapath-loader` uses this crate.
#![no_std]

pub mod layout;

#[cfg(feature = "user")]
mod user;

pub use layout::{
    ANY_V6_ONLY, Bound, CHECK_LISTENERS, CHECK_MIRROR, CHECK_NONE, CROSSING_IN, CROSSING_OUT,
    Counter, Crossing, Dest, DirectFlow, End, Event, FEATURE_INGRESS, FEATURE_RETVAL,
    FEATURE_SETSOCKOPT, Face, GuardPod, HOST_DEPTH, HOST_KEY, Ip, LAYOUT, Listener, MAX_GUARDS,
    MIRROR_FRESH_UNTIL, MIRROR_LOST, Mirrored, NAME_BOUND, NAME_NONE, NAME_PLAIN, NAME_RELAYED,
    NAME_VIP, ORIGIN_HOOK, ORIGIN_USER, POD_HOST, POD_MACHINE, POD_PORTS, Pod, Port, PortBlock,
    RELAY_MARK, Reason, Refusal, SEEN_CLOSED, SEEN_OPENED, SEEN_REFUSED, SEEN_RESET,
    STATE_ESTABLISHED, STATE_SYN_SENT, Seen, VERDICT_DENY, VERDICT_DIRECT, VERDICT_RELAY, Vip,
    VipKey, WATCH_LOST, WATCH_UNTIL,
};
