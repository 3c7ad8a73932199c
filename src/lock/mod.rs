//! The lock endpoint: grants leases with strictly increasing tokens.

pub mod api;
#[cfg(feature = "server")]
mod http;
#[cfg(feature = "server")]
mod keys;
#[cfg(feature = "testing")]
mod memory;
mod owner_token;
#[cfg(feature = "server")]
pub mod rules;
#[cfg(all(feature = "server", feature = "_sql"))]
mod sql;
#[cfg(feature = "server")]
mod store;
#[cfg(feature = "server")]
mod wait;

#[cfg(feature = "server")]
pub use self::http::{Endpoint, Waits};
#[cfg(feature = "server")]
pub use self::keys::{AccessKey, InvalidKeys, KeyRing, Keys, Role};
#[cfg(feature = "testing")]
pub use self::memory::MemoryLocks;
#[cfg(feature = "server")]
pub use self::owner_token::OwnerTokenHash;
pub use self::owner_token::{InvalidOwnerToken, OwnerToken};
#[cfg(all(feature = "server", feature = "_sql"))]
pub use self::sql::{LockDatabase, SqlLocks, SqlLocksError, SqlLocksErrorKind};
#[cfg(feature = "server")]
pub use self::store::{Acquired, Held, LockStore, Released, StoreError};
