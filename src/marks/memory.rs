use std::fmt;
use std::future::ready;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{PoisonError, RwLock};

use foldhash::fast::RandomState;
use futures_core::future::BoxFuture;
use hashbrown::HashTable;

use super::{Check, Marks, MarksError};
use crate::{Claim, Resource, Token, Verdict};

/// Marks in the memory of this process.
///
/// They fence what this process alone owns, and only for as long as it lives: a restart forgets
/// them, and with them every token they would have refused. That is why the constructor is called
/// [`ephemeral`](Self::ephemeral). Where the protected data outlives the process, keep the marks
/// with the data ([`SqlMarks`](crate::sql::SqlMarks)) or have them start from what was granted:
/// [`SeededMarks`](super::SeededMarks).
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
type Shard = RwLock<HashTable<(Resource, AtomicI64)>>;

/// Enough that a handful of cores rarely meet in one.
const SHARDS: usize = 64;

impl MemoryMarks {
    /// Marks that start from nothing and are forgotten when they are dropped: the first claim of
    /// each resource is accepted, whatever its token.
    #[must_use]
    pub fn ephemeral() -> Self {
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        Self { shards, hasher: RandomState::default() }
    }

    fn shard(&self, resource: &Resource) -> (u64, &Shard) {
        let hash = self.hasher.hash_one(resource);
        // The table takes its bits from both ends of the hash; the shard takes some between them.
        #[allow(clippy::cast_possible_truncation, reason = "some bits are all that is wanted")]
        let shard = &self.shards[(hash >> 32) as usize % SHARDS];
        (hash, shard)
    }

    /// The mark of a resource; `None` for one never claimed.
    #[must_use]
    pub fn mark(&self, resource: &Resource) -> Option<Token> {
        let (hash, shard) = self.shard(resource);
        let known = shard.read().unwrap_or_else(PoisonError::into_inner);
        let (_, mark) = known.find(hash, |(known, _)| known == resource)?;
        Token::new(mark.load(Ordering::Acquire)).ok()
    }

    /// Decides a claim at once: what [`Marks::advance`] does, without the wrapping.
    pub fn decide(&self, claim: &Claim) -> Verdict {
        let (resource, offered) = (claim.resource(), claim.token().get());
        let (hash, shard) = self.shard(resource);
        let is_it = |(known, _): &(Resource, AtomicI64)| known == resource;

        // No code that can panic runs while a lock is held, so a poisoned one is as good as new.
        if let Some((_, mark)) =
            shard.read().unwrap_or_else(PoisonError::into_inner).find(hash, is_it)
        {
            return raise(mark, offered);
        }
        let mut known = shard.write().unwrap_or_else(PoisonError::into_inner);
        // Another may have been first between the two locks.
        if let Some((_, mark)) = known.find(hash, is_it) {
            return raise(mark, offered);
        }
        let rehash = |(known, _): &(Resource, AtomicI64)| self.hasher.hash_one(known);
        known.insert_unique(hash, (resource.clone(), AtomicI64::new(offered)), rehash);
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

    fn vet(&self, claim: &Claim) -> Check {
        match self.mark(claim.resource()) {
            Some(last_token) if last_token > claim.token() => Verdict::Stale { last_token },
            _ => Verdict::Accepted,
        }
        .into()
    }

    fn look(&self, resource: &Resource) -> BoxFuture<'static, Result<Option<Token>, MarksError>> {
        Box::pin(ready(Ok(self.mark(resource))))
    }
}

impl fmt::Debug for MemoryMarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryMarks").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A map and a comparison, in the plainest words, is what the marks must be.
        #[test]
        fn they_agree_with_a_plain_map(
            claims in proptest::collection::vec(("[aAb ]{1,3}", 1..9_i64), 1..200),
        ) {
            let marks = MemoryMarks::ephemeral();
            let mut model: HashMap<String, i64> = HashMap::new();
            for (name, token) in claims {
                let last = model.entry(name.clone()).or_insert(token);
                let expected = if *last <= token {
                    *last = token;
                    Verdict::Accepted
                } else {
                    Verdict::Stale { last_token: Token::new(*last).unwrap() }
                };
                let claim = Claim::new(Resource::new(name).unwrap(), Token::new(token).unwrap());
                prop_assert_eq!(marks.decide(&claim), expected);
            }
        }
    }

    /// Enough names that every shard grows several times, which moves the marks about.
    #[test]
    fn i5_no_mark_is_lost_or_falls_while_the_tables_grow() {
        let marks = MemoryMarks::ephemeral();
        let claim = |n: i64, token: i64| {
            Claim::new(Resource::new(format!("r{n}")).unwrap(), Token::new(token).unwrap())
        };
        for n in 0..20_000 {
            assert_eq!(marks.decide(&claim(n, n + 2)), Verdict::Accepted);
        }
        for n in 0..20_000 {
            let last_token = Token::new(n + 2).unwrap();
            assert_eq!(marks.decide(&claim(n, 1)), Verdict::Stale { last_token });
        }
    }

    #[test]
    fn the_names_spread_over_the_shards() {
        let marks = MemoryMarks::ephemeral();
        for n in 0..6400 {
            let resource = Resource::new(format!("inventory:item:{n}")).unwrap();
            let _ = marks.decide(&Claim::new(resource, Token::MIN));
        }
        let sizes = marks.shards.iter().map(|shard| shard.read().unwrap().len());
        let (min, max) = (sizes.clone().min().unwrap(), sizes.max().unwrap());
        // 100 each on average, with a standard deviation of 10.
        assert!(min > 30 && max < 200, "{min} to {max}");
    }
}
