//! What administrators do to marks, locks and the floor. Everything here writes the row of the
//! floor first, under a lock that is held to the commit; grants and first claims read it under a
//! lock. So each of those comes wholly before or wholly after.

mod steps;

use std::time::Duration;

use sqlx::Pool;

use self::steps::{Done, Purge, Rows, Steps, Task};
use super::backend::FencedDatabase;
use super::checkout::Checkout;
use super::error::Step;
use super::retry::Retry;
use super::{FenceError, FenceOptions};
use crate::{Resource, Token};

/// Raises the floor: from now on a resource without a mark accepts only tokens above it, and no
/// lock is granted at or below it. A floor that is higher already stays.
///
/// It is noted in `fencing_audit`, without an actor: see [`Admin::raise_floor`] for that.
///
/// # Errors
///
/// [`FenceError`] as for [`FencedTx::begin`](super::FencedTx::begin) and
/// [`commit`](super::FencedTx::commit).
///
/// # Cancellation
///
/// The floor may or may not have been raised.
pub async fn raise_floor<DB: FencedDatabase>(
    pool: &Pool<DB>,
    floor: Token,
) -> Result<(), FenceError> {
    FenceOptions::new().raise_floor(pool, floor).await
}

impl FenceOptions {
    /// [`raise_floor`] with these options.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn raise_floor<DB: FencedDatabase>(
        &self,
        pool: &Pool<DB>,
        floor: Token,
    ) -> Result<(), FenceError> {
        let nobody = Admin { options: self.clone(), actor: None, reason: None, approved_by: None };
        nobody.raise_floor(pool, floor).await.map(drop)
    }
}

/// What an administrator does to marks and locks. Each call is one transaction, with a row in
/// `fencing_audit` that says who did it and why.
///
/// ```
/// use fencing::Token;
/// use fencing::sql::Admin;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let pool = sqlx::sqlite::SqlitePoolOptions::new()
/// #     .max_connections(1)
/// #     .connect("sqlite::memory:")
/// #     .await?;
/// # fencing::sql::migrate(&pool).await?;
/// let admin = Admin::new("alice", "the service moved here from etcd");
/// let floor = admin.raise_floor(&pool, Token::new(57)?).await?;
/// assert_eq!(floor, 57);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # Two databases
///
/// Where the marks and the locks lie in two databases, each has a floor. Two things must hold, and
/// the order of the steps sees to them:
///
/// - The floor of the marks is at or above every mark that was dropped: [`purge_marks`] sees to it.
/// - The floor of the locks is at or above that of the marks, or the next grants would be refused
///   as stale. So raise the floor of the locks first, then that of the marks, then drop.
///
/// [`purge_marks`]: Self::purge_marks
#[derive(Clone, Debug)]
#[must_use = "it does nothing until one of its methods is called"]
pub struct Admin {
    options: FenceOptions,
    actor: Option<String>,
    reason: Option<String>,
    approved_by: Option<String>,
}

/// Up to where [`Admin::purge_marks`] may raise the floor, so that the issuer's grants stay above
/// it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IssuerFloor {
    /// The issuer is the lock endpoint on the same tables: there is one floor for both.
    Shared,
    /// The issuer never grants at or below this token again: the floor of the lock endpoint on
    /// other tables, or a revision or zxid of a foreign issuer whose counter is one for all
    /// resources. With a counter for each resource (Hazelcast, Redisson, Kubernetes) marks cannot
    /// be purged at all: a new resource would start at 1, and be refused.
    At(Token),
}

/// What a purge has dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Purged {
    /// How many rows.
    pub rows: u64,
    /// The floor after it.
    pub floor: i64,
}

impl Admin {
    /// How far [`bump`](Self::bump) raises: by more than can have been granted since a backup.
    pub const BUMP: i64 = 1_000_000_000;
    /// How long it waits for the writes of others: it may hold up all first claims meanwhile.
    pub const DEFAULT_LOCK_TIMEOUT: Duration = Duration::from_secs(2);
    /// `actor` is the person or program that does it, `reason` why.
    pub fn new(actor: impl Into<String>, reason: impl Into<String>) -> Self {
        let options = FenceOptions::new().lock_timeout(Self::DEFAULT_LOCK_TIMEOUT);
        let (actor, reason) = (Some(actor.into()), Some(reason.into()));
        Self { options, actor, reason, approved_by: None }
    }

    /// Who approved it.
    pub fn approved_by(mut self, approver: impl Into<String>) -> Self {
        self.approved_by = Some(approver.into());
        self
    }

    /// Other tables and bounds.
    pub fn options(mut self, options: &FenceOptions) -> Self {
        self.options = options.clone();
        self
    }

    /// Raises the floor, where it is lower, and returns what it is then.
    ///
    /// # Errors
    ///
    /// [`FenceError`] of any kind but `Stale` and `PartlyApplied`. `Contended` when others were in
    /// the way for longer than the lock timeout.
    pub async fn raise_floor<DB: FencedDatabase>(
        &self,
        pool: &Pool<DB>,
        to: Token,
    ) -> Result<i64, FenceError> {
        Ok(self.run(pool, &Task::RaiseFloor(to)).await?.floor)
    }

    /// After a restore of the marks: raises every mark, and the floor, to a token that the issuer
    /// never grants again, such as its floor after a [`bump`](Self::bump). Returns how many marks
    /// were raised.
    ///
    /// # Errors
    ///
    /// As for [`raise_floor`](Self::raise_floor).
    pub async fn raise_marks<DB: FencedDatabase>(
        &self,
        pool: &Pool<DB>,
        to: Token,
    ) -> Result<u64, FenceError> {
        Ok(self.run(pool, &Task::RaiseMarks(to)).await?.rows)
    }

    /// After a restore of the locks, or the promotion of an asynchronous replica, which is one:
    /// adds [`BUMP`](Self::BUMP) to the token of every lock and to the floor, and returns the
    /// floor.
    ///
    /// A step to just above the highest mark would not do: a token that was granted after the
    /// backup and never used would be granted again, to another, and equal passes.
    ///
    /// # Errors
    ///
    /// As for [`raise_floor`](Self::raise_floor); `Misconfigured` where tokens would come above
    /// [`Token::MAX_GRANTED`], with nothing changed.
    pub async fn bump<DB: FencedDatabase>(&self, pool: &Pool<DB>) -> Result<i64, FenceError> {
        Ok(self.run(pool, &Task::Bump).await?.floor)
    }

    /// Drops the marks that no claim has raised for `idle_for`, and raises the floor to the
    /// highest of them first. With [`IssuerFloor::At`] only those at or below it.
    ///
    /// `idle_for` must be longer than the longest lease: a holder whose token is at or below the
    /// floor and whose mark is gone is refused.
    ///
    /// # Errors
    ///
    /// As for [`raise_floor`](Self::raise_floor). What was dropped before the error stays dropped:
    /// it is done in batches of some hundreds.
    pub async fn purge_marks<DB: FencedDatabase>(
        &self,
        pool: &Pool<DB>,
        idle_for: Duration,
        issuer: IssuerFloor,
    ) -> Result<Purged, FenceError> {
        let most = match issuer {
            IssuerFloor::Shared => Token::MAX,
            IssuerFloor::At(floor) => floor,
        };
        self.purge(pool, &Purge { what: Rows::Marks, idle_ms: millis(idle_for), most }).await
    }

    /// Drops the locks whose last grant ended before `idle_for`, and raises the floor to the
    /// highest token of theirs first, so that none of them is granted again.
    ///
    /// # Errors
    ///
    /// As for [`purge_marks`](Self::purge_marks).
    pub async fn purge_locks<DB: FencedDatabase>(
        &self,
        pool: &Pool<DB>,
        idle_for: Duration,
    ) -> Result<Purged, FenceError> {
        let most = Token::MAX;
        self.purge(pool, &Purge { what: Rows::Locks, idle_ms: millis(idle_for), most }).await
    }

    async fn purge<DB: FencedDatabase>(
        &self,
        pool: &Pool<DB>,
        purge: &Purge,
    ) -> Result<Purged, FenceError> {
        let mut rows = 0;
        loop {
            let batch = self.run(pool, &Task::Purge(purge)).await?;
            rows += batch.rows;
            if batch.rows == 0 {
                return Ok(Purged { rows, floor: batch.floor });
            }
        }
    }

    /// Lowers the mark of a resource, and returns what it was; `None` without a mark. The only way
    /// in which a mark ever falls: after it, tokens above `to` are accepted that were refused
    /// before. For a mark that was raised by a token nobody was granted.
    ///
    /// The epoch in `fencing_floor` grows with it, so that caches of marks forget.
    ///
    /// # Errors
    ///
    /// As for [`raise_floor`](Self::raise_floor); `Misconfigured` without an
    /// [approver](Self::approved_by) who is another than the actor, and where `to` is above the
    /// mark.
    pub async fn lower_mark<DB: FencedDatabase>(
        &self,
        pool: &Pool<DB>,
        resource: &Resource,
        to: Token,
    ) -> Result<Option<Token>, FenceError> {
        let approver = self.approved_by.as_deref().map(str::trim).filter(|name| !name.is_empty());
        if approver.is_none() || approver == self.actor.as_deref().map(str::trim) {
            return Err(FenceError::misconfigured(
                "lowering a mark lets refused writers in: name somebody else who approved it",
            ));
        }
        let before = self.run(pool, &Task::Lower(resource, to)).await?.before;
        Ok(before.and_then(|before| Token::new(before).ok()))
    }

    /// Takes the steps in one transaction, again when it collided with others.
    async fn run<DB: FencedDatabase>(
        &self,
        pool: &Pool<DB>,
        task: &Task<'_>,
    ) -> Result<Done, FenceError> {
        let mut retry = Retry::new(self.options.attempts);
        loop {
            match self.run_once(pool, task).await {
                Err(error) if error.is_collision() && retry.again().await => {}
                result => return result,
            }
        }
    }

    async fn run_once<DB: FencedDatabase>(
        &self,
        pool: &Pool<DB>,
        task: &Task<'_>,
    ) -> Result<Done, FenceError> {
        let at = |step| move |error| FenceError::at(step, error, None);
        let mut checkout = Checkout::acquire(pool).await.map_err(at(Step::Connect))?;
        checkout.begin(&self.options).await.map_err(at(Step::Claim))?;
        let done = Steps::<DB> { conn: checkout.conn(), admin: self }.take(task).await;
        let committed = match &done {
            Ok(_) => checkout.commit().await,
            Err(_) => Ok(()),
        };
        checkout.finish().await;
        let done = done?;
        committed.map_err(|why| FenceError::not_committed(why, None))?;
        Ok(done)
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
