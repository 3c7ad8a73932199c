use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use sqlx::sqlite::LockedSqliteHandle;

/// Keeps a transaction that died from being followed by writes outside of any.
///
/// SQLite ends a transaction by itself on `ON CONFLICT ROLLBACK`, `RAISE(ROLLBACK)`, a full disk
/// and some I/O errors (<https://sqlite.org/lang_transaction.html>, section 3). Every later write
/// on the connection would then commit at once, without the fence. The commit hook of SQLite is
/// asked before each commit and can turn it into a rollback; this one allows exactly one: ours.
///
/// A connection has one commit hook and one rollback hook. The application's own, if it has any,
/// are replaced. They run on the thread of the connection, in the order of its statements.
#[derive(Debug, Default)]
pub(super) struct Guard(Arc<AtomicU8>);

/// No transaction of ours: all commits are allowed.
const INERT: u8 = 0;
/// Ours is open: none is allowed.
const OPEN: u8 = 1;
/// Our COMMIT is on its way: the next one is allowed.
const COMMITTING: u8 = 2;
/// The one that was allowed has begun.
const PASSED: u8 = 3;
/// Ours was rolled back: none is allowed until the connection is reset.
const DEAD: u8 = 4;

impl Guard {
    /// Puts the hooks on the connection, in place of those of the transaction before.
    pub(super) fn install(&self, handle: &mut LockedSqliteHandle<'_>) {
        let state = Arc::clone(&self.0);
        handle.set_commit_hook(move || may_commit(&state));
        let state = Arc::clone(&self.0);
        handle.set_rollback_hook(move || rolled_back(&state));
    }

    /// BEGIN has come back.
    pub(super) fn open(&self) {
        self.0.store(OPEN, Ordering::SeqCst);
    }

    /// COMMIT is about to be sent. `false` when there is nothing left to commit.
    pub(super) fn allow_commit(&self) -> bool {
        let change = self.0.compare_exchange(OPEN, COMMITTING, Ordering::SeqCst, Ordering::SeqCst);
        change.is_ok()
    }

    /// Whether the transaction was rolled back, by whomever.
    pub(super) fn is_dead(&self) -> bool {
        self.0.load(Ordering::SeqCst) == DEAD
    }

    /// Our transaction has ended and nothing of it is in the queue: the hooks let everything pass.
    pub(super) fn retire(&self) {
        self.0.store(INERT, Ordering::SeqCst);
    }
}

fn may_commit(state: &AtomicU8) -> bool {
    match state.compare_exchange(COMMITTING, PASSED, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) | Err(INERT) => true,
        Err(_) => false,
    }
}

fn rolled_back(state: &AtomicU8) {
    let update = |now| (now != INERT).then_some(DEAD);
    let _ = state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, update);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> Guard {
        let guard = Guard::default();
        assert!(may_commit(&guard.0), "before BEGIN");
        guard.open();
        guard
    }

    #[test]
    fn only_one_commit_passes() {
        let guard = guard();
        assert!(!may_commit(&guard.0));
        assert!(guard.allow_commit());
        assert!(may_commit(&guard.0));
        assert!(!may_commit(&guard.0));
        guard.retire();
        assert!(may_commit(&guard.0));
    }

    #[test]
    fn nothing_passes_once_it_is_dead() {
        let guard = guard();
        rolled_back(&guard.0);
        assert!(guard.is_dead());
        assert!(!guard.allow_commit());
        assert!(!may_commit(&guard.0));
        guard.retire();
        rolled_back(&guard.0);
        assert!(!guard.is_dead(), "the rollbacks of others do not matter");
    }

    #[test]
    fn a_death_between_the_permission_and_the_commit_counts() {
        let guard = guard();
        assert!(guard.allow_commit());
        rolled_back(&guard.0);
        assert!(!may_commit(&guard.0));
    }
}
