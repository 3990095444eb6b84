//! A Domain is a network to the programs in it, on the direct path and through the relay.
//! The checks themselves are in `probe/conformance`.

use anyhow::Result;
use test_e2e::conformance::{From, run};

/// As much each way at once.
const GIBIBYTE: (&str, &str) = ("MIB", "1024");

#[test]
fn a_domain_within_a_site_is_a_network() -> Result<()> {
    run(From::SameSite, &[], &[GIBIBYTE])
}

#[test]
fn a_domain_between_sites_is_a_network() -> Result<()> {
    run(From::OtherSite, &[], &[GIBIBYTE])
}
