use sqlx::{Sqlite, SqliteConnection};

use super::{Enforce, Part, Refused};
use crate::sql::backend::{Backend, UNCLAIMED};

const NOW: &str = Sqlite::CLOCK_MS;

pub(crate) async fn enforce(
    conn: &mut SqliteConnection,
    enforce: &Enforce,
) -> Result<Result<Vec<String>, Refused>, sqlx::Error> {
    if enforce.schema.is_some() {
        return Ok(Err(Refused::Schema));
    }
    let Enforce { table, tables, .. } = enforce;
    let kind: Option<(String, bool)> = sqlx::query_as(
        "SELECT type, wr FROM pragma_table_list WHERE schema = 'main' AND name = ?1",
    )
    .bind(table)
    .fetch_optional(&mut *conn)
    .await?;
    let with_rowid = match kind {
        None => return Ok(Err(Refused::Table)),
        Some((kind, without_rowid)) if kind == "table" => !without_rowid,
        Some(_) => return Ok(Err(Refused::Kind)),
    };
    let columns: Vec<(String, i64)> =
        sqlx::query_as("SELECT name, pk FROM pragma_table_info(?1, 'main')")
            .bind(table)
            .fetch_all(&mut *conn)
            .await?;
    let names: Vec<String> = columns.iter().map(|(name, _)| name.clone()).collect();
    if let Some(refused) = enforce.missing(&names) {
        return Ok(Err(refused));
    }
    let keys = match keys(conn, table, &columns, with_rowid).await? {
        Ok(keys) => keys,
        Err(refused) => return Ok(Err(refused)),
    };
    let mut statements = claim(enforce);
    statements.extend(unenforce(enforce));
    let bare = tables.prefix();
    let event = |when: &str, event: &str, checks: &[String]| {
        format!(
            "CREATE TRIGGER \"{bare}enforce_{when}_{event}_{table}\" {when} {event} ON \"{table}\" \
             BEGIN {} END",
            checks.join(" ")
        )
    };
    let unclaimed = |row: &str| refuse(&format!("WHERE {}", not_claimed(enforce, row)));
    // A REPLACE deletes other rows without a trigger, unless recursive_triggers is on.
    let replaced: Vec<String> = keys
        .iter()
        .map(|key| {
            refuse(&format!(
                "WHERE EXISTS (SELECT 1 FROM \"{table}\" AS o WHERE {key} AND {})",
                not_claimed(enforce, "o")
            ))
        })
        .collect();
    statements.extend([
        event("AFTER", "INSERT", &[unclaimed("NEW")]),
        event("AFTER", "UPDATE", &[unclaimed("OLD"), unclaimed("NEW")]),
        event("AFTER", "DELETE", &[unclaimed("OLD")]),
        event("BEFORE", "INSERT", &replaced),
        event("BEFORE", "UPDATE", &replaced),
        enforced(enforce, "1"),
    ]);
    Ok(Ok(statements))
}

pub(crate) fn unenforce(enforce: &Enforce) -> Vec<String> {
    let Enforce { table, tables, .. } = enforce;
    let bare = tables.prefix();
    let all = [
        ("AFTER", "INSERT"),
        ("AFTER", "UPDATE"),
        ("AFTER", "DELETE"),
        ("BEFORE", "INSERT"),
        ("BEFORE", "UPDATE"),
    ];
    let drop =
        |(when, event)| format!("DROP TRIGGER IF EXISTS \"{bare}enforce_{when}_{event}_{table}\"");
    let mut statements: Vec<String> = all.map(drop).into();
    statements.push(enforced(
        enforce,
        &format!(
            "EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'trigger' \
             AND substr(name, 1, {}) = '{bare}enforce_')",
            bare.len() + "enforce_".len()
        ),
    ));
    statements
}

/// Says to fenced transactions whether there is anything to claim for.
fn enforced(enforce: &Enforce, whether: &str) -> String {
    let floor = enforce.tables.expand("{prefix}floor", '"');
    format!("UPDATE {floor} SET enforced = {whether} WHERE id = 1")
}

/// What others claim with: a view to insert into.
fn claim(enforce: &Enforce) -> Vec<String> {
    let expand = |template| enforce.tables.expand(template, '"');
    let (marks, floor, claims) =
        (expand("{prefix}marks"), expand("{prefix}floor"), expand("{prefix}claims"));
    let view = expand("{prefix}claim");
    vec![
        format!("DROP VIEW IF EXISTS {view}"),
        format!("CREATE VIEW {view} (resource, token) AS SELECT resource, token FROM {claims}"),
        format!(
            "CREATE TRIGGER {view}_insert INSTEAD OF INSERT ON {view} BEGIN
    SELECT RAISE(ABORT, 'fencing: a claim needs a resource, as text, and a token from 1 on')
    WHERE typeof(NEW.resource) <> 'text' OR typeof(NEW.token) <> 'integer' OR NEW.token < 1
    OR length(CAST(NEW.resource AS BLOB)) NOT BETWEEN 1 AND 255;
    SELECT RAISE(ABORT, 'fencing: stale token: the resource has accepted a higher one')
    WHERE NEW.token < coalesce((SELECT last_token FROM {marks} WHERE resource = NEW.resource),
        (SELECT floor + 1 FROM {floor} WHERE id = 1), 9223372036854775807);
    INSERT INTO {marks} (resource, last_token, updated_at)
    VALUES (NEW.resource, NEW.token, {NOW})
    ON CONFLICT (resource) DO UPDATE
    SET last_token = excluded.last_token, seq = seq + 1, updated_at = excluded.updated_at;
    INSERT OR REPLACE INTO {claims} (resource, token) VALUES (NEW.resource, NEW.token);
END"
        ),
    ]
}

/// By which columns a new row can be in the way of another: for each key the comparison of a row
/// `o` with `NEW`.
async fn keys(
    conn: &mut SqliteConnection,
    table: &str,
    columns: &[(String, i64)],
    with_rowid: bool,
) -> Result<Result<Vec<String>, Refused>, sqlx::Error> {
    let primary: Vec<_> = columns.iter().filter(|(_, pk)| *pk > 0).collect();
    let same = |name: &str| format!("o.\"{name}\" = NEW.\"{name}\"");
    let mut keys = Vec::new();
    if !primary.is_empty() {
        keys.push(primary.iter().map(|(name, _)| same(name)).collect::<Vec<_>>().join(" AND "));
    }
    if with_rowid && !columns.iter().any(|(name, _)| name.eq_ignore_ascii_case("rowid")) {
        keys.push("o.rowid = NEW.rowid".to_owned());
    }
    let indexed: Vec<(String, Option<String>, String)> = sqlx::query_as(
        "SELECT i.name, c.name, c.coll FROM pragma_index_list(?1, 'main') AS i, \
         pragma_index_xinfo(i.name, 'main') AS c WHERE i.\"unique\" AND c.key \
         ORDER BY i.seq, c.seqno",
    )
    .bind(table)
    .fetch_all(conn)
    .await?;
    let mut last = None;
    for (index, column, collation) in indexed {
        let Some(column) = column else { return Ok(Err(Refused::Index(index))) };
        let same = format!("{} COLLATE \"{collation}\"", same(&column));
        match keys.last_mut() {
            Some(key) if last.as_ref() == Some(&index) => {
                key.push_str(" AND ");
                key.push_str(&same);
            }
            _ => keys.push(same),
        }
        last = Some(index);
    }
    Ok(Ok(keys))
}

fn refuse(condition: &str) -> String {
    format!(
        "SELECT RAISE(ABORT, '{UNCLAIMED}: claim the resource of the row first, in this \
         transaction') {condition};"
    )
}

fn not_claimed(enforce: &Enforce, row: &str) -> String {
    let part = |part: &Part| match part {
        Part::Text(text) => format!("'{}'", text.replace('\'', "''")),
        Part::Column(column) => format!("{row}.\"{column}\""),
    };
    let resource = enforce.resource.iter().map(part).collect::<Vec<_>>().join(" || ");
    let claims = enforce.tables.expand("{prefix}claims", '"');
    format!("NOT EXISTS (SELECT 1 FROM {claims} WHERE resource = ({resource}) COLLATE BINARY)")
}
