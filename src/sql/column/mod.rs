mod marks;
mod update;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::{Arguments, Encode, Pool, Type};

pub use self::marks::ColumnMarks;
pub use self::update::{ColumnOutcome, ColumnUpdate};
use super::backend::{Backend, FencedDatabase};
use super::error::Step;
use super::scan::{InvalidSql, Reason};
use super::tables::sql;
use super::{FenceError, FenceOptions, FencedTx};
use crate::{Claim, ClaimState, Resource, Token, Verdict};

/// A table of the user's in which each row carries its own mark.
///
/// `UPDATE t SET ..., last_token = 34 WHERE id = 1 AND last_token <= 34`: mark and write are one
/// row and one round trip, on every database. There is no cheaper fence, and it has conditions:
///
/// - The resource is exactly one row, found by a key that is unique. A resource of several rows
///   would have several marks.
/// - All who write the row do it by this form. `fencing_marks`, and so a plain
///   [`FencedTx`](super::FencedTx), [`fenced`](super::fenced) or
///   [`SqlMarks`](super::SqlMarks), does not know the mark of the row.
///   For reads there is [`claim`](Self::claim), for the layer [`ColumnMarks`].
/// - It only updates. A row that is deleted takes its mark with it, so set a tombstone column
///   instead, or delete, create and do all that takes more than one statement in a transaction by
///   [`begin`](Self::begin), which holds both marks.
/// - The column is `BIGINT NOT NULL` and signed. That, and that the key is unique, is looked up at
///   the first use, or at start by [`verify`](Self::verify).
///
/// ```
/// use fencing::sql::{ColumnOutcome, FencedColumn};
/// use fencing::{Claim, Resource, Token};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let pool = sqlx::sqlite::SqlitePoolOptions::new()
/// #     .max_connections(1)
/// #     .connect("sqlite::memory:")
/// #     .await?;
/// sqlx::raw_sql(
///     "CREATE TABLE inventory (
///         id INTEGER PRIMARY KEY, quantity INTEGER NOT NULL,
///         last_token BIGINT NOT NULL DEFAULT 0);
///      INSERT INTO inventory (id, quantity) VALUES (1, 10)",
/// )
/// .execute(&pool)
/// .await?;
/// let inventory = FencedColumn::new("inventory", "id", "last_token")?;
/// let claim = Claim::new(Resource::new("inventory:item:1")?, Token::new(34)?);
///
/// let outcome = inventory
///     .update(&claim, 1)
///     .set_to("quantity", "quantity - {}", 3)
///     .only_if("quantity >= {}", 3)
///     .execute(&pool)
///     .await?;
/// assert_eq!(outcome, ColumnOutcome::Applied);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub struct FencedColumn<DB: FencedDatabase>(Arc<Inner<DB>>);

struct Inner<DB: FencedDatabase> {
    names: Names,
    options: FenceOptions,
    verified: AtomicBool,
    database: std::marker::PhantomData<fn() -> DB>,
}

#[derive(Clone, Debug)]
struct Names {
    schema: Option<String>,
    table: String,
    key: String,
    token: String,
}

/// What the key of a row can be: an integer, a text, a UUID.
pub trait ColumnKey<DB: FencedDatabase>:
    for<'q> Encode<'q, DB> + Type<DB> + Clone + Send + Sync + 'static
{
}

impl<DB: FencedDatabase, K> ColumnKey<DB> for K where
    K: for<'q> Encode<'q, DB> + Type<DB> + Clone + Send + Sync + 'static
{
}

impl<DB: FencedDatabase> FencedColumn<DB> {
    /// The column `token` of a table whose rows are found by the column `key`. The names are taken
    /// as the database has stored them, the table with its schema in front where it needs one:
    /// `warehouse.inventory`.
    ///
    /// # Errors
    ///
    /// [`InvalidSql`] for what cannot be a name.
    pub fn new(table: &str, key: &str, token: &str) -> Result<Self, InvalidSql> {
        let (schema, table) = match table.split_once('.') {
            Some((schema, table)) => (Some(name(schema)?), table),
            None => (None, table),
        };
        let names = Names { schema, table: name(table)?, key: name(key)?, token: name(token)? };
        Ok(Self::make(names, FenceOptions::new()))
    }

    fn make(names: Names, options: FenceOptions) -> Self {
        let verified = AtomicBool::new(false);
        Self(Arc::new(Inner { names, options, verified, database: std::marker::PhantomData }))
    }

    /// The same with other tables of the fence, for [`begin`](Self::begin), and other bounds.
    #[must_use]
    pub fn options(&self, options: &FenceOptions) -> Self {
        Self::make(self.0.names.clone(), options.clone())
    }

    /// An update of the row with this key, under the claim.
    pub fn update<'c, K: ColumnKey<DB>>(
        &self,
        claim: &'c Claim,
        key: K,
    ) -> ColumnUpdate<'c, DB, K> {
        ColumnUpdate::new(self.clone(), claim, key)
    }

    /// Looks up whether the column and the key are as they must be.
    ///
    /// # Errors
    ///
    /// `Misconfigured`, with what is wrong in the source; `Unavailable`.
    pub async fn verify(&self, pool: &Pool<DB>) -> Result<(), FenceError> {
        let mut conn =
            pool.acquire().await.map_err(|error| FenceError::at(Step::Connect, error, None))?;
        self.verify_on(&mut conn).await
    }

    async fn verify_on(&self, conn: &mut DB::Connection) -> Result<(), FenceError> {
        if self.0.verified.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Names { schema, table, key, token } = &self.0.names;
        let found = DB::column(conn, schema.as_deref(), table, key, token).await;
        let found = found.map_err(|error| FenceError::at(Step::Claim, error, None))?;
        let wrong = match found {
            None => Some(Wrong::Missing),
            Some(Column { kind, .. }) if !DB::is_bigint(&kind) => Some(Wrong::Kind(kind)),
            Some(Column { not_null: false, .. }) => Some(Wrong::Nullable),
            Some(Column { unique_key: false, .. }) => Some(Wrong::Key),
            Some(_) => None,
        };
        match wrong {
            Some(wrong) => {
                let names = self.0.names.clone();
                Err(FenceError::invalid_column(InvalidColumn { names, wrong }))
            }
            None => {
                self.0.verified.store(true, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// Raises the mark of the row to the claim, before a read. Where there is no row, the one in
    /// `fencing_marks`, which is what remains of a deleted row.
    ///
    /// # Errors
    ///
    /// As for [`claim`](super::claim()).
    ///
    /// # Cancellation
    ///
    /// The mark may or may not have been raised.
    pub async fn claim<K: ColumnKey<DB>>(
        &self,
        pool: &Pool<DB>,
        claim: &Claim,
        key: K,
    ) -> Result<(), FenceError> {
        match self.raise(pool, claim, key).await? {
            Verdict::Accepted => {
                claim.note(ClaimState::Claimed);
                Ok(())
            }
            Verdict::Stale { last_token } => {
                let partly = claim.has_committed();
                claim.note(ClaimState::Stale);
                Err(FenceError::stale(claim, last_token, partly))
            }
        }
    }

    /// Begins a transaction that holds both marks of the row: its column, raised to the claim, and
    /// `fencing_marks`. In it the row may be deleted, so that its mark remains in `fencing_marks`,
    /// created, with the token of the claim in the column, or written by any number of statements.
    ///
    /// # Errors
    ///
    /// As for [`FencedTx::begin`]; `Stale` when either mark is above the claim.
    ///
    /// # Cancellation
    ///
    /// Nothing was applied.
    pub async fn begin<K: ColumnKey<DB>>(
        &self,
        pool: &Pool<DB>,
        claim: &Claim,
        key: K,
    ) -> Result<FencedTx<DB>, FenceError> {
        self.verify(pool).await?;
        let at = |error| FenceError::at(Step::Claim, error, Some(claim));
        let mut tx = self.0.options.begin(pool, claim).await?;
        if self.raise_row(&mut tx, claim, &key).await.map_err(at)? {
            return Ok(tx);
        }
        match self.read(&mut tx, &key).await.map_err(at)? {
            None => Ok(tx),
            Some(mark) => {
                tx.rollback().await;
                match Token::new(mark) {
                    Ok(last_token) if last_token > claim.token() => {
                        let partly = claim.has_committed();
                        claim.note(ClaimState::Stale);
                        Err(FenceError::stale(claim, last_token, partly))
                    }
                    _ => Err(FenceError::contended("the row was made and changed by others")),
                }
            }
        }
    }

    /// Raises the mark of the row, or that in `fencing_marks` where there is no row.
    async fn raise<K: ColumnKey<DB>>(
        &self,
        pool: &Pool<DB>,
        claim: &Claim,
        key: K,
    ) -> Result<Verdict, FenceError> {
        let at = |step| move |error| FenceError::at(step, error, Some(claim));
        let mut conn = pool.acquire().await.map_err(at(Step::Connect))?;
        self.verify_on(&mut conn).await?;
        // Twice: a row may be made or deleted in between.
        for _ in 0..2 {
            let Some(mark) = self.read(&mut conn, &key).await.map_err(at(Step::Claim))? else {
                drop(conn);
                return self.0.options.raise(pool, claim).await;
            };
            if mark == claim.token().get() {
                return Ok(Verdict::Accepted);
            }
            if let Ok(last_token) = Token::new(mark)
                && last_token > claim.token()
            {
                return Ok(Verdict::Stale { last_token });
            }
            if self.raise_row(&mut conn, claim, &key).await.map_err(at(Step::Claim))? {
                return Ok(Verdict::Accepted);
            }
        }
        Err(FenceError::contended("the row was made and deleted by others"))
    }

    /// Whether the mark of the row was at or below the token, and is the token now.
    async fn raise_row<K: ColumnKey<DB>>(
        &self,
        conn: &mut DB::Connection,
        claim: &Claim,
        key: &K,
    ) -> Result<bool, sqlx::Error> {
        let (text, arguments) =
            self.statement(claim, key, &mut |_, _| Ok(()), &mut |_, _| Ok(()))?;
        let written = DB::perform(conn, sql(text), arguments).await?;
        Ok(DB::found(written))
    }

    /// The statement, with the parts of the caller's put in and their values added.
    fn statement<K: ColumnKey<DB>>(
        &self,
        claim: &Claim,
        key: &K,
        set: &mut Part<'_, DB>,
        condition: &mut Part<'_, DB>,
    ) -> Result<(String, DB::Arguments), sqlx::Error> {
        let encode = sqlx::Error::Encode;
        let Quoted { table, key: key_column, token: token_column } = self.quoted();
        let mut arguments = DB::Arguments::default();
        let mut text = format!("UPDATE {table} SET ");
        set(&mut text, &mut arguments).map_err(encode)?;
        let (before, after) = DB::MARKED;
        text.push_str(&format!("{token_column} = {before}"));
        put_token::<DB>(&mut text, &mut arguments, claim.token()).map_err(encode)?;
        text.push_str(&format!("{after} WHERE {key_column} = "));
        put::<DB, _>(&mut text, &mut arguments, key.clone()).map_err(encode)?;
        text.push_str(&format!(" AND {token_column} <= "));
        put_token::<DB>(&mut text, &mut arguments, claim.token()).map_err(encode)?;
        condition(&mut text, &mut arguments).map_err(encode)?;
        Ok((text, arguments))
    }

    /// The mark of the row as it is committed now, or as this transaction sees it.
    async fn read<K: ColumnKey<DB>>(
        &self,
        conn: &mut DB::Connection,
        key: &K,
    ) -> Result<Option<i64>, sqlx::Error> {
        let Quoted { table, key: key_column, token } = self.quoted();
        let mut arguments = DB::Arguments::default();
        let mut text = format!("SELECT {token} FROM {table} WHERE {key_column} = ");
        put::<DB, _>(&mut text, &mut arguments, key.clone()).map_err(sqlx::Error::Encode)?;
        text.push_str(DB::READ_NEWEST);
        DB::fetch_number(conn, sql(text), arguments).await
    }

    fn quoted(&self) -> Quoted {
        let Names { schema, table, key, token } = &self.0.names;
        let quote = |name: &str| format!("{0}{name}{0}", DB::QUOTE);
        let table = match schema {
            Some(schema) => format!("{}.{}", quote(schema), quote(table)),
            None => quote(table),
        };
        Quoted { table, key: quote(key), token: quote(token) }
    }
}

struct Quoted {
    table: String,
    key: String,
    token: String,
}

/// Writes a part of a statement and adds the values of its parameters.
type Part<'p, DB> = dyn FnMut(
        &mut String,
        &mut <DB as sqlx::Database>::Arguments,
    ) -> Result<(), sqlx::error::BoxDynError>
    + Send
    + 'p;

/// Adds a value, and its parameter to the text.
fn put<'q, DB: Backend, T: Encode<'q, DB> + Type<DB>>(
    text: &mut String,
    arguments: &mut DB::Arguments,
    value: T,
) -> Result<(), sqlx::error::BoxDynError>
where
    DB::Arguments: Arguments<Database = DB>,
{
    arguments.add(value)?;
    Ok(arguments.format_placeholder(text)?)
}

fn put_token<DB: Backend>(
    text: &mut String,
    arguments: &mut DB::Arguments,
    token: Token,
) -> Result<(), sqlx::error::BoxDynError> {
    DB::add(arguments, token.get())?;
    Ok(arguments.format_placeholder(text)?)
}

/// A name that can be quoted on every database.
pub(super) fn name(name: &str) -> Result<String, InvalidSql> {
    let fits = |c: char| !c.is_control() && !matches!(c, '"' | '`' | '\\' | '\'');
    if (1..=63).contains(&name.len()) && name.chars().all(fits) {
        Ok(name.to_owned())
    } else {
        Err(Reason::Name.into())
    }
}

/// What a database knows of the column of a token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// Its type.
    pub kind: String,
    /// Whether it is never null.
    pub not_null: bool,
    /// Whether the column of the key is unique.
    pub unique_key: bool,
}

/// The column of a token is not as it must be.
#[derive(Clone, Debug)]
pub(crate) struct InvalidColumn {
    names: Names,
    wrong: Wrong,
}

#[derive(Clone, Debug)]
enum Wrong {
    Missing,
    Kind(String),
    Nullable,
    Key,
}

impl fmt::Display for InvalidColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Names { table, key, token, .. } = &self.names;
        match &self.wrong {
            Wrong::Missing => {
                write!(f, "there is no such table or column table=`{table}` column=`{token}`")
            }
            Wrong::Kind(kind) => write!(
                f,
                "the column of the token must be a signed BIGINT: alter it \
                 table=`{table}` column=`{token}` found=`{kind}`"
            ),
            Wrong::Nullable => write!(
                f,
                "the column of the token must be NOT NULL, as null is at or below no token: alter \
                 it table=`{table}` column=`{token}`"
            ),
            Wrong::Key => write!(
                f,
                "the key must be the primary key, or have a unique index to itself: a mark is of \
                 one row table=`{table}` column=`{key}`"
            ),
        }
    }
}

impl std::error::Error for InvalidColumn {}

impl<DB: FencedDatabase> Clone for FencedColumn<DB> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<DB: FencedDatabase> fmt::Debug for FencedColumn<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0.names, f)
    }
}

/// For [`ColumnMarks`].
type KeyOf<K> = Arc<dyn Fn(&Resource) -> Option<K> + Send + Sync>;
