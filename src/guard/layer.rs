use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use http::HeaderName;
use http::request::Parts;
use tower_layer::Layer;

use super::admit::{Config, Gate, Options, Policy};
use super::plausible::Plausible;
use super::resolve::Resolver;
use super::respond::{Documents, Grpc};
use super::service::Fence;
use crate::marks::{Issuer, Marks};
use crate::{Problem, Resource};

/// A [`Layer`] that lets a request through only if its token is not below the mark of the
/// resource. See the [module](super).
///
/// Cloning is cheap, and clones share the marks.
#[derive(Clone)]
#[must_use = "a layer that wraps nothing fences nothing"]
pub struct FenceLayer<R = Resolver, W = Documents> {
    marks: Arc<dyn Marks>,
    grants: Grants,
    options: Options,
    resolver: R,
    refusals: PhantomData<W>,
}

/// What is known of the grants behind the tokens.
#[derive(Clone, Debug)]
struct Grants {
    issued_by: IssuedBy,
    max_jump: Option<u64>,
}

#[derive(Clone, Debug)]
enum IssuedBy {
    /// Whom the store of marks names, if it does.
    Store,
    Known(Issuer),
    Others,
}

impl Grants {
    /// The marks, behind the question whether a token can have been granted if there is one.
    fn before(&self, marks: &Arc<dyn Marks>) -> Arc<dyn Marks> {
        let issuer = match &self.issued_by {
            IssuedBy::Store => marks.issuer(),
            IssuedBy::Known(issuer) => Some(issuer.clone()),
            IssuedBy::Others => None,
        };
        if issuer.is_none() && self.max_jump.is_none() {
            return Arc::clone(marks);
        }
        Arc::new(Plausible::new(Arc::clone(marks), issuer, self.max_jump))
    }
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
            grants: Grants { issued_by: IssuedBy::Store, max_jump: None },
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
        let Self { marks, grants, options, refusals, .. } = self;
        FenceLayer { marks, grants, options, resolver, refusals }
    }
}

impl<W> FenceLayer<Resolver, W> {
    #[cfg(feature = "exclusive")]
    pub(super) fn is_report_only(&self) -> bool {
        self.options.report_only
    }

    pub(super) fn fence<S>(&self, inner: S, gate: Option<Gate>) -> Fence<S, W> {
        let config = Config {
            marks: self.grants.before(&self.marks),
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
        let Self { marks, grants, options, resolver, .. } = self;
        FenceLayer { marks, grants, options, resolver, refusals: PhantomData }
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

    /// Puts each resource into a class, for the labels of metrics: a few constants, so that no name
    /// of a resource becomes a label. Without it the class is `all`.
    ///
    /// ```
    /// use fencing::Resource;
    /// use fencing::guard::FenceLayer;
    /// use fencing::marks::MemoryMarks;
    ///
    /// let layer = FenceLayer::new(MemoryMarks::ephemeral()).class(|resource: &Resource| {
    ///     if resource.as_str().starts_with("inventory:") { "inventory" } else { "other" }
    /// });
    /// # let _ = layer;
    /// ```
    pub fn class<F>(mut self, class: F) -> Self
    where
        F: Fn(&Resource) -> &'static str + Send + Sync + 'static,
    {
        self.options.observer.class = Some(Arc::new(class));
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

    /// Accepts only tokens that `issuer` has granted: above the highest one it is 403
    /// `implausible-token`, and the mark is not raised.
    ///
    /// Without this, one huge token, by a fault or in bad faith, would put the mark out of the reach
    /// of every token to come. A store that knows who grants the tokens names it, and this need not
    /// be said: [`SeededMarks`](crate::marks::SeededMarks) do, and
    /// [`SqlMarks`](crate::sql::SqlMarks) do for the resources that have a row in the lock tables
    /// beside them.
    ///
    /// The issuer is asked once for each new token, not for each request, and of tokens below one
    /// it has granted not at all. When it does not answer, a new token is 503 `fence-unavailable`.
    ///
    /// Recovery, where a huge token got through before: raise the floor of the issuer above it
    /// (`raise_floor` of the lock's tables), so that the next grant is above it, or lower the mark
    /// by hand while nobody writes.
    pub fn issued_by(mut self, issuer: impl Into<Issuer>) -> Self {
        self.grants.issued_by = IssuedBy::Known(issuer.into());
        self
    }

    /// The tokens come from elsewhere than the store of marks believes: it is not asked which were
    /// granted. For marks beside lock tables that are no longer in use, say.
    pub fn issued_elsewhere(mut self) -> Self {
        self.grants.issued_by = IssuedBy::Others;
        self
    }

    /// Refuses a token that is further above the mark than `tokens`, with 403 `implausible-token`,
    /// where nobody can be asked [which were granted](Self::issued_by). Off unless said: the tokens
    /// of some issuers jump, as the transaction numbers of ZooKeeper do.
    ///
    /// It is counted from the mark, or from the floor where there is no mark. The first claim of a
    /// resource without a floor may have any token. A holder that comes after more grants than
    /// that, which nobody wrote under, is refused too: choose it large, a million say.
    ///
    /// **When tokens jump for a reason**, as after the floor of the issuer was raised, raise the
    /// floor of the marks first, or they are refused.
    pub fn max_jump(mut self, tokens: u64) -> Self {
        self.grants.max_jump = Some(tokens);
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
            .field("grants", &self.grants)
            .field("options", &self.options)
            .field("resolver", &self.resolver)
            .finish()
    }
}
