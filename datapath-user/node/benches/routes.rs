//! What the size of a Domain costs a node: who holds an address (asked for each relayed flow and packet), what the kernel
//! should hold (computed after each change), and the change itself.
//!
//!     cargo bench -p rlark-node
#![expect(clippy::expect_used, reason = "a bench that cannot make its own input cannot go on")]

use std::{
    hint::black_box,
    net::{IpAddr, Ipv4Addr},
};

use control_api::{
    ids::{DomainName, NodeRef},
    session::{DomainRoutes, Member, RouteUpdate},
};
use criterion::{BatchSize, Bencher, BenchmarkId, Criterion, criterion_group, criterion_main};
use rlark_node::plan::{
    desired::{DomainIds, Face, Local, NOWHERE, Pod, desired},
    reach::Reach,
    table::RouteTable,
};

const MEMBERS: [u32; 3] = [10, 1_000, 10_000];
/// Pods of a Domain on one machine, and machines of one site.
const PODS: u32 = 8;
const MACHINES: u32 = 16;

fn vip(n: u32) -> IpAddr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 2, 0, 1).to_bits() + n).into()
}

fn domain() -> DomainName {
    "demo".parse().expect("a name")
}

fn me() -> NodeRef {
    "site-0/machine-0".parse().expect("a name")
}

fn member(n: u32) -> Member {
    let machine = n / PODS;
    let (site, machine) = (machine / MACHINES, machine % MACHINES);
    let real =
        Ipv4Addr::from_bits(Ipv4Addr::new(10, 244, 0, 2).to_bits() + machine * 256 + n % PODS);
    Member {
        uid: format!("{n:08x}-0000-4000-8000-000000000000"),
        vips: vec![vip(n)],
        pod: format!("worker-{n}"),
        pod_namespace: format!("rlark-site-{site}"),
        node: format!("site-{site}/machine-{machine}").parse().expect("a name"),
        local_ips: vec![real.into()],
        task: format!("worker-{n}"),
        job: "train".to_owned(),
    }
}

fn table(members: u32) -> RouteTable {
    let routes = DomainRoutes {
        name: domain(),
        cidr: "10.2.0.0/16".to_owned(),
        ssh_ca: "ssh-ed25519 AAAA".to_owned(),
        encrypt_within_site: false,
        allowed_ports: None,
        members: (0..members).map(member).collect(),
    };
    let mut table = RouteTable::default();
    table.apply(RouteUpdate::Snapshot { domains: vec![routes] }).expect("sound routes");
    table
}

fn holder(b: &mut Bencher<'_>, members: u32) {
    let table = table(members);
    let mut n = 0;
    b.iter(|| {
        n = (n + 7919) % members;
        let domain = table.domain(black_box(&domain()))?;
        domain.holder(black_box(vip(n))).map(|m| m.node.clone())
    });
}

/// The look-up alone, without the Domain's and into no copy.
fn holder_within_a_domain(b: &mut Bencher<'_>, members: u32) {
    let table = table(members);
    let domain = table.domain(&domain()).expect("the domain");
    let mut n = 0;
    b.iter(|| {
        n = (n + 7919) % members;
        domain.holder(black_box(vip(n))).is_some()
    });
}

/// With all of this machine's pods attached, and a route to each other machine of its site.
fn desired_state(b: &mut Bencher<'_>, members: u32) {
    let (table, me) = (table(members), me());
    let mut ids = DomainIds::default();
    ids.assign(&domain());
    let locals: Vec<Local> = (0..PODS.min(members))
        .map(|n| Local {
            uid: member(n).uid,
            domain: domain(),
            netns_cookie: 100 + u64::from(n),
            stands: Pod {
                domain: NOWHERE,
                faces: vec![Face {
                    cidr: "10.2.0.0/16".parse().expect("a network"),
                    vip: vip(n),
                    real: None,
                }],
                restricted: false,
            },
        })
        .collect();
    let mut routes = "Iface Destination Gateway Flags RefCnt Use Metric Mask\n".to_owned();
    for machine in 0..MACHINES {
        let to = u32::from_ne_bytes([10, 244, u8::try_from(machine).expect("few"), 0]);
        let interface = if machine == 0 { "rlark0" } else { "eth0" };
        let mask = u32::from_ne_bytes([255, 255, 255, 0]);
        routes += &format!("{interface} {to:08X} 0 0001 0 0 0 {mask:08X}\n");
    }
    let reach = Reach::parse(&routes, "");
    b.iter(|| desired(&me, black_box(&table), &locals, &ids, &reach));
}

/// A member's machine changes while readers hold the version before, which therefore is copied.
fn one_member_changes(b: &mut Bencher<'_>, members: u32) {
    let readers = table(members);
    let update = || RouteUpdate::Member { domain: domain(), member: member(members / 2) };
    let change = |(mut table, update): (RouteTable, _)| {
        table.apply(update).expect("a sound route");
        table
    };
    b.iter_batched(|| (readers.clone(), update()), change, BatchSize::SmallInput);
}

type Work = fn(&mut Bencher<'_>, u32);

fn by_members(c: &mut Criterion) {
    let all: [(&str, Work); 4] = [
        ("holder of an address", holder),
        ("holder within a Domain", holder_within_a_domain),
        ("desired state", desired_state),
        ("one member changes", one_member_changes),
    ];
    for (name, work) in all {
        let mut group = c.benchmark_group(name);
        for members in MEMBERS {
            let id = BenchmarkId::from_parameter(members);
            group.bench_with_input(id, &members, |b, members| work(b, *members));
        }
        group.finish();
    }
}

criterion_group!(benches, by_members);
criterion_main!(benches);
