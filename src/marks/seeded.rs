use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_core::future::BoxFuture;
use futures_util::future::{FutureExt, Shared, WeakShared};

use super::{Check, Issuer, Marks, MarksError, MemoryMarks};
use crate::{Claim, Resource, Token};

/// Marks in memory that know after a restart what was granted before it.
///
/// The first claim of each resource asks the [`Issuer`] for the highest token it has granted, and
/// that is where the mark starts: an older token has been overtaken by a later grant, whether its
/// holder has come by already or not. Claims that come in meanwhile wait for the same answer: one
/// question for each resource at a time. From then on it is [`MemoryMarks`].
///
/// Without an answer nothing is accepted (503 `fence-unavailable`), and the next claim asks again.
///
/// Memory grows as that of [`MemoryMarks`] does. Clones share the marks.
///
/// ```
/// use fencing::marks::{Issuer, Marks, SeededMarks};
/// use fencing::{Claim, Resource, Token, Verdict};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // In a service: the client of the lock endpoint.
/// let issuer = Issuer::new(async |_| Ok::<_, std::io::Error>(Token::new(34).ok()));
/// let marks = SeededMarks::new(issuer);
/// let report = Resource::new("report")?;
/// // Nobody came by since the restart, and yet the zombie is known as one.
/// let zombie = Claim::new(report, Token::new(33)?);
/// assert_eq!(marks.advance(&zombie).await?, Verdict::Stale { last_token: Token::new(34)? });
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SeededMarks(Arc<Inner>);

struct Inner {
    marks: MemoryMarks,
    issuer: Issuer,
    asked: Mutex<Asked>,
}

type Seed = BoxFuture<'static, Result<(), MarksError>>;

/// The questions under way.
#[derive(Default)]
struct Asked {
    last: u64,
    seeds: HashMap<Resource, (u64, WeakShared<Seed>)>,
}

impl SeededMarks {
    /// Marks that start from what `issuer` has granted.
    #[must_use]
    pub fn new(issuer: impl Into<Issuer>) -> Self {
        let marks = MemoryMarks::ephemeral();
        Self(Arc::new(Inner { marks, issuer: issuer.into(), asked: Mutex::default() }))
    }

    /// The mark of a resource; `None` for one never claimed here.
    #[must_use]
    pub fn mark(&self, resource: &Resource) -> Option<Token> {
        self.0.marks.mark(resource)
    }

    /// The question that is under way, or a new one.
    fn seed(&self, resource: &Resource) -> Shared<Seed> {
        let mut asked = self.0.asked();
        if let Some(seed) = asked.seeds.get(resource).and_then(|(_, seed)| seed.upgrade()) {
            return seed;
        }
        asked.last += 1;
        let id = asked.last;
        // Lets go of its place when it is done, and when all who waited have gone.
        let place = Place { inner: Arc::clone(&self.0), resource: resource.clone(), id };
        let answer = self.0.issuer.highest_token(resource);
        let seed: Seed = Box::pin(async move {
            if let Some(granted) = answer.await? {
                let _ = place.inner.marks.decide(&Claim::new(place.resource.clone(), granted));
            }
            Ok(())
        });
        let seed = seed.shared();
        if let Some(weak) = seed.downgrade() {
            asked.seeds.insert(resource.clone(), (id, weak));
        }
        seed
    }
}

impl Inner {
    fn asked(&self) -> MutexGuard<'_, Asked> {
        // No code that can panic runs while it is held.
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Place {
    inner: Arc<Inner>,
    resource: Resource,
    id: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut asked = self.inner.asked();
        if asked.seeds.get(&self.resource).is_some_and(|(id, _)| *id == self.id) {
            asked.seeds.remove(&self.resource);
        }
    }
}

impl Marks for SeededMarks {
    fn advance(&self, claim: &Claim) -> Check {
        if self.mark(claim.resource()).is_some() {
            return self.0.marks.advance(claim);
        }
        let (seed, inner, claim) =
            (self.seed(claim.resource()), Arc::clone(&self.0), claim.clone());
        Check::Pending(Box::pin(async move {
            seed.await?;
            Ok(inner.marks.decide(&claim))
        }))
    }

    fn vet(&self, claim: &Claim) -> Check {
        self.0.marks.vet(claim)
    }

    fn look(&self, resource: &Resource) -> BoxFuture<'static, Result<Option<Token>, MarksError>> {
        self.0.marks.look(resource)
    }

    fn issuer(&self) -> Option<Issuer> {
        Some(self.0.issuer.clone())
    }
}

impl fmt::Debug for SeededMarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeededMarks").field("issuer", &self.0.issuer).finish_non_exhaustive()
    }
}
