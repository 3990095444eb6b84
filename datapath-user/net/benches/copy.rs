//! Passing a message on between two connections: splice(2) as the node and the hub use it, against copies through user
//! space, and against one connection without anybody between. Per message: written whole, passed on, read whole.
//!
//!     cargo bench -p datapath-net
#![expect(clippy::expect_used, reason = "a bench without its sockets cannot go on")]

use std::{
    future::Future,
    io::{self, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    thread,
};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use datapath_net::splice::{self, Meter};
use tokio::io::copy_bidirectional_with_sizes;

const SIZES: [usize; 6] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// What the application writes at once.
const PIECE: usize = 64 << 10;
/// What it leaves unread at most: sockets hold it whatever is between them, so that one thread can do both.
const UNREAD: usize = 2 * PIECE;

fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    for s in [&one, &other] {
        s.set_nodelay(true)?;
    }
    Ok((one, other))
}

/// Both ends of a path whose middle `between` passes on, on a thread of its own until both ends are closed.
fn path<F>(between: fn(tokio::net::TcpStream, tokio::net::TcpStream) -> F) -> (TcpStream, TcpStream)
where
    F: Future<Output = ()> + 'static,
{
    let ((left, a), (b, right)) = (pair().expect("sockets"), pair().expect("sockets"));
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let [a, b] = [a, b].map(|s| {
                s.set_nonblocking(true).expect("a socket");
                tokio::net::TcpStream::from_std(s).expect("a socket")
            });
            between(a, b).await;
        });
    });
    (left, right)
}

/// One bench per size of a message, over the two ends of a path.
fn messages(c: &mut Criterion, name: &str, path: impl Fn() -> (TcpStream, TcpStream)) {
    let mut group = c.benchmark_group(name);
    for len in SIZES {
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(BenchmarkId::from_parameter(len), |b| {
            let (mut left, mut right) = path();
            let (out, mut back) = (vec![7; PIECE], vec![0; PIECE]);
            // The kernel sizes the sockets' buffers by what it has seen; the warm-up shows it.
            b.iter(|| {
                let (mut written, mut read) = (0, 0);
                while read < len {
                    if written < len && written - read < UNREAD {
                        let n = PIECE.min(len - written);
                        written += left.write(out.get(..n).unwrap_or(&out)).expect("the path");
                    } else {
                        read += right.read(&mut back).expect("the path");
                    }
                }
            });
        });
    }
    group.finish();
}

async fn spliced(a: tokio::net::TcpStream, b: tokio::net::TcpStream) {
    let _ended_by_the_applications = splice::join(a, b, &Meter::default()).await;
}

async fn copied<const BUFFER: usize>(mut a: tokio::net::TcpStream, mut b: tokio::net::TcpStream) {
    let _ended = copy_bidirectional_with_sizes(&mut a, &mut b, BUFFER, BUFFER).await;
}

fn passing_on(c: &mut Criterion) {
    messages(c, "nobody between", || pair().expect("sockets"));
    messages(c, "splice", || path(spliced));
    // The size that `tokio::io::copy_bidirectional` takes.
    messages(c, "copy 8 KiB", || path(copied::<8192>));
    messages(c, "copy 64 KiB", || path(copied::<65_536>));
    messages(c, "copy 256 KiB", || path(copied::<262_144>));
}

criterion_group!(benches, passing_on);
criterion_main!(benches);
