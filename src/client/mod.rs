//! The client of the lock endpoint.

mod acquire;
mod attach;
mod error;
mod http;
mod lease;
mod lock_client;
mod release;
mod renew;
mod timing;

pub use self::acquire::Acquire;
pub use self::attach::{AttachClaim, AttachClaimService, attach};
pub use self::error::{ClientError, ClientErrorKind};
pub use self::lease::{Lease, Lost, LostReason};
pub use self::lock_client::LockClient;
pub use self::release::ReleaseOutcome;
