//! Suits a long-lived connection to the path that it runs over, and does so again when the path turns out to be another.
//!
//! *Short* paths (one machine, one rack, one site): pacing makes every burst wait for a timer, which costs more than the
//! path, so the congestion control becomes cubic. *Long* or lossy ones: the machine's own congestion control stays, since
//! loss is what matters there, and the buffers hold what is in flight, whatever the system's limits for ordinary
//! programs say: with the usual 4 MiB a round trip of 100 ms allows 0.2 Gbit/s. Memory is used for what is in flight alone.

use std::{io, os::fd::AsFd, time::Duration};

use rustix::net::sockopt;

use crate::sockets::{TcpInfo, set_int, tcp_info};

/// A path this short is one machine, one rack, one site.
const SHORT: Duration = Duration::from_millis(2);
/// A smoothed round trip beyond this is no queue on a short path, as a rule.
const FAR: Duration = Duration::from_millis(4);
/// Bytes in flight at 1 Gbit/s over a quarter of a second.
const BUFFER: i32 = 32 << 20;
/// With a large send buffer the unsent part of it must stay small, or everything waits behind it.
const UNSENT: i32 = 512 << 10;
/// One segment of so many is lost, and at least so many since the last look: lossy.
const LOSSY: u32 = 200;
const LOST: u32 = 16;
/// So many looks in a row must agree.
const LOOKS: u8 = 2;

/// How often [`Path::look`] is worth its system call.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Before connect() or listen(): the peer is told at the start how large the window may become.
///
/// # Errors
/// Not a socket.
pub fn prepare(socket: impl AsFd) -> io::Result<()> {
    force(&socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)
}

/// Lets the kernel size the receive buffer again, from its usual start: for an accepted connection whose listener was
/// prepared until it is known who speaks, and for a short path, where what waits in a large buffer is late.
///
/// # Errors
/// Not a socket.
pub fn at_rest(socket: impl AsFd) -> io::Result<()> {
    const START: i32 = 64 << 10;
    /// Where the kernel cannot be told that (before Linux 5.14): what it would come to at most.
    const MOST: i32 = 3 << 20;
    let fd = socket.as_fd();
    set_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, START)?;
    set_int(fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK, 0)
        .or_else(|_unknown| set_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, MOST))
}

/// The path of one connection, as it was seen last.
#[derive(Debug)]
pub struct Path {
    /// The machine's own congestion control, while it is not in use.
    own: Option<String>,
    sent: u32,
    resent: u32,
    doubts: u8,
}

impl Path {
    /// Chooses by the shortest round trip of a connection that stands.
    ///
    /// # Errors
    /// Not a TCP socket, or the machine refuses; the connection works all the same.
    pub fn choose(socket: impl AsFd) -> io::Result<Self> {
        let info = tcp_info(&socket)?;
        let mut path = Self { own: None, sent: 0, resent: 0, doubts: 0 };
        path.lost_of_sent(&info);
        if info.least_rtt < SHORT {
            path.own = Some(sockopt::tcp_congestion(&socket)?);
            sockopt::set_tcp_congestion(&socket, "cubic")?;
            at_rest(&socket)?;
        } else {
            widen(&socket)?;
        }
        Ok(path)
    }

    /// Looks whether a path that was short is long or lossy now; then it is treated as such for good. True when that was
    /// found this time.
    ///
    /// # Errors
    /// As [`Path::choose`].
    pub fn look(&mut self, socket: impl AsFd) -> io::Result<bool> {
        if self.own.is_none() {
            return Ok(false);
        }
        let info = tcp_info(&socket)?;
        let (resent, sent) = self.lost_of_sent(&info);
        let lossy = resent >= LOST && resent.saturating_mul(LOSSY) > sent;
        if info.rtt < FAR && !lossy {
            self.doubts = 0;
            return Ok(false);
        }
        self.doubts += 1;
        if self.doubts < LOOKS {
            return Ok(false);
        }
        if let Some(own) = self.own.take() {
            sockopt::set_tcp_congestion(&socket, &own)?;
        }
        widen(&socket)?;
        Ok(true)
    }

    fn lost_of_sent(&mut self, info: &TcpInfo) -> (u32, u32) {
        let (resent, sent) =
            (info.retransmits.wrapping_sub(self.resent), info.segments.wrapping_sub(self.sent));
        (self.resent, self.sent) = (info.retransmits, info.segments);
        (resent, sent)
    }
}

fn widen(socket: impl AsFd) -> io::Result<()> {
    force(&socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)?;
    force(&socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)?;
    set_int(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, UNSENT)
}

/// Without CAP_NET_ADMIN as much as the system allows.
fn force(socket: impl AsFd, option: i32, instead: i32) -> io::Result<()> {
    let fd = socket.as_fd();
    set_int(fd, libc::SOL_SOCKET, option, BUFFER)
        .or_else(|_not_permitted| set_int(fd, libc::SOL_SOCKET, instead, BUFFER))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    type Tested = Result<(), Box<dyn std::error::Error>>;

    fn connected() -> io::Result<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let client = TcpStream::connect(listener.local_addr()?)?;
        Ok((client, listener.accept()?.0))
    }

    #[test]
    fn a_short_path_is_not_paced() -> Tested {
        let (client, _server) = connected()?;
        sockopt::set_tcp_congestion(&client, "reno")?;
        let mut path = Path::choose(&client)?;
        assert_eq!(sockopt::tcp_congestion(&client)?, "cubic");
        for _ in 0..3 {
            assert!(!path.look(&client)?);
        }
        assert_eq!(sockopt::tcp_congestion(&client)?, "cubic");
        Ok(())
    }

    #[test]
    fn a_path_that_became_lossy_gets_the_machines_own_back_and_large_buffers() -> Tested {
        let (client, _server) = connected()?;
        sockopt::set_tcp_congestion(&client, "reno")?;
        let mut path = Path::choose(&client)?;
        let mut looks = 0;
        // As if since the last look many segments had been lost.
        loop {
            looks += 1;
            path.resent = path.resent.wrapping_sub(LOST);
            if path.look(&client)? {
                break;
            }
            assert!(looks < LOOKS, "never");
        }
        assert_eq!(looks, LOOKS);
        assert_eq!(sockopt::tcp_congestion(&client)?, "reno");
        assert!(sockopt::socket_send_buffer_size(&client)? >= usize::try_from(BUFFER)?);
        assert!(!path.look(&client)?, "for good");
        Ok(())
    }

    #[test]
    fn a_prepared_listener_gives_room_that_can_be_taken_back() -> Tested {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        prepare(&listener)?;
        let large = usize::try_from(BUFFER)?;
        let client = TcpStream::connect(listener.local_addr()?)?;
        let accepted = listener.accept()?.0;
        assert!(sockopt::socket_recv_buffer_size(&accepted)? >= large);
        at_rest(&accepted)?;
        assert!(sockopt::socket_recv_buffer_size(&accepted)? < large / 16);
        drop(client);
        Ok(())
    }
}
