//! Level *exclusive*: nobody of an older token is inside any more when a newer one enters.

mod body;
mod enter;
#[cfg(feature = "axum")]
mod extract;
mod layer;
mod permit;
mod service;
mod state;
mod sync;
mod visit;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::body::{OvertakenError, PermitBody};
pub use self::layer::ExclusiveLayer;
pub use self::permit::GatePermit;
pub use self::service::{Exclusive, ExclusiveFuture};
use self::visit::Shared;
use crate::clock::{Clock, SystemClock};

/// The gate of level *exclusive*: requests with the same token run together; a newer token waits
/// until those of older ones have left.
///
/// A check of the mark followed by a write is a race: 33 passes the check, sleeps, 34 passes the
/// check and writes, 33 wakes and writes. Behind a gate 34 does not pass while 33 is still inside.
/// Give it to [`FenceLayer::exclusive`](super::FenceLayer::exclusive), or, where no HTTP request
/// brings the claim, [`enter`](Self::enter) it.
///
/// # How a newer token comes in
///
/// 1. Its claim raises the mark. From here on the store of marks refuses newcomers of older
///    tokens.
/// 2. It asks for its turn. Older claims that were accepted before, and wait for theirs or come
///    late from the store, are stale from here on: 412 `stale-token`.
/// 3. It waits until all [permits](GatePermit) of older tokens are gone, for the
///    [drain timeout](Self::drain_timeout) at most: 503 `contended` then, and nothing was done.
/// 4. It enters. Others of the same token come in beside it.
///
/// Resources do not wait for each other. One that nobody visits takes no memory here; what must
/// not be forgotten is in the marks.
///
/// # What has to hold
///
/// **One process owns the resource, and every way to it leads through this gate.** The gate is in
/// the memory of this process. During a rolling deploy there are two processes, and neither sees
/// who is inside the other: let the new one take a lock of the operating system on the resource
/// (`std::fs::File::lock`) before it serves, as `examples/report_file` does. Layers over the same
/// resources share the gate (clones are the same gate) and the store of marks.
///
/// **The marks outlive a restart as far as the protected data does.** Marks in memory are
/// forgotten by a restart: seed them, or keep them with the data.
///
/// **Work does not outlive its permit.** A permit is held until the body of the response has ended
/// or is dropped. The future of a handler is dropped when its client hangs up, but a closure in
/// `spawn_blocking`, a spawned task or an upgraded connection goes on: give it a clone of the
/// permit.
///
/// Requests with a safe method that carry no token pass without a permit: they may read while a
/// holder writes.
///
/// A client that stops reading a long response holds its permit until its connection is closed,
/// and newer tokens are answered `contended` for as long: put a time limit on sending.
#[derive(Clone)]
pub struct Gate {
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
    drain_timeout: Duration,
    cancel_older: bool,
    /// Of a layer that only reports: nobody waits, and nobody is cancelled.
    report_only: bool,
}

impl Gate {
    /// How long a newer token waits for older ones to leave, unless told otherwise.
    pub const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

    /// A gate with nobody inside. Waiting needs a tokio runtime with time enabled.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(SystemClock)
    }

    /// A gate that times its waiting by another clock.
    #[must_use]
    pub fn with_clock(clock: impl Clock) -> Self {
        Self {
            shared: Arc::default(),
            clock: Arc::new(clock),
            drain_timeout: Self::DEFAULT_DRAIN_TIMEOUT,
            cancel_older: false,
            report_only: false,
        }
    }

    /// How long a newer token waits for older ones to leave.
    #[must_use]
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Whether [`FenceLayer::exclusive`](super::FenceLayer::exclusive) cancels the requests of
    /// older tokens when a newer one waits, instead of only waiting for them.
    ///
    /// A cancelled handler's future is dropped where it awaits. Nobody can say how far it came, so
    /// its caller is answered 500 `outcome-unknown`; a response that is being sent is cut off by an
    /// error. Whatever holds a clone of the permit is not cancelled, and is still waited for.
    ///
    /// A handler can also look out itself, by [`GatePermit::overtaken`], and stop where it is safe.
    #[must_use]
    pub fn cancel_older(mut self, cancel: bool) -> Self {
        self.cancel_older = cancel;
        self
    }

    /// How many resources are visited at the moment: somebody is inside, waits, or has its mark
    /// checked.
    #[must_use]
    pub fn visited(&self) -> usize {
        self.shared.rooms()
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("visited", &self.visited())
            .field("drain_timeout", &self.drain_timeout)
            .field("cancel_older", &self.cancel_older)
            .finish_non_exhaustive()
    }
}
