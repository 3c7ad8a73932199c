//! The guard: a tower layer that turns stale holders away at the door.

mod admit;
#[cfg(feature = "axum")]
mod extract;
mod future;
mod layer;
mod refuse;
mod resolve;
mod service;
#[cfg(feature = "axum")]
mod template;

use http::HeaderName;

pub use self::future::ResponseFuture;
pub use self::layer::{FenceLayer, NoResource};
pub use self::resolve::Resolver;
pub use self::service::Fence;

/// The header that carries the fencing token, unless the layer is told another name.
#[allow(clippy::declare_interior_mutable_const, reason = "as the constants of `http::header` are")]
pub const X_FENCING_TOKEN: HeaderName = HeaderName::from_static("x-fencing-token");
