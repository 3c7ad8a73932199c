#[cfg(feature = "postgres")]
pub(super) mod postgres;
mod target;
mod text;

use std::fmt;

use sqlx::error::BoxDynError;
use sqlx::{Arguments, Encode, Type};

pub use self::target::FencedTarget;
use self::target::Target;
pub(super) use self::text::Shape;
use super::backend::{Class, FencedDatabase, Tried};
use super::error::{Step, class};
use super::retry::Retry;
use super::scan::{InvalidSql, Reason};
use super::tables::sql;
use super::{FenceError, FenceErrorKind, FenceOptions};
use crate::{Claim, ClaimState, Token};

/// One UPDATE or DELETE that is applied only if the claim is accepted, with the mark raised by it.
///
/// `text` has the form `UPDATE ... WHERE {fence} AND ( ... )`: the marker stands first in the
/// condition of the statement, and all the rest of the condition in one parenthesis that closes at
/// the end of the text. So whatever is in it cannot reach past the fence. The parameters are those
/// of the database: `$1` on PostgreSQL, `?` elsewhere. A text of any other form is refused before
/// anything is sent; the values go into parameters, so the text is `'static`.
///
/// ```
/// use fencing::sql::{Outcome, fenced};
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
/// let outcome = fenced(&claim, "UPDATE inventory SET quantity = ? WHERE {fence} AND (id = ?)")
///     .bind(7)
///     .bind(1)
///     .execute(&pool)
///     .await?;
/// assert_eq!(outcome, Outcome::Applied { rows: 1 });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # What it sees
///
/// Everything that earlier holders committed, in all rows it reads, as in a
/// [`FencedTx`](super::FencedTx).
///
/// On PostgreSQL it is one statement and one round trip, with the lock timeout of the options. Its
/// snapshot is older than its lock on the mark, so it compares the `seq` of the mark in both, and
/// is not applied when others came between; then it is run in a transaction, which takes the lock
/// first. The first claim of a resource takes one more round trip. MySQL, MariaDB and SQLite have
/// no such statement: there it is a transaction from the beginning.
pub fn fenced<'c, DB: FencedDatabase>(claim: &'c Claim, text: &'static str) -> Fenced<'c, DB> {
    Fenced {
        claim,
        shape: Shape::new(text, DB::DIALECT),
        arguments: Ok(DB::Arguments::default()),
        options: FenceOptions::new(),
    }
}

/// A fenced statement that was not run yet. Made by [`fenced`].
#[must_use = "a statement that is not executed writes nothing"]
pub struct Fenced<'c, DB: FencedDatabase> {
    claim: &'c Claim,
    shape: Result<Shape, InvalidSql>,
    arguments: Result<DB::Arguments, BoxDynError>,
    options: FenceOptions,
}

/// What became of a fenced statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a stale statement has written nothing"]
pub enum Outcome {
    /// The claim was accepted, and mark and write were committed.
    Applied {
        /// How many rows were written: 0 when the condition found none.
        rows: u64,
    },
    /// The resource has accepted a higher token: this attempt was certainly not applied. Terminal.
    Stale {
        /// The mark, or the floor where the resource has no mark. Under the
        /// [strict policy](super::Policy::Strict) the token itself, when it has written before.
        last_token: Token,
    },
}

impl Outcome {
    /// How many rows were written; stale is an error, to be passed on with `?`.
    ///
    /// # Errors
    ///
    /// `Stale`, or `PartlyApplied` when something was committed under the claim before.
    pub fn applied(self, claim: &Claim) -> Result<u64, FenceError> {
        match self {
            Self::Applied { rows } => Ok(rows),
            Self::Stale { last_token } => {
                Err(FenceError::stale(claim, last_token, claim.has_committed()))
            }
        }
    }
}

impl<DB: FencedDatabase> Fenced<'_, DB> {
    /// Binds a value to the next parameter.
    pub fn bind<'t, T>(mut self, value: T) -> Self
    where
        T: Encode<'t, DB> + Type<DB>,
    {
        if let Ok(arguments) = &mut self.arguments
            && let Err(error) = arguments.add(value)
        {
            self.arguments = Err(error);
        }
        self
    }

    /// Runs it with other tables, bounds or another policy.
    pub fn options(mut self, options: &FenceOptions) -> Self {
        self.options = options.clone();
        self
    }

    /// Runs it, on a pool or, on PostgreSQL, a connection that is in no transaction.
    ///
    /// On a connection a statement that others got in between is run again a bounded number of
    /// times and then contended; a pool is better under contention, as it takes the lock first.
    ///
    /// # Errors
    ///
    /// - `Misconfigured`: the text is not of the form, or a parameter has no value; the tables are
    ///   missing; the connection is in a transaction. Nothing was sent, or nothing applied.
    /// - `Statement`: the database refused the statement. Nothing was applied.
    /// - `Contended` and `Unavailable`: nothing was applied.
    /// - `OutcomeUnknown`: it was sent and no verdict came back.
    ///
    /// # Cancellation
    ///
    /// Mark and write were both applied or both not; which, is not known, and the state of the
    /// claim is [`Unknown`](ClaimState::Unknown). The pool gets no connection with an open
    /// transaction.
    pub async fn execute<'e>(
        self,
        target: impl FencedTarget<'e, DB>,
    ) -> Result<Outcome, FenceError> {
        let Self { claim, shape, arguments, options } = self;
        let shape = shape.map_err(FenceError::invalid)?;
        let arguments = arguments.map_err(FenceError::other)?;
        let (expected, bound) = (shape.parameters, arguments.len());
        if expected != bound {
            return Err(FenceError::invalid(Reason::Bound { expected, bound }.into()));
        }
        let run = Run { claim, shape, arguments, options };
        match target.into_target() {
            Target::Pool(pool) => run.on_pool(pool).await,
            Target::Connection(conn) => run.on_connection(conn).await,
        }
    }
}

/// A statement that is as it must be.
struct Run<'c, DB: FencedDatabase> {
    claim: &'c Claim,
    shape: Shape,
    arguments: DB::Arguments,
    options: FenceOptions,
}

impl<DB: FencedDatabase> Run<'_, DB> {
    async fn on_pool(self, pool: &sqlx::Pool<DB>) -> Result<Outcome, FenceError> {
        if DB::ONE_TRIP {
            let at_connect = |error| FenceError::at(Step::Connect, error, Some(self.claim));
            let mut conn = pool.acquire().await.map_err(at_connect)?;
            match self.one_trip(&mut conn).await {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) => {}
                Err(error) if error.is_collision() => {}
                Err(error) => return Err(error),
            }
        }
        let Self { claim, shape, arguments, options } = self;
        // The mark is locked by a statement of its own before this one: it needs no fence.
        let text = sql(shape.with("1 = 1"));
        let applied = options.run(pool, claim, |tx| {
            let (claim, text, arguments) = (claim.clone(), text.clone(), arguments.clone());
            Box::pin(async move {
                match DB::perform(tx, text, arguments).await {
                    Ok(written) => Ok(written.rows),
                    Err(error) => Err(FenceError::at(Step::Statement, error, Some(&claim))),
                }
            })
        });
        match applied.await {
            Ok(rows) => Ok(Outcome::Applied { rows }),
            Err(error) => match error.kind() {
                FenceErrorKind::Stale { last_token }
                | FenceErrorKind::PartlyApplied { last_token } => Ok(Outcome::Stale { last_token }),
                _ => Err(error),
            },
        }
    }

    async fn on_connection(self, conn: &mut DB::Connection) -> Result<Outcome, FenceError> {
        if sqlx::Connection::is_in_transaction(conn) {
            return Err(FenceError::misconfigured(
                "a fenced statement commits by itself: outside of a transaction, or in a FencedTx \
                 without the fence",
            ));
        }
        let mut retry = Retry::new(self.options.attempts);
        loop {
            match self.one_trip(conn).await {
                Ok(Some(outcome)) => return Ok(outcome),
                Ok(None) if retry.again().await => {}
                Ok(None) => {
                    return Err(FenceError::contended(
                        "others wrote under the statement time and again, nothing was applied: run \
                         it on a pool, where it takes the lock first",
                    ));
                }
                Err(error) if error.is_collision() && retry.again().await => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// `None` when others came between.
    async fn one_trip(&self, conn: &mut DB::Connection) -> Result<Option<Outcome>, FenceError> {
        let Self { claim, shape, arguments, options } = self;
        let mut noted = Noted::new(claim, ClaimState::Unknown);
        let tried = DB::one_trip(conn, options, claim, shape, arguments).await;
        let tried = match tried {
            Ok(tried) => tried,
            Err(error) => {
                let missing = class(&error) == Class::Setup;
                let error = FenceError::at(Step::Alone, error, Some(claim));
                if error.kind() != FenceErrorKind::OutcomeUnknown {
                    noted.state = ClaimState::Unspent;
                }
                return Err(if missing { self.whose_fault(conn, error).await } else { error });
            }
        };
        let (state, outcome) = match tried {
            Tried::Applied { rows } => (ClaimState::Committed, Some(Outcome::Applied { rows })),
            Tried::Stale { last_token } => (ClaimState::Stale, Some(Outcome::Stale { last_token })),
            Tried::NotFresh => (ClaimState::Unspent, None),
        };
        noted.state = state;
        Ok(outcome)
    }

    /// Something is missing that the statement names: ours or the caller's.
    async fn whose_fault(&self, conn: &mut DB::Connection, error: FenceError) -> FenceError {
        let text = self.options.text::<DB>();
        match DB::last_token(conn, text, self.claim.resource()).await {
            Ok(_) => error,
            Err(ours) => FenceError::at(Step::Claim, ours, Some(self.claim)),
        }
    }
}

/// Notes what became of a claim when it is dropped, be it by a cancellation.
pub(super) struct Noted<'c> {
    claim: &'c Claim,
    pub(super) state: ClaimState,
}

impl<'c> Noted<'c> {
    pub(super) fn new(claim: &'c Claim, state: ClaimState) -> Self {
        Self { claim, state }
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        self.claim.note(self.state);
    }
}

impl<DB: FencedDatabase> fmt::Debug for Fenced<'_, DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { claim, shape, .. } = self;
        f.debug_struct("Fenced").field("claim", claim).field("text", shape).finish_non_exhaustive()
    }
}
