use std::fmt::Write as _;

use sqlx::{MySql, MySqlConnection};

use super::{Enforce, Part, Refused};
use crate::sql::backend::{Backend, UNCLAIMED};

const NOW: &str = MySql::CLOCK_MS;
/// The longest name of a trigger.
const LONGEST: usize = 64;
const EVENTS: [(&str, &[&str]); 3] =
    [("insert", &["NEW"]), ("update", &["OLD", "NEW"]), ("delete", &["OLD"])];

pub(crate) async fn enforce(
    conn: &mut MySqlConnection,
    enforce: &Enforce,
) -> Result<Result<Vec<String>, Refused>, sqlx::Error> {
    let found: Option<(bool, Option<bool>)> = sqlx::query_as(
        "SELECT table_type = 'BASE TABLE', engine = 'InnoDB' FROM information_schema.tables \
         WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?",
    )
    .bind(&enforce.schema)
    .bind(&enforce.table)
    .fetch_optional(&mut *conn)
    .await?;
    match found {
        None => return Ok(Err(Refused::Table)),
        Some((false, _)) => return Ok(Err(Refused::Kind)),
        Some((_, Some(true))) => {}
        Some(_) => return Ok(Err(Refused::Engine)),
    }
    let cascades: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM information_schema.referential_constraints \
         WHERE constraint_schema = COALESCE(?, DATABASE()) AND table_name = ? \
         AND NOT (delete_rule IN ('RESTRICT', 'NO ACTION') \
         AND update_rule IN ('RESTRICT', 'NO ACTION'))",
    )
    .bind(&enforce.schema)
    .bind(&enforce.table)
    .fetch_one(&mut *conn)
    .await?;
    if cascades > 0 {
        return Ok(Err(Refused::Cascade));
    }
    let columns: Vec<String> = sqlx::query_scalar(
        "SELECT CAST(column_name AS CHAR) FROM information_schema.columns \
         WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?",
    )
    .bind(&enforce.schema)
    .bind(&enforce.table)
    .fetch_all(conn)
    .await?;
    if let Some(refused) = enforce.missing(&columns) {
        return Ok(Err(refused));
    }
    if EVENTS.iter().any(|(event, _)| bare_name(enforce, event).len() > LONGEST) {
        return Ok(Err(Refused::Name));
    }
    let mut statements = claims(enforce);
    for (event, rows) in EVENTS {
        let (name, table) = (name(enforce, event), qualified(enforce, &enforce.table));
        let mut body = String::new();
        for row in rows {
            let resource = resource(enforce, row);
            let marks = enforce.tables.expand("{prefix}marks", '`');
            let _ = write!(
                body,
                "IF NOT EXISTS (SELECT 1 FROM {marks} WHERE resource = {resource} \
                 AND claim_conn = CONNECTION_ID()) THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = \
                 '{UNCLAIMED}: claim the resource of the row first, in this transaction'; END IF; "
            );
        }
        statements.push(format!("DROP TRIGGER IF EXISTS {name}"));
        statements.push(format!(
            "CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW BEGIN {body}END"
        ));
    }
    Ok(Ok(statements))
}

pub(crate) fn unenforce(enforce: &Enforce) -> Vec<String> {
    EVENTS.map(|(event, _)| format!("DROP TRIGGER IF EXISTS {}", name(enforce, event))).into()
}

/// What others claim and unclaim with. It runs with the rights of its owner, so that they need none
/// on the marks: with UPDATE on them, one could claim without a token.
///
/// Outside of a transaction the claim would be committed at once, and let everything through that
/// the connection does later. MariaDB can tell.
fn claims(enforce: &Enforce) -> Vec<String> {
    let expand = |template| enforce.tables.expand(template, '`');
    let (marks, floor) = (expand("{prefix}marks"), expand("{prefix}floor"));
    let (claim, unclaim) = (expand("{prefix}claim"), expand("{prefix}unclaim"));
    vec![
        format!("DROP PROCEDURE IF EXISTS {claim}"),
        format!(
            "CREATE PROCEDURE {claim}(IN claimed LONGTEXT CHARACTER SET utf8mb4, IN with_token BIGINT)
    MODIFIES SQL DATA SQL SECURITY DEFINER
BEGIN
    DECLARE name LONGBLOB DEFAULT CAST(claimed AS BINARY);
    DECLARE lowest, mark BIGINT DEFAULT NULL;
    IF name IS NULL OR LENGTH(name) NOT BETWEEN 1 AND 255 OR with_token IS NULL OR with_token < 1 THEN
        SIGNAL SQLSTATE '45000'
            SET MESSAGE_TEXT = 'fencing: a claim needs a resource and a token from 1 on';
    END IF;
    /*M! IF @@in_transaction = 0 AND @@autocommit = 1 THEN
        SIGNAL SQLSTATE '45000'
            SET MESSAGE_TEXT = 'fencing: a claim lasts as long as its transaction: start one';
    END IF; */
    SELECT floor INTO lowest FROM {floor} WHERE id = 1 LOCK IN SHARE MODE;
    IF lowest IS NULL THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'fencing: the row of the floor is missing';
    END IF;
    IF with_token > lowest THEN
        INSERT INTO {marks} (resource, last_token, claim_conn, updated_at)
        VALUES (name, with_token, CONNECTION_ID(), {NOW})
        ON DUPLICATE KEY UPDATE last_token = GREATEST(last_token, VALUES(last_token)),
            seq = seq + 1, claim_conn = IF(last_token = VALUES(last_token), CONNECTION_ID(), 0),
            updated_at = {NOW};
    ELSE
        UPDATE {marks} SET last_token = with_token, seq = seq + 1, claim_conn = CONNECTION_ID(),
            updated_at = {NOW}
        WHERE resource = name AND last_token <= with_token;
    END IF;
    SELECT last_token INTO mark FROM {marks} WHERE resource = name FOR UPDATE;
    IF mark IS NULL OR mark <> with_token THEN
        SIGNAL SQLSTATE '45000'
            SET MESSAGE_TEXT = 'fencing: stale token: the resource has accepted a higher one';
    END IF;
END"
        ),
        format!("DROP PROCEDURE IF EXISTS {unclaim}"),
        format!(
            "CREATE PROCEDURE {unclaim}(IN claimed LONGTEXT CHARACTER SET utf8mb4)
    MODIFIES SQL DATA SQL SECURITY DEFINER
    UPDATE {marks} SET claim_conn = 0
    WHERE resource = CAST(claimed AS BINARY) AND claim_conn = CONNECTION_ID()"
        ),
    ]
}

/// Bytes, as the names of resources are.
fn resource(enforce: &Enforce, row: &str) -> String {
    let part = |part: &Part| match part {
        Part::Text(text) => {
            let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
            format!("_utf8mb4 X'{digits}'")
        }
        Part::Column(column) => format!("CONVERT({row}.`{column}` USING utf8mb4)"),
    };
    let parts = enforce.resource.iter().map(part).collect::<Vec<_>>().join(", ");
    format!("CAST(CONCAT({parts}) AS BINARY)")
}

/// Triggers lie in the database of their table.
fn name(enforce: &Enforce, event: &str) -> String {
    qualified(enforce, &bare_name(enforce, event))
}

fn bare_name(enforce: &Enforce, event: &str) -> String {
    format!("{}enforce_{event}_{}", enforce.tables.prefix(), enforce.table)
}

fn qualified(enforce: &Enforce, name: &str) -> String {
    match &enforce.schema {
        Some(schema) => format!("`{schema}`.`{name}`"),
        None => format!("`{name}`"),
    }
}
