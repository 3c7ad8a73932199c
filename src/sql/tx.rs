use std::fmt;
use std::ops::{Deref, DerefMut};
use std::slice;

use futures_core::future::BoxFuture;
use sqlx::Pool;

use super::FenceError;
use super::FenceOptions;
use super::Isolation;
use super::Policy;
use super::backend::{FencedDatabase, NotCommitted, Route};
use super::checkout::Checkout;
use super::error::Step;
use super::retry::Retry;
use crate::{Claim, ClaimState, Verdict};

/// A transaction that has claimed: the mark is raised and locked, so until it ends nobody with a
/// lower token writes, and nobody with a higher one has.
///
/// It derefs to the connection, so `query.execute(&mut *tx)` works as with sqlx's own, and so do
/// savepoints. [`commit`](Self::commit) is explicit: dropped, everything is rolled back, the mark
/// too.
///
/// ```
/// use fencing::sql::FencedTx;
/// use fencing::{Claim, Resource, Token};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let pool = sqlx::sqlite::SqlitePoolOptions::new()
/// #     .max_connections(1)
/// #     .connect("sqlite::memory:")
/// #     .await?;
/// # fencing::sql::migrate(&pool).await?;
/// # sqlx::raw_sql("CREATE TABLE inventory (id INTEGER PRIMARY KEY, quantity INTEGER);
/// #     INSERT INTO inventory VALUES (1, 10)").execute(&pool).await?;
/// let claim = Claim::new(Resource::new("inventory:item:1")?, Token::new(34)?);
///
/// let mut tx = FencedTx::begin(&pool, &claim).await?;
/// sqlx::query("UPDATE inventory SET quantity = ?1 WHERE id = ?2")
///     .bind(7)
///     .bind(1)
///     .execute(&mut *tx)
///     .await?;
/// tx.commit().await?;
///
/// let zombie = Claim::new(claim.resource().clone(), Token::new(33)?);
/// let refused = FencedTx::begin(&pool, &zombie).await.unwrap_err();
/// assert!(refused.is_stale());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// The claim is the first statement, at READ COMMITTED (SQLite: `BEGIN IMMEDIATE`), so what is
/// read after it has every committed write of earlier holders in it.
///
/// # When the transaction dies
///
/// A database may end a transaction by itself, on a deadlock or an I/O error, and an error of a
/// statement that nobody looks at can leave one that cannot commit. A `FencedTx` notices: nothing
/// is written unfenced after it, and [`commit`](Self::commit) is never `Ok` when nothing was
/// committed. On SQLite it uses the commit and the rollback hook of the connection for that, in
/// place of the application's own.
///
/// # Cancellation
///
/// Every method may be cancelled and the value dropped at any await. Before the commit was sent
/// nothing is applied; after that it may or may not have been, and the state of the claim is
/// [`Unknown`](ClaimState::Unknown). On SQLite and PostgreSQL a dropped transaction is rolled back
/// in a task of the tokio runtime before the pool gets the connection; on MySQL and MariaDB, and
/// where there is no runtime, the connection is closed, and the data of an in-memory database of
/// SQLite goes with it. To keep it, [`rollback`](Self::rollback).
pub struct FencedTx<DB: FencedDatabase> {
    checkout: Checkout<DB>,
    claims: Claims,
}

impl<DB: FencedDatabase> FencedTx<DB> {
    /// Begins a transaction and claims in it.
    ///
    /// A deadlock or a serialization failure is tried again a few times, with backoff.
    ///
    /// # Errors
    ///
    /// [`FenceError`] of any kind but `Statement` and `OutcomeUnknown`; nothing was applied.
    pub async fn begin(pool: &Pool<DB>, claim: &Claim) -> Result<Self, FenceError> {
        FenceOptions::new().begin(pool, claim).await
    }

    /// Begins a transaction under several claims, all or none. They are taken one by one in the
    /// byte order of their resources, so two such transactions do not deadlock; the first stale
    /// one in that order is reported.
    ///
    /// # Errors
    ///
    /// As for [`begin`](Self::begin); `Misconfigured` without any claim, and when two claims on
    /// one resource have different tokens.
    pub async fn begin_all(pool: &Pool<DB>, claims: &[Claim]) -> Result<Self, FenceError> {
        FenceOptions::new().begin_all(pool, claims).await
    }

    /// Runs `work` in a fenced transaction and commits; when others are in the way, all of it
    /// again, a bounded number of times with exponential backoff and full jitter.
    ///
    /// `work` is run once or several times, of which at most one is committed. What it does
    /// outside of the transaction is not rolled back.
    ///
    /// ```
    /// use fencing::sql::FencedTx;
    /// # use fencing::{Claim, Resource, Token};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// # let pool = sqlx::sqlite::SqlitePoolOptions::new()
    /// #     .max_connections(1)
    /// #     .connect("sqlite::memory:")
    /// #     .await?;
    /// # fencing::sql::migrate(&pool).await?;
    /// # sqlx::raw_sql("CREATE TABLE inventory (id INTEGER PRIMARY KEY, quantity INTEGER);
    /// #     INSERT INTO inventory VALUES (1, 10)").execute(&pool).await?;
    /// # let claim = Claim::new(Resource::new("inventory:item:1")?, Token::new(34)?);
    /// let left: i64 = FencedTx::run(&pool, &claim, |tx| {
    ///     Box::pin(async move {
    ///         let take = "UPDATE inventory SET quantity = quantity - 1 RETURNING quantity";
    ///         Ok(sqlx::query_scalar(take).fetch_one(&mut **tx).await?)
    ///     })
    /// })
    /// .await?;
    /// assert_eq!(left, 9);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// What `work` returned, after a rollback; [`FenceError::other`] makes an error of one's own.
    /// `Contended` when the tries ran out, never `Stale` for that. `OutcomeUnknown` when the
    /// answer to the commit was lost: that is not tried again.
    pub async fn run<T, F>(pool: &Pool<DB>, claim: &Claim, work: F) -> Result<T, FenceError>
    where
        T: Send,
        F: for<'a> FnMut(&'a mut Self) -> BoxFuture<'a, Result<T, FenceError>> + Send,
    {
        FenceOptions::new().run(pool, claim, work).await
    }

    /// The claims it was begun under, in the byte order of their resources.
    #[must_use]
    pub fn claims(&self) -> &[Claim] {
        &self.claims.all
    }

    /// Commits the writes and the mark.
    ///
    /// # Errors
    ///
    /// - `Contended`: the database had ended the transaction, or refused to commit it for the sake
    ///   of others. Nothing was applied.
    /// - `Statement`: an earlier statement had failed and made the transaction unfit to commit, or
    ///   a deferred constraint does not hold. Nothing was applied.
    /// - `Unavailable`: the connection was lost before the commit was sent. Nothing was applied.
    /// - `OutcomeUnknown`: no verdict came back.
    pub async fn commit(self) -> Result<(), FenceError> {
        let Self { mut checkout, mut claims } = self;
        claims.at_drop = ClaimState::Unknown;
        let committed = checkout.commit().await;
        claims.at_drop = match &committed {
            Ok(()) => ClaimState::Committed,
            Err(NotCommitted::Lost | NotCommitted::Refused(_)) => ClaimState::Unspent,
            Err(NotCommitted::Unknown(_)) => ClaimState::Unknown,
        };
        let claim = claims.all.first().cloned();
        drop(claims);
        checkout.finish().await;
        committed.map_err(|why| FenceError::not_committed(why, claim.as_ref()))
    }

    /// Rolls everything back, the mark too.
    ///
    /// It cannot fail: a connection on which it does not work is closed, and the server rolls
    /// back.
    pub async fn rollback(self) {
        let Self { checkout, claims } = self;
        drop(claims);
        checkout.finish().await;
    }
}

impl FenceOptions {
    /// [`FencedTx::begin`] with these options.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn begin<DB: FencedDatabase>(
        &self,
        pool: &Pool<DB>,
        claim: &Claim,
    ) -> Result<FencedTx<DB>, FenceError> {
        self.begin_all(pool, slice::from_ref(claim)).await
    }

    /// [`FencedTx::begin_all`] with these options.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn begin_all<DB: FencedDatabase>(
        &self,
        pool: &Pool<DB>,
        claims: &[Claim],
    ) -> Result<FencedTx<DB>, FenceError> {
        let claims = in_order(claims)?;
        let mut retry = Retry::new(self.attempts);
        loop {
            match self.begin_once(pool, &claims).await {
                // One that waited for its lock as long as it may is not made to wait again.
                Err(error) if error.is_collision() && retry.again().await => {}
                result => return result,
            }
        }
    }

    /// [`FencedTx::run`] with these options.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn run<DB, T, F>(
        &self,
        pool: &Pool<DB>,
        claim: &Claim,
        work: F,
    ) -> Result<T, FenceError>
    where
        DB: FencedDatabase,
        T: Send,
        F: for<'a> FnMut(&'a mut FencedTx<DB>) -> BoxFuture<'a, Result<T, FenceError>> + Send,
    {
        self.run_all(pool, slice::from_ref(claim), work).await
    }

    /// [`FencedTx::run`] under several claims, taken as by [`FencedTx::begin_all`].
    ///
    /// # Errors
    ///
    /// As for both.
    pub async fn run_all<DB, T, F>(
        &self,
        pool: &Pool<DB>,
        claims: &[Claim],
        mut work: F,
    ) -> Result<T, FenceError>
    where
        DB: FencedDatabase,
        T: Send,
        F: for<'a> FnMut(&'a mut FencedTx<DB>) -> BoxFuture<'a, Result<T, FenceError>> + Send,
    {
        let claims = in_order(claims)?;
        let mut retry = Retry::new(self.attempts);
        loop {
            match self.run_once(pool, &claims, &mut work).await {
                Err(error) if error.is_contended() && retry.again().await => {}
                result => return result,
            }
        }
    }

    async fn run_once<DB, T, F>(
        &self,
        pool: &Pool<DB>,
        claims: &[Claim],
        work: &mut F,
    ) -> Result<T, FenceError>
    where
        DB: FencedDatabase,
        T: Send,
        F: for<'a> FnMut(&'a mut FencedTx<DB>) -> BoxFuture<'a, Result<T, FenceError>> + Send,
    {
        let mut tx = self.begin_once(pool, claims).await?;
        match work(&mut tx).await {
            Ok(value) => tx.commit().await.map(|()| value),
            Err(error) => {
                tx.rollback().await;
                Err(error)
            }
        }
    }

    async fn claim_in<DB: FencedDatabase>(
        &self,
        checkout: &mut Checkout<DB>,
        claim: &Claim,
        route: Route,
    ) -> Result<Verdict, sqlx::Error> {
        let text = self.text::<DB>();
        let verdict = checkout.advance(text, claim, route).await?;
        if verdict == Verdict::Accepted
            && self.policy == Policy::Strict
            && !DB::spend(checkout.conn(), text, claim).await?
        {
            return Ok(Verdict::Stale { last_token: claim.token() });
        }
        Ok(verdict)
    }

    /// One try. `claims` are in order.
    async fn begin_once<DB: FencedDatabase>(
        &self,
        pool: &Pool<DB>,
        claims: &[Claim],
    ) -> Result<FencedTx<DB>, FenceError> {
        let first = claims.first();
        let unavailable = |error| FenceError::at(Step::Connect, error, first);
        let mut checkout = Checkout::acquire(pool).await.map_err(unavailable)?;
        let begun = checkout.begin(self).await;
        begun.map_err(|error| FenceError::at(Step::Claim, error, first))?;
        let route = match self.isolation {
            Isolation::ReadCommitted => Route::Own,
            Isolation::RepeatableRead | Isolation::Serializable => Route::Foreign,
        };
        let mut before = None;
        for claim in claims {
            if before.replace(claim) == Some(claim) {
                continue;
            }
            match self.claim_in(&mut checkout, claim, route).await {
                Ok(Verdict::Accepted) => {}
                Ok(Verdict::Stale { last_token }) => {
                    let partly = claims.iter().any(Claim::has_committed);
                    claim.note_stale(last_token);
                    checkout.finish().await;
                    return Err(FenceError::stale(claim, last_token, partly));
                }
                Err(error) => {
                    checkout.finish().await;
                    return Err(FenceError::at(Step::Claim, error, Some(claim)));
                }
            }
        }
        Ok(FencedTx { checkout, claims: Claims::open(claims) })
    }
}

/// The claims in byte order, so that two transactions under the same ones cannot deadlock.
fn in_order(claims: &[Claim]) -> Result<Vec<Claim>, FenceError> {
    if claims.is_empty() {
        return Err(FenceError::misconfigured("a fenced transaction needs a claim: give it one"));
    }
    let mut claims = claims.to_vec();
    claims.sort_by(|a, b| a.resource().cmp(b.resource()));
    let contradict = |pair: &[Claim]| match pair {
        [a, b] => a.resource() == b.resource() && a.token() != b.token(),
        _ => false,
    };
    if claims.windows(2).any(contradict) {
        return Err(FenceError::misconfigured(
            "two claims on one resource have different tokens: claim with the token of the lease",
        ));
    }
    Ok(claims)
}

/// The claims of an open transaction. Dropped, they note what became of it.
struct Claims {
    all: Vec<Claim>,
    at_drop: ClaimState,
}

impl Claims {
    fn open(claims: &[Claim]) -> Self {
        for claim in claims {
            claim.note(ClaimState::Open);
        }
        Self { all: claims.to_vec(), at_drop: ClaimState::Unspent }
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        for claim in &self.all {
            claim.note(self.at_drop);
        }
    }
}

impl<DB: FencedDatabase> Deref for FencedTx<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &Self::Target {
        self.checkout.conn_ref()
    }
}

impl<DB: FencedDatabase> DerefMut for FencedTx<DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.checkout.conn()
    }
}

impl<DB: FencedDatabase> fmt::Debug for FencedTx<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedTx").field("claims", &self.claims.all).finish_non_exhaustive()
    }
}
