//! Each model runs in every order its threads can take. A thread that is never woken is a deadlock,
//! and what is protected is a cell that panics when two are at it.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use loom::cell::UnsafeCell;
use loom::future::block_on;
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicI64, Ordering};
use loom::thread;

use super::visit::{Entering, Overtaken, Shared, Visit};
use crate::{Resource, Token};

/// The gate, the mark and what they protect, which knows under which token it was written last.
#[derive(Default)]
struct World {
    gate: Arc<Shared>,
    mark: AtomicI64,
    written: Written,
}

struct Written(UnsafeCell<i64>);

impl Default for Written {
    fn default() -> Self {
        Self(UnsafeCell::new(0))
    }
}

// The models are there to find out whether this is so.
#[allow(unsafe_code)]
unsafe impl Sync for Written {}
#[allow(unsafe_code)]
unsafe impl Send for Written {}

impl Written {
    /// Not at the same time as any other, and never after a higher token.
    #[allow(unsafe_code)]
    fn write(&self, token: i64) {
        self.0.with_mut(|last| {
            // SAFETY: loom panics when this is not the only access.
            let last = unsafe { &mut *last };
            assert!(*last <= token, "{token} after {last}");
            *last = token;
        });
    }
}

impl World {
    fn arrive(&self, token: i64) -> Arc<Visit> {
        Arc::new(Visit::arrive(&self.gate, Resource("r"), Token(token)))
    }

    /// Arrives, has the mark raised and comes in, unless it is stale.
    fn enter(&self, token: i64) -> Option<Arc<Visit>> {
        let visit = self.arrive(token);
        if self.mark.fetch_max(token, Ordering::AcqRel) > token {
            return None;
        }
        block_on(Entering::new(Arc::clone(&visit))).ok()?;
        Some(visit)
    }

    fn request(&self, token: i64) -> bool {
        let visit = self.enter(token);
        if visit.is_some() {
            self.written.write(token);
        }
        visit.is_some()
    }
}

fn check(preemptions: Option<usize>, model: impl Fn(Arc<World>) + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        let world = Arc::new(World::default());
        model(Arc::clone(&world));
        assert_eq!(world.gate.rooms(), 0, "somebody is still there");
    });
}

fn spawn<T: 'static>(
    world: &Arc<World>,
    run: impl FnOnce(&World) -> T + 'static,
) -> thread::JoinHandle<T> {
    let world = Arc::clone(world);
    thread::spawn(move || run(&world))
}

/// Among them: 33 is accepted by the mark, and asks for its turn when 34 has come and gone.
#[test]
fn i1_an_older_and_a_newer_token() {
    check(None, |world| {
        let older = spawn(&world, |world| world.request(33));
        assert!(world.request(34));
        let _ = older.join().unwrap();
        world.written.write(34);
    });
}

#[test]
fn i1_three_tokens() {
    check(Some(4), |world| {
        let older = spawn(&world, |world| world.request(33));
        let newer = spawn(&world, |world| world.request(34));
        assert!(world.request(35));
        let _ = (older.join().unwrap(), newer.join().unwrap());
        world.written.write(35);
    });
}

/// Two inside together, and one that waits until both have left.
#[test]
fn i1_the_last_of_an_older_token_lets_the_newer_in() {
    check(Some(4), |world| {
        let first = world.enter(33).unwrap();
        let second = world.enter(33).unwrap();
        let newer = spawn(&world, |world| world.request(34));
        let leaving = thread::spawn(move || drop(first));
        // The other is gone or not, this one is here.
        world.written.write(33);
        drop(second);
        leaving.join().unwrap();
        assert!(newer.join().unwrap());
    });
}

/// A permit that went along into a thread of its own: the request leaves, the work stays.
#[test]
fn i1_a_clone_of_the_permit_is_waited_for() {
    check(Some(4), |world| {
        let permit = world.enter(33).unwrap();
        let clone = Arc::clone(&permit);
        let work = spawn(&world, move |world| {
            world.written.write(33);
            drop(clone);
        });
        let newer = spawn(&world, |world| world.request(34));
        drop(permit);
        work.join().unwrap();
        assert!(newer.join().unwrap());
    });
}

/// One waits and hangs up, when it was woken or before: the other is not forgotten.
#[test]
fn one_that_hangs_up_in_the_queue_takes_nothing_along() {
    check(Some(4), |world| {
        let older = world.enter(33).unwrap();
        let waits = spawn(&world, |world| world.request(34));
        let hangs_up = spawn(&world, |world| {
            let visit = world.arrive(34);
            let mut entering = pin!(Entering::new(visit));
            let _ = entering.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        });
        drop(older);
        hangs_up.join().unwrap();
        assert!(waits.join().unwrap());
    });
}

/// One inside leaves as soon as it is told to.
#[test]
fn who_is_inside_learns_that_it_is_overtaken() {
    check(None, |world| {
        let older = world.enter(33).unwrap();
        let newer = spawn(&world, |world| world.request(34));
        block_on(Overtaken::new(Arc::clone(&older)));
        assert!(older.is_overtaken());
        drop(older);
        assert!(newer.join().unwrap());
    });
}

/// One that waits is overtaken: it must learn that it is stale, even while 33 stays inside.
#[test]
fn one_that_is_overtaken_in_the_queue_is_told_so() {
    check(Some(4), |world| {
        let older = world.enter(33).unwrap();
        let waits = spawn(&world, |world| world.request(34));
        let newest = spawn(&world, |world| world.request(35));
        // 34 got its answer without 33 having left: if not before 35 has asked, then because of it.
        assert!(!waits.join().unwrap());
        drop(older);
        assert!(newest.join().unwrap());
    });
}
