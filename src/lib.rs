//! Fencing tokens, the side of the resource: a stale lock holder must not write.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod claim;
#[cfg(feature = "client")]
pub mod client;
#[cfg(any(feature = "server", feature = "client", feature = "exclusive"))]
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
