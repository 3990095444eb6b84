//! What a steered connect() costs beside a plain one, in one run.

use std::{
    io::Read as _,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::Result;
use socket2::{Domain, SockAddr};
use test_kernel::{Lab, connect_in};

const ROUNDS: usize = 2000;

#[test]
fn a_direct_connect_costs_little_more_than_a_raw_one() -> Result<()> {
    let lab = Lab::new()?;
    let listener = lab.b.listen("0.0.0.0:9000")?;
    let raw: SockAddr = SocketAddr::new(lab.b.real, 9000).into();
    let direct: SockAddr = SocketAddr::new(lab.b.vip, 9000).into();
    let stop = lab.neighbour.run(|| std::net::UdpSocket::bind("10.99.0.9:0"))??.local_addr()?.ip();
    let server = std::thread::spawn(move || {
        while let Ok((mut stream, from)) = listener.accept() {
            if from.ip() == stop {
                break;
            }
            // Until the client's RST: one sooner could overtake the return of its connect().
            drop(stream.read(&mut [0]));
        }
    });
    let mut times = [Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS)];
    lab.a.netns.run(|| -> Result<()> {
        for _ in 0..ROUNDS {
            for (to, times) in [&raw, &direct].into_iter().zip(&mut times) {
                let socket = socket2::Socket::new(Domain::IPV4, socket2::Type::STREAM, None)?;
                let start = Instant::now();
                socket.connect(to)?;
                times.push(start.elapsed());
                // No port stays in TIME-WAIT.
                datapath_net::sockets::arm_reset(&socket)?;
            }
        }
        Ok(())
    })??;
    connect_in(&lab.neighbour, SocketAddr::new(lab.b.real, 9000))?;
    drop(server.join());
    let [raw, direct] = times.map(|mut times| {
        times.sort_unstable();
        times.get(ROUNDS / 2).copied().unwrap_or(Duration::MAX)
    });
    println!("connect p50: raw {raw:?}, direct {direct:?}");
    // A wide bound: the bench measures, this notices a hook that went astray.
    assert!(direct < raw + Duration::from_micros(50), "raw {raw:?}, direct {direct:?}");
    Ok(())
}
