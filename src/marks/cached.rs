use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;

use super::bounds::{Asked, Bounds};
use super::{Check, Issuer, Marks, MarksError};
use crate::clock::{self, Clock};
use crate::{Claim, Resource, Token, Verdict};

/// A store of marks with a memory of what it said, so that a storm of stale requests does not reach
/// the database.
///
/// What is remembered can only reject: a token below a committed mark is stale, and stays so. Every
/// claim that is accepted was accepted by the store. Only what is committed is remembered: the
/// answers of the store, and what a [deferred](crate::guard::FenceLayer::deferred) layer sees
/// committed by handlers. A transaction that was rolled back leaves nothing here.
///
/// The mark that a remembered rejection tells may be lower than the mark is by now, when another
/// process has raised it.
///
/// Memory is bounded: for [`capacity`](Self::capacity) resources. One that is forgotten is asked
/// about.
///
/// **When a mark falls**, by the hand of an administrator or with a restored database, what is
/// remembered would go on rejecting. So nothing is believed for longer than
/// [`MAX_AGE`](Self::MAX_AGE) after the store last said it; before that time is up one caller is
/// sent to ask again. [`forget`](Self::forget) forgets at once.
///
/// Clones share the memory.
///
/// ```
/// use fencing::marks::{CachedMarks, Marks, MemoryMarks};
/// use fencing::{Claim, Resource, Token, Verdict};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let in_a_database = MemoryMarks::ephemeral();
/// let marks = CachedMarks::new(in_a_database);
/// let report = Resource::new("report")?;
/// let holder = Claim::new(report.clone(), Token::new(34)?);
/// assert_eq!(marks.advance(&holder).await?, Verdict::Accepted);
/// let zombie = Claim::new(report, Token::new(33)?);
/// // From memory:
/// assert_eq!(marks.advance(&zombie).await?, Verdict::Stale { last_token: holder.token() });
/// # Ok(())
/// # }
/// ```
pub struct CachedMarks<M> {
    store: Arc<M>,
    memory: Arc<Memory>,
}

struct Memory {
    bounds: Bounds,
    now: Arc<dyn Fn() -> Duration + Send + Sync>,
}

impl<M: Marks> CachedMarks<M> {
    /// How long an answer of the store is believed.
    pub const MAX_AGE: Duration = Duration::from_secs(60);
    /// How many resources are remembered, unless told otherwise.
    pub const DEFAULT_CAPACITY: usize = 1 << 16;

    /// A memory before `store`, empty at first.
    pub fn new(store: M) -> Self {
        Self::make(Arc::new(store), Self::DEFAULT_CAPACITY, Arc::new(clock::elapsed))
    }

    /// As [`new`](Self::new), with the age of what is remembered measured by another clock.
    pub fn with_clock(store: M, clock: impl Clock) -> Self {
        let now = Arc::new(move || clock.elapsed());
        Self::make(Arc::new(store), Self::DEFAULT_CAPACITY, now)
    }

    fn make(store: Arc<M>, capacity: usize, now: Arc<dyn Fn() -> Duration + Send + Sync>) -> Self {
        let memory = Memory { bounds: Bounds::new(capacity, Self::MAX_AGE), now };
        Self { store, memory: Arc::new(memory) }
    }

    /// Remembers about so many resources at most, in place of
    /// [`DEFAULT_CAPACITY`](Self::DEFAULT_CAPACITY): those used last. It starts empty.
    #[must_use]
    pub fn capacity(self, resources: usize) -> Self {
        Self::make(self.store, resources, Arc::clone(&self.memory.now))
    }

    /// Forgets all that is remembered, and every answer that is still under way. For after a mark
    /// was lowered.
    pub fn forget(&self) {
        self.memory.bounds.forget();
    }

    /// How many resources are remembered.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.memory.bounds.len()
    }
}

impl Memory {
    fn above(&self, claim: &Claim) -> Option<Token> {
        self.bounds.above(claim.resource(), claim.token(), (self.now)())
    }

    fn ask(&self, claim: &Claim) -> Asked {
        self.bounds.ask(claim.resource(), (self.now)())
    }

    fn hear(&self, claim: &Claim, answer: &Result<Verdict, MarksError>, asked: Asked) {
        let mark = match answer {
            Ok(Verdict::Accepted) => claim.token(),
            Ok(Verdict::Stale { last_token }) => *last_token,
            Err(_) => return,
        };
        self.bounds.hear(claim.resource(), mark, asked);
    }
}

impl<M: Marks> Marks for CachedMarks<M> {
    fn advance(&self, claim: &Claim) -> Check {
        if let Some(last_token) = self.memory.above(claim) {
            return Verdict::Stale { last_token }.into();
        }
        let asked = self.memory.ask(claim);
        match self.store.advance(claim) {
            Check::Ready(answer) => {
                self.memory.hear(claim, &answer, asked);
                Check::Ready(answer)
            }
            Check::Pending(answer) => {
                let (memory, claim) = (Arc::clone(&self.memory), claim.clone());
                Check::Pending(Box::pin(async move {
                    let answer = answer.await;
                    memory.hear(&claim, &answer, asked);
                    answer
                }))
            }
        }
    }

    fn vet(&self, claim: &Claim) -> Check {
        match self.memory.above(claim) {
            Some(last_token) => Verdict::Stale { last_token }.into(),
            None => self.store.vet(claim),
        }
    }

    fn learn(&self, resource: &Resource, last_token: Token) {
        let asked = self.memory.bounds.ask(resource, (self.memory.now)());
        self.memory.bounds.hear(resource, last_token, asked);
        self.store.learn(resource, last_token);
    }

    fn look(&self, resource: &Resource) -> BoxFuture<'static, Result<Option<Token>, MarksError>> {
        self.store.look(resource)
    }

    fn issuer(&self) -> Option<Issuer> {
        self.store.issuer()
    }
}

impl<M> Clone for CachedMarks<M> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store), memory: Arc::clone(&self.memory) }
    }
}

impl<M: fmt::Debug> fmt::Debug for CachedMarks<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedMarks")
            .field("store", &self.store)
            .field("memory", &self.memory.bounds)
            .finish()
    }
}
