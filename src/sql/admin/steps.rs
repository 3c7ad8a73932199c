use sqlx::Arguments as _;

use super::Admin;
use crate::sql::FenceError;
use crate::sql::backend::Backend;
use crate::sql::error::Step;
use crate::sql::tables::sql;
use crate::{Resource, Token};

pub(super) enum Task<'t> {
    RaiseFloor(Token),
    RaiseMarks(Token),
    Bump,
    Purge(&'t Purge),
    Lower(&'t Resource, Token),
}

#[derive(Default)]
pub(super) struct Done {
    pub(super) floor: i64,
    pub(super) rows: u64,
    pub(super) before: Option<i64>,
}

pub(super) struct Purge {
    pub(super) what: Rows,
    pub(super) idle_ms: i64,
    /// Only what is at or below it.
    pub(super) most: Token,
}

pub(super) enum Rows {
    Marks,
    Locks,
}

/// How many rows a purge drops in one transaction.
const BATCH: usize = 500;

/// The steps of a task, in a transaction.
pub(super) struct Steps<'s, DB: Backend> {
    pub(super) conn: &'s mut DB::Connection,
    pub(super) admin: &'s Admin,
}

impl<DB: Backend> Steps<'_, DB> {
    pub(super) async fn take(&mut self, task: &Task<'_>) -> Result<Done, FenceError> {
        let floor = self.lock_floor().await?;
        match *task {
            Task::RaiseFloor(to) if to.get() <= floor => Ok(Done { floor, ..Done::default() }),
            Task::RaiseFloor(to) => {
                self.set_floor(to.get()).await?;
                self.audit("raise-floor", None, to.get()).await?;
                Ok(Done { floor: to.get(), ..Done::default() })
            }
            Task::RaiseMarks(to) => self.raise_marks(floor, to.get()).await,
            Task::Bump => self.bump(floor).await,
            Task::Purge(purge) => self.purge(floor, purge).await,
            Task::Lower(resource, to) => self.lower(resource, to.get()).await,
        }
    }

    async fn raise_marks(&mut self, floor: i64, to: i64) -> Result<Done, FenceError> {
        let floor = floor.max(to);
        self.set_floor(floor).await?;
        let raise = self.text("UPDATE {prefix}marks SET last_token = ");
        let raise = raise.value(to)?.and(", seq = seq + 1, updated_at = ").and(DB::CLOCK_MS);
        let rows = self.perform(raise.and(" WHERE last_token < ").value(to)?).await?;
        self.audit("raise-marks", None, to).await?;
        Ok(Done { floor, rows, before: None })
    }

    async fn bump(&mut self, floor: i64) -> Result<Done, FenceError> {
        let highest = self.text("SELECT coalesce(max(token), 0) FROM {prefix}locks");
        let highest = self.number(highest).await?.unwrap_or(0).max(floor);
        if highest > Token::MAX_GRANTED.get() - Admin::BUMP {
            return Err(FenceError::misconfigured(
                "a bump would leave no tokens to grant: their range ends at 2^53 - 1",
            ));
        }
        let floor = floor + Admin::BUMP;
        self.set_floor(floor).await?;
        let locks = self.text("UPDATE {prefix}locks SET token = token + ");
        let rows = self.perform(locks.value(Admin::BUMP)?).await?;
        self.audit("bump", None, floor).await?;
        Ok(Done { floor, rows, before: None })
    }

    async fn purge(&mut self, floor: i64, purge: &Purge) -> Result<Done, FenceError> {
        let (event, table, token, ended) = match purge.what {
            Rows::Marks => ("purge-marks", "{prefix}marks", "last_token", "updated_at"),
            Rows::Locks => {
                ("purge-locks", "{prefix}locks", "token", "coalesce(released_at, expires_at, 0)")
            }
        };
        let now = self.text("SELECT ").and(DB::CLOCK_MS);
        let before = self.number(now).await?.unwrap_or(0).saturating_sub(purge.idle_ms);
        let choose = self.text(&format!("SELECT resource, {token} FROM {table} WHERE {ended} < "));
        let choose = choose.value(before)?.and(&format!(" AND {token} <= "));
        let choose = choose.value(purge.most.get())?;
        let chosen = self.rows(choose.and(&format!(" ORDER BY resource LIMIT {BATCH}"))).await?;
        let Some(highest) = chosen.iter().map(|(_, token)| *token).max() else {
            return Ok(Done { floor, ..Done::default() });
        };
        let floor = floor.max(highest);
        self.set_floor(floor).await?;
        // By name, so that no others are waited for. Those that were claimed or granted since they
        // were chosen stay.
        let delete = self.text(&format!("DELETE FROM {table} WHERE {ended} < ")).value(before)?;
        let mut delete = delete.and(&format!(" AND {token} <= ")).value(floor)?;
        for (n, (resource, _)) in chosen.iter().enumerate() {
            delete = delete.and(if n == 0 { " AND resource IN (" } else { ", " });
            delete = delete.resource(resource)?;
        }
        let rows = self.perform(delete.and(")")).await?;
        self.audit(event, None, floor).await?;
        Ok(Done { floor, rows, before: None })
    }

    async fn lower(&mut self, resource: &Resource, to: i64) -> Result<Done, FenceError> {
        let mark = self.text("SELECT last_token FROM {prefix}marks WHERE resource = ");
        let mark = self.number(mark.resource(resource)?.and(DB::LOCK_ROW)).await?;
        match mark {
            None => return Ok(Done::default()),
            Some(mark) if mark < to => {
                return Err(FenceError::misconfigured(
                    "the mark is below that: a claim raises it, and this only lowers",
                ));
            }
            Some(_) => {}
        }
        let epoch = self.text("UPDATE {prefix}floor SET epoch = epoch + 1 WHERE id = 1");
        self.perform(epoch).await?;
        let lower = self.text("UPDATE {prefix}marks SET last_token = ").value(to)?;
        let lower = lower.and(", last_spent = CASE WHEN last_spent > ").value(to)?;
        let lower = lower.and(" THEN ").value(to)?.and(" ELSE last_spent END, seq = seq + 1");
        self.perform(lower.and(" WHERE resource = ").resource(resource)?).await?;
        self.audit("lower-mark", Some(resource), to).await?;
        Ok(Done { before: mark, ..Done::default() })
    }

    /// Locks the row of the floor, by writing it, to the end of the transaction.
    async fn lock_floor(&mut self) -> Result<i64, FenceError> {
        let lock = self.text("UPDATE {prefix}floor SET floor = floor WHERE id = 1");
        self.perform(lock).await?;
        let floor = self.text("SELECT floor FROM {prefix}floor WHERE id = 1");
        let floor = self.number(floor).await?;
        floor.ok_or_else(|| failed(sqlx::Error::RowNotFound))
    }

    async fn set_floor(&mut self, floor: i64) -> Result<(), FenceError> {
        let set = self.text("UPDATE {prefix}floor SET floor = ").value(floor)?;
        self.perform(set.and(" WHERE id = 1")).await.map(drop)
    }

    async fn audit(
        &mut self,
        event: &'static str,
        resource: Option<&Resource>,
        token: i64,
    ) -> Result<(), FenceError> {
        let Admin { actor, approved_by, reason, .. } = self.admin;
        let insert = self.text(
            "INSERT INTO {prefix}audit (at, event, resource, token, actor, approved_by, reason) \
             VALUES (",
        );
        let insert = insert.and(DB::CLOCK_MS).and(", ").words(Some(event))?.and(", ");
        let insert = match resource {
            Some(resource) => insert.resource(resource)?,
            None => insert.and("NULL"),
        };
        let insert = insert.and(", ").value(token)?.and(", ").words(actor.as_deref())?;
        let insert = insert.and(", ").words(approved_by.as_deref())?;
        let insert = insert.and(", ").words(reason.as_deref())?.and(")");
        self.perform(insert).await.map(drop)
    }

    fn text(&self, template: &str) -> Statement<DB> {
        let text = self.admin.options.tables.expand(template, DB::QUOTE);
        Statement { text, arguments: DB::Arguments::default() }
    }

    async fn perform(&mut self, statement: Statement<DB>) -> Result<u64, FenceError> {
        let Statement { text, arguments } = statement;
        let written = DB::perform(self.conn, sql(text), arguments).await;
        written.map(|written| written.rows).map_err(failed)
    }

    async fn number(&mut self, statement: Statement<DB>) -> Result<Option<i64>, FenceError> {
        let Statement { text, arguments } = statement;
        DB::fetch_number(self.conn, sql(text), arguments).await.map_err(failed)
    }

    async fn rows(&mut self, statement: Statement<DB>) -> Result<Vec<(Resource, i64)>, FenceError> {
        let Statement { text, arguments } = statement;
        DB::fetch_resources(self.conn, sql(text), arguments).await.map_err(failed)
    }
}

fn failed(error: sqlx::Error) -> FenceError {
    FenceError::at(Step::Claim, error, None)
}

/// A statement in the making, with its values.
struct Statement<DB: Backend> {
    text: String,
    arguments: DB::Arguments,
}

impl<DB: Backend> Statement<DB> {
    fn and(mut self, text: &str) -> Self {
        self.text.push_str(text);
        self
    }

    fn value(mut self, value: i64) -> Result<Self, FenceError> {
        DB::add(&mut self.arguments, value).map_err(FenceError::other)?;
        self.placeholder()
    }

    fn resource(mut self, resource: &Resource) -> Result<Self, FenceError> {
        DB::add_resource(&mut self.arguments, resource).map_err(FenceError::other)?;
        self.placeholder()
    }

    fn words(mut self, words: Option<&str>) -> Result<Self, FenceError> {
        DB::add_words(&mut self.arguments, words).map_err(FenceError::other)?;
        self.placeholder()
    }

    fn placeholder(mut self) -> Result<Self, FenceError> {
        self.arguments.format_placeholder(&mut self.text).map_err(FenceError::other)?;
        Ok(self)
    }
}
