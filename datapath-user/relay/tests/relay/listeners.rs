//! A port that a pod opens is known to the peer before what the pod says afterwards.

use std::{
    io::{Read as _, Write as _},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
};

use datapath_relay::Listening;

use crate::pair::{Pair, VIP_B, echo_server, eventually, serve};

/// A server at B that opens a port for every byte it gets, and says its number behind `ahead` zeros.
fn opens(p: &Pair, ahead: usize) -> u16 {
    let listeners = Arc::clone(&p.b_listeners);
    let last = AtomicU16::new(0);
    serve(move |mut s| {
        while s.read(&mut [0]).is_ok_and(|n| n > 0) {
            let number = last.fetch_add(1, Relaxed) + 1;
            listeners.turned.lock().unwrap().push(((VIP_B, number).into(), true));
            let mut said = vec![0; ahead];
            said.extend(number.to_be_bytes());
            if s.write_all(&said).is_err() {
                break;
            }
        }
    })
}

fn asks(p: &Pair, s: &mut std::net::TcpStream, ahead: usize) {
    s.write_all(b"?").unwrap();
    let mut said = vec![0; ahead + 2];
    s.read_exact(&mut said).unwrap();
    let number = u16::from_be_bytes([said[ahead], said[ahead + 1]]);
    let heard = p.a_listeners.heard.lock().unwrap();
    let at = (VIP_B, number).into();
    assert!(heard.iter().any(|said| said.at == at && said.open), "{number} of {heard:?}");
}

#[test]
fn a_port_is_known_before_its_number_arrives_on_either_lane() {
    let p = Pair::new();
    let (small, large) = (opens(&p, 0), opens(&p, 1 << 20));
    let mut s = p.connect(small);
    (0..500).for_each(|_| asks(&p, &mut s, 0));
    let mut s = p.connect(large);
    (0..20).for_each(|_| asks(&p, &mut s, 1 << 20));
    assert!(p.a.flows().iter().any(|f| f.carrier.ends_with(":bulk")));
}

#[test]
fn many_pods_that_open_ports_at_once_are_each_right() {
    let p = Pair::new();
    let server = opens(&p, 0);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut s = p.connect(server);
                (0..100).for_each(|_| asks(&p, &mut s, 0));
            });
        }
    });
}

#[test]
fn a_carrier_that_stands_later_says_what_has_just_begun_and_the_owner_may_say_it_alone() {
    let p = Pair::new();
    let mut s = p.connect(echo_server());
    s.write_all(b"x").unwrap();
    s.read_exact(&mut [0]).unwrap();
    p.block(true);
    p.cut();
    eventually("no carrier", || p.b.carriers().is_empty());
    let turn = |port: u16, open| {
        p.b_listeners.turned.lock().unwrap().push(((VIP_B, port).into(), open));
        p.b.tell_listeners();
    };
    turn(7, true);
    turn(7, false);
    p.block(false);
    let heard = || p.a_listeners.heard.lock().unwrap().clone();
    eventually("it is heard of", || heard().len() >= 2);
    turn(8, true);
    let is_eight = |said: &Listening| said.at.port() == 8;
    eventually("the next too", || heard().iter().any(is_eight));
    let heard = heard();
    let last = heard.iter().filter(|said| !is_eight(said)).max_by_key(|said| said.sequence);
    assert!(last.is_some_and(|said| said.at == (VIP_B, 7).into() && !said.open), "{heard:?}");
}
