use std::fmt;
use std::future::Future;
use std::sync::Arc;

use super::visit::{Overtaken, Visit};
use crate::{Resource, Token};

/// The right to be inside of a [`Gate`](super::Gate): no newer token enters while it or a clone of
/// it lives.
///
/// The layer holds one for each request, until the body of the response has ended. Work that
/// outlives the handler, in `spawn_blocking` or a spawned task, needs a clone of its own: a handler
/// takes it as an argument (with axum), or out of the extensions of the request.
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use fencing::guard::GatePermit;
/// use fencing::{Claim, Problem, ProblemKind};
///
/// async fn write(claim: Claim, permit: GatePermit, body: String) -> Result<(), Problem> {
///     let write = tokio::task::spawn_blocking(move || {
///         let _permit = permit; // until the closure has ended, whatever becomes of the handler
///         std::fs::write(std::env::temp_dir().join("report"), body)
///     });
///     match write.await {
///         Ok(Ok(())) => Ok(()),
///         _ => Err(Problem::new(ProblemKind::WRITE_FAILED).with_claim(&claim)),
///     }
/// }
/// # fn is_handler<T, H: axum::handler::Handler<T, ()>>(_: H) {}
/// # is_handler(write);
/// # }
/// ```
///
/// A clone that is kept for good keeps every newer token out for good.
#[derive(Clone)]
#[must_use = "a permit that is dropped lets newer tokens in"]
pub struct GatePermit(Arc<Visit>);

impl GatePermit {
    pub(super) fn new(visit: Arc<Visit>) -> Self {
        Self(visit)
    }

    /// What it is a permit for.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        self.0.resource()
    }

    /// The token it was given for.
    #[must_use]
    pub fn token(&self) -> Token {
        self.0.token()
    }

    /// Whether a newer token waits for this permit to be dropped. It stays so.
    ///
    /// For loops that do not await: a blocking writer looks between two chunks, and stops where
    /// what it has done so far is no harm.
    #[must_use]
    pub fn is_overtaken(&self) -> bool {
        self.0.is_overtaken()
    }

    /// Waits until a newer token waits for this permit to be dropped.
    ///
    /// # Cancellation
    ///
    /// Dropping the future has no effect.
    pub fn overtaken(&self) -> impl Future<Output = ()> + Send + '_ {
        self.watch()
    }

    pub(super) fn watch(&self) -> Overtaken {
        Overtaken::new(Arc::clone(&self.0))
    }
}

impl fmt::Debug for GatePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatePermit")
            .field("resource", &self.resource().as_str())
            .field("token", &self.token().get())
            .field("overtaken", &self.is_overtaken())
            .finish()
    }
}
