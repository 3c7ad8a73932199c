//! Needs a Redis: `FENCING_TEST_REDIS`, which tests/run sets.

use std::time::Duration;

use fencing::marks::MemoryMarks;
use fencing::{Claim, Resource, Token, Verdict};

use super::{assert_zombie_refused, server};
use crate::issuers::redis::{Redis, Reply, keys};

const TTL: Duration = Duration::from_secs(30);

fn address() -> String {
    server("FENCING_TEST_REDIS", "the address of a Redis: redis://127.0.0.1:6379")
}

async fn connect(test: &str) -> (Redis, String) {
    (Redis::connect(&address()).await.unwrap(), format!("{test}-{}", std::process::id()))
}

#[test]
fn a_zombie_of_a_redis_lock_is_refused() {
    assert_zombie_refused("redis", &address());
}

#[tokio::test]
async fn tokens_grow_across_release_and_expiry() {
    let (mut redis, name) = connect("growing").await;
    let mut take = async |owner, ttl| redis.lock(&name, owner, ttl).await.unwrap();
    let one = take("a", TTL).await;
    assert_eq!(take("b", TTL).await, None);
    let (mut redis, _) = connect("").await;
    assert!(!redis.unlock(&name, "b").await.unwrap(), "not one's own");
    assert!(redis.unlock(&name, "a").await.unwrap());
    let two = redis.lock(&name, "b", Duration::from_millis(1)).await.unwrap();
    let three = loop {
        match redis.lock(&name, "a", TTL).await.unwrap() {
            Some(token) => break Some(token),
            None => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    };
    assert!(one < two && two < three, "{one:?} {two:?} {three:?}");
    redis.unlock(&name, "a").await.unwrap();
}

/// Why lock and counter are one script: in two steps a client that is paused between them gets a
/// higher token than its successor, and is the one that the fence lets through.
#[tokio::test]
async fn in_two_steps_the_zombie_has_the_higher_token() {
    let (mut zombie, name) = connect("trap").await;
    let (mut holder, _) = connect("").await;
    let (lock, counter) = keys(&name);
    let set = ["SET", &lock, "zombie", "NX", "PX", "1"];
    assert_eq!(zombie.call(&set).await.unwrap(), Reply::Text("OK".to_owned()));
    // It is paused here, its lock expires, and another takes it.
    let token = loop {
        let set = ["SET", &lock, "holder", "NX", "PX", "30000"];
        match holder.call(&set).await.unwrap() {
            Reply::Nil => tokio::time::sleep(Duration::from_millis(1)).await,
            _ => break count(&mut holder, &counter).await,
        }
    };
    let late = count(&mut zombie, &counter).await;
    assert!(late > token);
    let marks = MemoryMarks::ephemeral();
    let claim = |token| Claim::new(Resource::new("report").unwrap(), token);
    assert_eq!(marks.decide(&claim(token)), Verdict::Accepted);
    assert_eq!(marks.decide(&claim(late)), Verdict::Accepted, "the zombie gets through");
    assert_eq!(marks.decide(&claim(token)), Verdict::Stale { last_token: late });
    holder.unlock(&name, "holder").await.unwrap();
}

async fn count(redis: &mut Redis, counter: &str) -> Token {
    match redis.call(&["INCR", counter]).await.unwrap() {
        Reply::Integer(token) => Token::new(token).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// What the docs say of a counter that is lost: the new holder is refused, not the zombie let
/// through, until it is set above the old one; and how to do that.
#[tokio::test]
async fn a_counter_that_was_lost_is_set_above_the_mark() {
    let (mut redis, name) = connect("lost").await;
    let (_, counter) = keys(&name);
    let marks = MemoryMarks::ephemeral();
    let claim = |token| Claim::new(Resource::new("report").unwrap(), token);
    for owner in ["a", "b", "c"] {
        let token = redis.lock(&name, owner, TTL).await.unwrap().unwrap();
        assert_eq!(marks.decide(&claim(token)), Verdict::Accepted);
        assert!(redis.unlock(&name, owner).await.unwrap());
    }
    redis.call(&["DEL", &counter]).await.unwrap();
    let early = redis.lock(&name, "d", TTL).await.unwrap().unwrap();
    let last_token = Token::new(3).unwrap();
    assert_eq!(marks.decide(&claim(early)), Verdict::Stale { last_token });
    assert!(redis.unlock(&name, "d").await.unwrap());
    redis.call(&["INCRBY", &counter, "1000000000"]).await.unwrap();
    let token = redis.lock(&name, "e", TTL).await.unwrap().unwrap();
    assert_eq!(marks.decide(&claim(token)), Verdict::Accepted);
    assert!(redis.unlock(&name, "e").await.unwrap());
}
