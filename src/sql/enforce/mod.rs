//! Triggers on the user's own table, by which the database itself refuses what was not claimed.

#[cfg(feature = "mysql")]
pub(super) mod mysql;
#[cfg(feature = "postgres")]
pub(super) mod postgres;
#[cfg(feature = "sqlite")]
pub(super) mod sqlite;

use std::fmt;

use sqlx::Pool;

use super::backend::FencedDatabase;
use super::checkout::Checkout;
use super::column::name;
use super::error::Step;
use super::scan::{InvalidSql, Reason};
use super::tables::sql;
use super::{FenceError, FenceOptions, Tables};

/// The level *enforced*: triggers on a table, by which the database itself refuses every INSERT,
/// UPDATE and DELETE of a row whose resource was not claimed in the same transaction.
///
/// It is for tables that others write too: a console, a script, a service in another language.
/// They claim in their own transaction, by SQL (`docs/sql.md`):
///
/// - PostgreSQL: `SELECT fencing_claim('inventory:item:1', 34)`
/// - MySQL, MariaDB: `CALL fencing_claim('inventory:item:1', 34)`, and before the commit
///   `CALL fencing_unclaim('inventory:item:1')`
/// - SQLite, in `BEGIN IMMEDIATE`: `INSERT INTO fencing_claim VALUES ('inventory:item:1', 34)`, and
///   before the commit `DELETE FROM fencing_claims`
///
/// A [`FencedTx`](super::FencedTx) and a [`fenced`](super::fenced) statement do all of that by
/// themselves. A transaction of one's own that claims by [`advance`](super::advance) passes on
/// PostgreSQL only. The [column form](super::FencedColumn) does not claim, and is refused.
///
/// ```
/// use fencing::sql::{Enforce, FencedTx};
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
/// Enforce::new("inventory", "inventory:item:{id}")?.install(&pool).await?;
///
/// let update = "UPDATE inventory SET quantity = 7 WHERE id = 1";
/// assert!(sqlx::query(update).execute(&pool).await.is_err());
///
/// let claim = Claim::new(Resource::new("inventory:item:1")?, Token::new(34)?);
/// let mut tx = FencedTx::begin(&pool, &claim).await?;
/// sqlx::query(update).execute(&mut *tx).await?;
/// tx.commit().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// # What it does not cover
///
/// Roles that may disable or drop triggers, alter or drop the table, or write to `fencing_marks`.
/// On MySQL and MariaDB also TRUNCATE, which fires no trigger: do not grant DROP on the table. On
/// SQLite whoever can open the file.
#[derive(Clone, Debug)]
#[must_use = "it enforces nothing until it is installed"]
pub struct Enforce {
    pub(crate) schema: Option<String>,
    pub(crate) table: String,
    pub(crate) resource: Vec<Part>,
    pub(crate) tables: Tables,
}

/// A part of the name of a resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Text(String),
    Column(String),
}

impl Enforce {
    /// `resource` is the name of a row's resource with the columns of the table in braces:
    /// `inventory:item:{id}`. The columns are put in as the database turns them into text, so they
    /// are best integers and texts. `table` may have its schema in front.
    ///
    /// # Errors
    ///
    /// [`InvalidSql`] for what cannot be the name of a table, a column or a resource.
    pub fn new(table: &str, resource: &str) -> Result<Self, InvalidSql> {
        let (schema, table) = match table.split_once('.') {
            Some((schema, table)) => (Some(name(schema)?), table),
            None => (None, table),
        };
        let (table, tables) = (name(table)?, Tables::default());
        Ok(Self { schema, table, resource: parts(resource)?, tables })
    }

    /// The tables of the fence, where they are not the default.
    pub fn tables(mut self, tables: Tables) -> Self {
        self.tables = tables;
        self
    }

    /// Installs the triggers, and what others claim with. It may be done again, to replace them.
    ///
    /// PostgreSQL and SQLite do it in one transaction. On MySQL and MariaDB, which have no such, a
    /// table is not enforced for the moment between dropping and making a trigger.
    ///
    /// # Errors
    ///
    /// - `Misconfigured`: the table cannot be enforced, for the reason in the source, or the tables
    ///   of the fence are missing. Nothing was changed.
    /// - `Statement`: the database refused, as to a role that may not make triggers.
    /// - `Contended`, `Unavailable`, `OutcomeUnknown`: as for a commit.
    ///
    /// # Cancellation
    ///
    /// Done wholly or not at all; on MySQL in part, and to be done again.
    pub async fn install<DB: FencedDatabase>(&self, pool: &Pool<DB>) -> Result<(), FenceError> {
        let options = FenceOptions::new().tables(self.tables.clone());
        options.verify(pool).await.map_err(FenceError::from)?;
        self.run(pool, true).await
    }

    /// Removes the triggers. What others claim with stays: it does no harm.
    ///
    /// # Errors
    ///
    /// As for [`install`](Self::install).
    ///
    /// # Cancellation
    ///
    /// As there.
    pub async fn uninstall<DB: FencedDatabase>(&self, pool: &Pool<DB>) -> Result<(), FenceError> {
        self.run(pool, false).await
    }

    async fn run<DB: FencedDatabase>(
        &self,
        pool: &Pool<DB>,
        install: bool,
    ) -> Result<(), FenceError> {
        let at = |step| move |error| FenceError::at(step, error, None);
        let mut checkout = Checkout::acquire(pool).await.map_err(at(Step::Connect))?;
        if DB::TRANSACTIONAL_DDL {
            let options = FenceOptions::new();
            checkout.begin(&options).await.map_err(at(Step::Claim))?;
        }
        let done = self.execute::<DB>(checkout.conn(), install).await;
        let committed = match &done {
            Ok(()) if DB::TRANSACTIONAL_DDL => checkout.commit().await,
            _ => Ok(()),
        };
        checkout.finish().await;
        done?;
        committed.map_err(|why| FenceError::not_committed(why, None))
    }

    async fn execute<DB: FencedDatabase>(
        &self,
        conn: &mut DB::Connection,
        install: bool,
    ) -> Result<(), FenceError> {
        let statements = match install {
            true => DB::enforce(conn, self).await,
            false => DB::unenforce(conn, self).await,
        };
        let statements = statements
            .map_err(|error| FenceError::at(Step::Claim, error, None))?
            .map_err(|refused| FenceError::unenforceable(Unenforceable::new(self, refused)))?;
        for statement in statements {
            DB::execute(conn, sql(statement))
                .await
                .map_err(|error| FenceError::at(Step::Statement, error, None))?;
        }
        Ok(())
    }

    /// A column of the resource that the table does not have.
    pub(crate) fn missing(&self, columns: &[String]) -> Option<Refused> {
        let missing = |part: &Part| match part {
            Part::Column(column) if !columns.contains(column) => Some(column.clone()),
            _ => None,
        };
        self.resource.iter().find_map(missing).map(Refused::Column)
    }
}

fn parts(resource: &str) -> Result<Vec<Part>, InvalidSql> {
    let mut parts = Vec::new();
    let mut rest = resource;
    while !rest.is_empty() {
        let (text, column) = match rest.split_once('{') {
            Some((text, after)) => {
                let (column, after) = after.split_once('}').ok_or(Reason::Template)?;
                rest = after;
                (text, Some(column))
            }
            None => (std::mem::take(&mut rest), None),
        };
        if text.contains(['{', '}']) || text.chars().any(char::is_control) {
            return Err(Reason::Template.into());
        }
        if !text.is_empty() {
            parts.push(Part::Text(text.to_owned()));
        }
        if let Some(column) = column {
            parts.push(Part::Column(name(column)?));
        }
    }
    if parts.iter().any(|part| matches!(part, Part::Column(_))) {
        Ok(parts)
    } else {
        Err(Reason::Template.into())
    }
}

/// Why a table cannot be enforced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// There is no such table.
    Table,
    /// It is something else than a plain table.
    Kind,
    /// It has no such column.
    Column(String),
    /// It has tables that inherit from it.
    Children,
    /// Rows go with those of another table, without a trigger.
    Cascade,
    /// It has no transactions.
    Engine,
    /// A unique index on an expression.
    Index(String),
    /// A name that would be too long.
    Name,
    /// On SQLite, a table of another file.
    Schema,
}

/// A table that cannot be enforced.
#[derive(Debug)]
pub(crate) struct Unenforceable {
    table: String,
    refused: Refused,
}

impl Unenforceable {
    fn new(enforce: &Enforce, refused: Refused) -> Self {
        Self { table: enforce.table.clone(), refused }
    }
}

impl fmt::Display for Unenforceable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = &self.table;
        let why = match &self.refused {
            Refused::Table => "there is no such table",
            Refused::Kind => "only plain tables are enforced: enforce each partition by itself",
            Refused::Column(column) => {
                return write!(
                    f,
                    "the resource names a column that the table has not table=`{table}` \
                     column=`{column}`"
                );
            }
            Refused::Children => {
                "tables inherit from it, whose rows fire no trigger of its: enforce those"
            }
            Refused::Cascade => {
                "rows go or change with those of another table, and that fires no trigger: make \
                 its foreign keys RESTRICT"
            }
            Refused::Engine => "only InnoDB has transactions: alter the table to it",
            Refused::Index(index) => {
                return write!(
                    f,
                    "a REPLACE by a unique index on an expression cannot be seen: drop it \
                     table=`{table}` index=`{index}`"
                );
            }
            Refused::Name => "the name of a trigger would be too long: choose a shorter prefix",
            Refused::Schema => "marks and protected data lie in one file: leave the schema out",
        };
        write!(f, "{why} table=`{table}`")
    }
}

impl std::error::Error for Unenforceable {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resource_of_a_row_is_a_template_over_its_columns() {
        let (text, column) = (|t: &str| Part::Text(t.into()), |c: &str| Part::Column(c.into()));
        assert_eq!(
            parts("inventory:{warehouse}:item:{id}"),
            Ok(vec![text("inventory:"), column("warehouse"), text(":item:"), column("id")])
        );
        assert_eq!(parts("{id}"), Ok(vec![column("id")]));
        for bad in ["", "all", "item:{id", "item:}", "item:{}", "a\n{id}", "{a{b}}", "{a\"b}"] {
            assert!(parts(bad).is_err(), "{bad}");
        }
    }
}
