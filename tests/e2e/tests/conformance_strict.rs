//! What a Domain promises beyond what a relay between two kernels gives by itself: refusals inside
//! `connect()`, addresses that are true everywhere, IPv6, and the ports that a Domain allows.

use anyhow::Result;
use test_e2e::conformance::{From, run, run_in};

const REFUSED: &[&str] =
    &["refused_at_once_by_connect_itself", "a_listener_is_there_at_once_and_gone_at_once"];
const BOUND: &[&str] = &["datagrams_of_sockets_bound_to_the_vip"];
const FOREIGN: &[&str] = &["a_foreign_vip_cannot_be_bound"];
const TRUE_EVERYWHERE: &[&str] =
    &["a_datagram_says_which_address_it_was_sent_to", "the_error_queue_names_the_peer"];
const DENIED: &[&str] = &["a_port_that_is_not_allowed_is_denied"];
const PORTS: &str = "10.98.0.0/24, allowedPorts: [\"22\", \"9001-9199\"]";
/// Where the machines' pods have their real addresses, at every site.
const PODS: &str = "10.244.0.0/24";
const BASIC: &[&str] = &["echo_and_eof", "names_on_both_ends", "a_connected_datagram_socket"];
const V6: &str = "fd00:98::/64";
/// Volume is for the other family.
const LESS: &[(&str, &str)] = &[("MIB", "16"), ("SHORT", "1000")];

#[test]
fn connect_itself_is_refused_within_a_site() -> Result<()> {
    run(From::SameSite, REFUSED, &[])
}

#[test]
fn connect_itself_is_refused_between_sites() -> Result<()> {
    run(From::OtherSite, REFUSED, &[])
}

#[test]
fn udp_sockets_may_be_bound_to_a_vip_within_a_site() -> Result<()> {
    run(From::SameSite, BOUND, &[])
}

#[test]
fn udp_sockets_may_be_bound_to_a_vip_between_sites() -> Result<()> {
    run(From::OtherSite, BOUND, &[])
}

#[test]
fn a_peers_address_is_not_ones_own() -> Result<()> {
    run(From::SameSite, FOREIGN, &[])?;
    run(From::OtherSite, FOREIGN, &[])
}

#[test]
fn datagrams_show_virtual_addresses_everywhere_within_a_site() -> Result<()> {
    run(From::SameSite, TRUE_EVERYWHERE, &[])
}

#[test]
fn datagrams_show_virtual_addresses_everywhere_between_sites() -> Result<()> {
    run(From::OtherSite, TRUE_EVERYWHERE, &[])
}

#[test]
fn ports_that_a_domain_does_not_allow_are_denied() -> Result<()> {
    run_in(PORTS, From::SameSite, DENIED, &[])?;
    run_in(PORTS, From::OtherSite, DENIED, &[])
}

#[test]
fn an_ipv6_domain_within_a_site_is_a_network() -> Result<()> {
    run_in(V6, From::SameSite, &[], LESS)
}

#[test]
fn an_ipv6_domain_between_sites_is_a_network() -> Result<()> {
    run_in(V6, From::OtherSite, &[], LESS)
}

#[test]
fn a_domain_may_use_the_pods_own_range_within_a_site() -> Result<()> {
    run_in(PODS, From::SameSite, BASIC, &[])
}

#[test]
fn a_domain_may_use_the_pods_own_range_between_sites() -> Result<()> {
    run_in(PODS, From::OtherSite, BASIC, &[])
}
