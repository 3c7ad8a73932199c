use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use fencing::marks::{
    Check, Issuer, Marks, MarksError, MarksErrorKind, MemoryMarks, SeededMarks, conformance,
};
use fencing::{Claim, Resource, Token, Verdict};
use tokio::sync::{Semaphore, oneshot};

fn claim(resource: &str, token: i64) -> Claim {
    Claim::new(Resource::new(resource).unwrap(), Token::new(token).unwrap())
}

fn stale(token: i64) -> Verdict {
    Verdict::Stale { last_token: Token::new(token).unwrap() }
}

fn granted(token: i64) -> Result<Option<Token>, std::io::Error> {
    Ok(Token::new(token).ok())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn seeded_marks_conform() {
    let nothing_yet = || {
        SeededMarks::new(Issuer::new(async |_| {
            tokio::task::yield_now().await;
            granted(0)
        }))
    };
    conformance::run(nothing_yet()).await;
    let marks = nothing_yet();
    conformance::run_shared(marks.clone(), marks).await;
}

/// I5 and M6: a guard that was restarted has not forgotten what it would have refused.
#[tokio::test]
async fn m6_i5_marks_start_from_what_was_granted() {
    let marks = SeededMarks::new(Issuer::new(async |resource: Resource| {
        granted(if resource.as_str() == "r" { 34 } else { 0 })
    }));
    assert_eq!(marks.advance(&claim("r", 33)).await.unwrap(), stale(34));
    assert_eq!(marks.advance(&claim("r", 34)).await.unwrap(), Verdict::Accepted);
    assert_eq!(marks.advance(&claim("r", 35)).await.unwrap(), Verdict::Accepted);
    assert_eq!(marks.advance(&claim("r", 34)).await.unwrap(), stale(35));
    // Where nothing was granted there is nothing to start from.
    assert_eq!(marks.advance(&claim("other", 1)).await.unwrap(), Verdict::Accepted);
}

/// M6: never silently from nothing.
#[tokio::test]
async fn m6_i6_without_an_answer_nothing_is_accepted_and_the_next_claim_asks_again() {
    let answers = Arc::new(Mutex::new(vec![Some(34), None, None]));
    let marks = SeededMarks::new(Issuer::new(move |_| {
        let answer = answers.lock().unwrap().pop().flatten();
        async move { answer.map_or(Err(std::io::Error::other("down")), granted) }
    }));
    for _ in 0..2 {
        let error = marks.advance(&claim("r", 40)).await.unwrap_err();
        assert_eq!(error.kind(), MarksErrorKind::Unavailable);
        assert_eq!(marks.mark(&Resource::new("r").unwrap()), None);
    }
    assert_eq!(marks.advance(&claim("r", 33)).await.unwrap(), stale(34));
}

/// An issuer that answers when it is let, and counts.
#[derive(Clone)]
struct Slow {
    gate: Arc<Semaphore>,
    asked: Arc<AtomicUsize>,
    under_way: Arc<AtomicUsize>,
}

impl Slow {
    fn new() -> Self {
        let gate = Arc::new(Semaphore::new(0));
        Self { gate, asked: Arc::default(), under_way: Arc::default() }
    }

    fn issuer(&self) -> Issuer {
        struct UnderWay(Arc<AtomicUsize>);
        impl Drop for UnderWay {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let this = self.clone();
        Issuer::new(move |_| {
            let this = this.clone();
            this.asked.fetch_add(1, Ordering::SeqCst);
            this.under_way.fetch_add(1, Ordering::SeqCst);
            let under_way = UnderWay(Arc::clone(&this.under_way));
            async move {
                let _under_way = under_way;
                this.gate.acquire().await.unwrap().forget();
                granted(34)
            }
        })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn poll(check: &mut Check) -> bool {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    std::pin::Pin::new(check).poll(&mut cx).is_ready()
}

/// A thousand clients come back after a restart: the issuer is asked once for each resource.
#[tokio::test]
async fn there_is_one_question_for_each_resource_at_a_time() {
    let slow = Slow::new();
    let marks = SeededMarks::new(slow.issuer());
    let tasks: Vec<_> = (0..1000)
        .map(|n| {
            let check = marks.advance(&claim(["a", "b"][n % 2], 1 + (n as i64) % 60));
            tokio::spawn(async move { (1 + (n as i64) % 60, check.await.unwrap()) })
        })
        .collect();
    assert_eq!(slow.asked(), 2);
    slow.gate.add_permits(2);
    for task in tasks {
        let (token, verdict) = task.await.unwrap();
        assert!(token >= 34 || verdict != Verdict::Accepted, "{token}");
    }
    assert_eq!(slow.asked(), 2);
    assert!(marks.advance(&claim("a", 33)).await.is_ok());
    assert_eq!(slow.asked(), 2, "it is known now");
}

/// Whoever asked may hang up; the others still get the answer, and when all have gone the question
/// goes too.
#[tokio::test]
async fn a_question_lives_as_long_as_somebody_waits_for_it() {
    let slow = Slow::new();
    let marks = SeededMarks::new(slow.issuer());
    let mut first = marks.advance(&claim("r", 34));
    assert!(!poll(&mut first));
    let second = tokio::spawn(marks.advance(&claim("r", 33)));
    tokio::task::yield_now().await;
    drop(first);
    assert_eq!(slow.asked(), 1);
    slow.gate.add_permits(1);
    assert_eq!(second.await.unwrap().unwrap(), stale(34));

    for round in 1..=3 {
        let mut gone = marks.advance(&claim("other", 34));
        assert!(!poll(&mut gone));
        assert_eq!(slow.under_way.load(Ordering::SeqCst), 1);
        drop(gone);
        assert_eq!(slow.under_way.load(Ordering::SeqCst), 0);
        assert_eq!(slow.asked(), 1 + round, "the next claim asks anew");
    }
    slow.gate.add_permits(1);
    assert_eq!(marks.advance(&claim("other", 33)).await.unwrap(), stale(34));
}

/// An answer that was on its way for long does not lower what was accepted meanwhile.
#[tokio::test]
async fn i5_a_late_answer_lowers_nothing() {
    let (late, answer) = oneshot::channel::<i64>();
    let answers = Mutex::new(vec![answer]);
    let marks = SeededMarks::new(Issuer::new(move |_| {
        let answer = answers.lock().unwrap().pop();
        async move { granted(answer.unwrap().await.unwrap()) }
    }));
    let checks = [marks.advance(&claim("r", 40)), marks.advance(&claim("r", 35))];
    let [newer, older] = checks.map(tokio::spawn);
    late.send(34).unwrap();
    assert_eq!(newer.await.unwrap().unwrap(), Verdict::Accepted);
    assert!(older.await.unwrap().is_ok());
    assert_eq!(marks.mark(&Resource::new("r").unwrap()), Token::new(40).ok());
}

/// The lock endpoint is the issuer of the marks, over HTTP and in the same process.
#[tokio::test]
async fn the_lock_endpoint_is_an_issuer() {
    use fencing::lock::{LockStore, MemoryLocks};
    use fencing::testing::LockServer;
    let server = LockServer::start().await.unwrap();
    let client = server.client();
    let resource = Resource::new("r").unwrap();
    let lease = client.acquire(resource.clone()).await.unwrap();
    let lease = lease.expect("the lock is free");
    let token = lease.claim().token();
    let issuer = Issuer::from(client);
    assert_eq!(issuer.highest_token(&resource).await.unwrap(), Some(token));
    let never = Resource::new("never").unwrap();
    assert_eq!(issuer.highest_token(&never).await.unwrap(), None);
    drop(server);
    assert!(issuer.highest_token(&resource).await.is_err());

    let store: Arc<dyn LockStore> = Arc::new(MemoryLocks::new());
    assert_eq!(Issuer::from(store).highest_token(&resource).await.unwrap(), None);
}

/// What is said of stores that know nothing.
#[tokio::test]
async fn a_store_of_ones_own_need_only_advance() {
    #[derive(Debug)]
    struct Own(MemoryMarks);
    impl Marks for Own {
        fn advance(&self, claim: &Claim) -> Check {
            self.0.advance(claim)
        }
    }
    let marks: Arc<dyn Marks> = Arc::new(Own(MemoryMarks::ephemeral()));
    let _: Result<Verdict, MarksError> = marks.advance(&claim("r", 34)).await;
    assert_eq!(marks.vet(&claim("r", 1)).await.unwrap(), Verdict::Accepted);
    assert_eq!(marks.look(&Resource::new("r").unwrap()).await.unwrap(), None);
    assert!(marks.issuer().is_none());
}
