//! How many packets crossed, and why others did not, by Domain.

use std::collections::BTreeMap;

use control_api::ids::DomainName;

/// Of one Domain since the start of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// From pods of this machine.
    pub packets_out: u64,
    pub bytes_out: u64,
    /// To pods of this machine.
    pub packets_in: u64,
    pub bytes_in: u64,
    /// By a stable code.
    pub lost: BTreeMap<&'static str, u64>,
}

/// By Domain.
#[derive(Debug, Default)]
pub(super) struct Tally(BTreeMap<DomainName, Counts>);

impl Tally {
    fn of(&mut self, domain: &DomainName) -> &mut Counts {
        self.0.entry(domain.clone()).or_default()
    }

    pub(super) fn passed(&mut self, domain: &DomainName, outgoing: bool, length: usize) {
        let counts = self.of(domain);
        let (packets, bytes) = if outgoing {
            (&mut counts.packets_out, &mut counts.bytes_out)
        } else {
            (&mut counts.packets_in, &mut counts.bytes_in)
        };
        *packets += 1;
        *bytes += length as u64;
    }

    pub(super) fn lost(&mut self, domain: &DomainName, reason: &'static str) {
        *self.of(domain).lost.entry(reason).or_default() += 1;
    }

    pub(super) fn all(&self) -> BTreeMap<DomainName, Counts> {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_domain_has_its_own_counts() {
        let (d, e) = ("d".parse().unwrap(), "e".parse().unwrap());
        let mut tally = Tally::default();
        tally.passed(&d, true, 100);
        tally.passed(&d, false, 30);
        tally.passed(&d, false, 30);
        tally.lost(&e, "queue_full");
        let all = tally.all();
        let of_d = all.get(&d).unwrap();
        assert_eq!((of_d.packets_out, of_d.bytes_out), (1, 100));
        assert_eq!((of_d.packets_in, of_d.bytes_in), (2, 60));
        assert_eq!(all.get(&e).unwrap().lost, BTreeMap::from([("queue_full", 1)]));
    }
}
