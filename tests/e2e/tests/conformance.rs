//! A Domain is a network to the programs in it, on the direct path and through the relay.
//! The checks themselves are in `probe/conformance`.

use anyhow::{Result, ensure};
use test_e2e::{
    conformance::{From, Probe, V4, run},
    pod,
};

/// As much each way at once.
const GIBIBYTE: (&str, &str) = ("MIB", "1024");
/// Volume is for the others.
const LESS: &[(&str, &str)] = &[("MIB", "16"), ("SHORT", "1000")];

#[test]
fn a_domain_within_a_site_is_a_network() -> Result<()> {
    run(From::SameSite, &[], &[GIBIBYTE])
}

#[test]
fn a_domain_over_two_machines_of_a_site_is_a_network() -> Result<()> {
    run(From::OtherMachine, &[], LESS)
}

#[test]
fn a_domain_between_sites_is_a_network() -> Result<()> {
    run(From::OtherSite, &[], &[GIBIBYTE])
}

/// Sites choose their private addresses without knowing of each other.
#[test]
fn pods_with_the_same_real_address_meet() -> Result<()> {
    let mut p = test_e2e::two_sites()?;
    let met = Probe::start(&mut p, V4, &[From::OtherSite]).and_then(|probe| {
        let (a, b) = (pod(&p, 0, "j-server-0")?, pod(&p, 1, "j-far-0")?);
        ensure!(a.real == b.real, "{} and {} are no test", a.real, b.real);
        probe.check(&p, From::OtherSite, &["names_on_both_ends", "the_server_speaks_first"], &[])
    });
    met.map_err(|e| p.explain(e))
}
