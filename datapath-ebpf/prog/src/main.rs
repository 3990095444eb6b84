//! The programs of the data path: one file per hook, shared parts beside them.
//!
//! The hooks hang on a cgroup and look at every socket below it; the first thing each does is to look up the
//! socket's network namespace cookie in `PODS`, so a process outside every Domain pays one failed hash
//! lookup. Pods on the host network are known by their cgroups ([`host`]); others there pay only while there are such pods. [`guard`] is loaded once per pod and attached to the pod's own namespace.
//!
//! Built for `bpfel-unknown-none` by `cargo xtask ebpf`; see `../README.md`.
#![no_std]
#![no_main]
#![feature(core_intrinsics)] // core for bpfel has no fetch_add (no compare-and-swap)
#![allow(internal_features, reason = "the intrinsic above is the only atomic add there is")]

#[path = "../../abi/src/layout.rs"]
#[allow(dead_code, reason = "user space uses the rest")]
mod layout;

mod address;
mod bind;
mod connect;
mod device;
mod getpeername;
mod getsockname;
mod guard;
mod host;
mod maps;
mod name;
mod open;
mod recvmsg;
mod sendmsg;
mod sockops;
mod verdict;
mod watch;

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
