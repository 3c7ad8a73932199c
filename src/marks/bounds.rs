use std::fmt;
use std::hash::BuildHasher;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::{Resource, Token};

/// What was heard of resources: for each a token that something of it (its mark, its highest grant)
/// is at or above. Each is believed for a time only, and the one least used lately is forgotten when
/// there are too many: who finds nothing here has to ask.
pub(crate) struct Bounds {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    /// How many a generation of a shard holds.
    generation: usize,
    max_age: Duration,
}

/// What is looked up moves to the young. When there are too many of those, they become the old, and
/// the old are forgotten.
#[derive(Default)]
struct Shard {
    young: HashTable<Bound>,
    old: HashTable<Bound>,
    /// How often everything was forgotten.
    epoch: u64,
}

struct Bound {
    resource: Resource,
    at_least: Token,
    /// When it was true for certain.
    heard: Duration,
    /// Somebody was sent to ask again, before it is too old to be believed.
    asking: bool,
}

/// When somebody began to ask, to be given back with the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    at: Duration,
    epoch: u64,
}

const SHARDS: usize = 64;

impl Bounds {
    pub(crate) fn new(capacity: usize, max_age: Duration) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let generation = (capacity / SHARDS / 2).max(1);
        Self { shards, hasher: RandomState::default(), generation, max_age }
    }

    fn shard(&self, resource: &Resource) -> (u64, MutexGuard<'_, Shard>) {
        let hash = self.hasher.hash_one(resource);
        // The table takes its bits from both ends of the hash; the shard takes some between them.
        #[allow(clippy::cast_possible_truncation, reason = "some bits are all that is wanted")]
        let shard = &self.shards[(hash >> 32) as usize % SHARDS];
        // No code that can panic runs while it is held.
        (hash, shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What is at or above the token of the resource, if that is known and above `token`.
    ///
    /// Once in the last quarter of its time it is not told, so that one caller asks again while the
    /// others go on being answered.
    pub(crate) fn above(&self, resource: &Resource, token: Token, now: Duration) -> Option<Token> {
        let bound = self.at_least(resource, now, |bound| bound.at_least > token)?;
        (bound > token).then_some(bound)
    }

    /// Whether it is known to be at or above `token`.
    pub(crate) fn reaches(&self, resource: &Resource, token: Token, now: Duration) -> bool {
        self.at_least(resource, now, |bound| bound.at_least >= token).is_some()
    }

    /// When it was heard that it is above `token`, if that was heard.
    #[cfg(feature = "metrics")]
    pub(crate) fn heard_above(&self, resource: &Resource, token: Token) -> Option<Duration> {
        let (hash, mut shard) = self.shard(resource);
        let bound = shard.find(hash, resource, &self.hasher, self.generation)?;
        (bound.at_least > token).then_some(bound.heard)
    }

    /// A token that it is at or above, if one is known.
    fn at_least(
        &self,
        resource: &Resource,
        now: Duration,
        matters: impl Fn(&Bound) -> bool,
    ) -> Option<Token> {
        let (hash, mut shard) = self.shard(resource);
        let bound = shard.find(hash, resource, &self.hasher, self.generation)?;
        let age = now.saturating_sub(bound.heard);
        if age >= self.max_age || !matters(bound) {
            return None;
        }
        if age >= self.max_age / 4 * 3 && !mem::replace(&mut bound.asking, true) {
            return None;
        }
        Some(bound.at_least)
    }

    /// Begins to ask.
    pub(crate) fn ask(&self, resource: &Resource, now: Duration) -> Asked {
        Asked { at: now, epoch: self.shard(resource).1.epoch }
    }

    /// Keeps an answer: at `asked` or later it was at or above `at_least`.
    pub(crate) fn hear(&self, resource: &Resource, at_least: Token, asked: Asked) {
        let (hash, mut shard) = self.shard(resource);
        if shard.epoch != asked.epoch {
            // From before everything was forgotten.
            return;
        }
        let heard = asked.at;
        match shard.find(hash, resource, &self.hasher, self.generation) {
            // An answer to an older question says nothing against a higher one.
            Some(bound) if bound.at_least > at_least && bound.heard >= heard => {}
            Some(bound) => {
                bound.heard =
                    if bound.at_least == at_least { heard.max(bound.heard) } else { heard };
                bound.at_least = at_least;
                bound.asking = false;
            }
            None => {
                let bound = Bound { resource: resource.clone(), at_least, heard, asking: false };
                shard.keep(hash, bound, &self.hasher, self.generation);
            }
        }
    }

    /// Forgets everything, and every answer that is still under way.
    pub(crate) fn forget(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let epoch = shard.epoch.wrapping_add(1);
            *shard = Shard { epoch, ..Shard::default() };
        }
    }

    /// How many resources something is known of.
    pub(crate) fn len(&self) -> usize {
        let len = |shard: &Mutex<Shard>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.young.len() + shard.old.len()
        };
        self.shards.iter().map(len).sum()
    }
}

impl Shard {
    fn find(
        &mut self,
        hash: u64,
        resource: &Resource,
        hasher: &RandomState,
        generation: usize,
    ) -> Option<&mut Bound> {
        let is_it = |bound: &Bound| bound.resource == *resource;
        if let Ok(old) = self.old.find_entry(hash, is_it) {
            let bound = old.remove().0;
            self.keep(hash, bound, hasher, generation);
        }
        self.young.find_mut(hash, is_it)
    }

    fn keep(&mut self, hash: u64, bound: Bound, hasher: &RandomState, generation: usize) {
        if self.young.len() >= generation {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert_unique(hash, bound, |bound| hasher.hash_one(&bound.resource));
    }
}

impl fmt::Debug for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bounds")
            .field("resources", &self.len())
            .field("max_age", &self.max_age)
            .finish_non_exhaustive()
    }
}
