//! Waiting for a descriptor that something else reads.
#![expect(unsafe_code, reason = "registering a descriptor with the runtime")]

use std::{io, os::fd::OwnedFd};

use tokio::io::{Interest, unix::AsyncFd};

/// A descriptor that can be polled; a duplicate of the one that is read does.
#[derive(Debug)]
pub struct Ready(AsyncFd<OwnedFd>);

impl Ready {
    /// Must be called inside the runtime that waits.
    ///
    /// # Errors
    /// The descriptor cannot be polled, or there are too many.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: the value owns its descriptor and closes it only when it is dropped, after its registration.
        Ok(Self(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?))
    }

    /// Calls `take` whenever there may be something to read, until it finds something.
    ///
    /// # Errors
    /// The runtime shuts down.
    pub async fn until<T>(&self, mut take: impl FnMut() -> Option<T>) -> io::Result<T> {
        loop {
            let mut ready = self.0.readable().await?;
            if let Some(found) = take() {
                return Ok(found);
            }
            ready.clear_ready();
        }
    }
}
