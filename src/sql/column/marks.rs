use std::fmt;
use std::sync::Arc;

use sqlx::Pool;

use super::{ColumnKey, FencedColumn, KeyOf};
use crate::marks::{Check, Marks, MarksError};
use crate::sql::{FenceError, FencedDatabase};
use crate::{Claim, Resource};

/// Marks for the layer in the rows of a [`FencedColumn`], the same ones its updates raise.
///
/// ```
/// use fencing::marks::Marks;
/// use fencing::sql::{ColumnMarks, FencedColumn};
/// # use fencing::{Claim, Resource, Token, Verdict};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let pool = sqlx::sqlite::SqlitePoolOptions::new()
/// #     .max_connections(1)
/// #     .connect("sqlite::memory:")
/// #     .await?;
/// # fencing::sql::migrate(&pool).await?;
/// # sqlx::raw_sql("CREATE TABLE inventory (id INTEGER PRIMARY KEY, last_token BIGINT NOT NULL);
/// #     INSERT INTO inventory VALUES (1, 35)").execute(&pool).await?;
/// let inventory = FencedColumn::new("inventory", "id", "last_token")?;
/// let marks = ColumnMarks::new(pool, inventory, |resource| {
///     resource.as_str().strip_prefix("inventory:item:")?.parse::<i64>().ok()
/// });
/// # let claim = Claim::new(Resource::new("inventory:item:1")?, Token::new(34)?);
/// assert_eq!(marks.advance(&claim).await?, Verdict::Stale { last_token: Token::new(35)? });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub struct ColumnMarks<DB: FencedDatabase, K> {
    pool: Pool<DB>,
    column: FencedColumn<DB>,
    key_of: KeyOf<K>,
}

impl<DB: FencedDatabase, K: ColumnKey<DB>> ColumnMarks<DB, K> {
    /// The marks of the rows that `key_of` finds. A resource it answers `None` for is an error of
    /// the store, and so 503: let the layer name only resources that are rows.
    #[must_use]
    pub fn new(
        pool: Pool<DB>,
        column: FencedColumn<DB>,
        key_of: impl Fn(&Resource) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        Self { pool, column, key_of: Arc::new(key_of) }
    }
}

impl<DB: FencedDatabase, K: ColumnKey<DB>> Marks for ColumnMarks<DB, K> {
    fn advance(&self, claim: &Claim) -> Check {
        let (marks, claim) = (self.clone(), claim.clone());
        Check::Pending(Box::pin(async move {
            let Some(key) = (marks.key_of)(claim.resource()) else {
                let no_row = "the resource is no row of the table: name it otherwise in the layer";
                return Err(MarksError::from(FenceError::misconfigured(no_row)));
            };
            marks.column.raise(&marks.pool, &claim, key).await.map_err(MarksError::from)
        }))
    }
}

impl<DB: FencedDatabase, K> Clone for ColumnMarks<DB, K> {
    fn clone(&self) -> Self {
        let key_of = Arc::clone(&self.key_of);
        Self { pool: self.pool.clone(), column: self.column.clone(), key_of }
    }
}

impl<DB: FencedDatabase, K> fmt::Debug for ColumnMarks<DB, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ColumnMarks").field("column", &self.column).finish_non_exhaustive()
    }
}
