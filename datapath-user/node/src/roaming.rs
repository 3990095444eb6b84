//! What becomes of connections to others when this machine's addresses or default routes change. Nothing tells a TCP
//! connection that its own address is gone; without this it would be noticed by silence, ten seconds later and one
//! after the other: carriers, the connection that asks for tickets, the session.

use std::{convert::Infallible, io};

use control_identity::{client::Client, session::Moved};
use datapath_net::address_watch::{AddressWatch, Change};
use datapath_relay::Relay;

use crate::direct::addresses::Announcer;

/// Follows the changes; ends when they cannot be seen (any more).
pub async fn follow(client: Client, session: Moved, relay: Relay, announcer: Announcer) {
    let Err(error) = each(&client, &session, &relay, &announcer).await;
    tracing::warn!(%error, "changes of this machine's network are not seen");
}

async fn each(
    client: &Client,
    session: &Moved,
    relay: &Relay,
    announcer: &Announcer,
) -> io::Result<Infallible> {
    let mut watch = AddressWatch::new()?;
    announcer.refresh();
    loop {
        let change = watch.changed().await?;
        tracing::info!(?change, "the network of this machine changed");
        // Before the carriers, which ask by it for new ones.
        if change == Change::AddressGone {
            client.dial_anew();
        }
        session.tell();
        relay.moved();
        // A peer that was out of reach may be in it now. A pod's interface has no such address.
        if announcer.refresh() || change == Change::DefaultRoute {
            relay.probe_direct();
        }
    }
}
