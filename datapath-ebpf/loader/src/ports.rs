//! Which ports a Domain allows.

use std::{collections::BTreeMap, ops::RangeInclusive};

use datapath_abi as abi;

use crate::{datapath::Datapath, error::MapError, pods::DomainId};

impl Datapath {
    /// Makes these all ports that may be reached in the Domain, for pods that are [restricted](crate::PodEntry::restricted) to
    /// them. What stays is never absent for a moment.
    ///
    /// # Errors
    /// The map is full (64 Domains with scattered ports) or the kernel refuses.
    pub fn set_ports(
        &self,
        domain: DomainId,
        allowed: &[RangeInclusive<u16>],
    ) -> Result<(), MapError> {
        let mut blocks: BTreeMap<abi::PortBlock, u64> = BTreeMap::new();
        for port in allowed.iter().cloned().flatten().map(u32::from) {
            let block = abi::PortBlock { domain: domain.0, block: port >> 6 };
            *blocks.entry(block).or_default() |= 1 << (port & 63);
        }
        let table = &self.tables().ports;
        for (block, mask) in &blocks {
            table.set(*block, *mask)?;
        }
        for (old, _) in table.entries()? {
            if old.domain == domain.0 && !blocks.contains_key(&old) {
                table.delete(&old)?;
            }
        }
        Ok(())
    }
}
