//! MySQL and MariaDB, with InnoDB.
//!
//! A deadlock rolls the whole transaction back, and with autocommit on the next statement would
//! commit by itself. So autocommit is off while a transaction of ours is open, and a savepoint
//! made at its beginning tells at its end whether it is still the same one.

use std::time::Duration;

use sqlx::error::{BoxDynError, DatabaseError};
use sqlx::mysql::MySqlDatabaseError;
use sqlx::{Arguments as _, MySql, MySqlConnection, SqlStr};
use sqlx_core::transaction::TransactionManager;

use super::backend::{
    Backend, Class, FencedDatabase, NotCommitted, Route, Stage, Tried, UNCLAIMED, Written,
};
use super::column::Column;
use super::enforce::{self, Refused};
use super::scan::Dialect;
use super::statement::Shape;
use super::tables::{Text, sql};
use super::{Enforce, FenceOptions, Isolation, Tables};
use crate::{Claim, Resource, Token, Verdict};

type Manager = <MySql as sqlx::Database>::TransactionManager;

/// The wall clock, whatever the time zone of the session.
macro_rules! now {
    () => {
        "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000"
    };
}
#[cfg(feature = "server")]
pub(crate) use now;

const RAISE: usize = 0;
const LAST_TOKEN: usize = 1;
const SHARE_MARK: usize = 2;
const SHARE_FLOOR: usize = 3;
const FIRST: usize = 4;
const LOCK_MARK: usize = 5;
const FLOOR: usize = 6;
const VERSIONS: usize = 7;
const WITNESS: usize = 8;
const UNCLAIM: usize = 9;
const GRANTED: usize = 10;
const SPEND: usize = 11;

const TEMPLATES: &[&str] = &[
    // seq changes every time, so the count of rows is 1 with CLIENT_FOUND_ROWS and without. Its
    // new value comes back as the last insert id.
    concat!(
        "UPDATE {prefix}marks SET last_token = ?, seq = LAST_INSERT_ID(seq + 1), \
         claim_conn = IF(?, CONNECTION_ID(), 0), updated_at = ",
        now!(),
        " WHERE resource = ? AND last_token <= ?"
    ),
    "SELECT last_token FROM {prefix}marks WHERE resource = ?",
    "SELECT last_token FROM {prefix}marks WHERE resource = ? LOCK IN SHARE MODE",
    "SELECT floor FROM {prefix}floor WHERE id = 1 LOCK IN SHARE MODE",
    // An INSERT IGNORE and an UPDATE, or an UPDATE first at REPEATABLE READ, deadlock with nearly
    // every other first claim of the same resource. This does not.
    concat!(
        "INSERT INTO {prefix}marks (resource, last_token, claim_conn, updated_at) \
         VALUES (?, ?, IF(?, CONNECTION_ID(), 0), ",
        now!(),
        ") ON DUPLICATE KEY UPDATE last_token = GREATEST(last_token, VALUES(last_token)), \
         seq = seq + 1, claim_conn = IF(last_token = VALUES(last_token), VALUES(claim_conn), 0), \
         updated_at = ",
        now!()
    ),
    "SELECT last_token, seq FROM {prefix}marks WHERE resource = ? FOR UPDATE",
    "SELECT floor FROM {prefix}floor WHERE id = 1",
    "SELECT version FROM {prefix}schema ORDER BY version",
    "SELECT last_token, seq FROM {prefix}marks WHERE resource = ?",
    "; UPDATE {prefix}marks SET claim_conn = 0 WHERE resource = X",
    "SELECT token FROM {prefix}locks WHERE resource = ?",
    "UPDATE {prefix}marks SET last_spent = ? WHERE resource = ? AND last_spent < ?",
];

/// What a transaction of ours has left on its connection.
#[derive(Debug, Default)]
pub struct Session {
    /// Whether the settings of the session are ours.
    changed: bool,
    /// What the first claim wrote into its mark row.
    witness: Option<Witness>,
    /// What takes the claims back that the triggers of enforced tables look for.
    unclaim: String,
}

#[derive(Debug)]
struct Witness {
    select: SqlStr,
    claim: Claim,
    seq: i64,
}

impl FencedDatabase for MySql {}

impl Backend for MySql {
    type Session = Session;

    const SLOT: usize = 2;
    const QUOTE: char = '`';
    const DIALECT: Dialect = Dialect::MySql;
    const ONE_TRIP: bool = false;
    const TEMPLATES: &'static [&'static str] = TEMPLATES;
    const MIGRATIONS: &'static [&'static str] = &[include_str!("schema/mysql_0001.sql")];
    const TRANSACTIONAL_DDL: bool = false;
    const COLUMNS: &'static [(&'static str, &'static str, &'static str)] = &[
        ("marks", "resource", "varbinary"),
        ("marks", "last_token", "bigint"),
        ("marks", "last_spent", "bigint"),
        ("marks", "seq", "bigint"),
        ("marks", "claim_conn", "bigint"),
        ("marks", "updated_at", "bigint"),
        ("locks", "resource", "varbinary"),
        ("locks", "token", "bigint"),
        ("locks", "owner", "varchar nullable"),
        ("locks", "owner_token_hash", "varbinary nullable"),
        ("locks", "acquired_at", "bigint nullable"),
        ("locks", "expires_at", "bigint nullable"),
        ("locks", "hold_until", "bigint nullable"),
        ("locks", "released_at", "bigint nullable"),
        ("floor", "id", "int"),
        ("floor", "floor", "bigint"),
        ("floor", "epoch", "bigint"),
        ("audit", "id", "bigint"),
        ("audit", "at", "bigint"),
        ("audit", "event", "varchar"),
        ("audit", "resource", "varbinary nullable"),
        ("audit", "token", "bigint nullable"),
        ("audit", "owner", "varchar nullable"),
        ("audit", "actor", "text nullable"),
        ("audit", "approved_by", "text nullable"),
        ("audit", "reason", "text nullable"),
        ("schema", "version", "bigint"),
        ("schema", "applied_at", "bigint"),
    ];

    async fn begin<'a>(
        conn: &'a mut MySqlConnection,
        session: &'a mut Session,
        options: &'a FenceOptions,
    ) -> Result<(), sqlx::Error> {
        let level = match options.isolation {
            Isolation::ReadCommitted => "READ COMMITTED",
            Isolation::RepeatableRead => "REPEATABLE READ",
            Isolation::Serializable => "SERIALIZABLE",
        };
        let wait = options.lock_timeout.unwrap_or(FenceOptions::DEFAULT_LOCK_TIMEOUT);
        let (wait, idle) = (seconds(wait), seconds(options.idle_timeout));
        session.changed = true;
        // One round trip. `/*M!` is read by MariaDB only, and `/*!50700` by MySQL only: MariaDB
        // skips the versions from 5.7 to 9.
        let begin = sql(format!(
            "SET @fencing_autocommit = @@SESSION.autocommit, \
             @fencing_wait = @@SESSION.innodb_lock_wait_timeout \
             /*M!100300 , @fencing_idle = @@SESSION.idle_write_transaction_timeout */ \
             /*!50700 , @fencing_idle = @@SESSION.wait_timeout */; \
             SET TRANSACTION ISOLATION LEVEL {level}; \
             SET SESSION autocommit = 0, SESSION innodb_lock_wait_timeout = {wait} \
             /*M!100300 , SESSION idle_write_transaction_timeout = {idle} */ \
             /*!50700 , SESSION wait_timeout = {idle} */; \
             START TRANSACTION; SAVEPOINT fencing_guard"
        ));
        Manager::begin(conn, Some(begin)).await
    }

    async fn advance<'a>(
        conn: &'a mut MySqlConnection,
        session: &'a mut Session,
        text: &'a Text,
        claim: &'a Claim,
        route: Route,
    ) -> Result<Verdict, sqlx::Error> {
        // In a transaction of the caller nobody would take the permit back.
        let permit = session.changed;
        let (verdict, seq) = match route {
            Route::Own => known(conn, text, claim, permit).await?,
            Route::Foreign => first(conn, text, claim, permit).await?,
        };
        if permit && verdict == Verdict::Accepted {
            // Text and no parameter, so that it needs no round trip of its own.
            session.unclaim.push_str(text.get(UNCLAIM).as_str());
            session.unclaim.push_str(&hex(claim.resource()));
        }
        if session.witness.is_none() {
            let (select, claim) = (text.get(WITNESS), claim.clone());
            session.witness = Some(Witness { select, claim, seq });
        }
        Ok(verdict)
    }

    async fn spend<'a>(
        conn: &'a mut MySqlConnection,
        text: &'a Text,
        claim: &'a Claim,
    ) -> Result<bool, sqlx::Error> {
        let spent = sqlx::query(text.get(SPEND))
            .bind(claim.token().get())
            .bind(claim.resource().as_str().as_bytes())
            .bind(claim.token().get());
        Ok(spent.execute(conn).await?.rows_affected() > 0)
    }

    async fn perform(
        conn: &mut MySqlConnection,
        text: SqlStr,
        arguments: Self::Arguments,
    ) -> Result<Written, sqlx::Error> {
        let result = sqlx::query_with(text, arguments).execute(conn).await?;
        Ok(Written { rows: result.rows_affected(), last_insert_id: result.last_insert_id() })
    }

    /// Whatever `found_rows` says, and a proxy: the value of `LAST_INSERT_ID(expr)` comes back only
    /// when it was evaluated, for a row that was found.
    const MARKED: (&'static str, &'static str) = ("LAST_INSERT_ID(", ")");
    const READ_NEWEST: &'static str = " LOCK IN SHARE MODE";

    fn found(written: Written) -> bool {
        written.last_insert_id > 0
    }

    fn add(arguments: &mut Self::Arguments, value: i64) -> Result<(), BoxDynError> {
        arguments.add(value)
    }

    const CLOCK_MS: &'static str = now!();
    const LOCK_ROW: &'static str = " FOR UPDATE";

    fn add_resource(
        arguments: &mut Self::Arguments,
        resource: &Resource,
    ) -> Result<(), BoxDynError> {
        arguments.add(resource.as_str().as_bytes())
    }

    fn add_words(arguments: &mut Self::Arguments, words: Option<&str>) -> Result<(), BoxDynError> {
        arguments.add(words)
    }

    async fn fetch_resources(
        conn: &mut MySqlConnection,
        text: SqlStr,
        arguments: Self::Arguments,
    ) -> Result<Vec<(Resource, i64)>, sqlx::Error> {
        let rows: Vec<(Vec<u8>, i64)> =
            sqlx::query_as_with(text, arguments).fetch_all(conn).await?;
        rows.into_iter()
            .map(|(name, token)| match String::from_utf8(name).map(Resource::new) {
                Ok(Ok(resource)) => Ok((resource, token)),
                Ok(Err(invalid)) => Err(sqlx::Error::Decode(invalid.into())),
                Err(invalid) => Err(sqlx::Error::Decode(invalid.into())),
            })
            .collect()
    }

    async fn fetch_number(
        conn: &mut MySqlConnection,
        text: SqlStr,
        arguments: Self::Arguments,
    ) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar_with(text, arguments).fetch_optional(conn).await
    }

    async fn column<'a>(
        conn: &'a mut MySqlConnection,
        schema: Option<&'a str>,
        table: &'a str,
        key: &'a str,
        token: &'a str,
    ) -> Result<Option<Column>, sqlx::Error> {
        let found: Option<(String, bool, bool)> = sqlx::query_as(
            "SELECT CAST(CONCAT(c.data_type, IF(c.column_type LIKE '%unsigned%', ' unsigned', ''), \
             IF(t.engine = 'InnoDB', '', ' without innodb')) AS CHAR), c.is_nullable = 'NO', \
             EXISTS (SELECT 1 FROM information_schema.statistics i \
             WHERE i.table_schema = c.table_schema AND i.table_name = c.table_name \
             AND i.non_unique = 0 GROUP BY i.index_name \
             HAVING COUNT(*) = 1 AND MAX(i.column_name) = ?) \
             FROM information_schema.columns c JOIN information_schema.tables t \
             ON t.table_schema = c.table_schema AND t.table_name = c.table_name \
             WHERE c.table_schema = COALESCE(?, DATABASE()) AND c.table_name = ? \
             AND c.column_name = ?",
        )
        .bind(key)
        .bind(schema)
        .bind(table)
        .bind(token)
        .fetch_optional(conn)
        .await?;
        Ok(found.map(|(kind, not_null, unique_key)| Column { kind, not_null, unique_key }))
    }

    async fn one_trip<'a>(
        conn: &'a mut MySqlConnection,
        options: &'a FenceOptions,
        claim: &'a Claim,
        shape: &'a Shape,
        arguments: &'a Self::Arguments,
    ) -> Result<Tried, sqlx::Error> {
        let _ = (conn, options, claim, shape, arguments);
        Ok(Tried::NotFresh)
    }

    async fn commit<'a>(
        conn: &'a mut MySqlConnection,
        session: &'a mut Session,
    ) -> Result<(), NotCommitted> {
        // Savepoints that were neither released nor rolled back are younger than ours.
        while Manager::get_transaction_depth(conn) > 1 {
            if let Err(error) = Manager::commit(conn).await {
                return Err(lost(conn, session, error).await);
            }
        }
        // Nothing is taken back where the savepoint is gone: that ends the list of statements.
        let end = format!("RELEASE SAVEPOINT fencing_guard{}", session.unclaim);
        if let Err(error) = in_step(conn, &end).await {
            return Err(lost(conn, session, error).await);
        }
        Manager::commit(conn).await.map_err(|error| match number(&error) {
            Some(1213 | 1062 | 1450..=1459) => NotCommitted::Refused(error),
            _ => NotCommitted::Unknown(error),
        })
    }

    async fn reset<'a>(
        conn: &'a mut MySqlConnection,
        session: &'a mut Session,
    ) -> Result<(), sqlx::Error> {
        while Manager::get_transaction_depth(conn) > 0 {
            Manager::rollback(conn).await?;
        }
        if session.changed {
            let restore = "SET SESSION autocommit = @fencing_autocommit, \
                 SESSION innodb_lock_wait_timeout = @fencing_wait \
                 /*M!100300 , SESSION idle_write_transaction_timeout = @fencing_idle */ \
                 /*!50700 , SESSION wait_timeout = @fencing_idle */";
            in_step(conn, restore).await?;
            session.changed = false;
        }
        Ok(())
    }

    /// Never. A statement may be in flight, and sqlx 0.9 loses its place among the packets when
    /// one is dropped while it is being prepared: the next one would take the rest of its answer
    /// for its own.
    fn can_reset(_: &mut MySqlConnection, _: Stage) -> bool {
        false
    }

    async fn last_token<'a>(
        conn: &'a mut MySqlConnection,
        text: &'a Text,
        resource: &'a Resource,
    ) -> Result<Option<i64>, sqlx::Error> {
        let select = sqlx::query_scalar(text.get(LAST_TOKEN));
        select.bind(resource.as_str().as_bytes()).fetch_optional(conn).await
    }

    async fn granted<'a>(
        conn: &'a mut MySqlConnection,
        text: &'a Text,
        resource: &'a Resource,
    ) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar(text.get(GRANTED))
            .bind(resource.as_str().as_bytes())
            .fetch_optional(conn)
            .await
    }

    async fn floor<'a>(
        conn: &'a mut MySqlConnection,
        text: &'a Text,
    ) -> Result<Option<i64>, sqlx::Error> {
        sqlx::query_scalar(text.get(FLOOR)).fetch_optional(conn).await
    }

    async fn enforce<'a>(
        conn: &'a mut MySqlConnection,
        plan: &'a Enforce,
    ) -> Result<Result<Vec<String>, Refused>, sqlx::Error> {
        enforce::mysql::enforce(conn, plan).await
    }

    async fn unenforce<'a>(
        conn: &'a mut MySqlConnection,
        plan: &'a Enforce,
    ) -> Result<Result<Vec<String>, Refused>, sqlx::Error> {
        let _ = conn;
        Ok(Ok(enforce::mysql::unenforce(plan)))
    }

    /// By number, <https://dev.mysql.com/doc/mysql-errors/8.0/en/server-error-reference.html> and
    /// <https://mariadb.com/kb/en/mariadb-error-code-reference/>.
    fn class(error: &dyn DatabaseError) -> Class {
        let number = error.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number);
        match number {
            // Deadlock; record changed since the snapshot; query killed or out of time; rolled
            // back by group replication; disconnected as idle.
            Some(1213 | 1020 | 1317 | 1969 | 3024 | 3101 | 4031) => Class::Contended,
            // Lock wait timeout
            Some(1205) => Class::TimedOut,
            // Read-only server or transaction, node not in the cluster, too many connections, full
            Some(1290 | 1836 | 1792 | 1047 | 1040 | 1203 | 1021 | 1114) => Class::Unavailable,
            // Shutdown, error during commit, server gone, connection killed
            Some(1053 | 1180 | 3100 | 2006 | 2013 | 1927) => Class::Unknown,
            // No such table, column, database or variable; no privilege; a binary log that cannot
            // take what READ COMMITTED writes
            Some(1146 | 1054 | 1049 | 1046 | 1193 | 1044 | 1142 | 1143 | 1227 | 1665) => {
                Class::Setup
            }
            // SIGNAL
            Some(1644) if error.message().starts_with(UNCLAIMED) => Class::Unclaimed,
            Some(_) => Class::Refused,
            None => Class::Other,
        }
    }

    async fn lock_migrations<'a>(
        conn: &'a mut MySqlConnection,
        tables: &'a Tables,
    ) -> Result<(), sqlx::Error> {
        let locked: Option<i64> = sqlx::query_scalar(
            "SELECT GET_LOCK(CONCAT('fencing:', MD5(CONCAT(COALESCE(?, DATABASE()), '.', ?))), 60)",
        )
        .bind(tables.schema())
        .bind(tables.prefix())
        .fetch_one(conn)
        .await?;
        match locked {
            Some(1) => Ok(()),
            _ => Err(sqlx::Error::Protocol("another migration has run for a minute".to_owned())),
        }
    }

    async fn columns<'a>(
        conn: &'a mut MySqlConnection,
        tables: &'a Tables,
    ) -> Result<Vec<(String, String, String)>, sqlx::Error> {
        // Only InnoDB has transactions.
        sqlx::query_as(
            "SELECT CAST(c.table_name AS CHAR), CAST(c.column_name AS CHAR), \
             CAST(CONCAT(c.data_type, IF(c.column_type LIKE '%unsigned%', ' unsigned', ''), \
             IF(c.is_nullable = 'YES', ' nullable', ''), \
             IF(t.engine = 'InnoDB', '', ' without innodb')) AS CHAR) \
             FROM information_schema.columns c JOIN information_schema.tables t \
             ON t.table_schema = c.table_schema AND t.table_name = c.table_name \
             WHERE c.table_schema = COALESCE(?, DATABASE()) \
             AND LEFT(c.table_name, CHAR_LENGTH(?)) = ?",
        )
        .bind(tables.schema())
        .bind(tables.prefix())
        .bind(tables.prefix())
        .fetch_all(conn)
        .await
    }

    async fn versions<'a>(
        conn: &'a mut MySqlConnection,
        text: &'a Text,
    ) -> Result<Vec<i64>, sqlx::Error> {
        sqlx::query_scalar(text.get(VERSIONS)).fetch_all(conn).await
    }

    async fn execute(conn: &mut MySqlConnection, statements: SqlStr) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(statements).execute(conn).await.map(drop)
    }
}

/// A claim at READ COMMITTED, where an UPDATE locks no gaps: one statement once the mark is there.
async fn known(
    conn: &mut MySqlConnection,
    text: &Text,
    claim: &Claim,
    permit: bool,
) -> Result<(Verdict, i64), sqlx::Error> {
    if let Some(seq) = raise(conn, text, claim, permit).await? {
        return Ok((Verdict::Accepted, seq));
    }
    // A statement of its own sees what was committed while the one before it waited.
    let mark = MySql::last_token(conn, text, claim.resource()).await?;
    match mark.and_then(|mark| Token::new(mark).ok()) {
        Some(last_token) if last_token > claim.token() => Ok((Verdict::Stale { last_token }, 0)),
        _ => first(conn, text, claim, permit).await,
    }
}

/// The first claim of a resource, or any at an isolation that is not ours to know. A purge lifts
/// the floor before it drops marks, so the floor is held until commit, and looked at before the
/// mark is made. All reads lock: others would see the snapshot of the transaction.
async fn first(
    conn: &mut MySqlConnection,
    text: &Text,
    claim: &Claim,
    permit: bool,
) -> Result<(Verdict, i64), sqlx::Error> {
    let (resource, token) = (claim.resource().as_str().as_bytes(), claim.token());
    let floor: i64 = sqlx::query_scalar(text.get(SHARE_FLOOR)).fetch_one(&mut *conn).await?;
    if let Ok(floor) = Token::new(floor)
        && token <= floor
    {
        if let Some(seq) = raise(conn, text, claim, permit).await? {
            return Ok((Verdict::Accepted, seq));
        }
        let mark: Option<i64> =
            sqlx::query_scalar(text.get(SHARE_MARK)).bind(resource).fetch_optional(conn).await?;
        let last_token = mark.and_then(|mark| Token::new(mark).ok()).unwrap_or(floor);
        return Ok((Verdict::Stale { last_token }, 0));
    }
    sqlx::query(text.get(FIRST))
        .bind(resource)
        .bind(token.get())
        .bind(permit)
        .execute(&mut *conn)
        .await?;
    let (mark, seq): (i64, i64) =
        sqlx::query_as(text.get(LOCK_MARK)).bind(resource).fetch_one(conn).await?;
    match Token::new(mark) {
        Ok(last_token) if last_token > token => Ok((Verdict::Stale { last_token }, 0)),
        _ => Ok((Verdict::Accepted, seq)),
    }
}

/// The new `seq` when there is a mark at or below the token.
async fn raise(
    conn: &mut MySqlConnection,
    text: &Text,
    claim: &Claim,
    permit: bool,
) -> Result<Option<i64>, sqlx::Error> {
    let raised = sqlx::query(text.get(RAISE))
        .bind(claim.token().get())
        .bind(permit)
        .bind(claim.resource().as_str().as_bytes())
        .bind(claim.token().get())
        .execute(conn)
        .await?;
    let seq = i64::try_from(raised.last_insert_id()).unwrap_or(i64::MAX);
    Ok((raised.rows_affected() > 0).then_some(seq))
}

/// What it means that the savepoint could not be released, before COMMIT was sent.
///
/// When it does not exist (1305), the transaction it was made in has ended: rolled back by a
/// deadlock, or committed in silence by a DDL statement. The mark row tells which: `seq` counts
/// the claims that were committed.
async fn lost(
    conn: &mut MySqlConnection,
    session: &mut Session,
    error: sqlx::Error,
) -> NotCommitted {
    if number(&error) != Some(1305) {
        return NotCommitted::Refused(error);
    }
    match rolled_back(conn, session).await {
        Ok(true) => NotCommitted::Lost,
        Ok(false) => NotCommitted::Unknown(error),
        Err(error) => NotCommitted::Unknown(error),
    }
}

/// Whether the first claim of the transaction was certainly not committed.
async fn rolled_back(
    conn: &mut MySqlConnection,
    session: &mut Session,
) -> Result<bool, sqlx::Error> {
    // Autocommit is off: what came after the end has begun another transaction.
    execute(conn, "ROLLBACK").await?;
    let Some(Witness { select, claim, seq }) = session.witness.take() else { return Ok(false) };
    let resource = claim.resource().as_str().as_bytes();
    let now: Option<(i64, i64)> =
        sqlx::query_as(select).bind(resource).fetch_optional(&mut *conn).await?;
    Ok(match now {
        None => true,
        // Had ours been committed, the next one would have counted on.
        Some((mark, now)) => now < seq || (now == seq && mark != claim.token().get()),
    })
}

/// Runs a statement, and sees that the answers of the server are in step with the questions: a
/// statement that the caller dropped in flight may have left a part of its answer behind. What is
/// asked last is a number nobody else would answer, so nothing is left behind it.
async fn in_step(conn: &mut MySqlConnection, text: &str) -> Result<(), sqlx::Error> {
    use sqlx::Row;
    let nonce = i64::from(fastrand::u32(..)) + (1 << 32);
    let asked = sql(format!("{text}; SELECT {nonce}"));
    let rows = sqlx::raw_sql(asked).fetch_all(conn).await?;
    match &*rows {
        [row] if row.try_get::<i64, _>(0)? == nonce => Ok(()),
        _ => Err(sqlx::Error::Protocol("the answer belongs to another statement".to_owned())),
    }
}

async fn execute(conn: &mut MySqlConnection, text: &'static str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(text).execute(conn).await.map(drop)
}

fn number(error: &sqlx::Error) -> Option<u16> {
    let database = error.as_database_error()?;
    database.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
}

/// The name as the digits of a hexadecimal literal, in quotes.
fn hex(resource: &Resource) -> String {
    let digits = resource.as_str().bytes().map(|byte| format!("{byte:02x}"));
    format!("'{}'", digits.collect::<String>())
}

/// For the settings of timeouts, which are at least 1 and in whole seconds.
fn seconds(timeout: Duration) -> u64 {
    let whole = timeout.as_secs().saturating_add(u64::from(timeout.subsec_nanos() > 0));
    // The most `wait_timeout` takes on every platform is less than a month.
    whole.clamp(1, 2_147_483)
}
