//! What the service does to its database: read the stock, write it, and keep a log of the writes.
//!
//! One body serves every database; only the text of the SQL differs.

use std::time::Duration;

use fencing::sql::{FenceError, FenceOptions};
use fencing::{Claim, Token};
use futures_core::future::BoxFuture;
use serde::Serialize;
use sqlx::{AssertSqlSafe, Connection as _, SqlSafeStr as _, SqlStr};

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

/// The statements, in the dialect of a database, with `{p}` for the prefix of the tables.
pub(crate) struct Dialect {
    tables: [&'static str; 2],
    stock: &'static str,
    set: &'static str,
    delete: &'static str,
    append: &'static str,
    show: &'static str,
    log: &'static str,
}

/// The same with the prefix put in.
pub(crate) struct Sql {
    tables: [SqlStr; 2],
    stock: SqlStr,
    set: SqlStr,
    delete: SqlStr,
    append: SqlStr,
    show: SqlStr,
    log: SqlStr,
}

impl Dialect {
    /// `prefix` has been checked: it is a part of a prefix of [`Tables`](fencing::sql::Tables).
    pub(crate) fn with(&self, prefix: &str) -> Sql {
        let put = |text: &str| AssertSqlSafe(text.replace("{p}", prefix)).into_sql_str();
        Sql {
            tables: self.tables.map(put),
            stock: put(self.stock),
            set: put(self.set),
            delete: put(self.delete),
            append: put(self.append),
            show: put(self.show),
            log: put(self.log),
        }
    }
}

macro_rules! store {
    ($name:ident, $database:ty) => {
        pub(crate) struct $name {
            pool: sqlx::Pool<$database>,
            fence: FenceOptions,
            sql: Sql,
        }

        impl $name {
            pub(crate) async fn open(
                pool: sqlx::Pool<$database>,
                fence: FenceOptions,
                sql: Sql,
            ) -> Result<Self, sqlx::Error> {
                for table in &sql.tables {
                    sqlx::query(table.clone()).execute(&pool).await?;
                }
                Ok(Self { pool, fence, sql })
            }

            async fn stock(
                &self,
                conn: &mut <$database as sqlx::Database>::Connection,
                id: i64,
            ) -> Result<Option<i64>, sqlx::Error> {
                sqlx::query_scalar(self.sql.stock.clone()).bind(id).fetch_optional(conn).await
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
                    Some(quantity) => {
                        sqlx::query(self.sql.set.clone()).bind(change.id).bind(quantity)
                    }
                    None => sqlx::query(self.sql.delete.clone()).bind(change.id),
                };
                if write.execute(&mut *conn).await?.rows_affected() > 0 {
                    sqlx::query(self.sql.append.clone())
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
                        let mut tx = self.fence.begin(&self.pool, claim).await?;
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
                    let row: Option<(i64, Option<i64>)> = sqlx::query_as(self.sql.show.clone())
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
                        sqlx::query_as(self.sql.log.clone()).bind(id).fetch_all(&self.pool).await?;
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
store!(PostgresStore, sqlx::Postgres);
store!(MySqlStore, sqlx::MySql);

pub(crate) static SQLITE: Dialect = Dialect {
    tables: [
        "CREATE TABLE IF NOT EXISTS {p}inventory (
             id INTEGER NOT NULL PRIMARY KEY, quantity INTEGER NOT NULL) STRICT",
        "CREATE TABLE IF NOT EXISTS {p}inventory_log (
             seq INTEGER PRIMARY KEY AUTOINCREMENT, item INTEGER NOT NULL, token INTEGER,
             op TEXT NOT NULL, quantity INTEGER, request_id TEXT NOT NULL) STRICT",
    ],
    ..POSTGRES
};

pub(crate) static POSTGRES: Dialect = Dialect {
    tables: [
        "CREATE TABLE IF NOT EXISTS {p}inventory (
             id bigint PRIMARY KEY, quantity bigint NOT NULL)",
        "CREATE TABLE IF NOT EXISTS {p}inventory_log (
             seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item bigint NOT NULL,
             token bigint, op text NOT NULL, quantity bigint, request_id text NOT NULL)",
    ],
    stock: "SELECT quantity FROM {p}inventory WHERE id = $1",
    set: "INSERT INTO {p}inventory (id, quantity) VALUES ($1, $2)
          ON CONFLICT (id) DO UPDATE SET quantity = excluded.quantity",
    delete: "DELETE FROM {p}inventory WHERE id = $1",
    append: "INSERT INTO {p}inventory_log (item, token, op, quantity, request_id)
             VALUES ($1, $2, $3, $4, $5)",
    show: "SELECT quantity, (SELECT last_token FROM {p}fencing_marks WHERE resource = $1)
           FROM {p}inventory WHERE id = $2",
    log: "SELECT seq, token, op, quantity, request_id FROM {p}inventory_log
          WHERE item = $1 ORDER BY seq",
};

pub(crate) static MYSQL: Dialect = Dialect {
    tables: [
        "CREATE TABLE IF NOT EXISTS {p}inventory (
             id BIGINT PRIMARY KEY, quantity BIGINT NOT NULL) ENGINE = InnoDB",
        "CREATE TABLE IF NOT EXISTS {p}inventory_log (
             seq BIGINT AUTO_INCREMENT PRIMARY KEY, item BIGINT NOT NULL, token BIGINT,
             op VARCHAR(16) CHARACTER SET utf8mb4 NOT NULL, quantity BIGINT,
             request_id TEXT CHARACTER SET utf8mb4 NOT NULL) ENGINE = InnoDB",
    ],
    stock: "SELECT quantity FROM {p}inventory WHERE id = ?",
    set: "INSERT INTO {p}inventory (id, quantity) VALUES (?, ?)
          ON DUPLICATE KEY UPDATE quantity = VALUES(quantity)",
    delete: "DELETE FROM {p}inventory WHERE id = ?",
    append: "INSERT INTO {p}inventory_log (item, token, op, quantity, request_id)
             VALUES (?, ?, ?, ?, ?)",
    show: "SELECT quantity, (SELECT last_token FROM {p}fencing_marks WHERE resource = ?)
           FROM {p}inventory WHERE id = ?",
    log: "SELECT seq, token, op, quantity, request_id FROM {p}inventory_log
          WHERE item = ? ORDER BY seq",
};
