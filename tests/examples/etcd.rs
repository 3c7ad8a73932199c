//! Needs an etcd: `FENCING_TEST_ETCD`, which tests/run sets.

use std::time::Duration;

use super::{assert_zombie_refused, server};
use crate::issuers::etcd::Etcd;

fn url() -> String {
    server("FENCING_TEST_ETCD", "the URL of an etcd: http://127.0.0.1:2379")
}

#[test]
fn a_zombie_of_an_etcd_lock_is_refused() {
    assert_zombie_refused("etcd", &url());
}

/// What the docs say of the revision: it is that of the whole store, so it grows from lock to lock,
/// also when a lock is taken for the first time.
#[tokio::test]
async fn tokens_grow_from_holder_to_holder_and_from_lock_to_lock() {
    let etcd = Etcd::new(&url());
    let ttl = Duration::from_secs(30);
    let name = format!("growing-{}", std::process::id());
    let mut last = None;
    for suffix in ["a", "b", "a", "a", "b"] {
        let lock = etcd.lock(&format!("{name}-{suffix}"), ttl).await.unwrap();
        assert!(Some(lock.token) > last, "{:?} after {last:?}", lock.token);
        last = Some(lock.token);
        etcd.unlock(lock).await.unwrap();
    }
}

/// Whoever waits longest is next, and has the lowest token of those who wait.
#[tokio::test]
async fn who_waits_has_a_higher_token_than_who_holds() {
    let etcd = Etcd::new(&url());
    let ttl = Duration::from_secs(30);
    let name = format!("waiting-{}", std::process::id());
    let held = etcd.lock(&name, ttl).await.unwrap();
    let (token, waiting) = (held.token, etcd.lock(&name, ttl));
    let mut waiting = Box::pin(waiting);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut waiting).await;
    assert!(early.is_err(), "the lock was held");
    etcd.unlock(held).await.unwrap();
    let next = waiting.await.unwrap();
    assert!(next.token > token);
    etcd.unlock(next).await.unwrap();
}
