use sqlx::{PgConnection, Postgres};

use super::{Enforce, Part, Refused};
use crate::sql::backend::{Backend, UNCLAIMED};
use crate::sql::postgres::{STALE_STATE, UNCLAIMED_STATE};

const NOW: &str = Postgres::CLOCK_MS;

/// Where the table and the marks are.
struct Found {
    oid: i64,
    /// The schema of the marks.
    schema: String,
}

async fn find(
    conn: &mut PgConnection,
    enforce: &Enforce,
) -> Result<Result<Found, Refused>, sqlx::Error> {
    let marks = enforce.tables.expand("{prefix}marks", '"');
    let found: Option<(i64, bool, bool, Option<String>)> = sqlx::query_as(
        "SELECT c.oid::bigint, c.relkind = 'r', \
         EXISTS (SELECT 1 FROM pg_catalog.pg_inherits WHERE inhparent = c.oid), \
         (SELECT n.nspname::text FROM pg_catalog.pg_class m \
         JOIN pg_catalog.pg_namespace n ON n.oid = m.relnamespace WHERE m.oid = to_regclass($2)) \
         FROM pg_catalog.pg_class c WHERE c.oid = to_regclass($1)",
    )
    .bind(table(enforce))
    .bind(marks)
    .fetch_optional(&mut *conn)
    .await?;
    let (oid, schema) = match found {
        None => return Ok(Err(Refused::Table)),
        Some((_, false, _, _)) => return Ok(Err(Refused::Kind)),
        Some((_, _, true, _)) => return Ok(Err(Refused::Children)),
        Some((_, _, _, None)) => return Err(sqlx::Error::RowNotFound),
        Some((oid, true, false, Some(schema))) => (oid, schema),
    };
    let columns: Vec<String> = sqlx::query_scalar(
        "SELECT attname::text FROM pg_catalog.pg_attribute \
         WHERE attrelid = $1::oid AND attnum > 0 AND NOT attisdropped",
    )
    .bind(oid)
    .fetch_all(conn)
    .await?;
    Ok(match enforce.missing(&columns) {
        Some(refused) => Err(refused),
        None => Ok(Found { oid, schema }),
    })
}

pub(crate) async fn enforce(
    conn: &mut PgConnection,
    enforce: &Enforce,
) -> Result<Result<Vec<String>, Refused>, sqlx::Error> {
    let Found { oid, schema } = match find(conn, enforce).await? {
        Ok(found) => found,
        Err(refused) => return Ok(Err(refused)),
    };
    let (table, bare) = (table(enforce), enforce.tables.prefix());
    let function = format!("\"{schema}\".{bare}enforce_{oid}()");
    let mut statements = claim(&schema, bare);
    statements.extend([
        trigger_function(&schema, enforce, &function),
        format!("REVOKE ALL ON FUNCTION {function} FROM PUBLIC"),
        // A role of its own for replication would fire no other triggers.
        format!("DROP TRIGGER IF EXISTS {bare}enforce ON {table}"),
        format!(
            "CREATE TRIGGER {bare}enforce AFTER INSERT OR UPDATE OR DELETE ON {table} \
             FOR EACH ROW EXECUTE FUNCTION {function}"
        ),
        format!("ALTER TABLE {table} ENABLE ALWAYS TRIGGER {bare}enforce"),
        format!("DROP TRIGGER IF EXISTS {bare}enforce_truncate ON {table}"),
        format!(
            "CREATE TRIGGER {bare}enforce_truncate BEFORE TRUNCATE ON {table} \
             FOR EACH STATEMENT EXECUTE FUNCTION {function}"
        ),
        format!("ALTER TABLE {table} ENABLE ALWAYS TRIGGER {bare}enforce_truncate"),
    ]);
    Ok(Ok(statements))
}

pub(crate) async fn unenforce(
    conn: &mut PgConnection,
    enforce: &Enforce,
) -> Result<Result<Vec<String>, Refused>, sqlx::Error> {
    let Found { oid, schema } = match find(conn, enforce).await? {
        Ok(found) => found,
        Err(refused) => return Ok(Err(refused)),
    };
    let (table, bare) = (table(enforce), enforce.tables.prefix());
    Ok(Ok(vec![
        // A transaction that changes nothing has no number, and commit takes it for ended.
        "SELECT pg_current_xact_id()".to_owned(),
        format!("DROP TRIGGER IF EXISTS {bare}enforce ON {table}"),
        format!("DROP TRIGGER IF EXISTS {bare}enforce_truncate ON {table}"),
        format!("DROP FUNCTION IF EXISTS \"{schema}\".{bare}enforce_{oid}()"),
    ]))
}

/// What others claim with. It runs with the rights of its owner, so that they need none on the
/// marks: with UPDATE on them, one could claim without a token. For the same reason all names in it
/// are qualified: a temporary table would come first.
fn claim(schema: &str, bare: &str) -> Vec<String> {
    let function = format!("\"{schema}\".{bare}claim(text, bigint)");
    let (marks, floor) = (format!("\"{schema}\".{bare}marks"), format!("\"{schema}\".{bare}floor"));
    vec![
        format!(
            "CREATE OR REPLACE FUNCTION \"{schema}\".{bare}claim(resource text, token bigint) \
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fencing$
DECLARE
    mark bigint;
    lowest bigint;
BEGIN
    IF $1 IS NULL OR $2 IS NULL OR $2 < 1 THEN
        RAISE EXCEPTION 'fencing: a claim needs a resource and a token from 1 on'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    UPDATE {marks} AS m
    SET last_token = $2, seq = m.seq + 1, claim_xid = pg_current_xact_id(), updated_at = {NOW}
    WHERE m.resource = $1 AND m.last_token <= $2;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT m.last_token INTO mark FROM {marks} AS m WHERE m.resource = $1;
    IF mark IS NULL THEN
        SELECT f.floor INTO STRICT lowest FROM {floor} AS f WHERE f.id = 1 FOR SHARE;
        IF $2 > lowest THEN
            INSERT INTO {marks} AS m (resource, last_token, claim_xid, updated_at)
            VALUES ($1, $2, pg_current_xact_id(), {NOW})
            ON CONFLICT ON CONSTRAINT {bare}marks_pkey DO UPDATE
            SET last_token = $2, seq = m.seq + 1, claim_xid = pg_current_xact_id(),
                updated_at = {NOW}
            WHERE m.last_token <= $2;
            IF FOUND THEN
                RETURN;
            END IF;
        END IF;
        SELECT m.last_token INTO mark FROM {marks} AS m WHERE m.resource = $1;
    END IF;
    RAISE EXCEPTION 'fencing: stale token: the resource has accepted a higher one'
        USING ERRCODE = '{STALE_STATE}', DETAIL = format('last_token=%s', coalesce(mark, lowest));
END $fencing$"
        ),
        format!("REVOKE ALL ON FUNCTION {function} FROM PUBLIC"),
    ]
}

/// Looks at the rows as they are after the statement, whatever other triggers have made of them.
///
/// The number of a transaction is enough, but for a mark that was restored from a dump of another
/// cluster: that has an old time. A minute is left for clocks that are set back.
fn trigger_function(schema: &str, enforce: &Enforce, function: &str) -> String {
    let bare = enforce.tables.prefix();
    let unclaimed = |row: &str| {
        format!(
            "NOT EXISTS (SELECT 1 FROM \"{schema}\".{bare}marks AS m
            WHERE m.resource = ({}) COLLATE \"C\"
            AND m.claim_xid = pg_current_xact_id_if_assigned()
            AND m.updated_at >= (extract(epoch FROM transaction_timestamp()) * 1000)::bigint - 60000)",
            resource(enforce, row)
        )
    };
    let (old, new) = (unclaimed("OLD"), unclaimed("NEW"));
    let (old_name, new_name) = (resource(enforce, "OLD"), resource(enforce, "NEW"));
    format!(
        "CREATE OR REPLACE FUNCTION {function} RETURNS trigger \
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $fencing$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        RAISE EXCEPTION '{UNCLAIMED}: the rows of an enforced table are deleted one by one'
            USING ERRCODE = '{UNCLAIMED_STATE}';
    END IF;
    IF TG_OP <> 'INSERT' AND {old} THEN
        RAISE EXCEPTION '{UNCLAIMED}: claim the resource of the row first, in this transaction'
            USING ERRCODE = '{UNCLAIMED_STATE}', DETAIL = 'resource=' || coalesce({old_name}, 'null');
    END IF;
    IF TG_OP <> 'DELETE' AND {new} THEN
        RAISE EXCEPTION '{UNCLAIMED}: claim the resource of the row first, in this transaction'
            USING ERRCODE = '{UNCLAIMED_STATE}', DETAIL = 'resource=' || coalesce({new_name}, 'null');
    END IF;
    RETURN NULL;
END $fencing$"
    )
}

fn resource(enforce: &Enforce, row: &str) -> String {
    let part = |part: &Part| match part {
        Part::Text(text) => format!("'{}'", text.replace('\'', "''")),
        Part::Column(column) => format!("{row}.\"{column}\"::text"),
    };
    enforce.resource.iter().map(part).collect::<Vec<_>>().join(" || ")
}

fn table(enforce: &Enforce) -> String {
    match &enforce.schema {
        Some(schema) => format!("\"{schema}\".\"{}\"", enforce.table),
        None => format!("\"{}\"", enforce.table),
    }
}
