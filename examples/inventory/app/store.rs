//! What the service does to its database: read the stock, write it, and keep a log of the writes.
//!
//! One body serves every database; only the text of the SQL differs.

use std::time::Duration;

use fencing::sql::{FenceError, FencedTx};
use fencing::{Claim, Token};
use futures_core::future::BoxFuture;
use serde::Serialize;
use sqlx::{AssertSqlSafe, Connection as _};

/// A change of the stock that a request asks for.
pub(crate) struct Change {
    pub(crate) id: i64,
    pub(crate) op: Op,
    /// Claimed in the same transaction as the write, at level `transaction`.
    pub(crate) claim: Option<Claim>,
    /// What the log says of it.
    pub(crate) token: Option<Token>,
    pub(crate) request_id: String,
    /// How long to wait between the first read and the write, so that races can be tried.
    pub(crate) pause: Duration,
}

#[derive(Clone, Copy)]
pub(crate) enum Op {
    Put(i64),
    Take(i64),
    Delete,
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Self::Put(_) => "put",
            Self::Take(_) => "take",
            Self::Delete => "delete",
        }
    }

    /// The stock after the change, `None` for no such item.
    fn apply(self, stock: Option<i64>) -> Result<Option<i64>, Outcome> {
        match (self, stock) {
            (Self::Put(quantity), _) => Ok(Some(quantity)),
            (Self::Delete, _) => Ok(None),
            (Self::Take(_), None) => Err(Outcome::NoSuchItem),
            (Self::Take(wanted), Some(there)) if wanted > there => {
                Err(Outcome::NotEnough { there })
            }
            (Self::Take(wanted), Some(there)) => Ok(Some(there - wanted)),
        }
    }
}

pub(crate) enum Outcome {
    /// Applied; the stock now.
    Applied(Option<i64>),
    NoSuchItem,
    NotEnough {
        there: i64,
    },
}

#[derive(Serialize)]
pub(crate) struct Item {
    pub(crate) id: i64,
    pub(crate) quantity: i64,
    pub(crate) last_token: Option<i64>,
}

#[derive(Serialize)]
pub(crate) struct LogEntry {
    pub(crate) seq: i64,
    pub(crate) token: Option<i64>,
    pub(crate) op: String,
    /// The stock after the write, `null` after a delete.
    pub(crate) quantity: Option<i64>,
    pub(crate) request_id: String,
}

pub(crate) trait Store: Send + Sync + 'static {
    fn change<'a>(&'a self, change: &'a Change) -> BoxFuture<'a, Result<Outcome, FenceError>>;
    fn show(&self, id: i64) -> BoxFuture<'_, Result<Option<Item>, FenceError>>;
    fn log(&self, id: i64) -> BoxFuture<'_, Result<Vec<LogEntry>, FenceError>>;
}

/// The statements, in the dialect of a database.
pub(crate) struct Sql {
    pub(crate) tables: &'static [&'static str],
    pub(crate) stock: &'static str,
    pub(crate) set: &'static str,
    pub(crate) delete: &'static str,
    pub(crate) append: &'static str,
    pub(crate) show: &'static str,
    pub(crate) log: &'static str,
}

macro_rules! store {
    ($name:ident, $database:ty) => {
        pub(crate) struct $name {
            pool: sqlx::Pool<$database>,
            sql: &'static Sql,
        }

        impl $name {
            pub(crate) async fn open(
                pool: sqlx::Pool<$database>,
                sql: &'static Sql,
            ) -> Result<Self, sqlx::Error> {
                for table in sql.tables {
                    sqlx::query(AssertSqlSafe(*table)).execute(&pool).await?;
                }
                Ok(Self { pool, sql })
            }

            async fn stock(
                &self,
                conn: &mut <$database as sqlx::Database>::Connection,
                id: i64,
            ) -> Result<Option<i64>, sqlx::Error> {
                sqlx::query_scalar(self.sql.stock).bind(id).fetch_optional(conn).await
            }

            /// The write and its log entry. The caller commits both, or neither.
            async fn write(
                &self,
                conn: &mut <$database as sqlx::Database>::Connection,
                change: &Change,
                stock: Option<i64>,
            ) -> Result<Outcome, sqlx::Error> {
                let after = match change.op.apply(stock) {
                    Ok(after) => after,
                    Err(refused) => return Ok(refused),
                };
                let write = match after {
                    Some(quantity) => sqlx::query(self.sql.set).bind(change.id).bind(quantity),
                    None => sqlx::query(self.sql.delete).bind(change.id),
                };
                if write.execute(&mut *conn).await?.rows_affected() > 0 {
                    sqlx::query(self.sql.append)
                        .bind(change.id)
                        .bind(change.token.map(Token::get))
                        .bind(change.op.name())
                        .bind(after)
                        .bind(&change.request_id)
                        .execute(conn)
                        .await?;
                }
                Ok(Outcome::Applied(after))
            }
        }

        impl Store for $name {
            fn change<'a>(
                &'a self,
                change: &'a Change,
            ) -> BoxFuture<'a, Result<Outcome, FenceError>> {
                Box::pin(async move {
                    if let Some(claim) = &change.claim {
                        // Level `transaction`: claim first, then read, then write, then commit.
                        let mut tx = FencedTx::begin(&self.pool, claim).await?;
                        let stock = self.stock(&mut tx, change.id).await?;
                        tokio::time::sleep(change.pause).await;
                        let outcome = self.write(&mut tx, change, stock).await?;
                        tx.commit().await?;
                        return Ok(outcome);
                    }
                    // Level `door`, or no fence at all: what was checked may have changed by the
                    // time of the write, and nothing notices. At level `exclusive` it cannot have:
                    // whoever could change it is kept waiting.
                    let mut conn = self.pool.acquire().await?;
                    let stock = self.stock(&mut conn, change.id).await?;
                    tokio::time::sleep(change.pause).await;
                    let mut tx = conn.begin().await?;
                    let outcome = self.write(&mut tx, change, stock).await?;
                    tx.commit().await?;
                    Ok(outcome)
                })
            }

            fn show(&self, id: i64) -> BoxFuture<'_, Result<Option<Item>, FenceError>> {
                Box::pin(async move {
                    let row: Option<(i64, Option<i64>)> = sqlx::query_as(self.sql.show)
                        .bind(super::resource_name(id))
                        .bind(id)
                        .fetch_optional(&self.pool)
                        .await?;
                    Ok(row.map(|(quantity, last_token)| Item { id, quantity, last_token }))
                })
            }

            fn log(&self, id: i64) -> BoxFuture<'_, Result<Vec<LogEntry>, FenceError>> {
                Box::pin(async move {
                    let rows: Vec<(i64, Option<i64>, String, Option<i64>, String)> =
                        sqlx::query_as(self.sql.log).bind(id).fetch_all(&self.pool).await?;
                    let entry = |(seq, token, op, quantity, request_id)| LogEntry {
                        seq,
                        token,
                        op,
                        quantity,
                        request_id,
                    };
                    Ok(rows.into_iter().map(entry).collect())
                })
            }
        }
    };
}

store!(SqliteStore, sqlx::Sqlite);

pub(crate) static SQLITE: Sql = Sql {
    tables: &[
        "CREATE TABLE IF NOT EXISTS inventory (
             id INTEGER NOT NULL PRIMARY KEY, quantity INTEGER NOT NULL) STRICT",
        "CREATE TABLE IF NOT EXISTS inventory_log (
             seq INTEGER PRIMARY KEY AUTOINCREMENT, item INTEGER NOT NULL, token INTEGER,
             op TEXT NOT NULL, quantity INTEGER, request_id TEXT NOT NULL) STRICT",
    ],
    stock: "SELECT quantity FROM inventory WHERE id = $1",
    set: "INSERT INTO inventory (id, quantity) VALUES ($1, $2)
          ON CONFLICT (id) DO UPDATE SET quantity = excluded.quantity",
    delete: "DELETE FROM inventory WHERE id = $1",
    append: "INSERT INTO inventory_log (item, token, op, quantity, request_id)
             VALUES ($1, $2, $3, $4, $5)",
    show: "SELECT quantity, (SELECT last_token FROM fencing_marks WHERE resource = $1)
           FROM inventory WHERE id = $2",
    log: "SELECT seq, token, op, quantity, request_id FROM inventory_log
          WHERE item = $1 ORDER BY seq",
};
