//! What the hub says of the ports of other machines' pods, on its way into the kernel: a connect to a port where nobody listens is
//! refused here, at once. What is not known, or was not confirmed for some seconds, refuses nobody.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use control_api::{ids::DomainName, ports::Ports};

use crate::{keeper::chain, kernel::Kernel, plan::desired::mirror_number};

/// The hub sends a line every second. A longer silence is a dead connection: listeners may have opened meanwhile.
pub const FRESH: Duration = Duration::from_secs(3);

type Key = (DomainName, String);

/// The only writer of the kernel's mirror.
pub struct Mirror {
    kernel: Arc<dyn Kernel>,
    known: Mutex<BTreeMap<Key, Ports>>,
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mirror(..)")
    }
}

impl Mirror {
    #[must_use]
    pub fn new(kernel: Arc<dyn Kernel>) -> Self {
        Self { kernel, known: Mutex::default() }
    }

    /// A line of the hub came: what it said before still counts.
    pub fn confirmed(&self) {
        self.kernel.trust_mirror(FRESH);
    }

    /// The hub is gone: nothing counts until it is back.
    pub fn distrust(&self) {
        self.kernel.trust_mirror(Duration::ZERO);
    }

    /// A new stream begins: the hub tells everything again.
    pub fn forget_all(&self) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, old) in std::mem::take(&mut *known) {
            self.write(&key, Some(&old), None);
        }
    }

    /// The hub says what is open at a pod; `None`: it does not know.
    pub fn say(&self, domain: DomainName, uid: String, ports: Option<Ports>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (domain, uid);
        let written = self.write(&key, known.get(&key), ports.as_ref());
        match ports {
            // What was written in part is unknown, and its ports must go with the next word.
            Some(ports) if written => known.insert(key, ports),
            Some(_) => None,
            None => known.remove(&key),
        };
    }

    fn write(&self, (domain, uid): &Key, old: Option<&Ports>, new: Option<&Ports>) -> bool {
        // One number per family, since a port may be open to one of them only. Both are tried.
        let done = [true, false].map(|is_v4| {
            let number = mirror_number(domain, uid, is_v4);
            let of = |ports: &Ports| of_family(ports, is_v4);
            let (old, new) = (old.map(of), new.map(of));
            let done = self.kernel.mirror(number, old.as_ref(), new.as_ref());
            done.inspect_err(
                |e| tracing::warn!(%domain, uid, error = chain(e), "ports not mirrored"),
            )
        });
        done.iter().all(Result::is_ok)
    }
}

/// What an address of one family leads to; as [`Kernel::mirror`] takes it, in `tcp` and `udp_vip`.
fn of_family(ports: &Ports, is_v4: bool) -> Ports {
    let tcp = if is_v4 { &ports.tcp } else { &ports.tcp6 };
    Ports { tcp: tcp.clone(), udp_vip: ports.udp_vip.clone(), ..Ports::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::fake::Fake;

    #[test]
    fn the_kernel_has_what_the_hub_said_last() {
        let kernel = Arc::new(Fake::default());
        let mirror = Mirror::new(Arc::<Fake>::clone(&kernel));
        let (domain, uid): (DomainName, String) = ("d".parse().unwrap(), "u".to_owned());
        let number = mirror_number(&domain, &uid, true);
        let held = || kernel.state.lock().unwrap().mirror.get(&number).cloned();
        let ports = |tcp: &[u16]| Ports { tcp: tcp.to_vec(), ..Ports::default() };
        mirror.say(domain.clone(), uid.clone(), Some(ports(&[80])));
        mirror.say(domain.clone(), uid.clone(), Some(ports(&[81])));
        assert_eq!(held(), Some(ports(&[81])));
        assert_ne!(
            number,
            mirror_number(&"e".parse().unwrap(), &uid, true),
            "another Domain's pod"
        );
        let v6 = mirror_number(&domain, &uid, false);
        let held6 = || kernel.state.lock().unwrap().mirror.get(&v6).cloned();
        assert_eq!(held6(), Some(ports(&[])), "nothing is open to IPv6");
        let both = Ports { tcp6: vec![443], ..ports(&[81]) };
        mirror.say(domain.clone(), uid.clone(), Some(both));
        assert_eq!((held(), held6()), (Some(ports(&[81])), Some(ports(&[443]))));
        mirror.say(domain.clone(), uid.clone(), None);
        assert_eq!(held(), None);
        mirror.say(domain, uid, Some(ports(&[82])));
        mirror.forget_all();
        assert_eq!(held(), None);
        mirror.confirmed();
        assert_eq!(kernel.state.lock().unwrap().fresh, FRESH);
        mirror.distrust();
        assert_eq!(kernel.state.lock().unwrap().fresh, Duration::ZERO);
    }
}
