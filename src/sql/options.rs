use std::time::Duration;

use super::Tables;

/// How fenced transactions run: which tables, how long anyone waits, how often is tried again.
///
/// The functions and constructors of this module use the default; the methods of the same names
/// here use what was set.
///
/// ```
/// use std::time::Duration;
///
/// use fencing::sql::{FenceOptions, Tables};
///
/// let options = FenceOptions::new()
///     .tables(Tables::with_prefix("stock_fence_")?)
///     .idle_timeout(Duration::from_secs(3));
/// # Ok::<(), fencing::sql::InvalidTables>(())
/// ```
#[derive(Clone, Debug)]
pub struct FenceOptions {
    pub(crate) tables: Tables,
    pub(crate) isolation: Isolation,
    pub(crate) lock_timeout: Option<Duration>,
    pub(crate) idle_timeout: Duration,
    pub(crate) attempts: u32,
    pub(crate) policy: Policy,
}

/// How often one token may write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Policy {
    /// Any number of times: one lease covers many writes.
    #[default]
    Lease,
    /// Once, for jobs that must not run twice under one lease. A second write is
    /// [`Stale`](super::FenceErrorKind::Stale) with its own token as the mark.
    ///
    /// What counts is the write: a fenced transaction that was committed, or a fenced statement
    /// that was applied. A claim before it, in the layer or by [`claim`](super::claim()), spends
    /// nothing. All who write a resource under this policy must do so with it: a write under the
    /// other policy spends nothing either.
    Strict,
}

/// How a fenced transaction is isolated from others.
///
/// SQLite knows one level only, which is the highest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Isolation {
    /// Every statement sees what was committed before it. The claim is the first statement, so
    /// all later ones see every write of earlier holders.
    #[default]
    ReadCommitted,
    /// All statements see one snapshot, taken by the claim. A claim that had to wait fails on
    /// PostgreSQL with a serialization failure and is tried again.
    RepeatableRead,
    /// As if one transaction ran after the other.
    Serializable,
}

impl FenceOptions {
    /// How long a statement waits for a lock where nothing else was set.
    pub const DEFAULT_LOCK_TIMEOUT: Duration = Duration::from_secs(10);
    /// How long an open transaction may be idle unless another time is set.
    pub const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(10);
    /// How often is tried unless another number is set.
    pub const DEFAULT_ATTEMPTS: u32 = 5;

    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self {
            tables: Tables::default(),
            isolation: Isolation::default(),
            lock_timeout: None,
            idle_timeout: Self::DEFAULT_IDLE_TIMEOUT,
            attempts: Self::DEFAULT_ATTEMPTS,
            policy: Policy::default(),
        }
    }

    /// Uses other tables.
    #[must_use]
    pub fn tables(mut self, tables: Tables) -> Self {
        self.tables = tables;
        self
    }

    /// Isolates transactions more than READ COMMITTED does.
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// Lets each token write once only, or many times.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// How long a statement of the transaction waits for a lock of another: the default is 10 s,
    /// and on SQLite what the pool's `busy_timeout` says (5 s unless set otherwise). Then the
    /// answer is contended.
    ///
    /// PostgreSQL and SQLite count in milliseconds, MySQL and MariaDB in seconds, rounded up.
    #[must_use]
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = Some(timeout);
        self
    }

    /// How long the transaction may be idle between two statements before the server ends it, so
    /// that a holder that was stopped in the middle does not keep the next one out. The default
    /// is 10 s. SQLite has no such bound: there a stopped process keeps the file locked.
    ///
    /// PostgreSQL counts in milliseconds, MySQL and MariaDB in seconds, rounded up.
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// How often a contended transaction is tried in all, at least once. The default is 5.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }
}

impl Default for FenceOptions {
    fn default() -> Self {
        Self::new()
    }
}
