//! Tickets: how two nodes of one Domain are brought together on the relay.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{Extension, Json, extract::State};
use control_api::{
    ids::NodeRef,
    session::{CarrierRequest, CarrierTicket, DialRequest, machine},
};
use control_identity::{KeyHash, to_hex};
use http::{Method, StatusCode};
use tokio::time::{timeout, timeout_at};

use crate::{
    Caller, Hub,
    direct::{Offers, offers},
    policy::{Body, machine_of},
    refuse::Refused,
    sessions::CallError,
    standing::Member,
};

/// How long a ticket may wait for both ends.
pub(crate) const TICKET_LIFE: Duration = Duration::from_secs(30);
/// How long a request waits for a hub that has just started to know the Domains, and for the peer's session. All
/// machines come back at once then, and who comes first need not ask again.
const PATIENCE: Duration = Duration::from_millis(1500);
/// A node asks for two carriers per peer; more than this many open tickets is a fault or an attack.
const MAX_OPEN: usize = 65_536;

/// Open tickets by their hash: the secrets themselves are kept nowhere. One writer at a time.
#[derive(Default)]
pub(crate) struct Tickets {
    open: Mutex<HashMap<KeyHash, Ticket>>,
}

struct Ticket {
    expires: Instant,
    /// How many ends have come: none or one; the second closes the ticket.
    presented: bool,
    /// The machines that are to meet: what they were given ends when one of them is removed.
    ends: Vec<Member>,
}

/// What presenting a ticket means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Presented {
    /// The first end: wait until the given moment; the pair lasts while these machines stand.
    First(Instant, Vec<Member>),
    /// The second end: the pair is complete and the ticket is spent.
    Second,
    /// Unknown, expired or spent.
    Refused,
}

impl Tickets {
    /// A new ticket, or `None` when too many are open.
    fn open(
        &self,
        now: Instant,
        ends: Vec<Member>,
    ) -> Result<Option<CarrierTicket>, control_identity::NoRandomness> {
        let ticket = to_hex(&control_identity::random::<32>()?);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, t| t.expires > now);
        if open.len() >= MAX_OPEN {
            return Ok(None);
        }
        let hash = KeyHash::of_spki(ticket.as_bytes());
        open.insert(hash, Ticket { expires: now + TICKET_LIFE, presented: false, ends });
        Ok(Some(CarrierTicket { ticket, direct: None }))
    }

    /// One end shows a ticket. Looked up by hash, so the time it takes tells nothing about others.
    pub(crate) fn present(&self, ticket: &str, now: Instant) -> Presented {
        let hash = KeyHash::of_spki(ticket.as_bytes());
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        match open.get_mut(&hash) {
            Some(t) if t.expires <= now => {
                open.remove(&hash);
                Presented::Refused
            }
            Some(t) if t.presented => {
                open.remove(&hash);
                Presented::Second
            }
            Some(t) => {
                t.presented = true;
                Presented::First(t.expires, t.ends.clone())
            }
            None => Presented::Refused,
        }
    }

    /// The waiting end went away: nobody can be paired with it.
    pub(crate) fn withdraw(&self, ticket: &str) {
        let hash = KeyHash::of_spki(ticket.as_bytes());
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&hash);
    }
}

/// The two nodes of a request.
pub(crate) struct Pair<'a> {
    pub(crate) asker: &'a NodeRef,
    pub(crate) peer: &'a NodeRef,
    member: Option<Member>,
}

impl<'a> Pair<'a> {
    /// Both must host a member of the Domain.
    pub(crate) async fn check(
        hub: &Hub,
        caller: &'a Caller,
        request: &'a CarrierRequest,
    ) -> Result<Self, Refused> {
        let (certificate, _, asker) = machine_of(caller)?;
        let (domain, peer) = (&request.domain, &request.peer);
        if asker == peer {
            return Err(Refused::bad("same-node", format!("{asker} asks for a carrier to itself")));
        }
        let mut networks = hub.inner.network.subscribe();
        // Without an answer it goes on with what is known.
        drop(timeout(PATIENCE, networks.wait_for(Option::is_some)).await);
        let network = hub.inner.network.current();
        for host in [asker, peer] {
            if !network.hosts(domain, host) {
                return Err(Refused::forbidden(
                    "not-a-host",
                    format!("{host} hosts no pod of Domain {domain}"),
                ));
            }
        }
        Ok(Self { asker, peer, member: Member::of(certificate) })
    }
}

/// The peer's answer to what it was told.
pub(crate) fn told(answer: Result<serde::de::IgnoredAny, CallError>) -> Result<(), Refused> {
    answer.map(drop).map_err(|error| {
        let reason = match &error {
            CallError::Offline(_) => "peer-offline",
            CallError::Refused { .. } => "peer-refused",
            _ => "peer-unreachable",
        };
        Refused::new(StatusCode::BAD_GATEWAY, reason, error.to_string())
    })
}

/// `POST /hub/v1/carriers`: both nodes must host a member of the Domain, and the peer must be told.
pub(crate) async fn carrier(
    State(hub): State<Hub>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<CarrierRequest>,
) -> Result<Json<CarrierTicket>, Refused> {
    let patience = tokio::time::Instant::now() + PATIENCE;
    let mut pair = Pair::check(&hub, &caller, &request).await?;
    drop(timeout_at(patience, hub.inner.sessions.node_opened(pair.peer)).await);
    let ends = pair.member.take().into_iter().chain(hub.inner.sessions.node_member(pair.peer));
    let failed = |e| Refused::internal("making a ticket", &e);
    let ticket = hub.inner.tickets.open(Instant::now(), ends.collect()).map_err(failed)?;
    let ticket = ticket.ok_or_else(|| {
        Refused::new(StatusCode::TOO_MANY_REQUESTS, "too-many-tickets", "too many open tickets")
    })?;
    let (mut for_peer, mut for_asker) = (ticket.clone(), ticket);
    if let Some(Offers { asker, peer }) = offers(&hub, &pair).map_err(failed)? {
        for_peer.direct = Some(peer);
        // Without an address there is nothing for it to try.
        for_asker.direct = Some(asker).filter(|offer| !offer.addresses.is_empty());
    }
    let Pair { asker, peer, .. } = pair;
    let dial = DialRequest {
        domain: request.domain.clone(),
        peer: asker.clone(),
        lane: request.lane,
        ticket: for_peer,
    };
    let call = hub.inner.sessions.call_node(peer, Method::POST, machine::DIAL, Some(&dial)).await;
    if let Err(refused) = told(call) {
        hub.inner.tickets.withdraw(&for_asker.ticket);
        return Err(refused);
    }
    tracing::debug!(domain = %request.domain, node = %asker, %peer, lane = ?request.lane, "carrier ticket given");
    Ok(Json(for_asker))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_pairs_two_ends_once() {
        let (tickets, now) = (Tickets::default(), Instant::now());
        let ticket = tickets.open(now, Vec::new()).unwrap().unwrap().ticket;
        assert_eq!(ticket.len(), 64);
        assert!(matches!(tickets.present(&ticket, now), Presented::First(..)));
        assert_eq!(tickets.present(&ticket, now), Presented::Second);
        assert_eq!(tickets.present(&ticket, now), Presented::Refused);
        assert_eq!(tickets.present(&"0".repeat(64), now), Presented::Refused);
    }

    #[test]
    fn a_ticket_expires_and_can_be_withdrawn() {
        let (tickets, now) = (Tickets::default(), Instant::now());
        let ticket = tickets.open(now, Vec::new()).unwrap().unwrap().ticket;
        assert_eq!(tickets.present(&ticket, now + TICKET_LIFE), Presented::Refused);
        let ticket = tickets.open(now, Vec::new()).unwrap().unwrap().ticket;
        tickets.withdraw(&ticket);
        assert_eq!(tickets.present(&ticket, now), Presented::Refused);
    }
}
