//! Releases that one server hears of from another, on PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use fencing::Resource;
use fencing::lock::rules::Ask;
use fencing::lock::{Acquired, Endpoint, LockStore, OwnerToken, SqlLocks};
use fencing::testing::ManualClock;
use serde_json::json;
use sqlx::PgPool;
use tokio::sync::mpsc;

use crate::site::{post, secret};
use crate::support::Db;

const BOUND: Duration = Duration::from_secs(20);

async fn told(events: &mut mpsc::UnboundedReceiver<Option<Resource>>) -> Option<Resource> {
    tokio::time::timeout(BOUND, events.recv()).await.expect("it is told").unwrap()
}

async fn migrated() -> Db<sqlx::Postgres> {
    let db = Db::empty().await;
    fencing::sql::migrate(&db.pool(1).await).await.unwrap();
    db
}

fn ask() -> Ask {
    let owner_token_hash = OwnerToken::random().unwrap().hash();
    Ask { owner: "a".into(), owner_token_hash, ttl: Duration::from_secs(60), max_hold: None }
}

mod postgres {
    use super::*;

    #[tokio::test]
    async fn a_store_is_told_of_the_releases_of_others_only() {
        let db = migrated().await;
        let here = Arc::new(SqlLocks::new(db.pool(3).await).await.unwrap());
        let there = SqlLocks::new(db.pool(3).await).await.unwrap();
        let (send, mut events) = mpsc::unbounded_channel();
        let watching = tokio::spawn({
            let here = Arc::clone(&here);
            async move {
                here.watch(&|resource| send.send(resource.cloned()).unwrap()).await;
            }
        });
        assert_eq!(told(&mut events).await, None, "it may have missed some until now");
        let own = Resource::new("own").unwrap();
        let other = Resource::new("other's, with 'quotes' and a % ü").unwrap();
        for (locks, resource) in [(&*here, &own), (&there, &other)] {
            let ask = ask();
            let granted = locks.acquire(resource, &ask).await.unwrap();
            assert!(matches!(granted, Acquired::Granted(_)));
            locks.release(resource, &ask.owner_token_hash).await.unwrap().unwrap();
        }
        assert_eq!(told(&mut events).await, Some(other));
        // Its end is the end of the pool.
        here.pool().close().await;
        tokio::time::timeout(BOUND, watching).await.expect("it ends").unwrap();
    }

    /// The connection breaks: what was missed meanwhile is said to be any.
    #[tokio::test]
    async fn a_store_listens_again_when_its_connection_breaks() {
        let db = migrated().await;
        let here = SqlLocks::new(db.pool(3).await).await.unwrap();
        let pool: PgPool = here.pool().clone();
        let (send, mut events) = mpsc::unbounded_channel();
        let watching = tokio::spawn(async move {
            here.watch(&|resource| send.send(resource.cloned()).unwrap()).await;
        });
        assert_eq!(told(&mut events).await, None);
        let listener = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE query LIKE '%LISTEN \"fencing_released_' || 'fencing_locks'::regclass::oid || '\"%'";
        let ended: i64 = sqlx::query_scalar(listener).fetch_one(&pool).await.unwrap();
        assert_eq!(ended, 1);
        assert_eq!(told(&mut events).await, None);
        assert_eq!(told(&mut events).await, None, "and once more when it listens again");
        let there = SqlLocks::new(db.pool(3).await).await.unwrap();
        let (resource, ask) = (Resource::new("job").unwrap(), ask());
        there.acquire(&resource, &ask).await.unwrap();
        there.release(&resource, &ask.owner_token_hash).await.unwrap().unwrap();
        assert_eq!(told(&mut events).await, Some(resource));
        watching.abort();
    }

    /// H8: a waiter at another server has the lock at once. Its clock stands still: it cannot have
    /// polled.
    #[tokio::test]
    async fn a_release_wakes_a_waiter_at_another_server() {
        let db = migrated().await;
        let clock = ManualClock::new();
        let mut apps = Vec::new();
        for _ in 0..2 {
            let locks = SqlLocks::new(db.pool(3).await).await.unwrap();
            let endpoint = Endpoint::new(locks).with_clock(Arc::new(clock.clone()));
            apps.push(axum::Router::<()>::new().nest("/locks", endpoint.router()));
        }
        let acquire = |app: &axum::Router, owner: &str| {
            let body = json!({
                "owner": owner, "ttl_seconds": 3600, "wait_ms": 60_000, "owner_token": secret(owner),
            });
            let app = app.clone();
            tokio::spawn(async move { post(&app, "/locks/job", body).await })
        };
        acquire(&apps[0], "a").await.unwrap().granted();
        // The first who waits begins to listen, and is told to ask when it does.
        let waiter = acquire(&apps[1], "b");
        clock.until_begun(2).await;
        let release = http::Request::delete("/locks/job").header("x-lock-owner-token", secret("a"));
        let release = release.body(axum::body::Body::empty()).unwrap();
        crate::site::send(&apps[0], release).await.is(204);
        let answer = tokio::time::timeout(BOUND, waiter).await.expect("it is woken").unwrap();
        assert_eq!(answer.granted_token(), 2);
    }
}
