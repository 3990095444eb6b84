use super::*;
use crate::kernel::fake::Fake;

struct Pod {
    kernel: Arc<Fake>,
    mirror: Mirror,
    domain: DomainName,
}

impl Pod {
    fn new() -> Self {
        let kernel = Arc::new(Fake::default());
        let mirror = Mirror::new(Arc::<Fake>::clone(&kernel));
        Self { kernel, mirror, domain: "d".parse().unwrap() }
    }

    fn say(&self, ports: Option<Ports>) {
        self.mirror.say(self.domain.clone(), "u".to_owned(), ports);
    }

    fn heard(&self, sequence: u64, at: &str, open: bool) {
        let said = Listening { sequence, at: at.parse().unwrap(), open };
        self.mirror.heard(self.domain.clone(), "u".to_owned(), said);
    }

    /// What the kernel has of one family.
    fn held(&self, is_v4: bool) -> Option<Ports> {
        let number = mirror_number(&self.domain, "u", is_v4);
        self.kernel.state.lock().unwrap().mirror.get(&number).cloned()
    }

    fn age(&self) {
        let mut known = self.mirror.known.lock().unwrap();
        for (at, _) in known.values_mut().flat_map(|pod| pod.heard.values_mut()) {
            *at = at.checked_sub(HEARD).unwrap();
        }
    }
}

fn ports(tcp: &[u16]) -> Ports {
    Ports { tcp: tcp.to_vec(), ..Ports::default() }
}

#[test]
fn the_kernel_has_what_the_hub_said_last() {
    let pod = Pod::new();
    pod.say(Some(ports(&[80])));
    pod.say(Some(ports(&[81])));
    assert_eq!(pod.held(true), Some(ports(&[81])));
    let other = mirror_number(&"e".parse().unwrap(), "u", true);
    assert!(!pod.kernel.state.lock().unwrap().mirror.contains_key(&other), "another Domain's pod");
    assert_eq!(pod.held(false), Some(ports(&[])), "nothing is open to IPv6");
    let both = Ports { tcp6: vec![443], ..ports(&[81]) };
    pod.say(Some(both));
    assert_eq!((pod.held(true), pod.held(false)), (Some(ports(&[81])), Some(ports(&[443]))));
    pod.say(None);
    assert_eq!(pod.held(true), None);
    pod.say(Some(ports(&[82])));
    pod.mirror.forget_all();
    assert_eq!(pod.held(true), None);
    pod.mirror.confirmed();
    assert_eq!(pod.kernel.state.lock().unwrap().fresh, FRESH);
    pod.mirror.distrust();
    assert_eq!(pod.kernel.state.lock().unwrap().fresh, Duration::ZERO);
}

#[test]
fn what_the_peer_said_outlives_an_older_word_of_the_hub_and_no_more() {
    let pod = Pod::new();
    pod.heard(1, "10.98.0.1:40123", true);
    assert_eq!(pod.held(true), None, "nobody is refused before the hub has spoken");
    pod.say(Some(ports(&[80])));
    assert_eq!(pod.held(true), Some(ports(&[80, 40123])));
    pod.heard(2, "10.98.0.1:40124", true);
    pod.heard(3, "[fd00::1]:22", true);
    pod.say(Some(ports(&[80, 40123])));
    pod.mirror.confirmed();
    assert_eq!(pod.held(true), Some(ports(&[80, 40123, 40124])));
    assert_eq!(pod.held(false), Some(ports(&[22])));
    pod.age();
    pod.mirror.confirmed();
    assert_eq!(pod.held(true), Some(ports(&[80, 40123])));
    assert_eq!(pod.held(false), Some(ports(&[])));
}

#[test]
fn the_later_word_of_a_peer_counts_on_whichever_carrier_it_came() {
    let pod = Pod::new();
    pod.say(Some(ports(&[80])));
    let at = "10.98.0.1:80";
    pod.heard(11, at, false);
    assert_eq!(pod.held(true), Some(ports(&[])));
    pod.heard(12, at, true);
    pod.heard(11, at, false);
    assert_eq!(pod.held(true), Some(ports(&[80])));
    pod.heard(13, at, false);
    pod.say(Some(ports(&[80, 81])));
    assert_eq!(pod.held(true), Some(ports(&[81])), "the hub's word is the older one");
    pod.age();
    pod.mirror.confirmed();
    assert_eq!(pod.held(true), Some(ports(&[80, 81])));
}

#[test]
fn a_peer_can_name_so_many_ports_and_a_pod_that_is_gone_is_forgotten() {
    let pod = Pod::new();
    pod.say(Some(ports(&[])));
    for port in 1..=2000 {
        pod.heard(port, &format!("10.98.0.1:{port}"), true);
    }
    assert_eq!(pod.held(true).unwrap().tcp.len(), MOST);
    pod.say(None);
    assert_eq!(pod.held(true), None);
    pod.age();
    pod.mirror.confirmed();
    assert!(pod.mirror.known.lock().unwrap().is_empty());
}

#[test]
fn after_a_write_that_failed_the_next_one_takes_away_all_that_may_be_there() {
    let mut known = Known::default();
    known.wrote(Some(ports(&[1, 2])), true);
    known.wrote(Some(ports(&[2, 3])), false);
    assert_eq!((known.written.clone(), known.partly), (Some(ports(&[1, 2, 3])), true));
    known.wrote(None, false);
    assert_eq!(known.written, Some(ports(&[1, 2, 3])));
    known.wrote(Some(ports(&[4])), true);
    assert_eq!((known.written, known.partly), (Some(ports(&[4])), false));
}
