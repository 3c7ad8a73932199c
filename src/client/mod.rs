//! The client of the lock endpoint: [`LockClient`] acquires a lock, [`Lease`] holds it.
//!
//! # From acquire to release
//!
//! ```
//! use std::time::Duration;
//!
//! use axum::Router;
//! use axum::body::Body;
//! use axum::routing::put;
//! use fencing::guard::FenceLayer;
//! use fencing::marks::MemoryMarks;
//! use http::{Request, StatusCode};
//! use tower::ServiceExt;
//!
//! # use fencing::testing::LockServer;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = LockServer::start().await?;
//! # let client = server.client();
//! # let stock: Router = Router::new()
//! #     .route("/items/{id}", put(|| async { StatusCode::NO_CONTENT }))
//! #     .route_layer(FenceLayer::new(std::sync::Arc::new(MemoryMarks::ephemeral()))
//! #         .resource("inventory:item:{id}"));
//! // One client for the whole program: LockClient::new("http://locks:7070")?
//! let acquire = client.acquire("inventory:item:1").owner("worker-a");
//! let Some(lease) = acquire.ttl(Duration::from_secs(10)).wait(Duration::from_secs(2)).await? else {
//!     return Ok(()); // another has held it for two seconds: an answer, not an error
//! };
//!
//! // Each request to the fenced service carries the token; the lease is asked before each.
//! let mut request = Request::put("/items/1").body(Body::from("7"))?;
//! lease.attach(&mut request)?;
//! // `stock` is any HTTP client. The work stops at its next await when the lease is lost.
//! let response = lease.run(stock.oneshot(request)).await??;
//! match response.status() {
//!     StatusCode::PRECONDITION_FAILED => lease.report_stale(), // another holds it: stop
//!     status => assert!(status.is_success()),
//! }
//!
//! // Only now, when what was written is committed, may the next one go on.
//! let outcome = lease.release().await?;
//! # assert_eq!(outcome, fencing::client::ReleaseOutcome::Released);
//! # Ok(())
//! # }
//! ```
//!
//! # Who protects what
//!
//! The lease saves work; the fence protects data. A client that is paused right after it has
//! looked at its lease writes when it wakes, and no timer of its own can stop that write, as it is
//! paused too. So what the client does is best effort throughout: it stops early, it says that the
//! lease is lost as soon as it can know, it gives back what it does not use. The guarantee is made
//! where the token is compared: [`guard`](crate::guard), [`sql`](crate::sql).
//!
//! Claim before you read: what was read before the resource has seen the token may be changed by
//! the holder before. A GET that carries the token is enough.
//!
//! # Time
//!
//! A lease never counts on more time than the server has given it. Its deadline is the TTL after
//! the last successful request was *sent*, so a slow answer makes a shorter lease and not a longer
//! one. Wall clocks play no part, on either side.
//!
//! The deadline is kept on a clock that runs on while the machine is suspended: `CLOCK_BOOTTIME`
//! on Linux and Android, `CLOCK_MONOTONIC` on macOS. On other systems the clock may stand still
//! meanwhile; then a lease may think itself held after a resume, until its next renewal. A virtual
//! machine whose host takes it off the processor, or which is restored from a snapshot, may not
//! notice on any system. The fence does not mind.
//!
//! Renewals are sent at a third of the TTL, from a task of the runtime in which the lease was
//! acquired. Code that blocks the threads of that runtime blocks the renewals: give blocking work
//! to `spawn_blocking`. Let the TTL be several times the longest pause that should not cost the
//! lease, and as short as the wait you accept after a holder has died.
//!
//! # Failure
//!
//! | what happens | what the client does |
//! |---|---|
//! | another holds the lock | waits for as long as it was told, then `Ok(None)` |
//! | no server, 5xx, 408, 429, no answer | tries again within the wait, with growing pauses and full jitter |
//! | the answer to an acquire is lost | asks again with the same owner token: the same grant |
//! | it gives up, or the future is dropped | releases in the background what may have been granted |
//! | a grant has ended when its answer comes | releases it and asks anew |
//! | a renewal fails in whatever way | tries again until the deadline |
//! | the server says the lock is not held, or held by another | the lease is lost at once |
//! | the deadline passes, in a suspend or otherwise | the lease is lost, no renewal is sent, the grant is released |
//! | a fenced service answers 412 | nothing is sent again; [`Lease::report_stale`] stops the rest |
//! | a release gets no answer | asks again: it is idempotent |
//! | a lease is dropped | renewals stop, the grant is released at best effort |
//!
//! A lost lease is never acquired again behind the caller's back: what was read under it may be
//! outdated, so the work begins anew, with a new token.
//!
//! # Other clients
//!
//! Lease and client are for the lock endpoint. Requests to the fenced service are sent with
//! whatever you use: [`attach`] and [`AttachClaim`] for anything made of [`http::Request`]; with
//! reqwest, `.header("x-fencing-token", claim.token().to_string())`. For TLS to the lock endpoint
//! bring a connector: [`LockClient::with_connector`].
//!
//! Tests of your own code find a lock server and a clock in [`testing`](crate::testing).

mod acquire;
mod attach;
mod error;
mod exchange;
mod grant;
mod lease;
mod lock_client;
mod release;
mod renew;
mod timing;

pub use self::acquire::Acquire;
pub use self::attach::{AttachClaim, AttachClaimService, attach};
pub use self::error::{ClientError, ClientErrorKind};
pub use self::grant::{Grant, RenewOutcome};
pub use self::lease::{Lease, Lost, LostReason};
pub use self::lock_client::LockClient;
pub use self::release::ReleaseOutcome;
