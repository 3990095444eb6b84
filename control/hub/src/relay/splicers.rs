//! The threads that splice, apart from everything else that the server does: a carrier waits for no
//! API request, and its bytes wake one thread that polls nothing but sockets.

use std::{
    io,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use datapath_net::{
    splice::{self, Meter},
    thread,
};
use tokio::{net::TcpStream, runtime::Handle};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::AbortOnDropHandle,
};

/// Each moves tens of Gbit/s.
const MOST: usize = 8;

/// Ends with its owner, and with it every pair.
#[derive(Debug)]
pub(crate) struct Splicers {
    handles: Vec<Handle>,
    next: AtomicUsize,
    _stop: DropGuard,
}

impl Splicers {
    /// # Errors
    /// The machine gives no thread or no descriptor.
    pub(crate) fn start(halt_poll: Duration) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let n = std::thread::available_parallelism().map_or(1, usize::from).min(MOST);
        let handles = (0..n).map(|i| thread::start(format!("splice-{i}"), halt_poll, stop.clone()));
        let handles = handles.collect::<io::Result<_>>()?;
        Ok(Self { handles, next: AtomicUsize::new(0), _stop: stop.drop_guard() })
    }

    /// As [`splice::join`], on one of the threads. Returns what was passed on.
    ///
    /// # Errors
    /// As [`splice::join`]; or the connections could not be handed over.
    pub(crate) async fn join(&self, a: TcpStream, b: TcpStream) -> io::Result<Meter> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed).checked_rem(self.handles.len());
        let none = || io::Error::other("there is no thread to splice on");
        let handle = turn.and_then(|i| self.handles.get(i)).ok_or_else(none)?;
        let (a, b) = (a.into_std()?, b.into_std()?);
        let work = handle.spawn(async move {
            let (a, b) = (TcpStream::from_std(a)?, TcpStream::from_std(b)?);
            let meter = Meter::default();
            splice::join(a, b, &meter).await.map_err(io::Error::other)?;
            Ok(meter)
        });
        AbortOnDropHandle::new(work).await?
    }
}
