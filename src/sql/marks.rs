use std::fmt;

use futures_core::future::BoxFuture;
use sqlx::Pool;

use super::backend::Class;
use super::error::{Step, class};
use super::{FenceError, FenceErrorKind, FenceOptions, FencedDatabase};
use crate::marks::{Check, Issuer, Marks, MarksError, MarksErrorKind};
use crate::{Claim, Resource, Token};

/// Marks in the database, the same ones a [`FencedTx`](super::FencedTx) raises.
///
/// An equal token and a stale one cost one read each; the mark is written only to raise it.
///
/// The lock tables beside the marks say which tokens were granted: by them, a layer refuses a token
/// that cannot have been (403 `implausible-token`). A resource without a row there is not judged,
/// its tokens come from elsewhere; nor is any where the tables may not be read.
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

    fn look(&self, resource: &Resource) -> BoxFuture<'static, Result<Option<Token>, MarksError>> {
        let (marks, resource) = (self.clone(), resource.clone());
        Box::pin(async move {
            let look = async {
                let (mut conn, text) = (marks.pool.acquire().await?, marks.options.text::<DB>());
                match DB::last_token(&mut conn, text, &resource).await? {
                    None => DB::floor(&mut conn, text).await,
                    mark => Ok(mark),
                }
            };
            let token = look.await.map_err(|error| FenceError::at(Step::Claim, error, None))?;
            Ok(token.and_then(|token| Token::new(token).ok()))
        })
    }

    fn issuer(&self) -> Option<Issuer> {
        let marks = self.clone();
        Some(Issuer::of_some(move |resource| {
            let marks = marks.clone();
            async move {
                let look = async {
                    let mut conn = marks.pool.acquire().await?;
                    DB::granted(&mut conn, marks.options.text::<DB>(), &resource).await
                };
                match look.await {
                    Ok(token) => Ok(token.and_then(|token| Token::new(token).ok())),
                    // No such table, or no right to read it.
                    Err(error) if class(&error) == Class::Setup => Ok(None),
                    Err(error) => Err(FenceError::at(Step::Claim, error, None)),
                }
            }
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
