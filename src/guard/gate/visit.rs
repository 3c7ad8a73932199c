//! The state under its lock, and the futures that wait for it. Needs no runtime.

use std::future::Future;
use std::pin::Pin;
use std::sync::PoisonError;
use std::task::{Context, Poll};

use super::state::{ListenerId, Listeners, State, Turn};
use super::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering};
use crate::{Resource, Token};

/// The state that all handles of one gate share.
#[derive(Default)]
pub(super) struct Shared(Mutex<State>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn rooms(&self) -> usize {
        self.lock().rooms()
    }
}

/// One visit of a resource, from before its mark is checked until it has left: when it is dropped.
pub(super) struct Visit {
    shared: Arc<Shared>,
    resource: Resource,
    token: Token,
    /// Written under the lock.
    inside: AtomicBool,
}

impl Visit {
    /// Must come before the mark is checked.
    pub(super) fn arrive(shared: &Arc<Shared>, resource: Resource, token: Token) -> Self {
        shared.lock().arrive(&resource);
        Self { shared: Arc::clone(shared), resource, token, inside: AtomicBool::new(false) }
    }

    pub(super) fn resource(&self) -> &Resource {
        &self.resource
    }

    pub(super) fn token(&self) -> Token {
        self.token
    }

    pub(super) fn is_overtaken(&self) -> bool {
        self.shared.lock().is_overtaken(&self.resource, self.token)
    }

    /// Asks for its turn, after its claim was accepted. Not again once it is inside.
    pub(super) fn turn(&self) -> Turn {
        let mut state = self.shared.lock();
        let (turn, woken) = self.turn_in(&mut state);
        drop(state);
        woken.wake();
        turn
    }

    fn turn_in(&self, state: &mut State) -> (Turn, Listeners) {
        let answer = state.turn(&self.resource, self.token);
        if answer.0 == Turn::Inside {
            self.inside.store(true, Ordering::Relaxed);
        }
        answer
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let was_inside = self.inside.load(Ordering::Relaxed);
        let woken = self.shared.lock().leave(&self.resource, was_inside);
        woken.wake();
    }
}

/// Waits for the turn of a visit, after its claim was accepted: `Err` with the token that overtook
/// it.
pub(super) struct Entering(Listener);

/// Waits until a newer token asks for its turn.
pub(super) struct Overtaken(Listener);

/// A place among the listeners, for as long as it lives.
struct Listener {
    visit: Arc<Visit>,
    id: Option<ListenerId>,
}

impl Entering {
    pub(super) fn new(visit: Arc<Visit>) -> Self {
        Self(Listener { visit, id: None })
    }
}

impl Overtaken {
    pub(super) fn new(visit: Arc<Visit>) -> Self {
        Self(Listener { visit, id: None })
    }
}

impl Future for Entering {
    type Output = Result<(), Token>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx, |visit, state| {
            let (turn, woken) = visit.turn_in(state);
            let answer = match turn {
                Turn::Inside => Poll::Ready(Ok(())),
                Turn::Overtaken(newest) => Poll::Ready(Err(newest)),
                Turn::Wait => Poll::Pending,
            };
            (answer, woken)
        })
    }
}

impl Future for Overtaken {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll(cx, |visit, state| {
            let overtaken = state.is_overtaken(&visit.resource, visit.token);
            (if overtaken { Poll::Ready(()) } else { Poll::Pending }, Listeners::default())
        })
    }
}

impl Listener {
    /// Looks, and listens if there is nothing yet, in one step: a change in between is not missed.
    fn poll<T>(
        &mut self,
        cx: &Context<'_>,
        look: impl FnOnce(&Visit, &mut State) -> (Poll<T>, Listeners),
    ) -> Poll<T> {
        // Cloned before and dropped after the lock is held: it may be anybody's code.
        let waker = cx.waker().clone();
        let mut state = self.visit.shared.lock();
        let (answer, woken) = look(&self.visit, &mut state);
        let unused = match answer {
            Poll::Pending => state.listen(&self.visit.resource, &mut self.id, waker),
            Poll::Ready(_) => Some(waker),
        };
        drop(state);
        drop(unused);
        woken.wake();
        answer
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let waker = self.visit.shared.lock().unlisten(&self.visit.resource, id);
            drop(waker);
        }
    }
}
