//! What a Domain promises beyond what a relay between two kernels gives by itself: refusals inside
//! `connect()`, addresses that are true everywhere, IPv6, the ports that a Domain allows.

use anyhow::{Result, ensure};
use test_e2e::conformance::{From, Probe, V4};

const REFUSED: &[&str] =
    &["refused_at_once_by_connect_itself", "a_listener_is_there_at_once_and_gone_at_once"];
const BOUND: &[&str] = &["datagrams_of_sockets_bound_to_the_vip", "a_foreign_vip_cannot_be_bound"];
const TRUE_EVERYWHERE: &[&str] =
    &["a_datagram_says_which_address_it_was_sent_to", "the_error_queue_names_the_peer"];
const DENIED: &[&str] = &["a_port_that_is_not_allowed_is_denied"];
const BASIC: &[&str] = &["echo_and_eof", "names_on_both_ends", "a_connected_datagram_socket"];
const PORTS: &str = "10.98.0.0/24, allowedPorts: [\"22\", \"9001-9199\"]";
/// Where the machines' pods have their real addresses, at every site.
const PODS: &str = "10.244.0.0/24";
const V6: &str = "fd00:98::/64";
/// Of each family the addresses in this order.
const BOTH: &str = "\"fd00:98::/64,10.98.0.0/24\"";
/// Volume is for the other family.
const LESS: &[(&str, &str)] = &[("MIB", "16"), ("SHORT", "1000")];
/// The source port at the far end may be another one.
const ANY_PATH: &[(&str, &str)] = &[("RELAYED", "1")];

/// The checks within the site and between two, in one Domain.
fn both(cidr: &str, names: &[&str], env: &[(&str, &str)]) -> Result<()> {
    over(&[From::SameSite, From::OtherSite], cidr, 1, names, env)
}

/// The checks over these paths, in one Domain, at the pods' addresses in so many subnets.
fn over(
    paths: &[From],
    cidr: &str,
    subnets: usize,
    names: &[&str],
    env: &[(&str, &str)],
) -> Result<()> {
    let mut p = test_e2e::two_sites()?;
    let checked = Probe::start(&mut p, cidr, paths).and_then(|mut probe| {
        let mut failed = Vec::new();
        for nth in 0..subnets {
            if nth > 0 {
                probe.serve_at(&p, nth)?;
            }
            for from in paths {
                let result = probe.check(&p, *from, names, env);
                failed.extend(result.err().map(|e| format!("{from:?}, subnet {nth}: {e:#}")));
            }
        }
        ensure!(failed.is_empty(), "{}", failed.join("\n"));
        p.alive()
    });
    checked.map_err(|e| p.explain(e))
}

#[test]
fn connect_itself_is_refused() -> Result<()> {
    both(V4, REFUSED, &[])
}

#[test]
fn a_pod_may_bind_its_own_vip_and_no_other() -> Result<()> {
    both(V4, BOUND, &[])
}

/// Within a site control messages tell real addresses: no hook sees them.
#[test]
fn datagrams_between_sites_show_virtual_addresses_everywhere() -> Result<()> {
    over(&[From::OtherSite], V4, 1, TRUE_EVERYWHERE, &[])
}

#[test]
fn ports_that_a_domain_does_not_allow_are_denied() -> Result<()> {
    both(PORTS, DENIED, &[])
}

#[test]
fn a_domain_may_use_the_range_of_the_pods() -> Result<()> {
    both(PODS, BASIC, ANY_PATH)
}

#[test]
fn an_ipv6_domain_is_a_network() -> Result<()> {
    over(&[From::SameSite, From::OtherMachine, From::OtherSite], V6, 1, &[], LESS)
}

#[test]
fn a_domain_of_both_families_is_two_networks() -> Result<()> {
    over(&[From::SameSite, From::OtherMachine, From::OtherSite], BOTH, 2, &[], LESS)
}
