//! Carriers past the hub: where nodes listen, by their own word, and the tickets by which two of them
//! meet there. The hub carries nothing of it and opens nothing: it tells both ends.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Mutex, MutexGuard, PoisonError},
};

use axum::{Extension, Json, extract::State};
use control_api::{
    direct::{DirectOffer, ExpectRequest, NO_DIRECT_ADDRESS, tidy},
    ids::NodeRef,
    session::{CarrierRequest, machine},
};
use control_identity::{NoRandomness, random, to_hex};
use http::Method;

use crate::{
    Caller, Hub,
    carriers::{Pair, told},
    policy::Body,
    ports::Source,
    refuse::Refused,
};

/// What the nodes said in their sessions. A node is believed about itself alone, and no longer than
/// its session lasts.
#[derive(Debug, Default)]
pub(crate) struct Addresses(Mutex<HashMap<NodeRef, (Source, Vec<SocketAddr>)>>);

impl Addresses {
    fn hold(&self) -> MutexGuard<'_, HashMap<NodeRef, (Source, Vec<SocketAddr>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces what was said. `port`: of the address `seen` that its session comes from.
    pub(crate) fn put(
        &self,
        by: &Source,
        addresses: Vec<SocketAddr>,
        seen: Option<IpAddr>,
        port: Option<u16>,
    ) {
        let outer = seen.zip(port).map(|(ip, port)| SocketAddr::new(ip, port));
        let all = tidy(outer.into_iter().chain(addresses));
        tracing::debug!(node = %by.node, addresses = ?all, "direct addresses");
        self.hold().insert(by.node.clone(), (by.clone(), all));
    }

    /// The session ended.
    pub(crate) fn forget(&self, by: &Source) {
        let mut all = self.hold();
        if all.get(&by.node).is_some_and(|(said, _)| said == by) {
            all.remove(&by.node);
        }
    }

    /// Empty: it does not listen, or is away.
    fn of(&self, node: &NodeRef) -> Vec<SocketAddr> {
        self.hold().get(node).map(|(_, all)| all.clone()).unwrap_or_default()
    }
}

/// What the two ends are given for one attempt.
pub(crate) struct Offers {
    pub(crate) asker: DirectOffer,
    pub(crate) peer: DirectOffer,
}

/// `None` when neither listens: there is nothing to try.
pub(crate) fn offers(hub: &Hub, pair: &Pair<'_>) -> Result<Option<Offers>, NoRandomness> {
    let addresses = &hub.inner.addresses;
    let (of_asker, of_peer) = (addresses.of(pair.asker), addresses.of(pair.peer));
    if of_asker.is_empty() && of_peer.is_empty() {
        return Ok(None);
    }
    let ticket = to_hex(&random::<32>()?);
    Ok(Some(Offers {
        asker: DirectOffer { ticket: ticket.clone(), addresses: of_peer },
        peer: DirectOffer { ticket, addresses: of_asker },
    }))
}

/// `POST /hub/v1/direct`: an attempt while the hub's carrier stands. The peer learns where the asker
/// listens in any case: it may be the one who can reach the other.
pub(crate) async fn direct(
    State(hub): State<Hub>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<CarrierRequest>,
) -> Result<Json<DirectOffer>, Refused> {
    let pair = Pair::check(&hub, &caller, &request).await?;
    let nowhere = || {
        let why = format!("{} does not listen for direct carriers", pair.peer);
        Refused::not_found(NO_DIRECT_ADDRESS, why)
    };
    let offers = offers(&hub, &pair).map_err(|e| Refused::internal("making a ticket", &e))?;
    let Offers { asker, peer } = offers.ok_or_else(nowhere)?;
    let expect = ExpectRequest {
        domain: request.domain.clone(),
        peer: pair.asker.clone(),
        lane: request.lane,
        offer: peer,
    };
    let call =
        hub.inner.sessions.call_node(pair.peer, Method::POST, machine::EXPECT, Some(&expect));
    told(call.await)?;
    if asker.addresses.is_empty() { Err(nowhere()) } else { Ok(Json(asker)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(node: &str, session: u64) -> Source {
        Source { node: node.parse().unwrap(), session }
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_node_says_where_it_listens_and_the_hub_adds_where_it_sees_it() {
        let all = Addresses::default();
        let by = source("a/n1", 1);
        let seen = Some("198.51.100.7".parse().unwrap());
        all.put(&by, vec![at("192.168.1.10:7400"), at("127.0.0.1:7400")], seen, Some(7400));
        assert_eq!(all.of(&by.node), [at("198.51.100.7:7400"), at("192.168.1.10:7400")]);
        all.put(&by, vec![at("192.168.1.11:7400")], seen, None);
        assert_eq!(all.of(&by.node), [at("192.168.1.11:7400")], "it named its addresses itself");
        assert_eq!(all.of(&"a/n2".parse().unwrap()), []);
    }

    #[test]
    fn the_end_of_an_older_session_takes_nothing_from_the_newer_one() {
        let all = Addresses::default();
        let (old, new) = (source("a/n1", 1), source("a/n1", 2));
        all.put(&old, vec![at("192.0.2.1:7400")], None, None);
        all.put(&new, vec![at("192.0.2.2:7400")], None, None);
        all.forget(&old);
        assert_eq!(all.of(&new.node), [at("192.0.2.2:7400")]);
        all.forget(&new);
        assert_eq!(all.of(&new.node), []);
    }
}
