//! Interfaces and addresses by rtnetlink(7): the site's bridge, and a pod's link to it.
//!
//! Hardware addresses are made of the IP addresses ([`mac`]): a pod that gets the address of an earlier one is where the others'
//! neighbour tables already say. What says otherwise all the same (pods of an older agent had random ones) hears of it
//! when the link comes up ([`announce`]).

use std::{
    fs::{self, File},
    io,
    net::{IpAddr, Ipv4Addr},
    os::fd::AsRawFd as _,
    path::Path,
    time::Duration,
};

use futures::{
    TryStreamExt as _,
    future::{Either, select},
    pin_mut,
};
use rtnetlink::{
    Error, Handle, LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder,
    packet_route::{
        address::AddressHeaderFlags,
        link::{InfoData, InfoVeth, LinkAttribute, LinkMessage, State},
    },
};

use super::{address::PodNetwork, error::NetError, layout::PodLink, netns};
use crate::spec::PodUid;

/// The pod's end.
const POD_LINK: &str = "eth0";
/// A bridge takes a new port into use within milliseconds.
const UP: Duration = Duration::from_secs(1);
/// How often that is looked at: the kernel's own notice of it would need a socket for all of a machine's links.
const LOOK: Duration = Duration::from_millis(2);

/// Linux allows 15 characters.
#[must_use]
pub(crate) fn is_link_name(name: &str) -> bool {
    (1..=15).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// The machine's end of a pod's link: `rl-` and twelve digits of the uid's hash (FNV-1a).
#[must_use]
pub(crate) fn host_link(uid: &PodUid) -> String {
    let hash = uid
        .as_str()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("rl-{:012x}", hash >> 16)
}

/// The hardware address of whoever has this address: locally administered, `02:72` and the address.
#[must_use]
pub(crate) fn mac(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    [0x02, 0x72, a, b, c, d]
}

/// Talks to the kernel in the calling thread's namespace for as long as `work` runs.
async fn with<T, F>(work: impl FnOnce(Handle) -> F) -> Result<T, NetError>
where
    F: Future<Output = Result<T, NetError>>,
{
    let (connection, handle, _) = rtnetlink::new_connection().map_err(NetError::Socket)?;
    let work = work(handle);
    pin_mut!(connection, work);
    match select(work, connection).await {
        Either::Left((result, _)) => result,
        Either::Right(((), _)) => {
            Err(NetError::Socket(io::Error::other("the kernel closed the connection")))
        }
    }
}

async fn find(handle: &Handle, name: &str) -> Result<Option<u32>, NetError> {
    Ok(look_up(handle, name).await?.map(|l| l.header.index))
}

async fn look_up(handle: &Handle, name: &str) -> Result<Option<LinkMessage>, NetError> {
    let answer = handle.link().get().match_name(name.to_owned()).execute().try_next().await;
    match answer {
        Ok(link) => Ok(link),
        Err(Error::NetlinkError(e))
            if e.raw_code() == -(rustix::io::Errno::NODEV.raw_os_error()) =>
        {
            Ok(None)
        }
        Err(source) => Err(NetError::Link { what: "look up", name: name.to_owned(), source }),
    }
}

async fn set(handle: &Handle, name: &str, change: LinkMessage) -> Result<(), NetError> {
    handle.link().set(change).execute().await.map_err(fail("set up", name))
}

fn fail<'a>(what: &'static str, name: &'a str) -> impl FnOnce(Error) -> NetError + use<'a> {
    move |source| NetError::Link { what, name: name.to_owned(), source }
}

fn up(index: u32) -> LinkMessage {
    LinkUnspec::new_with_index(index).up().build()
}

/// The site's bridge with the gateway's address, made unless it is there.
pub(crate) async fn ensure_bridge(name: &str, net: PodNetwork) -> Result<(), NetError> {
    with(async |handle| {
        let index = match find(&handle, name).await? {
            Some(index) => index,
            None => {
                // With an address of its own a bridge keeps it; else it has that of one of its ports, and another when that goes.
                let bridge = LinkBridge::new(name).address(mac(net.gateway()).to_vec());
                let request = handle.link().add(bridge.build());
                request.execute().await.map_err(fail("create", name))?;
                let index = find(&handle, name).await?;
                index.ok_or_else(|| NetError::NoLink { name: name.to_owned() })?
            }
        };
        add_address(&handle, name, index, net.gateway().into(), net.prefix()).await?;
        set(&handle, name, up(index)).await
    })
    .await
}

async fn add_address(
    handle: &Handle,
    name: &str,
    index: u32,
    address: IpAddr,
    prefix: u8,
) -> Result<(), NetError> {
    let mut request = handle.address().add(index, address, prefix).replace();
    if address.is_ipv6() {
        // It is the pod's alone by how it is made: usable at once instead of after a second of looking for another.
        request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
    }
    request.execute().await.map_err(fail("address", name))
}

/// Removes an interface; one that is not there is fine.
pub(crate) async fn remove(name: &str) -> Result<(), NetError> {
    with(async |handle| match find(&handle, name).await? {
        None => Ok(()),
        Some(index) => handle.link().del(index).execute().await.map_err(fail("remove", name)),
    })
    .await
}

/// Connects the pod's namespace to the bridge and gives it its address and way out. A link that is
/// there already is used.
pub(crate) async fn connect_pod(
    uid: &PodUid,
    namespace: &Path,
    pod: PodLink,
    bridge: &str,
) -> Result<(), NetError> {
    let host = host_link(uid);
    with(async |handle| {
        let master = find(&handle, bridge).await?;
        let master = master.ok_or_else(|| NetError::NoLink { name: bridge.to_owned() })?;
        if find(&handle, &host).await?.is_none() {
            create_pair(&handle, &host, namespace, pod.address).await?;
        }
        let index = find(&handle, &host).await?;
        let index = index.ok_or_else(|| NetError::NoLink { name: host.clone() })?;
        let change = LinkUnspec::new_with_index(index);
        set(&handle, &host, change.controller(master).up().build()).await
    })
    .await?;
    netns::inside(namespace.to_owned(), move || configure(pod)).await?;
    wait_until_up(&host).await?;
    netns::inside(namespace.to_owned(), announce).await
}

/// Whether this machine gives interfaces IPv6 addresses.
#[must_use]
pub(crate) fn has_ipv6() -> bool {
    let off = fs::read_to_string("/proc/sys/net/ipv6/conf/default/disable_ipv6");
    off.is_ok_and(|off| off.trim() == "0")
}

/// Writes a kernel switch of the calling thread's namespace; one of IPv6 is not there without it.
fn switch(name: &str, value: &str) -> Result<(), NetError> {
    let path = Path::new("/proc/sys/net").join(name);
    match fs::write(&path, value) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done.map_err(|source| NetError::Switch { path, source }),
    }
}

/// Waits until the bridge passes on what the pod's link brings.
async fn wait_until_up(host: &str) -> Result<(), NetError> {
    let up = |link: &LinkMessage| link.attributes.contains(&LinkAttribute::OperState(State::Up));
    let waiting = with(async |handle| {
        while !look_up(&handle, host).await?.is_some_and(|link| up(&link)) {
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    });
    match tokio::time::timeout(UP, waiting).await {
        Ok(done) => done,
        Err(_late) => {
            tracing::warn!(interface = host, "not up after a second; its pod is not announced");
            Ok(())
        }
    }
}

/// Tells the bridge's other ends where the pod's addresses are now: a gratuitous ARP, and an unsolicited neighbour advertisement
/// where there is IPv6. The kernel sends both when a link's hardware address is set, if told to.
async fn announce() -> Result<(), NetError> {
    for notify in ["ipv4/conf/eth0/arp_notify", "ipv6/conf/eth0/ndisc_notify"] {
        switch(notify, "1")?;
    }
    with(async |handle| {
        let link = look_up(&handle, POD_LINK).await?;
        let link = link.ok_or_else(|| NetError::NoLink { name: POD_LINK.to_owned() })?;
        let own = link.attributes.iter().find_map(|a| match a {
            LinkAttribute::Address(address) => Some(address.clone()),
            _ => None,
        });
        let again = LinkUnspec::new_with_index(link.header.index);
        set(&handle, POD_LINK, again.address(own.unwrap_or_default()).build()).await
    })
    .await
}

/// The far end is born inside the pod's namespace, under its final name: nothing has to be renamed
/// or moved, and a crash in between leaves one end only to clean.
async fn create_pair(
    handle: &Handle,
    host: &str,
    namespace: &Path,
    address: Ipv4Addr,
) -> Result<(), NetError> {
    let open = File::open(namespace).map_err(|source| NetError::Namespace {
        what: "open",
        path: namespace.to_owned(),
        source,
    })?;
    let far = LinkMessageBuilder::<LinkUnspec>::new()
        .name(POD_LINK)
        .address(mac(address).to_vec())
        .setns_by_fd(open.as_raw_fd())
        .build();
    let pair = LinkVeth::new(host, POD_LINK).set_info_data(InfoData::Veth(InfoVeth::Peer(far)));
    handle.link().add(pair.build()).execute().await.map_err(fail("create", host))
}

async fn configure(pod: PodLink) -> Result<(), NetError> {
    if pod.address6.is_some() {
        switch("ipv6/conf/eth0/disable_ipv6", "0")?;
    }
    with(async |handle| {
        for name in ["lo", POD_LINK] {
            let index = find(&handle, name).await?;
            let index = index.ok_or_else(|| NetError::NoLink { name: name.to_owned() })?;
            if name == POD_LINK {
                add_address(&handle, name, index, pod.address.into(), pod.prefix).await?;
                if let Some((address, prefix)) = pod.address6.zip(pod.prefix6) {
                    add_address(&handle, name, index, address.into(), prefix).await?;
                }
            }
            set(&handle, name, up(index)).await?;
        }
        let route = RouteMessageBuilder::<Ipv4Addr>::new().gateway(pod.gateway).build();
        let request = handle.route().add(route).replace();
        request.execute().await.map_err(fail("route through", POD_LINK))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hardware_address_is_local_and_names_one_station() {
        let mac = mac(Ipv4Addr::new(10, 244, 0, 4));
        assert_eq!(mac, [2, 0x72, 10, 244, 0, 4]);
    }

    #[test]
    fn a_pods_link_has_a_name_that_linux_takes() {
        let name = host_link(&"1c9c8f2a-0000-4000-8000-000000000000".parse().unwrap());
        assert!(is_link_name(&name), "{name}");
        assert_ne!(name, host_link(&"1c9c8f2a-0000-4000-8000-000000000001".parse().unwrap()));
        assert!(!is_link_name("a-name-of-16-lett"));
    }
}
