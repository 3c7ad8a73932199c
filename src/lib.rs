//! Fencing tokens, the side of the resource: a client that lost its lock must not write.
//!
//! A client that holds a lock is paused (garbage collection, a suspended machine, a slow network),
//! its lease ends, another client gets the lock and writes, and the first wakes up and overwrites
//! that. No TTL can stop it. Only the resource can refuse, by a number that grows with every
//! holder: the fencing token.
//!
//! # The parts
//!
//! | part | what it does | feature |
//! |---|---|---|
//! | [`guard`] | tower layer: rejects requests whose `X-Fencing-Token` is below the last accepted one | none; `axum` for templates and extractors |
//! | [`marks`] | where the last accepted tokens are kept | none |
//! | `sql` | puts the check and the protected write into one atomic unit | `sqlite`, `postgres`, `mysql` |
//! | `lock` | the HTTP endpoint that grants leases with strictly increasing tokens | `server` |
//! | `client` | acquires leases, renews them, reports their loss | `client` |
//! | `testing` | an in-memory lock server and a clock for your own tests | `testing` |
//!
//! # Which part is the guarantee
//!
//! A check followed by a write is a race: token 33 passes the check, is paused, 34 writes, and 33
//! wakes up and writes. So the layer alone is an early rejection. What holds for any number of
//! replicas is `sql::FencedTx`: the mark and the write in one transaction. The layer in front of it
//! refuses early, and says so in HTTP.
//!
//! ```
//! use fencing::guard::FenceLayer;
//! use fencing::marks::MemoryMarks;
//! use fencing::{Problem, Resource};
//! use http::{Request, Response, request::Parts};
//! use tower::{Layer, ServiceExt, service_fn};
//! # use std::convert::Infallible;
//! # use bytes::Bytes;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Any tower service. Here the resource is the path; with axum, a template names it.
//! let service = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Bytes::new())));
//! let fence = FenceLayer::new(MemoryMarks::ephemeral())
//!     .resource_with(|parts: &Parts| Ok::<_, Problem>(Resource::new(parts.uri.path())?));
//! let service = fence.layer(service);
//!
//! let write = |token: &str| Request::put("/report").header("X-Fencing-Token", token).body(());
//! let status = async |token: &str| {
//!     let response = service.clone().oneshot(write(token)?).await?;
//!     Ok::<_, Box<dyn std::error::Error>>(response.status().as_u16())
//! };
//! assert_eq!(status("34").await?, 200);
//! assert_eq!(status("33").await?, 412); // the zombie
//! assert_eq!(status("34").await?, 200); // one lease covers many writes
//! # Ok(())
//! # }
//! ```
//!
//! # Words
//!
//! A **resource** is the name of what is protected and of its lock. A **token** grows with every
//! **grant** of it. A **claim** is what a writer asserts, (resource, token); to claim is to raise
//! the **mark**, the highest token the resource has accepted. The **verdict** on a claim is accepted
//! or stale. A **lease** is the client's live handle on its grant.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod claim;
#[cfg(feature = "client")]
pub mod client;
pub mod clock;
pub mod guard;
#[cfg(any(feature = "server", feature = "client"))]
pub mod lock;
pub mod marks;
mod problem;
mod resource;
#[cfg(feature = "_sql")]
pub mod sql;
#[cfg(feature = "testing")]
pub mod testing;
mod token;

pub use self::claim::{Claim, ClaimState, Verdict};
pub use self::problem::{Problem, ProblemKind};
pub use self::resource::{InvalidResource, Resource};
pub use self::token::{InvalidToken, Token};

/// The examples of the README, compiled.
#[cfg(all(doctest, feature = "full"))]
#[doc = include_str!("../README.md")]
struct Readme;
