//! Interfaces and addresses by rtnetlink(7): the site's bridge, and a pod's link to it.

use std::{
    fs::File,
    net::{IpAddr, Ipv4Addr},
    os::fd::AsRawFd as _,
    path::Path,
};

use futures::{
    TryStreamExt as _,
    future::{Either, select},
    pin_mut,
};
use rtnetlink::{
    Error, Handle, LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder,
    packet_route::link::{InfoData, InfoVeth, LinkMessage},
};

use super::{address::PodNetwork, error::NetError, layout::PodRecord, netns};
use crate::spec::PodUid;

/// The pod's end.
const POD_LINK: &str = "eth0";

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
            Err(NetError::Socket(std::io::Error::other("the kernel closed the connection")))
        }
    }
}

async fn find(handle: &Handle, name: &str) -> Result<Option<u32>, NetError> {
    let answer = handle.link().get().match_name(name.to_owned()).execute().try_next().await;
    match answer {
        Ok(link) => Ok(link.map(|l: LinkMessage| l.header.index)),
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
                let request = handle.link().add(LinkBridge::new(name).build());
                request.execute().await.map_err(fail("create", name))?;
                let index = find(&handle, name).await?;
                index.ok_or_else(|| NetError::NoLink { name: name.to_owned() })?
            }
        };
        add_address(&handle, name, index, net.gateway(), net.prefix()).await?;
        set(&handle, name, up(index)).await
    })
    .await
}

async fn add_address(
    handle: &Handle,
    name: &str,
    index: u32,
    address: Ipv4Addr,
    prefix: u8,
) -> Result<(), NetError> {
    let request = handle.address().add(index, IpAddr::V4(address), prefix).replace();
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
pub(crate) async fn connect_pod(record: &PodRecord, bridge: &str) -> Result<(), NetError> {
    let host = host_link(&record.spec.uid);
    with(async |handle| {
        let master = find(&handle, bridge).await?;
        let master = master.ok_or_else(|| NetError::NoLink { name: bridge.to_owned() })?;
        if find(&handle, &host).await?.is_none() {
            create_pair(&handle, &host, &record.netns).await?;
        }
        let index = find(&handle, &host).await?;
        let index = index.ok_or_else(|| NetError::NoLink { name: host.clone() })?;
        let change = LinkUnspec::new_with_index(index);
        set(&handle, &host, change.controller(master).up().build()).await
    })
    .await?;
    let (address, prefix, gateway) = (record.address, record.prefix, record.gateway);
    netns::inside(record.netns.clone(), move || configure(address, prefix, gateway)).await
}

/// The far end is born inside the pod's namespace, under its final name: nothing has to be renamed
/// or moved, and a crash in between leaves one end only to clean.
async fn create_pair(handle: &Handle, host: &str, namespace: &Path) -> Result<(), NetError> {
    let open = File::open(namespace).map_err(|source| NetError::Namespace {
        what: "open",
        path: namespace.to_owned(),
        source,
    })?;
    let far = LinkMessageBuilder::<LinkUnspec>::new()
        .name(POD_LINK)
        .setns_by_fd(open.as_raw_fd())
        .build();
    let pair = LinkVeth::new(host, POD_LINK).set_info_data(InfoData::Veth(InfoVeth::Peer(far)));
    handle.link().add(pair.build()).execute().await.map_err(fail("create", host))
}

async fn configure(address: Ipv4Addr, prefix: u8, gateway: Ipv4Addr) -> Result<(), NetError> {
    with(async |handle| {
        for name in ["lo", POD_LINK] {
            let index = find(&handle, name).await?;
            let index = index.ok_or_else(|| NetError::NoLink { name: name.to_owned() })?;
            if name == POD_LINK {
                add_address(&handle, name, index, address, prefix).await?;
            }
            set(&handle, name, up(index)).await?;
        }
        let route = RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway).build();
        let request = handle.route().add(route).replace();
        request.execute().await.map_err(fail("route through", POD_LINK))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_link_has_a_name_that_linux_takes() {
        let name = host_link(&"1c9c8f2a-0000-4000-8000-000000000000".parse().unwrap());
        assert!(is_link_name(&name), "{name}");
        assert_ne!(name, host_link(&"1c9c8f2a-0000-4000-8000-000000000001".parse().unwrap()));
        assert!(!is_link_name("a-name-of-16-lett"));
    }
}
