use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use http::HeaderName;
use http::request::Parts;
use tower_layer::Layer;

use super::admit::{Config, Gate, Options, Policy};
use super::resolve::Resolver;
use super::respond::{Documents, Grpc};
use super::service::Fence;
use crate::marks::Marks;
use crate::{Problem, Resource};

/// A [`Layer`] that lets a request through only if its token is not below the mark of the
/// resource. See the [module](super).
///
/// Cloning is cheap, and clones share the marks.
#[derive(Clone)]
#[must_use = "a layer that wraps nothing fences nothing"]
pub struct FenceLayer<R = Resolver, W = Documents> {
    marks: Arc<dyn Marks>,
    options: Options,
    resolver: R,
    refusals: PhantomData<W>,
}

/// In place of the [`Resolver`] of a [`FenceLayer`] that was not told yet what it protects. It is
/// no [`Layer`] until then:
///
/// ```compile_fail,E0277
/// use fencing::guard::FenceLayer;
/// use fencing::marks::MemoryMarks;
/// use tower::Layer;
///
/// let fenced = FenceLayer::new(MemoryMarks::ephemeral()).layer(());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct NoResource(());

impl FenceLayer<NoResource> {
    /// A layer over `marks`. Say next what it protects: `resource` or
    /// [`resource_with`](Self::resource_with).
    ///
    /// `Arc<dyn Marks>` is a store of marks too. Layers that protect the same resources must share
    /// one store.
    pub fn new(marks: impl Marks) -> Self {
        Self {
            marks: Arc::new(marks),
            options: Options::new(),
            resolver: NoResource(()),
            refusals: PhantomData,
        }
    }
}

impl<W> FenceLayer<NoResource, W> {
    /// Protects the resource that `template` makes of the path parameters of axum:
    /// `inventory:item:{id}` under the route `/inventory/{id}` is `inventory:item:1234` for
    /// `/inventory/1234`.
    ///
    /// Parameters are percent-decoded. What a route has as `{*rest}` is `{rest}` here. Two
    /// different sets of values never make the same name: with more than one parameter, a value
    /// that has in it the text that follows its parameter is refused with 400
    /// `invalid-resource`, and parameters must not touch (`{a}{b}`).
    ///
    /// # Errors
    ///
    /// A template that cannot be right (a brace without its partner, say) is logged as an error
    /// here and answered with 500 `misconfigured` from then on. So is, at each request, a template
    /// with a parameter that the route does not have, or has twice.
    #[cfg(feature = "axum")]
    pub fn resource(self, template: &str) -> FenceLayer<Resolver, W> {
        self.resolved_by(Resolver::template(template))
    }

    /// Protects the resource that `resolve` makes of the head of the request, for any tower
    /// service.
    ///
    /// The problem it returns is the answer to the request: `?` on
    /// [`Resource::from_path_segment`] or [`Resource::new`] gives 400 `invalid-resource`.
    /// Inside a nested axum router `parts.uri` is without the prefix.
    ///
    /// ```
    /// use fencing::guard::FenceLayer;
    /// use fencing::marks::MemoryMarks;
    /// use fencing::{Problem, ProblemKind, Resource};
    ///
    /// let layer = FenceLayer::new(MemoryMarks::ephemeral()).resource_with(
    ///     |parts: &http::request::Parts| {
    ///         let file = parts.uri.path().strip_prefix("/files/");
    ///         let file = file.ok_or(Problem::new(ProblemKind::INVALID_RESOURCE))?;
    ///         Ok(Resource::from_path_segment(file)?)
    ///     },
    /// );
    /// # let _ = layer;
    /// ```
    pub fn resource_with<F>(self, resolve: F) -> FenceLayer<Resolver, W>
    where
        F: Fn(&Parts) -> Result<Resource, Problem> + Send + Sync + 'static,
    {
        self.resolved_by(Resolver::function(resolve))
    }

    fn resolved_by(self, resolver: Resolver) -> FenceLayer<Resolver, W> {
        let Self { marks, options, refusals, .. } = self;
        FenceLayer { marks, options, resolver, refusals }
    }
}

impl<W> FenceLayer<Resolver, W> {
    #[cfg(feature = "exclusive")]
    pub(super) fn is_report_only(&self) -> bool {
        self.options.report_only
    }

    pub(super) fn fence<S>(&self, inner: S, gate: Option<Gate>) -> Fence<S, W> {
        let config = Config {
            marks: Arc::clone(&self.marks),
            options: self.options.clone(),
            resolver: self.resolver.clone(),
            gate,
        };
        Fence::new(inner, Arc::new(config))
    }
}

impl<R> FenceLayer<R> {
    /// For services whose response body cannot be made of bytes, as that of tonic's servers. Their
    /// refusals have no body: to gRPC they are a status anyway, and any other request gets the HTTP
    /// status alone. [gRPC](super#grpc) says more.
    pub fn grpc(self) -> FenceLayer<R, Grpc> {
        let Self { marks, options, resolver, .. } = self;
        FenceLayer { marks, options, resolver, refusals: PhantomData }
    }
}

impl<R, W> FenceLayer<R, W> {
    /// Reads the token from another header than `X-Fencing-Token`, and echoes it there.
    pub fn header(mut self, name: HeaderName) -> Self {
        self.options.header = name;
        self
    }

    /// Says of each request, by its head, whether it needs a token, in place of
    /// [`Policy::of_method`].
    ///
    /// ```
    /// use fencing::guard::{FenceLayer, Policy};
    /// use fencing::marks::MemoryMarks;
    /// use http::Method;
    /// use http::request::Parts;
    ///
    /// let layer = FenceLayer::new(MemoryMarks::ephemeral()).policy(|parts: &Parts| {
    ///     match (&parts.method, parts.uri.path()) {
    ///         // What is shown may be the base of a later write.
    ///         (&Method::GET, _) => Policy::Required,
    ///         (&Method::POST, path) if path.ends_with("/search") => Policy::Optional,
    ///         (method, _) => Policy::of_method(method),
    ///     }
    /// });
    /// # let _ = layer;
    /// ```
    pub fn policy<F>(mut self, policy: F) -> Self
    where
        F: Fn(&Parts) -> Policy + Send + Sync + 'static,
    {
        self.options.policy = Some(Arc::new(policy));
        self
    }

    /// Leaves the decision to the handler, which claims in the transaction of its write: level
    /// *transaction* with one check of the database for each request instead of two.
    ///
    /// The layer reads the token and names the resource as ever, and turns away at once what the
    /// store has reason to at hand: give it [`CachedMarks`](crate::marks::CachedMarks). The
    /// handler gets the claim unspent, and
    ///
    /// - **commits it before it answers with success.** A response other than 4xx and 5xx while
    ///   nothing was committed under the claim, because the transaction was forgotten, rolled back
    ///   or is still open, is a lie: it is replaced by 500 `misconfigured`, and nothing of it goes
    ///   out.
    /// - answers with an error whatever it likes to.
    ///
    /// The response has the token header only if the claim was committed.
    ///
    /// **Reads.** A safe method with a token is claimed by the layer before the handler is called,
    /// as without `deferred`: afterwards would be too late, as an older holder could write
    /// meanwhile. The handler need not claim again; if it does, the claim is a plain look at the
    /// mark.
    ///
    /// Claims and transactions have to use the same marks, those of the database.
    ///
    /// ```
    /// # #[cfg(all(feature = "axum", feature = "sqlite"))]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use axum::Router;
    /// use axum::extract::State;
    /// use axum::routing::put;
    /// use fencing::Claim;
    /// use fencing::guard::FenceLayer;
    /// use fencing::marks::CachedMarks;
    /// use fencing::sql::{FenceError, FencedTx, SqlMarks};
    /// use sqlx::SqlitePool;
    ///
    /// async fn set(claim: Claim, State(pool): State<SqlitePool>) -> Result<(), FenceError> {
    ///     let mut tx = FencedTx::begin(&pool, &claim).await?;
    ///     sqlx::query("UPDATE inventory SET quantity = 7").execute(&mut *tx).await?;
    ///     tx.commit().await
    /// }
    ///
    /// # let pool = sqlx::sqlite::SqlitePoolOptions::new()
    /// #     .max_connections(1)
    /// #     .connect("sqlite::memory:")
    /// #     .await?;
    /// # fencing::sql::migrate(&pool).await?;
    /// # sqlx::raw_sql("CREATE TABLE inventory (id INTEGER PRIMARY KEY, quantity INTEGER)")
    /// #     .execute(&pool).await?;
    /// let marks = CachedMarks::new(SqlMarks::new(pool.clone()));
    /// let app = Router::new()
    ///     .route("/inventory/{id}", put(set))
    ///     .route_layer(FenceLayer::new(marks).resource("inventory:item:{id}").deferred())
    ///     .with_state(pool);
    /// # use tower::ServiceExt;
    /// # let set = |token: &str| {
    /// #     let request = http::Request::put("/inventory/1").header("x-fencing-token", token);
    /// #     app.clone().oneshot(request.body(axum::body::Body::empty()).unwrap())
    /// # };
    /// # let response = set("34").await?;
    /// # assert_eq!(response.status(), 200);
    /// # assert_eq!(response.headers()["x-fencing-token"], "34");
    /// # assert_eq!(set("33").await?.status(), 412);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(all(feature = "axum", feature = "sqlite")))]
    /// # fn main() {}
    /// ```
    pub fn deferred(mut self) -> Self {
        self.options.deferred = true;
        self
    }

    /// Whether the layer only tells what it would refuse, and lets it pass: for roll-out.
    ///
    /// Each is an event `request would be refused` with the fields of a refusal. Marks are raised
    /// as ever, so what is told is what would happen. A request whose token cannot be read, or is
    /// missing, passes without a claim, one that is stale passes with it: a
    /// [`FencedTx`](crate::sql) behind the layer still refuses it.
    pub fn report_only(mut self, report_only: bool) -> Self {
        self.options.report_only = report_only;
        self
    }

    /// Whether the answer to a stale token keeps the mark to itself, where callers may not learn
    /// the tokens of others. The log still has it.
    pub fn hide_last_token(mut self, hide: bool) -> Self {
        self.options.hide_last_token = hide;
        self
    }
}

impl<S, W> Layer<S> for FenceLayer<Resolver, W> {
    type Service = Fence<S, W>;

    fn layer(&self, inner: S) -> Fence<S, W> {
        self.fence(inner, None)
    }
}

impl<R: fmt::Debug, W> fmt::Debug for FenceLayer<R, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceLayer")
            .field("marks", &self.marks)
            .field("options", &self.options)
            .field("resolver", &self.resolver)
            .finish()
    }
}
