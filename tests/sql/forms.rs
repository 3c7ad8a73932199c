//! What the bodies of the forms need beyond the harness: their statements in the parameters of each
//! database, and how to see that a connection waits.

use fencing::Claim;
use fencing::sql::{Fenced, fenced};
use sqlx::{MySql, Pool, Postgres, Sqlite};

use crate::support::{Db, Harness};

pub(crate) trait Forms: Harness {
    /// Item 1 gets a quantity, where it is at least `least`.
    fn set<'c>(claim: &'c Claim, quantity: i64, least: i64) -> Fenced<'c, Self>;
    /// Item 1 gets what the ledger has in sum.
    fn settle<'c>(claim: &'c Claim) -> Fenced<'c, Self>;
    /// All rows of the ledger up to a token go.
    fn forget<'c>(claim: &'c Claim, token: i64) -> Fenced<'c, Self>;
    /// Any text, without parameters.
    fn text<'c>(claim: &'c Claim, text: &'static str) -> Fenced<'c, Self> {
        fenced(claim, text)
    }
}

macro_rules! forms {
    ($db:ty, $one:literal, $two:literal) => {
        impl Forms for $db {
            fn set<'c>(claim: &'c Claim, quantity: i64, least: i64) -> Fenced<'c, Self> {
                let text = concat!(
                    "UPDATE inventory SET quantity = ",
                    $one,
                    " WHERE {fence} AND (id = 1 AND quantity >= ",
                    $two,
                    ")"
                );
                fenced(claim, text).bind(quantity).bind(least)
            }

            fn settle<'c>(claim: &'c Claim) -> Fenced<'c, Self> {
                let text = "UPDATE inventory SET quantity = (SELECT sum(token) FROM ledger) \
                            WHERE {fence} AND (id = 1)";
                fenced(claim, text)
            }

            fn forget<'c>(claim: &'c Claim, token: i64) -> Fenced<'c, Self> {
                let text = concat!("DELETE FROM ledger WHERE {fence} AND (token <= ", $one, ")");
                fenced(claim, text).bind(token)
            }
        }
    };
}

forms!(Postgres, "$1", "$2");
forms!(MySql, "?", "?");
forms!(Sqlite, "?1", "?2");

/// A database that locks rows, and tells who waits.
pub(crate) trait Waits: Harness {
    const ID: &str;
    /// 1 when the connection of that number waits for a lock.
    fn waits(id: i64) -> String;
}

impl Waits for Postgres {
    const ID: &str = "SELECT pg_backend_pid()";

    fn waits(id: i64) -> String {
        format!(
            "SELECT count(*) FROM pg_stat_activity WHERE pid = {id} AND wait_event_type = 'Lock'"
        )
    }
}

impl Waits for MySql {
    const ID: &str = "SELECT CAST(CONNECTION_ID() AS SIGNED)";

    fn waits(id: i64) -> String {
        // innodb_trx is a cache that is not renewed while others read it, as tests at the same time
        // do. Nothing a test runs takes a second, unless it waits.
        format!(
            "SELECT EXISTS (SELECT 1 FROM information_schema.innodb_trx \
             WHERE trx_mysql_thread_id = {id} AND trx_state = 'LOCK WAIT') \
             OR EXISTS (SELECT 1 FROM information_schema.processlist \
             WHERE id = {id} AND command <> 'Sleep' AND time >= 1)"
        )
    }
}

/// The number of the one connection of a pool.
pub(crate) async fn id_of<H: Waits>(pool: &Pool<H>) -> i64 {
    let mut conn = pool.acquire().await.unwrap();
    H::number(&mut conn, H::ID).await.unwrap().unwrap()
}

/// Comes back when that connection waits for a lock.
pub(crate) async fn until_it_waits<H: Waits>(db: &Db<H>, id: i64) {
    for _ in 0..1000 {
        if db.number(&H::waits(id)).await == Some(1) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("connection {id} did not come to wait");
}

/// Runs statements on one connection, one after the other.
pub(crate) async fn run_all<H: Harness>(pool: &Pool<H>, statements: &[&str]) {
    let mut conn = pool.acquire().await.unwrap();
    for statement in statements {
        H::run(&mut conn, statement).await.unwrap();
    }
}
