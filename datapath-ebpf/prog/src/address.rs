//! Addresses in hook contexts.

use crate::layout::{Face, Ip};

const MAPPED: u32 = 0xffffu32.to_be();

/// The v4-mapped form of an IPv4 address in network order.
#[inline(always)]
pub fn mapped(ip: u32) -> Ip {
    [0, 0, MAPPED, ip]
}

#[inline(always)]
pub fn is_v4(ip: &Ip) -> bool {
    ip[0] == 0 && ip[1] == 0 && ip[2] == MAPPED
}

#[inline(always)]
pub fn contains(face: &Face, ip: &Ip) -> bool {
    ip[0] & face.mask[0] == face.net[0]
        && ip[1] & face.mask[1] == face.net[1]
        && ip[2] & face.mask[2] == face.net[2]
        && ip[3] & face.mask[3] == face.net[3]
}

/// The host-order port of a context's 16-bit network-order port.
#[inline(always)]
pub fn port(network: u32) -> u32 {
    u16::from_be(network as u16) as u32
}

/// The other way round.
#[inline(always)]
pub fn network_port(host: u32) -> u32 {
    (host as u16).to_be() as u32
}

/// Reads four words of a context. The verifier wants each at a constant offset, so one by one and volatile:
/// the compiler would make a block copy through a "modified ctx pointer".
macro_rules! get6 {
    ($a:expr) => {
        // SAFETY: the array is a field of the live context.
        unsafe {
            [
                (&raw const $a[0]).read_volatile(),
                (&raw const $a[1]).read_volatile(),
                (&raw const $a[2]).read_volatile(),
                (&raw const $a[3]).read_volatile(),
            ]
        }
    };
}

/// Writes four words of a context, as [`get6`] reads them.
macro_rules! set6 {
    ($a:expr, $ip:expr) => {
        // SAFETY: the array is a writable field of the live context.
        unsafe {
            (&raw mut $a[0]).write_volatile($ip[0]);
            (&raw mut $a[1]).write_volatile($ip[1]);
            (&raw mut $a[2]).write_volatile($ip[2]);
            (&raw mut $a[3]).write_volatile($ip[3]);
        }
    };
}

pub(crate) use {get6, set6};
