//! The client of the lock endpoint, against a server that fails on command.
#![cfg(all(feature = "client", feature = "testing"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "they are tests")]

mod acquire;
mod answers;
mod attach;
mod dropping;
mod endpoint;
mod fault;
mod grant;
mod real_time;
mod release;
mod renewal;
mod secrets;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fencing::client::{Lease, LockClient};
use fencing::testing::ManualClock;

use crate::fault::FaultServer;

/// No test waits longer than this for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// The output of a future that must not take for ever.
async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("this takes for ever")
}

/// Waits until a condition holds.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

struct Setup {
    server: FaultServer,
    clock: ManualClock,
    client: LockClient,
}

async fn setup() -> Setup {
    let server = FaultServer::start().await;
    let clock = ManualClock::new();
    let client = client_of(&server, &clock);
    Setup { server, clock, client }
}

fn client_of(server: &FaultServer, clock: &ManualClock) -> LockClient {
    LockClient::new(&server.url()).unwrap().with_clock(Arc::new(clock.clone()))
}

impl Setup {
    /// A lease of `r` under token 33, sent and answered at this moment of the clock.
    async fn lease(&mut self, ttl: Duration) -> Lease {
        let acquire = tokio::spawn(self.client.acquire("r").owner("me").ttl(ttl).into_future());
        self.server.next().await.grant(33, 0);
        soon(acquire).await.unwrap().unwrap().expect("granted")
    }
}

/// Takes a step of the test, while the code under test waits for an answer, and waits until it has
/// gone to sleep after the step. Tells for how long.
async fn pause_after(clock: &ManualClock, step: impl FnOnce()) -> Duration {
    // What was woken before sleeps again: it waits for the answer.
    soon(clock.until_sleeping(1)).await;
    let begun = clock.begun();
    step();
    soon(clock.until_begun(begun + 1)).await;
    clock.until_next_wake().expect("somebody sleeps")
}

/// As [`pause_after`], and lets the time of the pause pass.
async fn skip_pause_after(clock: &ManualClock, step: impl FnOnce()) {
    let pause = pause_after(clock, step).await;
    clock.advance(pause);
}
