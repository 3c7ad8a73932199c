use tower_layer::Layer;

use super::{Exclusive, Gate};
use crate::guard::{Documents, Fence, FenceLayer, Resolver};

/// A [`FenceLayer`] with a [`Gate`] behind it: level *exclusive*. Made by
/// [`FenceLayer::exclusive`].
///
/// Cloning is cheap, and clones share marks and gate.
#[derive(Clone, Debug)]
#[must_use = "a layer that wraps nothing fences nothing"]
pub struct ExclusiveLayer<W = Documents> {
    fence: FenceLayer<Resolver, W>,
    gate: Gate,
}

impl<W> FenceLayer<Resolver, W> {
    /// Has requests wait at `gate` until those of older tokens have left: level *exclusive*, for
    /// what this process alone owns, as files or a device. [`Gate`] says what has to hold.
    ///
    /// Say it last. Layers over the same resources must share the gate as they share the marks.
    ///
    /// A [deferred](FenceLayer::deferred) layer is not deferred at this level: only who has raised
    /// the mark gets a turn. One that [only reports](FenceLayer::report_only) tells who would wait,
    /// and lets it in.
    ///
    /// The body of a response is wrapped in a [`PermitBody`](super::PermitBody).
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::{Router, routing::put};
    /// use fencing::Claim;
    /// use fencing::guard::{FenceLayer, Gate};
    /// use fencing::marks::MemoryMarks;
    ///
    /// async fn write(claim: Claim, body: String) { /* nobody of an older token is at it */ }
    ///
    /// let marks = MemoryMarks::ephemeral();
    /// let app: Router = Router::new()
    ///     .route("/reports/{name}", put(write))
    ///     .route_layer(FenceLayer::new(marks).resource("report:{name}").exclusive(Gate::new()));
    /// # }
    /// ```
    pub fn exclusive(self, gate: Gate) -> ExclusiveLayer<W> {
        ExclusiveLayer { fence: self, gate }
    }
}

impl<S, W> Layer<S> for ExclusiveLayer<W> {
    type Service = Fence<Exclusive<S, W>, W>;

    fn layer(&self, inner: S) -> Self::Service {
        let gate = Gate { report_only: self.fence.is_report_only(), ..self.gate.clone() };
        let inner = Exclusive::new(inner, gate.cancel_older && !gate.report_only);
        self.fence.fence(inner, Some(gate))
    }
}
