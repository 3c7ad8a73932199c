use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{PoisonError, RwLock};

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::{Check, Marks};
use crate::{Claim, Token, Verdict};

/// Marks in the memory of this process.
///
/// They fence what this process alone owns, and only for as long as it lives: a restart forgets
/// them, and with them every token they would have refused. That is why the constructor is called
/// [`ephemeral`](Self::ephemeral). Where the protected data outlives the process, keep the marks
/// with the data: [`SqlMarks`](crate::sql::SqlMarks).
///
/// Memory grows with the number of resources seen, a little over the length of the name each, and
/// is not given back: a mark that is dropped would be a mark that fell.
///
/// ```
/// use fencing::marks::{Marks, MemoryMarks};
/// use fencing::{Claim, Resource, Token, Verdict};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let marks = MemoryMarks::ephemeral();
/// let resource = Resource::new("report")?;
/// let newer = Claim::new(resource.clone(), Token::new(34)?);
/// let zombie = Claim::new(resource, Token::new(33)?);
/// assert_eq!(marks.decide(&newer), Verdict::Accepted);
/// assert_eq!(marks.decide(&zombie), Verdict::Stale { last_token: newer.token() });
/// # Ok(())
/// # }
/// ```
pub struct MemoryMarks {
    shards: Box<[Shard]>,
    hasher: RandomState,
}

/// Readers of one shard do not wait for each other: a known resource is raised by an atomic
/// maximum under the shared lock. The exclusive lock is for resources never seen before.
type Shard = RwLock<HashMap<Box<str>, AtomicI64, RandomState>>;

/// Enough that a handful of cores rarely meet in one; a power of two.
const SHARDS: usize = 64;

impl MemoryMarks {
    /// Marks that start from nothing and are forgotten when they are dropped: the first claim of
    /// each resource is accepted, whatever its token.
    #[must_use]
    pub fn ephemeral() -> Self {
        let hasher = RandomState::default();
        let shards =
            (0..SHARDS).map(|_| RwLock::new(HashMap::with_hasher(hasher.clone()))).collect();
        Self { shards, hasher }
    }

    /// Decides a claim at once: what [`Marks::advance`] does, without the wrapping.
    pub fn decide(&self, claim: &Claim) -> Verdict {
        let resource = claim.resource().as_str();
        let offered = claim.token().get();
        let hash = self.hasher.hash_one(resource);
        // The map inside uses the high bits and the low ones; the shard takes some of the middle.
        #[allow(clippy::cast_possible_truncation)]
        let shard = &self.shards[(hash >> 32) as usize % SHARDS];

        // No code that can panic runs while a lock is held, so a poisoned one is as good as new.
        let known = shard.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(mark) = known.get(resource) {
            return raise(mark, offered);
        }
        drop(known);
        let mut known = shard.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(mark) = known.get(resource) {
            return raise(mark, offered);
        }
        known.insert(resource.into(), AtomicI64::new(offered));
        Verdict::Accepted
    }
}

fn raise(mark: &AtomicI64, offered: i64) -> Verdict {
    // A load first: when the mark is the token already, the common case of one holder writing
    // again, the cache line stays shared between cores.
    let mut last = mark.load(Ordering::Acquire);
    if last < offered {
        last = mark.fetch_max(offered, Ordering::AcqRel);
    }
    match Token::new(last) {
        Ok(last_token) if last > offered => Verdict::Stale { last_token },
        _ => Verdict::Accepted,
    }
}

impl Marks for MemoryMarks {
    fn advance(&self, claim: &Claim) -> Check {
        self.decide(claim).into()
    }
}

impl fmt::Debug for MemoryMarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryMarks").finish_non_exhaustive()
    }
}
