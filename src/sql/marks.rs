use std::fmt;

use sqlx::Pool;

use super::{FenceError, FenceErrorKind, FenceOptions, FencedDatabase};
use crate::Claim;
use crate::marks::{Check, Marks, MarksError, MarksErrorKind};

/// Marks in the database, the same ones a [`FencedTx`](super::FencedTx) raises.
///
/// An equal token and a stale one cost one read each; the mark is written only to raise it.
///
/// ```
/// use fencing::marks::Marks;
/// use fencing::sql::SqlMarks;
/// # use fencing::{Claim, Resource, Token, Verdict};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let pool = sqlx::sqlite::SqlitePoolOptions::new()
/// #     .max_connections(1)
/// #     .connect("sqlite::memory:")
/// #     .await?;
/// # fencing::sql::migrate(&pool).await?;
/// # let claim = Claim::new(Resource::new("inventory:item:1")?, Token::new(34)?);
/// let marks = SqlMarks::new(pool);
/// assert_eq!(marks.advance(&claim).await?, Verdict::Accepted);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub struct SqlMarks<DB: FencedDatabase> {
    pool: Pool<DB>,
    options: FenceOptions,
}

impl<DB: FencedDatabase> SqlMarks<DB> {
    /// Marks in the default tables of the pool's database.
    #[must_use]
    pub fn new(pool: Pool<DB>) -> Self {
        Self::with_options(pool, FenceOptions::new())
    }

    /// Marks in other tables, or with other bounds.
    #[must_use]
    pub fn with_options(pool: Pool<DB>, options: FenceOptions) -> Self {
        Self { pool, options }
    }
}

impl<DB: FencedDatabase> Marks for SqlMarks<DB> {
    fn advance(&self, claim: &Claim) -> Check {
        let (marks, claim) = (self.clone(), claim.clone());
        Check::Pending(Box::pin(async move {
            marks.options.raise(&marks.pool, &claim).await.map_err(MarksError::from)
        }))
    }
}

impl From<FenceError> for MarksError {
    fn from(error: FenceError) -> Self {
        let kind = match error.kind() {
            FenceErrorKind::Contended => MarksErrorKind::Contended,
            _ => MarksErrorKind::Unavailable,
        };
        Self::new(kind).with_source(error)
    }
}

impl<DB: FencedDatabase> Clone for SqlMarks<DB> {
    fn clone(&self) -> Self {
        Self { pool: self.pool.clone(), options: self.options.clone() }
    }
}

impl<DB: FencedDatabase> fmt::Debug for SqlMarks<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlMarks").field("tables", &self.options.tables).finish_non_exhaustive()
    }
}
