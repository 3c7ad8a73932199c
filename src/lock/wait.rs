//! Who waits for a lock, in which order, and whose turn it is to ask the store. No I/O and no
//! clock: times are what the caller counts in.
//!
//! Each acquire takes a place in the line of its resource when it arrives, before it asks, so that
//! no release goes unnoticed between an answer and the wait for the next. Only who is at the front
//! asks. Requests with one owner token are one client that asks again: they share a place.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::OwnerTokenHash;
use crate::Resource;

/// The lines of all resources that somebody asks or waits for.
#[derive(Clone, Default)]
pub(super) struct Lines(Arc<Mutex<All>>);

#[derive(Default)]
struct All {
    lines: HashMap<Resource, Line>,
    /// The number of the next request.
    next: u64,
}

#[derive(Default)]
struct Line {
    slots: BTreeMap<Key, Slot>,
    /// For each owner token its place, and how many requests share it.
    places: HashMap<[u8; 32], (u64, usize)>,
    /// Until when another holds the lock, as far as the front was told. `None` while it does not
    /// know: then those behind know nothing either.
    until: Option<Duration>,
}

/// The place, which is the number of the first who took it, then the request's own number.
type Key = (u64, u64);

struct Slot {
    /// It is to ask when it is at the front.
    due: bool,
    /// It wants to hear what the front is told.
    curious: bool,
    wake: Arc<Notify>,
}

/// What a request is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// Ask the store, now.
    Ask,
    /// At the front, and another holds the lock until then, unless it renews or releases.
    Front(Duration),
    /// Behind others. `None` while the front does not know how long another holds the lock.
    Behind(Option<Duration>),
}

impl Lines {
    /// Takes the last place of the line, or the one that this owner token has in it.
    pub(super) fn join(&self, resource: &Resource, secret: OwnerTokenHash) -> Place {
        let secret = *secret.as_bytes();
        let wake = Arc::new(Notify::new());
        let mut all = self.lock();
        let number = all.next;
        all.next += 1;
        let line = all.lines.entry(resource.clone()).or_default();
        let (place, requests) = line.places.entry(secret).or_insert((number, 0));
        *requests += 1;
        let key = (*place, number);
        let slot = Slot { due: true, curious: true, wake: Arc::clone(&wake) };
        line.slots.insert(key, slot);
        drop(all);
        let lines = self.clone();
        Place { lines, resource: resource.clone(), secret, key, wake, granted: None }
    }

    /// The lock was released, so whoever is at the front of its line asks again, at once. `None`:
    /// any may have been.
    pub(super) fn released(&self, resource: Option<&Resource>) {
        let mut all = self.lock();
        match resource {
            Some(resource) => {
                if let Some(line) = all.lines.get_mut(resource) {
                    line.front_is_due(true);
                }
            }
            None => all.lines.values_mut().for_each(|line| line.front_is_due(true)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    fn front(&self) -> Option<u64> {
        Some(self.slots.first_key_value()?.0.0)
    }

    fn front_is_due(&mut self, due: bool) {
        let Some(front) = self.front() else { return };
        for (_, slot) in self.slots.range_mut((front, 0)..=(front, u64::MAX)) {
            slot.due = due;
            slot.wake.notify_one();
        }
    }

    fn tell(&mut self, until: Duration) {
        self.until = Some(until);
        self.slots.values().filter(|slot| slot.curious).for_each(|slot| slot.wake.notify_one());
    }

    fn leave(&mut self, place: &Place) {
        let was_front = self.front();
        let Some(slot) = self.slots.remove(&place.key) else { return };
        if let std::collections::hash_map::Entry::Occupied(mut entry) =
            self.places.entry(place.secret)
        {
            entry.get_mut().1 -= 1;
            if entry.get().1 == 0 {
                entry.remove();
            }
        }
        let (here, now_front) = (Some(place.key.0), self.front());
        match place.granted {
            _ if was_front != here => {}
            // The same client asked twice: the grant is the other request's as well.
            Some(_) if now_front == here => self.front_is_due(true),
            Some(until) => {
                // Those behind need not ask to know. Unless it was released meanwhile, by a client
                // that was told by another of its requests.
                self.front_is_due(slot.due);
                self.tell(until);
            }
            None if now_front == here => {}
            None => {
                self.until = None;
                self.front_is_due(true);
            }
        }
    }
}

/// A place in the line of a resource, given up when it is dropped.
pub(super) struct Place {
    lines: Lines,
    resource: Resource,
    secret: [u8; 32],
    key: Key,
    wake: Arc<Notify>,
    granted: Option<Duration>,
}

impl Place {
    /// What to do. [`Turn::Ask`] is said once; a release during the answer says it again.
    pub(super) fn turn(&self) -> Turn {
        self.with(|line, key| {
            let front = line.front() == Some(key.0);
            let until = line.until;
            let Entry::Occupied(mut slot) = line.slots.entry(key) else { return Turn::Ask };
            let slot = slot.get_mut();
            match (front, until) {
                (true, Some(until)) if !slot.due => Turn::Front(until),
                (true, _) => {
                    slot.due = false;
                    Turn::Ask
                }
                (false, until) => {
                    slot.curious = until.is_none();
                    Turn::Behind(until)
                }
            }
        })
    }

    /// Another holds the lock until then.
    pub(super) fn held_until(&self, until: Duration) {
        self.with(|line, key| {
            if line.front() == Some(key.0) {
                line.tell(until);
            }
        });
    }

    /// It is time to ask again, if this is at the front.
    pub(super) fn due(&self) {
        self.with(|line, key| {
            if let Some(slot) = line.slots.get_mut(&key) {
                slot.due = true;
            }
        });
    }

    /// The lock was granted to this request, until then.
    pub(super) fn granted_until(&mut self, until: Duration) {
        self.granted = Some(until);
    }

    /// Waits until [`turn`](Self::turn) may have changed.
    pub(super) async fn changed(&self) {
        self.wake.notified().await;
    }

    fn with<T: Default>(&self, act: impl FnOnce(&mut Line, Key) -> T) -> T {
        let mut all = self.lines.lock();
        // The line is there as long as this place is in it.
        all.lines.get_mut(&self.resource).map(|line| act(line, self.key)).unwrap_or_default()
    }
}

/// Who has no place asks by itself.
impl Default for Turn {
    fn default() -> Self {
        Self::Ask
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.lines.lock();
        let Some(line) = all.lines.get_mut(&self.resource) else { return };
        line.leave(self);
        if line.slots.is_empty() {
            all.lines.remove(&self.resource);
        }
    }
}

#[cfg(test)]
mod tests;
