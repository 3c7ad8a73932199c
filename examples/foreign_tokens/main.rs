//! Fencing tokens from locks you have already: etcd and Redis. `docs/tokens-from-elsewhere.md` says
//! what else to know of them.
//!
//! ```sh
//! cargo run --features full --example foreign_tokens -- etcd http://127.0.0.1:2379
//! cargo run --features full --example foreign_tokens -- redis 127.0.0.1:6379
//! ```
//!
//! A takes the lock, writes a report, and is gone: nobody keeps its lock alive. B takes the lock
//! when it has expired and writes. Then A is back, and writes what it had in mind. Exit code 0 means
//! that A was refused.

mod etcd;
mod redis;
mod reports;

use std::process::ExitCode;
use std::time::Duration;

use fencing::Token;

use self::reports::Reports;

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// How long A has its lock, which nobody keeps alive.
const TTL_OF_A: Duration = Duration::from_secs(1);
const TTL_OF_B: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let result = match args[..] {
        ["etcd", url] => play_etcd(url).await,
        ["redis", address] => play_redis(address).await,
        _ => Err("usage: foreign_tokens etcd URL | foreign_tokens redis HOST:PORT".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("foreign_tokens: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn play_etcd(url: &str) -> Result<(), Error> {
    let etcd = etcd::Etcd::new(url);
    let name = lock_name();
    let a = etcd.lock(&name, TTL_OF_A).await?;
    // Waits until the lease of A has expired. That of B runs meanwhile.
    let take_over = async {
        let b = etcd.lock(&name, TTL_OF_B).await?;
        Ok((b.token, b))
    };
    let b = play("etcd", &name, a.token, take_over).await?;
    etcd.unlock(b).await
}

async fn play_redis(address: &str) -> Result<(), Error> {
    let mut redis = redis::Redis::connect(address).await?;
    let name = lock_name();
    let a = redis.lock(&name, "a", TTL_OF_A).await?.ok_or("nobody else has this lock")?;
    let take_over = async {
        loop {
            if let Some(b) = redis.lock(&name, "b", TTL_OF_B).await? {
                return Ok((b, redis));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let mut redis = play("redis", &name, a, take_over).await?;
    redis.unlock(&name, "b").await.map(drop)
}

/// One of its own for each run: the server may be anybody's.
fn lock_name() -> String {
    format!("fencing-example-{}", std::process::id())
}

/// The story, whoever grants the locks.
#[allow(clippy::print_stdout, reason = "what went on is for people to read")]
async fn play<L>(
    issuer: &str,
    name: &str,
    a: Token,
    take_over: impl Future<Output = Result<(Token, L), Error>>,
) -> Result<L, Error> {
    let reports = Reports::serve().await?;
    println!("{issuer} grants {a} to A");
    let first = reports.write(name, a, "by A").await?;
    println!("A writes: {first}");

    let (b, lock) = take_over.await?;
    println!("{issuer} grants {b} to B: the lock of A has expired");
    let second = reports.write(name, b, "by B").await?;
    println!("B writes: {second}");

    let zombie = reports.write(name, a, "by A, who does not know").await?;
    println!("A writes, who does not know: {zombie}");
    let left = reports.read(name).await?;
    println!("the report is `{left}`");
    if [first.as_u16(), second.as_u16(), zombie.as_u16()] == [204, 204, 412] && left == "by B" {
        Ok(lock)
    } else {
        Err("that did not end as it must".into())
    }
}
