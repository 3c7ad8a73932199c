//! Locks in a database, through sqlx.

mod backend;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod connect;
mod error;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod notify;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_core::future::BoxFuture;
use sqlx::{ConnectOptions, Connection, Pool};
use tokio::sync::{Semaphore, SemaphorePermit};

use self::backend::Found;
pub use self::backend::LockDatabase;
use self::error::StepError;
pub use self::error::{SqlLocksError, SqlLocksErrorKind};
use super::rules::{self, Acquire, Ask, Refusal, Release, Row};
use super::{Acquired, Held, LockStore, OwnerTokenHash, Released, StoreError};
use crate::clock::{Clock, SystemClock};
use crate::sql::checkout::Checkout;
use crate::sql::retry::Retry;
use crate::sql::tables::Text;
use crate::sql::{FenceOptions, Isolation};
use crate::{Resource, Token};

/// How long a step waits until the other steps of this process have written, where the database
/// takes one writer at a time.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// Locks in a database.
///
/// A step is one transaction: it locks the floor and the row of the resource, reads the clock
/// *after* it has both, decides by the [rules](super::rules), writes and commits. It answers only
/// after the commit, which is durable: the constructors refuse a database that is set up to lose
/// committed transactions.
///
/// Many processes may use the same database, and a service may keep its marks and data there as
/// well. Time is the database's: the clocks of the processes and the time zones of their
/// connections do not count. On SQLite, where the clock is the process's own, they must run on one
/// machine.
///
/// A step that was broken off by a deadlock or the like, in which nothing was applied, is taken
/// again a bounded number of times. When the connection is lost the step fails, and the next one
/// finds a new connection.
///
/// ```
/// use fencing::lock::{Endpoint, SqlLocks};
/// use sqlx::sqlite::SqliteConnectOptions;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # std::env::set_current_dir(&directory)?;
/// let file = SqliteConnectOptions::new().filename("fencing.db").create_if_missing(true);
/// let locks = SqlLocks::open(file).await?;
/// let app: axum::Router = axum::Router::new().nest("/locks", Endpoint::new(locks).router());
/// # Ok(())
/// # }
/// ```
pub struct SqlLocks<DB: LockDatabase> {
    pool: Pool<DB>,
    options: FenceOptions,
    text: Text,
    clock: Arc<dyn Clock>,
    turn: Option<Semaphore>,
    announcing: Arc<Announcing>,
}

impl<DB: LockDatabase> SqlLocks<DB> {
    /// Locks in a database of their own pool, in tables that are made when they are missing.
    ///
    /// On PostgreSQL and MySQL the pool has up to ten connections. The role needs the right to
    /// make tables only where they are missing.
    ///
    /// On SQLite a missing file is made only now, and only where `options` say
    /// `create_if_missing`: a file that goes later does not come back empty, with its tokens
    /// starting again. The file is set to write-ahead logging, each commit is flushed to the disk,
    /// and a step waits up to 10 s for another writer. Other settings stay as they are in
    /// `options`.
    ///
    /// # Errors
    ///
    /// [`SqlLocksError`] when the database cannot be reached or written, has tables of another
    /// version, or may lose what was committed: its message says which setting to change.
    pub async fn open<O>(options: O) -> Result<Self, SqlLocksError>
    where
        O: ConnectOptions<Connection = DB::Connection>,
        O::Connection: Connection<Database = DB, Options = O>,
    {
        let pool = DB::connect(options).await?;
        crate::sql::migrate(&pool).await?;
        Self::new(pool).await
    }

    /// Locks in the database of a pool, in the tables that [`sql::migrate`](crate::sql::migrate)
    /// has made there.
    ///
    /// # Errors
    ///
    /// [`SqlLocksError`] when the tables are not there or cannot be written, or when the database
    /// may lose what was committed: its message says which setting to change.
    pub async fn new(pool: Pool<DB>) -> Result<Self, SqlLocksError> {
        Self::with_options(pool, FenceOptions::new()).await
    }

    /// The same with other tables, other bounds, or another number of attempts. The isolation of
    /// the options does not count: a step is right at READ COMMITTED only.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub async fn with_options(
        pool: Pool<DB>,
        options: FenceOptions,
    ) -> Result<Self, SqlLocksError> {
        options.verify(&pool).await?;
        let mut conn = pool.acquire().await?;
        DB::check(&mut conn).await?;
        drop(conn);
        let locks = Self {
            text: options.tables.statements(DB::QUOTE, DB::STATEMENTS),
            pool,
            options: options.isolation(Isolation::ReadCommitted),
            clock: Arc::new(SystemClock),
            turn: DB::ONE_WRITER.then(|| Semaphore::new(1)),
            announcing: Arc::new(Announcing::new()),
        };
        locks.rehearse().await?;
        Ok(locks)
    }

    /// Where time comes from if the database has no clock of its own: on SQLite.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Pool<DB> {
        &self.pool
    }

    /// Takes a step that is rolled back, so that a missing right or a read-only file is an error
    /// at start, rather than in every answer.
    async fn rehearse(&self) -> Result<(), SqlLocksError> {
        let resource = Resource::new("fencing: start-up").map_err(StepError::other)?;
        let mut step = self.begin(&resource, true).await?;
        let row = step.row.take().unwrap_or(Row { token: 0, grant: None });
        let written = DB::write(step.checkout.conn(), &self.text, &resource, &row).await;
        step.leave().await;
        Ok(written?)
    }

    /// Begins a transaction with the floor and the row of `resource` locked.
    async fn begin(&self, resource: &Resource, make: bool) -> Result<Step<'_, DB>, StepError> {
        // In this process the steps queue here, in order, rather than at the lock of the file,
        // where the one that sleeps the shortest comes next.
        let turn = match &self.turn {
            Some(turn) => {
                let turn = tokio::time::timeout(TURN_TIMEOUT, turn.acquire()).await;
                Some(turn.map_err(StepError::other)?.map_err(StepError::other)?)
            }
            None => None,
        };
        let mut checkout = Checkout::acquire(&self.pool).await?;
        checkout.begin(&self.options).await?;
        let found = DB::lock(checkout.conn(), &self.text, resource, make, &*self.clock).await;
        match found {
            Ok(Found { row, floor, now }) => Ok(Step { checkout, row, floor, now, _turn: turn }),
            Err(error) => {
                checkout.finish().await;
                Err(error)
            }
        }
    }

    /// What is committed, without locks.
    async fn look(&self, resource: &Resource) -> Result<Found, StepError> {
        let mut conn = self.pool.acquire().await?;
        DB::look(&mut conn, &self.text, resource, &*self.clock).await
    }
}

/// A transaction in which a decision is made. Dropped, it is rolled back.
struct Step<'a, DB: LockDatabase> {
    checkout: Checkout<DB>,
    row: Option<Row>,
    floor: i64,
    /// Read after the locks were taken.
    now: i64,
    _turn: Option<SemaphorePermit<'a>>,
}

impl<DB: LockDatabase> Step<'_, DB> {
    /// Writes the row and commits durably.
    async fn write(
        mut self,
        locks: &SqlLocks<DB>,
        resource: &Resource,
        row: &Row,
    ) -> Result<(), StepError> {
        let written = DB::write(self.checkout.conn(), &locks.text, resource, row).await;
        let committed = match written {
            Ok(()) => self.checkout.commit().await.map_err(StepError::Commit),
            Err(error) => Err(error),
        };
        self.checkout.finish().await;
        committed
    }

    /// Nothing is to be written.
    async fn leave(self) {
        self.checkout.finish().await;
    }
}

impl<DB: LockDatabase> SqlLocks<DB> {
    async fn acquire_once(&self, resource: &Resource, ask: &Ask) -> Result<Acquired, StepError> {
        let mut step = self.begin(resource, true).await?;
        let now = step.now;
        let decision = rules::acquire(step.row.take(), step.floor, now, ask);
        match &decision {
            Acquire::Granted(row) | Acquire::Repeated(row) => {
                step.write(self, resource, row).await?;
            }
            Acquire::Held(_) | Acquire::Spent | Acquire::Exhausted => step.leave().await,
        }
        Ok(Acquired::new(decision, now)?)
    }

    async fn renew_once(
        &self,
        resource: &Resource,
        secret: &OwnerTokenHash,
        ttl: Duration,
    ) -> Result<Result<Held, Refusal>, StepError> {
        let mut step = self.begin(resource, false).await?;
        let now = step.now;
        let (token, grant) = split(step.row.take());
        match rules::renew(grant, now, secret, ttl) {
            Ok(grant) => {
                let row = Row { token, grant: Some(grant.clone()) };
                step.write(self, resource, &row).await?;
                Ok(Ok(Held::new(token, grant, now)?))
            }
            Err(refusal) => {
                step.leave().await;
                Ok(Err(refusal))
            }
        }
    }

    async fn release_once(
        &self,
        resource: &Resource,
        secret: &OwnerTokenHash,
    ) -> Result<Result<(), Refusal>, StepError> {
        let mut step = self.begin(resource, false).await?;
        let (token, grant) = split(step.row.take());
        match rules::release(grant, step.now, secret) {
            Ok(Release::Released(grant)) => {
                step.write(self, resource, &Row { token, grant: Some(grant) }).await?;
                self.announce(resource);
                Ok(Ok(()))
            }
            Ok(Release::AlreadyReleased) => {
                step.leave().await;
                Ok(Ok(()))
            }
            Err(refusal) => {
                step.leave().await;
                Ok(Err(refusal))
            }
        }
    }
}

/// Takes a step, again where it was broken off before anything was applied.
///
/// A function over closures would be plainer, but the compiler cannot see that their futures are
/// `Send`.
macro_rules! again {
    ($locks:expr, $step:expr) => {{
        let mut retry = Retry::new($locks.options.attempts);
        loop {
            match $step.await {
                Err(error) if error.is_collision() && retry.again().await => {
                    tracing::debug!(?error, "a step is taken again");
                }
                taken => break Ok(taken?),
            }
        }
    }};
}

impl<DB: LockDatabase> LockStore for SqlLocks<DB> {
    fn acquire<'a>(
        &'a self,
        resource: &'a Resource,
        ask: &'a Ask,
    ) -> BoxFuture<'a, Result<Acquired, StoreError>> {
        Box::pin(async move { again!(self, self.acquire_once(resource, ask)) })
    }

    fn renew<'a>(
        &'a self,
        resource: &'a Resource,
        secret: &'a OwnerTokenHash,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Result<Held, Refusal>, StoreError>> {
        Box::pin(async move { again!(self, self.renew_once(resource, secret, ttl)) })
    }

    fn release<'a>(
        &'a self,
        resource: &'a Resource,
        secret: &'a OwnerTokenHash,
    ) -> BoxFuture<'a, Result<Result<(), Refusal>, StoreError>> {
        Box::pin(async move { again!(self, self.release_once(resource, secret)) })
    }

    fn show<'a>(
        &'a self,
        resource: &'a Resource,
    ) -> BoxFuture<'a, Result<Option<Held>, StoreError>> {
        Box::pin(async move {
            let Found { row, now, .. } = self.look(resource).await?;
            rules::live(row, now).map(|(token, grant)| Held::new(token, grant, now)).transpose()
        })
    }

    fn highest_token<'a>(
        &'a self,
        resource: &'a Resource,
    ) -> BoxFuture<'a, Result<Option<Token>, StoreError>> {
        Box::pin(async move {
            let Found { row, floor, .. } = self.look(resource).await?;
            Ok(rules::highest_token(row.as_ref(), floor))
        })
    }

    fn watch<'a>(&'a self, released: Released<'a>) -> BoxFuture<'a, ()> {
        Box::pin(DB::watch(&self.pool, &self.options.tables, &self.announcing.origin, released))
    }
}

/// Releases that other servers are to be told of.
struct Announcing {
    /// Tells those of this store from those of others.
    origin: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// A task is at it.
    busy: bool,
    released: Vec<Resource>,
}

impl<DB: LockDatabase> SqlLocks<DB> {
    /// Tells the other servers, in a task: nobody waits for that. What is released meanwhile is
    /// told together.
    fn announce(&self, resource: &Resource) {
        if !DB::ANNOUNCES {
            return;
        }
        let mut state = self.announcing.lock();
        state.released.push(resource.clone());
        if state.busy {
            return;
        }
        state.busy = true;
        drop(state);
        let (pool, tables) = (self.pool.clone(), self.options.tables.clone());
        let announcing = Arc::clone(&self.announcing);
        tokio::spawn(async move {
            while let Some(released) = announcing.take() {
                let told = DB::announce(&pool, &tables, &announcing.origin, &released).await;
                if let Err(error) = told {
                    tracing::debug!(%error, "other servers are not told of a release: they poll");
                }
            }
        });
    }
}

impl Announcing {
    fn new() -> Self {
        let origin = format!("{:016x}", fastrand::u64(..));
        Self { origin, state: Mutex::default() }
    }

    fn take(&self) -> Option<Vec<Resource>> {
        let mut state = self.lock();
        state.busy = !state.released.is_empty();
        state.busy.then(|| std::mem::take(&mut state.released))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn split(row: Option<Row>) -> (i64, Option<rules::Grant>) {
    row.map_or((0, None), |row| (row.token, row.grant))
}

impl<DB: LockDatabase> fmt::Debug for SqlLocks<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlLocks").field("tables", &self.options.tables).finish_non_exhaustive()
    }
}
