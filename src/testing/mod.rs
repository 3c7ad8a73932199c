//! For tests of programs that use this crate: a lock server in memory, a clock under the test's
//! control, claims out of nothing.
//!
//! ```
//! use std::time::Duration;
//!
//! use fencing::client::LockClient;
//! use fencing::testing::LockServer;
//!
//! /// What is to be tested: does its work under a lease, unless another does.
//! async fn nightly_batch(client: &LockClient, work: impl Future) -> &'static str {
//!     match client.acquire("nightly-batch").ttl(Duration::from_secs(30)).await {
//!         Ok(Some(lease)) => match lease.run(work).await {
//!             Ok(_) => match lease.release().await {
//!                 Ok(_) => "done",
//!                 Err(_) => "done, to be released by the TTL",
//!             },
//!             Err(_) => "lost the lease",
//!         },
//!         Ok(None) => "another does it",
//!         Err(_) => "no lock service",
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = LockServer::start().await?;
//! let (client, clock) = (server.client(), server.clock());
//! assert_eq!(nightly_batch(&client, async {}).await, "done");
//!
//! // The machine is suspended for a minute in the middle of the work.
//! let work = async {
//!     clock.suspend(Duration::from_secs(60));
//!     tokio::task::yield_now().await;
//!     unreachable!("the work goes on without a lease");
//! };
//! assert_eq!(nightly_batch(&client, work).await, "lost the lease");
//! # Ok(())
//! # }
//! ```
//!
//! Marks that are forgotten with the test are [`MemoryMarks`](crate::marks::MemoryMarks).

mod clock;
mod server;

pub use self::clock::ManualClock;
pub use self::server::LockServer;
use crate::{Claim, Resource, Token};

/// A claim out of nothing, for unit tests.
///
/// ```
/// use fencing::testing::claim;
///
/// assert_eq!(claim("inventory:item:1", 34).token().get(), 34);
/// ```
///
/// # Panics
///
/// When either is invalid.
#[must_use]
#[track_caller]
pub fn claim(resource: &str, token: i64) -> Claim {
    #[allow(clippy::panic, reason = "a test helper: the panic is how the test fails")]
    match (Resource::new(resource), Token::new(token)) {
        (Ok(resource), Ok(token)) => Claim::new(resource, token),
        (Err(error), _) => panic!("{error}, resource=`{resource}`"),
        (_, Err(error)) => panic!("{error}, token=`{token}`"),
    }
}
