//! The accept loop of one pod: every connection that the guard landed, with its own address as the
//! pod's and its local address as the peer the pod wanted.

use std::{fs::File, io, net::SocketAddr, sync::Arc, time::Duration};

use datapath_relay::Reason;
use rustix::io::Errno;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Handle,
};

use crate::{
    keeper::LocalPod,
    kernel::{Kernel, is_host},
};

/// Takes over a landed connection.
pub trait Open: Send + Sync + 'static {
    /// Where connections are accepted: their streams are registered with it.
    fn runtime(&self) -> Handle;

    /// Must not block. `from` is the pod's end, `to` the peer's VIP and port. To refuse, reset the
    /// stream ([`reset`]).
    fn open(&self, pod: &Arc<LocalPod>, from: SocketAddr, to: SocketAddr, stream: TcpStream);

    /// Resets a landed connection, and counts and tells why. Must not block.
    fn refuse(
        &self,
        pod: &LocalPod,
        from: SocketAddr,
        to: SocketAddr,
        stream: TcpStream,
        reason: Reason,
    );

    /// The pod sent a packet that is no stream. Must not block.
    fn packet(&self, pod: &LocalPod, packet: &[u8]);

    /// The pod has left its Domain (or its address): its flows end. Must not block.
    fn closed(&self, pod: &LocalPod);
}

/// How long to wait when the machine is out of something; the backlog holds the callers.
const PAUSE: Duration = Duration::from_millis(50);

/// Accepts until dropped; polled on [`Open::runtime`], whichever the listener was made on. No error
/// ends the loop but the loss of the listener itself.
pub async fn run(
    listener: TcpListener,
    pod: Arc<LocalPod>,
    open: Arc<dyn Open>,
    kernel: Arc<dyn Kernel>,
) {
    let listener = match listener.into_std().and_then(TcpListener::from_std) {
        Ok(listener) => listener,
        Err(e) => {
            tracing::error!(pod = pod.attached.uid, error = %e, "cannot take over the listener");
            return;
        }
    };
    let mut spare = Spare::default();
    loop {
        spare.keep();
        let mut exhausted = false;
        let accepted = match listener.accept().await {
            Err(e) if is_exhausted(&e) && spare.give() => {
                exhausted = true;
                listener.accept().await
            }
            other => other,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(e) if is_about_one_connection(&e) => continue,
            Err(e) => {
                tracing::error!(pod = pod.attached.uid, error = %e, "cannot accept, pausing");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        match stream.local_addr() {
            Ok(to) if exhausted => {
                open.refuse(&pod, canonical(from), canonical(to), stream, Reason::Limit);
            }
            Ok(to) => {
                let (from, to) = ends(&pod, kernel.as_ref(), canonical(from), canonical(to));
                open.open(&pod, from, to, stream);
                // That one leaves before the next is looked for.
                tokio::task::yield_now().await;
            }
            Err(e) => {
                tracing::debug!(pod = pod.attached.uid, error = %e, "landed connection is gone");
            }
        }
    }
}

/// The pod's end and the peer's. On the host network nothing was landed: the hooks know who asked for what. Of a stranger that came
/// to the port by itself they know nothing; its own addresses are nobody's in the Domain, so it will be refused.
fn ends(
    pod: &LocalPod,
    kernel: &dyn Kernel,
    from: SocketAddr,
    to: SocketAddr,
) -> (SocketAddr, SocketAddr) {
    let cookie = pod.join.cookie;
    match is_host(cookie).then(|| kernel.asked(cookie, from)).flatten() {
        Some(asked) => {
            let asked = canonical(asked);
            (SocketAddr::new(pod.vip_towards(asked.ip()), from.port()), asked)
        }
        None => (from, to),
    }
}

fn is_about_one_connection(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

/// Neither this process nor the machine has a descriptor left.
fn is_exhausted(e: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| e.raw_os_error() == Some(errno.raw_os_error()))
}

/// A descriptor to accept with when there is no other: a caller who is told no may go elsewhere, one in the backlog waits.
#[derive(Default)]
struct Spare(Option<File>);

impl Spare {
    fn keep(&mut self) {
        if self.0.is_none() {
            self.0 = File::open("/dev/null").ok();
        }
    }

    fn give(&mut self) -> bool {
        self.0.take().is_some()
    }
}

fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// Ends a connection with RST instead of FIN: a refusal must not look like an empty answer.
pub fn reset(stream: TcpStream) {
    if let Err(e) = stream.set_zero_linger() {
        tracing::debug!(error = %e, "refused connection closed without reset");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{deliver::tests::view, kernel::fake::Fake};

    #[test]
    fn on_the_host_network_the_hooks_say_what_was_asked_for_and_nothing_of_a_stranger() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (from, landing, asked) = (at("127.0.0.1:5"), at("127.0.0.1:4000"), at("10.2.0.2:80"));
        let kernel = Fake::default();
        kernel.state.lock().unwrap().asked.insert(from, asked);
        let mut pod = view().pods.get("here").unwrap().as_ref().clone();
        assert_eq!(ends(&pod, &kernel, from, landing), (from, landing), "it has a namespace");
        pod.join.cookie |= 1 << 63;
        assert_eq!(ends(&pod, &kernel, from, landing), (at("10.2.0.1:5"), asked));
        assert_eq!(ends(&pod, &kernel, from, landing), (from, landing), "a stranger");
    }
}
