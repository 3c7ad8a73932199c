use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use fencing::marks::{Marks, MemoryMarks, conformance};
use fencing::{Claim, Resource, Token, Verdict};

/// Cases 14, 16, 31 and 32 are in the suite.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_marks_conform() {
    conformance::run(MemoryMarks::ephemeral()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn shared_memory_marks_conform() {
    let marks: Arc<dyn Marks> = Arc::new(MemoryMarks::ephemeral());
    conformance::run(Arc::clone(&marks)).await;
    conformance::run_shared(Arc::clone(&marks), marks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn boxed_memory_marks_conform() {
    let marks: Box<dyn Marks> = Box::new(MemoryMarks::ephemeral());
    conformance::run(marks).await;
}

fn claim(resource: &str, token: i64) -> Claim {
    Claim::new(Resource::new(resource).unwrap(), Token::new(token).unwrap())
}

/// Threads that start together on resources that nobody has seen: each must find one mark, not
/// make a second one.
#[test]
fn i1_threads_that_meet_at_a_new_resource_share_its_mark() {
    const THREADS: i64 = 8;
    let marks = MemoryMarks::ephemeral();
    for round in 0..2000 {
        let resource = format!("r{round}");
        let start = Barrier::new(THREADS as usize);
        thread::scope(|scope| {
            for token in 1..=THREADS {
                let (marks, resource, start) = (&marks, &resource, &start);
                scope.spawn(move || {
                    start.wait();
                    match marks.decide(&claim(resource, token)) {
                        Verdict::Accepted => {}
                        Verdict::Stale { last_token } => assert!(last_token.get() > token),
                    }
                });
            }
        });
        let last_token = Token::new(THREADS).unwrap();
        assert_eq!(marks.decide(&claim(&resource, 1)), Verdict::Stale { last_token });
    }
}

/// Two threads meet at one mark, again and again, at the same instant as nearly as spinning gets
/// them: the lower token must never end up as the mark.
#[test]
fn i1_threads_that_raise_one_mark_leave_the_higher_token() {
    const ROUNDS: i64 = 100_000;
    let marks = MemoryMarks::ephemeral();
    let arrived = AtomicI64::new(0);
    let meet = |round: i64| {
        arrived.fetch_add(1, Ordering::SeqCst);
        let mut spins = 0_u32;
        while arrived.load(Ordering::SeqCst) < 2 * round {
            spins += 1;
            // On a machine with one core the other cannot arrive otherwise.
            if spins.is_multiple_of(1 << 12) { thread::yield_now() } else { std::hint::spin_loop() }
        }
    };
    thread::scope(|scope| {
        for thread in 0..2 {
            let (marks, meet) = (&marks, &meet);
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    let claim = claim("one", 2 * round + thread);
                    meet(2 * round - 1);
                    let _ = marks.decide(&claim);
                    meet(2 * round);
                    let last_token = Token::new(2 * round + 1).unwrap();
                    let verdict = marks.decide(&self::claim("one", 1));
                    assert_eq!(verdict, Verdict::Stale { last_token }, "round {round}");
                }
            });
        }
    });
}
