//! A loopback port of this machine that leads into a namespace, so that people's tools reach a
//! server there without an interface being added to the machine.

use std::{
    io,
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::Arc,
};

use anyhow::Result;

use crate::net::Netns;

/// Lives until the process ends.
pub fn forward(netns: &Netns, to: SocketAddr) -> Result<SocketAddr> {
    let l = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let at = l.local_addr()?;
    // Everything that connects does so on threads that this one starts, inside the namespace.
    let path = netns.path().to_owned();
    let file = std::fs::File::open(path)?;
    std::thread::spawn(move || -> io::Result<()> {
        use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
        use std::os::fd::AsFd as _;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
        loop {
            let (near, _) = l.accept()?;
            std::thread::spawn(move || join(near, to));
        }
    });
    Ok(at)
}

fn join(near: TcpStream, to: SocketAddr) -> io::Result<()> {
    let far = TcpStream::connect(to)?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (near, far) = (Arc::new(near), Arc::new(far));
    let (n2, f2) = (Arc::clone(&near), Arc::clone(&far));
    let up = std::thread::spawn(move || one_way(&n2, &f2));
    one_way(&far, &near);
    drop(up.join());
    Ok(())
}

fn one_way(mut from: &TcpStream, mut to: &TcpStream) {
    // A broken side shows as the end of the copy; the other side then sees the end as well.
    drop(io::copy(&mut from, &mut to));
    drop(to.shutdown(Shutdown::Write));
}
