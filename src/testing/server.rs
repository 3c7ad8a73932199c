use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::ManualClock;
use crate::client::{ClientError, LockClient};
use crate::lock::{Endpoint, MemoryLocks, Waits};

/// A lock endpoint for tests: the real one, over locks in memory, on a port of the loopback
/// interface, with a clock that stands still until the test moves it.
///
/// Server and [client](Self::client) share the [clock](Self::clock), so leases neither renew
/// themselves nor expire behind the back of a test. A *zombie*, who is paused past its TTL and
/// does not know, is made by [`ManualClock::suspend`]:
///
/// ```
/// use std::time::Duration;
///
/// use fencing::marks::MemoryMarks;
/// use fencing::testing::LockServer;
/// use fencing::Verdict;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = LockServer::start().await?;
/// let (a, b) = (server.client(), server.client());
/// let marks = MemoryMarks::ephemeral();
///
/// let zombie = a.acquire("report").ttl(Duration::from_secs(10)).await?.expect("it is free");
/// assert!(b.acquire("report").await?.is_none());
/// assert_eq!(marks.decide(zombie.claim()), Verdict::Accepted);
///
/// server.clock().suspend(Duration::from_secs(10)); // A is paused, and the TTL passes
/// let holder = b.acquire("report").await?.expect("it has expired");
/// assert_eq!(marks.decide(holder.claim()), Verdict::Accepted);
///
/// // A wakes up and writes: the fence refuses it. The lease knows, too.
/// assert_eq!(marks.decide(zombie.claim()), Verdict::Stale { last_token: holder.token() });
/// assert!(!zombie.is_held());
/// # Ok(())
/// # }
/// ```
///
/// When it is dropped it shuts down, and clients cannot reach it any more.
pub struct LockServer {
    address: SocketAddr,
    clock: ManualClock,
    waits: Waits,
    /// The server shuts down when this goes away.
    _running: oneshot::Sender<()>,
}

impl LockServer {
    /// Starts one. No lock is held, and tokens begin at 1.
    ///
    /// # Errors
    ///
    /// When no port can be had.
    pub async fn start() -> io::Result<Self> {
        let clock = ManualClock::new();
        let locks = MemoryLocks::with_clock(Arc::new(clock.clone()));
        let endpoint = Endpoint::new(locks).with_clock(Arc::new(clock.clone()));
        let waits = endpoint.waits();
        let app = Router::new().nest("/locks", endpoint.router());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (running, stopped) = oneshot::channel::<()>();
        let stopped = async {
            // Nothing is ever sent.
            let _ = stopped.await;
        };
        tokio::spawn(
            async move { axum::serve(listener, app).with_graceful_shutdown(stopped).await },
        );
        Ok(Self { address, clock, waits, _running: running })
    }

    /// The clock of the server and its clients.
    #[must_use]
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// The URL for a [`LockClient`].
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A new client, on the same clock.
    ///
    /// # Panics
    ///
    /// Never: the URL is a good one.
    #[must_use]
    pub fn client(&self) -> LockClient {
        let client: Result<LockClient, ClientError> = LockClient::new(&self.url());
        #[allow(clippy::expect_used, reason = "an address and a port always make a URL")]
        client.expect("a URL").with_clock(Arc::new(self.clock.clone()))
    }
}

impl Drop for LockServer {
    fn drop(&mut self) {
        self.waits.end();
    }
}

impl fmt::Debug for LockServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockServer").field("url", &self.url()).finish_non_exhaustive()
    }
}
