//! The connections: how many there are, and which of them makes place for another.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Counts connections. When there are as many as there may be, a newcomer takes the place of the
/// one that has been idle for the longest: whoever opens many and says nothing shuts nobody out.
#[derive(Debug)]
pub(super) struct Crowd {
    max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    count: usize,
    next: u64,
    /// Those between two requests, or that have not sent one whole yet; the longest idle first.
    idle: BTreeMap<u64, Arc<Notify>>,
}

/// The place of one connection. It is given back when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    crowd: Arc<Crowd>,
    leave: Arc<Notify>,
    stay: Mutex<Stay>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stay {
    /// Under this number in the list of the idle.
    Idle(u64),
    Busy,
}

impl Crowd {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, state: Mutex::default() })
    }

    /// A place for a newcomer; `None` when all are busy with requests.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Arc<Place>> {
        let mut state = self.lock();
        if state.count >= self.max {
            let (_, leave) = state.idle.pop_first()?;
            // Counted out here and now; its task sees to the rest.
            state.count -= 1;
            leave.notify_one();
        }
        state.count += 1;
        let leave = Arc::new(Notify::new());
        let number = state.join_idle(&leave);
        drop(state);
        Some(Arc::new(Place {
            crowd: Arc::clone(self),
            leave,
            stay: Mutex::new(Stay::Idle(number)),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn join_idle(&mut self, leave: &Arc<Notify>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.idle.insert(number, Arc::clone(leave));
        number
    }
}

impl Place {
    /// A request has arrived. `None` when the place was given away in the very moment before.
    pub(super) fn work(self: &Arc<Self>) -> Option<Work> {
        let mut stay = self.stay();
        if let Stay::Idle(number) = *stay {
            self.crowd.lock().idle.remove(&number)?;
            *stay = Stay::Busy;
        }
        Some(Work(Arc::clone(self)))
    }

    /// Done when another has taken this place.
    pub(super) async fn taken(&self) {
        self.leave.notified().await;
    }

    fn stay(&self) -> MutexGuard<'_, Stay> {
        self.stay.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let stay = *self.stay();
        let mut state = self.crowd.lock();
        let counted = match stay {
            Stay::Idle(number) => state.idle.remove(&number).is_some(),
            Stay::Busy => true,
        };
        state.count -= usize::from(counted);
    }
}

/// A request is being served. When this is dropped the connection is idle again.
#[derive(Debug)]
pub(super) struct Work(Arc<Place>);

impl Drop for Work {
    fn drop(&mut self) {
        let mut stay = self.0.stay();
        *stay = Stay::Idle(self.0.crowd.lock().join_idle(&self.0.leave));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn is_told_to_leave(place: &Place) -> bool {
        place.taken().now_or_never().is_some()
    }

    #[test]
    fn the_longest_idle_makes_place_and_nobody_at_work_does() {
        let crowd = Crowd::new(3);
        let (a, b, c) = (crowd.enter().unwrap(), crowd.enter().unwrap(), crowd.enter().unwrap());
        let working = a.work().unwrap();
        drop(b.work().unwrap());
        // a works, c has never said a thing, b has just become idle.
        let d = crowd.enter().unwrap();
        assert!(is_told_to_leave(&c) && !is_told_to_leave(&a) && !is_told_to_leave(&b));
        assert!(c.work().is_none(), "it came too late");
        let e = crowd.enter().unwrap();
        assert!(is_told_to_leave(&b) && !is_told_to_leave(&d));
        let (d_works, e_works) = (d.work().unwrap(), e.work().unwrap());
        assert!(crowd.enter().is_none(), "all three are at work");
        drop((b, c));
        assert!(crowd.enter().is_none(), "those who had left are not counted twice");
        drop(working);
        assert!(crowd.enter().is_some());
        assert!(is_told_to_leave(&a));
        drop((d_works, e_works, a, d, e));
        assert_eq!(crowd.lock().count, 0);
        assert!(crowd.lock().idle.is_empty());
    }
}
