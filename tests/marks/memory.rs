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

/// Each thread raises one mark without pause. What one thread has seen accepted, no thread may
/// afterwards get below: checked here by each thread against its own last answer.
#[test]
fn i1_threads_at_one_mark_never_see_it_fall() {
    const THREADS: i64 = 4;
    const ROUNDS: i64 = 20_000;
    let marks = MemoryMarks::ephemeral();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let marks = &marks;
            scope.spawn(move || {
                let mut seen = 0;
                for round in 0..ROUNDS {
                    let token = round * THREADS + thread + 1;
                    let mark = match marks.decide(&claim("one", token)) {
                        Verdict::Accepted => token,
                        Verdict::Stale { last_token } => last_token.get(),
                    };
                    assert!(mark >= seen && mark >= token, "{mark} after {seen}");
                    seen = mark;
                }
            });
        }
    });
    let last_token = Token::new(THREADS * ROUNDS).unwrap();
    assert_eq!(marks.decide(&claim("one", 1)), Verdict::Stale { last_token });
}
