//! Lets aya copy the types in and out of maps.
#![expect(unsafe_code, reason = "aya::Pod is an unsafe marker trait")]

use crate::layout::{
    Counter, Crossing, Dest, DirectFlow, End, GuardPod, Listener, Mirrored, Pod, Port, PortBlock,
    Refusal, Vip, VipKey,
};

macro_rules! plain {
    ($($name:ty),*) => { $(
        // SAFETY: repr(C), integers only, any bit pattern is valid, and `layout` asserts that there is no
        // padding.
        unsafe impl aya::Pod for $name {}
    )* };
}

plain!(
    Counter, Crossing, Dest, DirectFlow, End, GuardPod, Listener, Mirrored, Pod, Port, PortBlock,
    Refusal, Vip, VipKey
);
