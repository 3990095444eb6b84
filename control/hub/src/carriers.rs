//! Tickets: how two nodes of one Domain are brought together on the relay.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{Extension, Json, extract::State};
use control_api::session::{CarrierRequest, CarrierTicket, DialRequest, machine};
use control_identity::{KeyHash, to_hex};
use http::{Method, StatusCode};
use tokio::time::timeout_at;

use crate::{
    Caller, Hub,
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
        Ok(Some(CarrierTicket { ticket }))
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

/// `POST /hub/v1/carriers`: both nodes must host a member of the Domain, and the peer must be told.
pub(crate) async fn carrier(
    State(hub): State<Hub>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<CarrierRequest>,
) -> Result<Json<CarrierTicket>, Refused> {
    let (certificate, _, node) = machine_of(&caller)?;
    let (domain, peer) = (&request.domain, &request.peer);
    if node == peer {
        return Err(Refused::bad("same-node", format!("{node} asks for a carrier to itself")));
    }
    let patience = tokio::time::Instant::now() + PATIENCE;
    let mut networks = hub.inner.network.subscribe();
    // Without an answer it goes on with what is known.
    drop(timeout_at(patience, networks.wait_for(Option::is_some)).await);
    let network = hub.inner.network.current();
    for host in [node, peer] {
        if !network.hosts(domain, host) {
            return Err(Refused::forbidden(
                "not-a-host",
                format!("{host} hosts no pod of Domain {domain}"),
            ));
        }
    }
    drop(timeout_at(patience, hub.inner.sessions.node_opened(peer)).await);
    let ends = Member::of(certificate).into_iter().chain(hub.inner.sessions.node_member(peer));
    let ticket = hub
        .inner
        .tickets
        .open(Instant::now(), ends.collect())
        .map_err(|e| Refused::internal("making a ticket", &e))?
        .ok_or_else(|| {
            Refused::new(StatusCode::TOO_MANY_REQUESTS, "too-many-tickets", "too many open tickets")
        })?;
    let dial = DialRequest {
        domain: domain.clone(),
        peer: node.clone(),
        lane: request.lane,
        ticket: ticket.clone(),
    };
    let told: Result<serde::de::IgnoredAny, CallError> =
        hub.inner.sessions.call_node(peer, Method::POST, machine::DIAL, Some(&dial)).await;
    if let Err(error) = told {
        hub.inner.tickets.withdraw(&ticket.ticket);
        let reason = match &error {
            CallError::Offline(_) => "peer-offline",
            CallError::Refused { .. } => "peer-refused",
            _ => "peer-unreachable",
        };
        return Err(Refused::new(StatusCode::BAD_GATEWAY, reason, error.to_string()));
    }
    tracing::debug!(%domain, %node, %peer, lane = ?request.lane, "carrier ticket given");
    Ok(Json(ticket))
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
