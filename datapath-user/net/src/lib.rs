//! Network mechanism of the data path, without policy: namespaces, links and routes, sockets made inside a
//! namespace, and splice(2) between two connections.
//!
//! * [`netns`]: open, make and enter network namespaces; the cookie that identifies one.
//! * [`cgroup`]: which cgroup a directory is, and who listens in it.
//! * [`address_watch`]: tells when the machine's own addresses or default routes change.
//! * [`netlink`]: links, addresses and routes of one namespace, synchronous.
//! * [`vip`]: the interface that owns a pod's virtual address, and the local route of its Domain.
//! * [`site`]: bridge, veth pairs and NAT for tasks that get their network from us.
//! * [`sockets`]: the relay's listeners and delivery connections.
//! * [`splice`]: a pair of connections, copied by the kernel.
//! * [`stock`]: delivery sockets made ahead.
//! * [`diag`]: what the kernel knows of the TCP connections of a namespace.
//! * [`echo`]: an echo request from inside one.
//! * [`pace`]: words in the log for what others can cause as often as they like.
//! * [`packet`]: IP packets in and out of a namespace.
//! * [`path`]: congestion control and buffers that suit the path of a connection.
//! * [`procfs`]: who listens in a namespace.
//! * [`bound`]: the same with what identifies each socket, and when they end.
//!
//! Nothing here spawns tasks or owns a runtime. Root is needed for all but `splice` and most of `sockets`.

pub mod address_watch;
pub mod bound;
pub mod cgroup;
pub mod diag;
pub mod echo;
pub mod netlink;
pub mod netns;
pub mod pace;
pub mod packet;
pub mod path;
pub mod procfs;
pub mod ready;
pub mod site;
pub mod sockets;
pub mod splice;
pub mod stock;
pub mod thread;
pub mod vip;
