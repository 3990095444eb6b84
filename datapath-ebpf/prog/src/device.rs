//! Sockets that are bound to the VIP's interface (`SO_BINDTODEVICE`): nothing of a connection passes it, so they are let loose.

use aya_ebpf::{
    EbpfContext,
    bindings::bpf_sock,
    helpers::generated::bpf_setsockopt,
    programs::{SockAddrContext, SockOpsContext},
};

use crate::{
    layout::{FEATURE_SETSOCKOPT, Pod},
    maps::feature,
};

const SOL_SOCKET: i32 = 1;
const SO_BINDTODEVICE: i32 = 25;

/// Before bind(), connect() or sendmsg() to an address of the Domain; whether it was bound. The datagram that is being sent leaves by
/// the interface all the same: the kernel looked before.
#[inline(always)]
pub fn release(ctx: &SockAddrContext, pod: &Pod) -> bool {
    // SAFETY: a field of the live context.
    let sk = unsafe { (*ctx.sock_addr).__bindgen_anon_1.sk };
    unbind(ctx, sk, pod)
}

/// Inside listen().
#[inline(always)]
pub fn release_listener(ctx: &SockOpsContext, pod: &Pod) {
    // SAFETY: a field of the live context.
    let sk = unsafe { (*ctx.ops).__bindgen_anon_2.sk };
    unbind(ctx, sk, pod);
}

#[inline(always)]
fn unbind(ctx: &impl EbpfContext, sk: *mut bpf_sock, pod: &Pod) -> bool {
    if !feature(FEATURE_SETSOCKOPT) || sk.is_null() || pod.device == 0 {
        return false;
    }
    // SAFETY: checked above.
    let bound = unsafe { (*sk).bound_dev_if } == pod.device;
    if bound {
        let mut none = 0u32;
        // SAFETY: the live context of a socket and four bytes. Refused: the socket stays as it is.
        unsafe {
            bpf_setsockopt(ctx.as_ptr(), SOL_SOCKET, SO_BINDTODEVICE, (&raw mut none).cast(), 4);
        }
    }
    bound
}
