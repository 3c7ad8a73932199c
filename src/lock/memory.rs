use std::collections::HashMap;
use std::fmt;
use std::future::ready;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_core::future::BoxFuture;

use super::rules::{self, Acquire, Ask, Refusal, Release, Row};
use super::{Acquired, Held, LockStore, OwnerTokenHash, StoreError};
use crate::clock::{Clock, SystemClock};
use crate::{Resource, Token};

/// Locks in the memory of this process, for tests.
///
/// They are forgotten with the process, and their tokens start again with it: a store for tests,
/// never for production. Time is a [`Clock`], so that a test can let a grant expire.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use fencing::Resource;
/// use fencing::lock::rules::Ask;
/// use fencing::lock::{Acquired, LockStore, MemoryLocks, OwnerToken};
/// use fencing::testing::ManualClock;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clock = ManualClock::new();
/// let locks = MemoryLocks::with_clock(Arc::new(clock.clone()));
/// let resource = Resource::new("inventory:item:1")?;
/// let ask = |owner: &str| -> Result<Ask, Box<dyn std::error::Error>> {
///     let owner_token_hash = OwnerToken::random()?.hash();
///     let ttl = Duration::from_secs(30);
///     Ok(Ask { owner: owner.to_owned(), owner_token_hash, ttl, max_hold: None })
/// };
/// assert!(matches!(locks.acquire(&resource, &ask("a")?).await?, Acquired::Granted(_)));
/// assert!(matches!(locks.acquire(&resource, &ask("b")?).await?, Acquired::Held(_)));
/// clock.advance(Duration::from_secs(30));
/// assert!(matches!(locks.acquire(&resource, &ask("b")?).await?, Acquired::Granted(_)));
/// # Ok(())
/// # }
/// ```
pub struct MemoryLocks {
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct State {
    rows: HashMap<Resource, Row>,
    floor: i64,
}

impl MemoryLocks {
    /// No locks yet, on the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// No locks yet, on a clock of the test's own.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self { state: Mutex::default(), clock }
    }

    /// Lifts the floor: every later grant is above `floor`. It never falls.
    pub fn lift_floor(&self, floor: Token) {
        self.step(|state, _| state.floor = state.floor.max(floor.get()));
    }

    /// Runs one step alone, with a time read after the lock was taken.
    fn step<T>(&self, step: impl FnOnce(&mut State, i64) -> T) -> T {
        // The rules do not panic, and what a step wrote before a panic is whole rows.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.epoch_ms();
        step(&mut state, now)
    }
}

impl Default for MemoryLocks {
    fn default() -> Self {
        Self::new()
    }
}

impl LockStore for MemoryLocks {
    fn acquire<'a>(
        &'a self,
        resource: &'a Resource,
        ask: &'a Ask,
    ) -> BoxFuture<'a, Result<Acquired, StoreError>> {
        let answer = self.step(|state, now| {
            let row = state.rows.get(resource).cloned();
            let decision = rules::acquire(row, state.floor, now, ask);
            if let Acquire::Granted(row) | Acquire::Repeated(row) = &decision {
                state.rows.insert(resource.clone(), row.clone());
            }
            Acquired::new(decision, now)
        });
        Box::pin(ready(answer))
    }

    fn renew<'a>(
        &'a self,
        resource: &'a Resource,
        secret: &'a OwnerTokenHash,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Result<Held, Refusal>, StoreError>> {
        let answer = self.step(|state, now| {
            let Some(row) = state.rows.get_mut(resource) else {
                return Ok(Err(Refusal::NotHeld));
            };
            match rules::renew(row.grant.clone(), now, secret, ttl) {
                Ok(grant) => {
                    row.grant = Some(grant.clone());
                    Held::new(row.token, grant, now).map(Ok)
                }
                Err(refusal) => Ok(Err(refusal)),
            }
        });
        Box::pin(ready(answer))
    }

    fn release<'a>(
        &'a self,
        resource: &'a Resource,
        secret: &'a OwnerTokenHash,
    ) -> BoxFuture<'a, Result<Result<(), Refusal>, StoreError>> {
        let answer = self.step(|state, now| {
            let Some(row) = state.rows.get_mut(resource) else { return Err(Refusal::NotHeld) };
            if let Release::Released(grant) = rules::release(row.grant.clone(), now, secret)? {
                row.grant = Some(grant);
            }
            Ok(())
        });
        Box::pin(ready(Ok(answer)))
    }

    fn show<'a>(
        &'a self,
        resource: &'a Resource,
    ) -> BoxFuture<'a, Result<Option<Held>, StoreError>> {
        let answer = self.step(|state, now| {
            let row = state.rows.get(resource).cloned();
            rules::live(row, now).map(|(token, grant)| Held::new(token, grant, now)).transpose()
        });
        Box::pin(ready(answer))
    }

    fn highest_token<'a>(
        &'a self,
        resource: &'a Resource,
    ) -> BoxFuture<'a, Result<Option<Token>, StoreError>> {
        let answer =
            self.step(|state, _| rules::highest_token(state.rows.get(resource), state.floor));
        Box::pin(ready(Ok(answer)))
    }
}

impl fmt::Debug for MemoryLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLocks").field("clock", &self.clock).finish_non_exhaustive()
    }
}
