//! What becomes of a grant whose client has hung up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::Resource;
use crate::lock::wait::Lines;
use crate::lock::{LockStore, OwnerTokenHash};

/// The acquires in progress, by resource and owner token.
///
/// A grant that nobody was told of is given back, at best effort. It must not be when somebody was:
/// a client whose first answer is lost asks again with the same owner token, and the answer to that
/// tells of the same grant. So a grant goes back only when no request with its owner token was
/// answered, when none is in progress any more, and while those to come wait.
#[derive(Clone)]
pub(super) struct Deliveries(Arc<Shared>);

struct Shared {
    store: Arc<dyn LockStore>,
    lines: Lines,
    open: Mutex<HashMap<Key, Open>>,
    given_back: Notify,
}

type Key = (Resource, [u8; 32]);

#[derive(Default)]
struct Open {
    /// How many requests are in progress.
    requests: usize,
    /// One of them has been answered with the grant.
    delivered: bool,
    /// One of them made the grant, or may have, and could not be answered.
    orphaned: bool,
    /// The grant is being given back.
    leaving: bool,
}

impl Deliveries {
    pub(super) fn new(store: Arc<dyn LockStore>, lines: Lines) -> Self {
        let (open, given_back) = (Mutex::default(), Notify::new());
        Self(Arc::new(Shared { store, lines, open, given_back }))
    }

    /// Begins an acquire.
    pub(super) async fn begin(&self, resource: &Resource, secret: OwnerTokenHash) -> Delivery {
        let key = (resource.clone(), *secret.as_bytes());
        loop {
            let given_back = self.0.given_back.notified();
            {
                let mut open = self.0.lock();
                let entry = open.entry(key.clone()).or_default();
                if !entry.leaving {
                    entry.requests += 1;
                    break;
                }
            }
            given_back.await;
        }
        Delivery { shared: Arc::clone(&self.0), key, secret, orphan: false, delivered: false }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Open>> {
        // Nothing that can panic runs while it is held.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One acquire in progress. Dropped with a grant that was not [delivered](Self::deliver), it gives
/// the grant back.
pub(super) struct Delivery {
    shared: Arc<Shared>,
    key: Key,
    secret: OwnerTokenHash,
    orphan: bool,
    delivered: bool,
}

impl Delivery {
    /// This request made the grant, or may have: it is to be given back unless it is delivered.
    pub(super) fn must_be_delivered(&mut self) {
        self.orphan = true;
    }

    /// The client is being told of the grant.
    pub(super) fn deliver(mut self) {
        self.delivered = true;
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let mut open = self.shared.lock();
        let Some(entry) = open.get_mut(&self.key) else { return };
        entry.requests -= 1;
        entry.delivered |= self.delivered;
        entry.orphaned |= self.orphan && !self.delivered;
        if entry.requests > 0 {
            return;
        }
        // Without a runtime the process is ending; the grant lapses by its TTL.
        match Handle::try_current() {
            Ok(runtime) if entry.orphaned && !entry.delivered => {
                entry.leaving = true;
                let task = GiveBack { shared: Arc::clone(&self.shared), key: self.key.clone() };
                runtime.spawn(task.run(self.secret));
            }
            _ => {
                open.remove(&self.key);
            }
        }
    }
}

struct GiveBack {
    shared: Arc<Shared>,
    key: Key,
}

impl GiveBack {
    async fn run(self, secret: OwnerTokenHash) {
        let resource = &self.key.0;
        match self.shared.store.release(resource, &secret).await {
            Ok(Ok(())) => {
                self.shared.lines.released(Some(resource));
                tracing::info!(
                    resource = resource.as_str(),
                    "released what a client did not wait for"
                );
            }
            Ok(Err(_)) => {}
            Err(error) => tracing::warn!(
                resource = resource.as_str(),
                cause = std::error::Error::source(&error).map(tracing::field::display),
                "a grant that a client did not wait for was not released: it lapses by its TTL",
            ),
        }
    }
}

impl Drop for GiveBack {
    fn drop(&mut self) {
        self.shared.lock().remove(&self.key);
        self.shared.given_back.notify_waiters();
    }
}
