//! Releases, told from one server to the others by LISTEN and NOTIFY of PostgreSQL.
//!
//! A release is told in a statement of its own, after its commit: a transaction that notifies
//! holds a lock of the whole database while it commits, so with the release in it no two releases
//! would ever be flushed together (`PreCommit_Notify` in `commands/async.c`). What is lost with a
//! server that dies in between is found by those who poll.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::{PgListener, PgPoolOptions};

use crate::Resource;
use crate::lock::Released;
use crate::sql::tables::Text;
use crate::sql::{Tables, backend};

/// How long a server polls before it tries to listen again.
const PAUSE: Duration = Duration::from_secs(1);
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

const CHANNEL: usize = 0;
const ANNOUNCE: usize = 1;

const TEMPLATES: &[&str] = &[
    // One for each table of locks, wherever it lies.
    "SELECT '{bare}released_' || '{prefix}locks'::regclass::oid",
    // There is nothing in it that has to be on the disk before it is told.
    "SELECT set_config('synchronous_commit', 'off', true), \
     (SELECT count(pg_notify('{bare}released_' || '{prefix}locks'::regclass::oid, $2 || ' ' || r)) \
     FROM unnest($1::text[]) AS r)",
];

fn statements(tables: &Tables) -> Text {
    tables.statements(<sqlx::Postgres as backend::Backend>::QUOTE, TEMPLATES)
}

pub(super) async fn announce(
    pool: &PgPool,
    tables: &Tables,
    origin: &str,
    resources: &[Resource],
) -> Result<(), sqlx::Error> {
    let names: Vec<&str> = resources.iter().map(Resource::as_str).collect();
    let text = statements(tables).get(ANNOUNCE);
    sqlx::query(text).bind(names).bind(origin).execute(pool).await.map(drop)
}

/// Listens until the pool is closed.
pub(super) async fn watch(pool: &PgPool, tables: &Tables, origin: &str, released: Released<'_>) {
    let mut closed = pin!(pool.close_event());
    let mut listening = pin!(async {
        loop {
            if let Err(error) = listen(pool, tables, origin, released).await {
                tracing::warn!(%error, "releases through other servers are polled for");
            }
            released(None);
            tokio::time::sleep(PAUSE).await;
        }
    });
    poll_fn(|cx| {
        if closed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        listening.as_mut().poll(cx)
    })
    .await;
}

async fn listen(
    pool: &PgPool,
    tables: &Tables,
    origin: &str,
    released: Released<'_>,
) -> Result<(), sqlx::Error> {
    let channel: String =
        sqlx::query_scalar(statements(tables).get(CHANNEL)).fetch_one(pool).await?;
    // A connection of its own: the pool of the locks may have but one.
    let own = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .connect_lazy_with(pool.connect_options().as_ref().clone());
    let mut listener = PgListener::connect_with(&own).await?;
    listener.listen(&channel).await?;
    // What was released before this is not told.
    released(None);
    while let Some(told) = listener.try_recv().await? {
        match told.payload().split_once(' ') {
            Some((from, _)) if from == origin => {}
            Some((_, name)) => released(Resource::new(name).ok().as_ref()),
            None => released(None),
        }
    }
    Ok(())
}
