//! Frames in and out of an interface by AF_PACKET, with the kernel's note on checksums and segments
//! in front (PACKET_VNET_HDR): what one end left to its device is left to the other end's.
#![expect(unsafe_code, reason = "AF_PACKET's address and options, which no crate here names")]

use std::{
    ffi::c_int,
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};
use socket2::{Domain, SockAddr, Socket, Type};

/// The longest frame: a segment of 64 KiB that was left to the device, its headers and its note.
const LONGEST: usize = (64 << 10) + 256;
/// What may wait to be read: a tenth of a second at 1 Gbit/s, as the kernel counts.
const BUFFER: c_int = 64 << 20;

const ALL_PROTOCOLS: u16 = 3u16.to_be();
const IGNORE_OUTGOING: c_int = 23;

/// Where a frame is received.
#[derive(Debug)]
pub(super) struct Room(Vec<u8>);

impl Room {
    pub(super) fn new() -> Self {
        Self(vec![0; LONGEST])
    }
}

/// An interface.
#[derive(Debug)]
pub(super) struct Port {
    socket: Socket,
}

impl Port {
    pub(super) fn open(name: &str) -> io::Result<Self> {
        // No protocol yet: nothing is received before it is bound to its interface.
        let socket = Socket::new(Domain::PACKET, Type::RAW.nonblocking(), None)?;
        let index = rustix::net::netdevice::name_to_index(socket.as_fd(), name)?;
        let options = [
            (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, BUFFER),
            (libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1),
            (libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1),
            // Else what is sent here would come back.
            (libc::SOL_PACKET, IGNORE_OUTGOING, 1),
        ];
        for (level, option, value) in options {
            set(&socket, level, option, value)?;
        }
        socket.bind(&address(index)?)?;
        Ok(Self { socket })
    }

    /// The next frame; `None` when there is none now.
    pub(super) fn receive<'b>(&self, room: &'b mut Room) -> io::Result<Option<&'b [u8]>> {
        match recv(&self.socket, room.0.as_mut_slice(), RecvFlags::empty()) {
            Ok((n, _)) => Ok(room.0.get(..n)),
            Err(Errno::AGAIN | Errno::INTR | Errno::NETDOWN) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// What the interface cannot take is lost.
    pub(super) fn send(&self, frame: &[u8]) -> io::Result<()> {
        match send(&self.socket, frame, SendFlags::empty()) {
            Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS | Errno::NETDOWN) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

/// Until one of the ports has a frame or the time is over.
pub(super) fn wait(ports: [&Port; 2], limit: Option<Duration>) -> io::Result<()> {
    let limit = limit.and_then(|l| Timespec::try_from(l).ok());
    let mut fds = ports.map(|p| PollFd::new(&p.socket, PollFlags::IN));
    match poll(&mut fds, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// The kernel may make this thread's waits 50 us longer to wake fewer times; not these.
pub(super) fn wake_precisely() -> io::Result<()> {
    // SAFETY: PR_SET_TIMERSLACK takes a number and touches no memory.
    let done = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn set(socket: &Socket, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    let size = libc::socklen_t::try_from(size_of::<c_int>()).map_err(io::Error::other)?;
    // SAFETY: the pointer is to a c_int that lives through the call, and the size is its.
    let done = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), size)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Every frame of an interface.
fn address(index: u32) -> io::Result<SockAddr> {
    let family = u16::try_from(libc::AF_PACKET).map_err(io::Error::other)?;
    let index = i32::try_from(index).map_err(io::Error::other)?;
    // SAFETY: a sockaddr_ll fits into the storage and is plain numbers; the length given is its size.
    let made = unsafe {
        SockAddr::try_init(|storage, length| {
            let a = storage.cast::<libc::sockaddr_ll>();
            (*a).sll_family = family;
            (*a).sll_protocol = ALL_PROTOCOLS;
            (*a).sll_ifindex = index;
            *length = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>())
                .map_err(io::Error::other)?;
            Ok(())
        })
    };
    made.map(|((), address)| address)
}
