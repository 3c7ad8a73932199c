//! The fenced statement of PostgreSQL: one round trip.
//!
//! ```sql
//! WITH claimed AS (
//!     UPDATE fencing_marks AS m SET last_token = $2, seq = m.seq + 1, ...
//!     WHERE m.resource = $1 AND m.last_token <= $2
//!       AND m.seq = (SELECT s.seq FROM fencing_marks AS s WHERE s.resource = $1)
//!     RETURNING 1),
//! written AS (UPDATE ... WHERE EXISTS (SELECT 1 FROM claimed) AND ( ... ) RETURNING 1)
//! SELECT EXISTS (SELECT 1 FROM claimed), (SELECT count(*) FROM written), ...
//! ```
//!
//! All parts of a statement read from one snapshot, and the snapshot is taken before the UPDATE of
//! the mark waits for its lock. Where it did wait, or lost a race without having to, the write
//! would go on from data that an earlier holder has changed since, and the effects would be as if
//! the later holder had come first. Hence the comparison of `seq`: the sub-select reads it from
//! the snapshot, `m.seq` is that of the row as it was locked (under READ COMMITTED the condition is
//! evaluated again on the newest version of a row that was waited for,
//! <https://www.postgresql.org/docs/current/transaction-iso.html>). Every accepted claim counts
//! `seq` up, so when they are equal no holder has committed in between, and the snapshot has all
//! that earlier ones wrote. When they are not, nothing is applied, the mark included.

use sqlx::postgres::PgRow;
use sqlx::{Arguments as _, PgConnection, Postgres, Row as _};

use super::Shape;
use crate::sql::FenceOptions;
use crate::sql::backend::{Backend, Tried};
use crate::sql::options::Policy;
use crate::sql::postgres::milliseconds;
use crate::sql::tables::sql;
use crate::{Claim, Token};

type Arguments = <Postgres as sqlx::Database>::Arguments;

pub(crate) async fn one_trip(
    conn: &mut PgConnection,
    options: &FenceOptions,
    claim: &Claim,
    shape: &Shape,
    arguments: &Arguments,
) -> Result<Tried, sqlx::Error> {
    let row = fetch(conn, known(options, shape), claim, arguments).await?;
    if row.try_get(0)? {
        return Ok(Tried::Applied { rows: count(&row)? });
    }
    let (seen, spent): (Option<i64>, Option<i64>) = (row.try_get(2)?, row.try_get(3)?);
    match seen.and_then(|seen| Token::new(seen).ok()) {
        // Marks do not fall: what the snapshot has is enough to refuse.
        Some(last_token) if last_token > claim.token() => Ok(Tried::Stale { last_token }),
        Some(_) if options.policy == Policy::Strict && spent >= Some(claim.token().get()) => {
            Ok(Tried::Stale { last_token: claim.token() })
        }
        Some(_) => Ok(Tried::NotFresh),
        None => first_trip(conn, options, claim, shape, arguments).await,
    }
}

/// The first claim of a resource: it makes the mark, with the floor locked.
async fn first_trip(
    conn: &mut PgConnection,
    options: &FenceOptions,
    claim: &Claim,
    shape: &Shape,
    arguments: &Arguments,
) -> Result<Tried, sqlx::Error> {
    let row = fetch(conn, first(options, shape), claim, arguments).await?;
    if row.try_get(0)? {
        return Ok(Tried::Applied { rows: count(&row)? });
    }
    let floor: Option<i64> = row.try_get(2)?;
    let floor = floor.ok_or(sqlx::Error::RowNotFound)?;
    match Token::new(floor) {
        Ok(floor) if claim.token() <= floor => {
            let text = options.text::<Postgres>();
            let mark = Postgres::last_token(conn, text, claim.resource()).await?;
            match mark.and_then(|mark| Token::new(mark).ok()) {
                None => Ok(Tried::Stale { last_token: floor }),
                Some(last_token) if last_token > claim.token() => Ok(Tried::Stale { last_token }),
                Some(_) => Ok(Tried::NotFresh),
            }
        }
        _ => Ok(Tried::NotFresh),
    }
}

/// The names and parameters of a statement.
struct Names {
    marks: String,
    floor: String,
    /// The names of our parts must not hide a table that the statement reads.
    claimed: String,
    written: String,
    locked: String,
    resource: String,
    token: String,
    /// Bounds waiting in this statement. In a sub-select of ours, which is evaluated before any
    /// lock is waited for.
    bound: String,
    strict: bool,
}

const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

impl Names {
    fn new(options: &FenceOptions, shape: &Shape) -> Self {
        let expand = |template| options.tables.expand(template, Postgres::QUOTE);
        let timeout = options.lock_timeout.unwrap_or(FenceOptions::DEFAULT_LOCK_TIMEOUT);
        Self {
            marks: expand("{prefix}marks"),
            floor: expand("{prefix}floor"),
            claimed: expand("{bare}_claimed"),
            written: expand("{bare}_written"),
            locked: expand("{bare}_locked"),
            resource: format!("${}::text", shape.parameters + 1),
            token: format!("${}::bigint", shape.parameters + 2),
            bound: format!("set_config('lock_timeout', '{}', true) <> ''", milliseconds(timeout)),
            strict: options.policy == Policy::Strict,
        }
    }
}

/// The statement where there is a mark.
fn known(options: &FenceOptions, shape: &Shape) -> String {
    let names = Names::new(options, shape);
    let (spend, unspent) = match &names {
        Names { strict: true, token, .. } => {
            (format!(", last_spent = {token}"), format!(" AND m.last_spent < {token}"))
        }
        _ => (String::new(), String::new()),
    };
    let Names { marks, claimed, written, resource, token, bound, .. } = names;
    let write = shape.with(&format!("EXISTS (SELECT 1 FROM {claimed})"));
    format!(
        "WITH {claimed} AS (UPDATE {marks} AS m SET last_token = {token}, seq = m.seq + 1, \
         claim_xid = pg_current_xact_id(), updated_at = {NOW}{spend} \
         WHERE m.resource = {resource} AND m.last_token <= {token}{unspent} \
         AND m.seq = (SELECT s.seq FROM {marks} AS s WHERE s.resource = {resource} AND {bound}) \
         RETURNING 1), \
         {written} AS ({write} RETURNING 1) \
         SELECT EXISTS (SELECT 1 FROM {claimed}), (SELECT count(*) FROM {written}), \
         s.last_token, s.last_spent FROM (SELECT 1) AS one LEFT JOIN {marks} AS s \
         ON s.resource = {resource} AND NOT EXISTS (SELECT 1 FROM {claimed})"
    )
}

/// The statement where there is no mark. Had another made one, written under it and been purged
/// since the snapshot, the floor would have risen: so the floor, too, must be that of the snapshot.
fn first(options: &FenceOptions, shape: &Shape) -> String {
    let names = Names::new(options, shape);
    let Names { marks, floor, claimed, written, locked, resource, token, bound, strict } = names;
    let spent = if strict { &token } else { "0" };
    let write = shape.with(&format!("EXISTS (SELECT 1 FROM {claimed})"));
    format!(
        "WITH {locked} AS MATERIALIZED \
         (SELECT floor FROM {floor} WHERE id = 1 AND {bound} FOR SHARE), \
         {claimed} AS (INSERT INTO {marks} \
         (resource, last_token, last_spent, claim_xid, updated_at) \
         SELECT {resource}, {token}, {spent}, pg_current_xact_id(), {NOW} FROM {locked} AS f \
         WHERE f.floor < {token} AND f.floor = (SELECT s.floor FROM {floor} AS s WHERE s.id = 1) \
         AND NOT EXISTS (SELECT 1 FROM {marks} AS s WHERE s.resource = {resource}) \
         ON CONFLICT (resource) DO NOTHING RETURNING 1), \
         {written} AS ({write} RETURNING 1) \
         SELECT EXISTS (SELECT 1 FROM {claimed}), (SELECT count(*) FROM {written}), \
         (SELECT floor FROM {locked})"
    )
}

async fn fetch(
    conn: &mut PgConnection,
    text: String,
    claim: &Claim,
    arguments: &Arguments,
) -> Result<PgRow, sqlx::Error> {
    let mut arguments = arguments.clone();
    arguments.add(claim.resource().as_str()).map_err(sqlx::Error::Encode)?;
    arguments.add(claim.token().get()).map_err(sqlx::Error::Encode)?;
    sqlx::query_with(sql(text), arguments).fetch_one(conn).await
}

fn count(row: &PgRow) -> Result<u64, sqlx::Error> {
    let rows: i64 = row.try_get(1)?;
    Ok(rows.unsigned_abs())
}
