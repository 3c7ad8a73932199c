use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencing::marks::{
    CachedMarks, Check, Marks, MarksError, MarksErrorKind, MemoryMarks, conformance,
};
use fencing::testing::ManualClock;
use fencing::{Claim, Resource, Token, Verdict};
use tokio::sync::oneshot;

/// A store with a connection to an administrator: its marks can be lowered, and it counts.
#[derive(Clone, Debug, Default)]
struct Store(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    marks: Mutex<HashMap<Resource, Token>>,
    asked: AtomicUsize,
    down: Mutex<bool>,
}

impl Store {
    fn asked(&self) -> usize {
        self.0.asked.load(Ordering::SeqCst)
    }

    fn set(&self, resource: &str, token: i64) {
        let (resource, token) = (Resource::new(resource).unwrap(), Token::new(token).unwrap());
        self.0.marks.lock().unwrap().insert(resource, token);
    }
}

impl Marks for Store {
    fn advance(&self, claim: &Claim) -> Check {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        if *self.0.down.lock().unwrap() {
            return Check::Ready(Err(MarksError::new(MarksErrorKind::Unavailable)));
        }
        let mut marks = self.0.marks.lock().unwrap();
        let mark = marks.entry(claim.resource().clone()).or_insert(claim.token());
        if *mark > claim.token() {
            return Verdict::Stale { last_token: *mark }.into();
        }
        *mark = claim.token();
        Verdict::Accepted.into()
    }
}

fn claim(resource: &str, token: i64) -> Claim {
    Claim::new(Resource::new(resource).unwrap(), Token::new(token).unwrap())
}

fn stale(token: i64) -> Verdict {
    Verdict::Stale { last_token: Token::new(token).unwrap() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cached_marks_conform() {
    conformance::run(CachedMarks::new(MemoryMarks::ephemeral())).await;
    // With room for next to nothing, so that they forget all the time.
    conformance::run(CachedMarks::new(MemoryMarks::ephemeral()).capacity(1)).await;
}

proptest::proptest! {
    /// Two processes, each with a memory of its own, over the same marks: what they remember changes
    /// no verdict. The mark they tell may be one from before, above the token all the same.
    #[test]
    fn i1_two_memories_over_one_store_decide_as_the_store_alone(
        claims in proptest::collection::vec((0..2_usize, "[ab]", 1..9_i64), 1..100),
    ) {
        let store = Arc::new(MemoryMarks::ephemeral());
        let memories = [(); 2].map(|()| CachedMarks::new(Arc::clone(&store)).capacity(1));
        for (memory, name, token) in claims {
            let claim = claim(&name, token);
            let mark = store.mark(claim.resource()).map_or(0, Token::get);
            let Check::Ready(Ok(verdict)) = memories[memory].advance(&claim) else { panic!() };
            match verdict {
                Verdict::Accepted => proptest::prop_assert!(mark <= token),
                Verdict::Stale { last_token } => {
                    proptest::prop_assert!(token < last_token.get() && last_token.get() <= mark);
                }
            }
        }
    }
}

/// Case 18: the decision to accept is the store's, each time.
#[tokio::test]
async fn only_rejections_come_from_memory() {
    let store = Store::default();
    let marks = CachedMarks::new(store.clone());
    for _ in 0..3 {
        assert_eq!(marks.advance(&claim("r", 34)).await.unwrap(), Verdict::Accepted);
    }
    assert_eq!(store.asked(), 3);
    // Another process has raised it, and the memory does not know.
    store.set("r", 40);
    assert_eq!(marks.advance(&claim("r", 34)).await.unwrap(), stale(40));
    assert_eq!(store.asked(), 4);
}

#[tokio::test]
async fn a_storm_of_stale_requests_does_not_reach_the_store() {
    let store = Store::default();
    let marks = CachedMarks::new(store.clone());
    store.set("r", 34);
    for token in (1..34).cycle().take(10_000) {
        assert_eq!(marks.advance(&claim("r", token)).await.unwrap(), stale(34));
        assert_eq!(marks.vet(&claim("r", token)).await.unwrap(), stale(34));
    }
    assert_eq!(store.asked(), 1);
    // Not even when the store is down.
    *store.0.down.lock().unwrap() = true;
    assert_eq!(marks.advance(&claim("r", 33)).await.unwrap(), stale(34));
    assert!(marks.advance(&claim("r", 34)).await.is_err(), "i6: no store, no acceptance");
}

/// An error is no verdict, and nothing is to be learnt from it.
#[tokio::test]
async fn nothing_is_remembered_of_an_error() {
    let store = Store::default();
    let marks = CachedMarks::new(store.clone());
    *store.0.down.lock().unwrap() = true;
    assert!(marks.advance(&claim("r", 34)).await.is_err());
    *store.0.down.lock().unwrap() = false;
    assert_eq!(marks.advance(&claim("r", 33)).await.unwrap(), Verdict::Accepted);
}

/// I5 has one exception, the audited command of an administrator. What is remembered does not
/// outlive it by more than a minute.
#[tokio::test]
async fn a_lowered_mark_is_heard_of_within_a_minute() {
    let (store, clock) = (Store::default(), ManualClock::new());
    let marks = CachedMarks::with_clock(store.clone(), clock.clone());
    assert_eq!(marks.advance(&claim("r", 57)).await.unwrap(), Verdict::Accepted);
    store.set("r", 30);
    for _ in 0..44 {
        assert_eq!(marks.advance(&claim("r", 34)).await.unwrap(), stale(57));
        clock.advance(Duration::from_secs(1));
    }
    // Before the minute is up one caller is sent to ask, and tells the others.
    clock.advance(Duration::from_secs(1));
    assert_eq!(marks.advance(&claim("r", 34)).await.unwrap(), Verdict::Accepted);
    assert_eq!(marks.advance(&claim("r", 33)).await.unwrap(), stale(34));
}

/// When nobody can be asked, nobody goes on being turned away for ever by what may be wrong.
#[tokio::test]
async fn what_is_remembered_is_not_believed_for_longer_than_a_minute() {
    let (store, clock) = (Store::default(), ManualClock::new());
    let marks = CachedMarks::with_clock(store.clone(), clock.clone());
    assert_eq!(marks.advance(&claim("r", 57)).await.unwrap(), Verdict::Accepted);
    *store.0.down.lock().unwrap() = true;
    clock.advance(Duration::from_secs(59));
    assert!(marks.advance(&claim("r", 34)).await.is_err(), "the one that is sent to ask");
    assert_eq!(marks.advance(&claim("r", 34)).await.unwrap(), stale(57));
    clock.advance(Duration::from_secs(1));
    for _ in 0..3 {
        assert!(marks.advance(&claim("r", 34)).await.is_err());
    }
}

/// One request in the last quarter of a minute, whatever the storm.
#[tokio::test]
async fn one_caller_is_sent_to_ask_again_while_the_others_are_answered() {
    let (store, clock) = (Store::default(), ManualClock::new());
    let marks = CachedMarks::with_clock(store.clone(), clock.clone());
    store.set("r", 57);
    assert_eq!(marks.advance(&claim("r", 34)).await.unwrap(), stale(57));
    for minute in 1..=10 {
        clock.advance(Duration::from_secs(50));
        for _ in 0..100 {
            assert_eq!(marks.advance(&claim("r", 34)).await.unwrap(), stale(57));
        }
        assert_eq!(store.asked(), 1 + minute);
    }
}

/// A store that answers when the test says so.
#[derive(Debug, Default)]
struct Held(Mutex<Vec<oneshot::Receiver<Verdict>>>);

impl Marks for Held {
    fn advance(&self, _: &Claim) -> Check {
        let answer = self.0.lock().unwrap().remove(0);
        Check::Pending(Box::pin(async move { Ok(answer.await.unwrap()) }))
    }
}

/// The answer was on its way when the mark was lowered, and arrives after all was forgotten.
#[tokio::test]
async fn to_forget_is_to_forget_the_answers_under_way_too() {
    let (late, answer) = oneshot::channel();
    let (new, second) = oneshot::channel();
    let marks = CachedMarks::new(Held(Mutex::new(vec![answer, second])));
    let under_way = marks.advance(&claim("r", 34));
    marks.forget();
    late.send(stale(57)).unwrap();
    assert_eq!(under_way.await.unwrap(), stale(57));
    assert_eq!(marks.remembered(), 0);
    new.send(Verdict::Accepted).unwrap();
    assert_eq!(marks.advance(&claim("r", 34)).await.unwrap(), Verdict::Accepted);
    assert_eq!(marks.remembered(), 1);
    marks.forget();
    assert_eq!(marks.vet(&claim("r", 33)).await.unwrap(), Verdict::Accepted);
}

/// Memory is bounded, and who is forgotten is asked about: never accepted for it.
#[tokio::test]
async fn i5_memory_is_bounded_and_forgetting_is_no_acceptance() {
    let store = Store::default();
    let marks = CachedMarks::new(store.clone()).capacity(1024);
    let names: Vec<String> = (0..20_000).map(|n| format!("r{n}")).collect();
    for name in &names {
        assert_eq!(marks.advance(&claim(name, 34)).await.unwrap(), Verdict::Accepted);
        // One that is in use is not forgotten for those that were seen once.
        assert_eq!(marks.vet(&claim("r0", 33)).await.unwrap(), stale(34));
    }
    let remembered = marks.remembered();
    assert!((512..=1024 + 64).contains(&remembered), "{remembered}");
    for name in &names {
        assert_eq!(marks.advance(&claim(name, 33)).await.unwrap(), stale(34));
    }
}

/// M1: what was committed elsewhere is told, and kept with the store too.
#[tokio::test]
async fn what_it_learns_it_passes_on() {
    let behind = CachedMarks::new(Store::default());
    let marks: Arc<dyn Marks> = Arc::new(CachedMarks::new(behind.clone()));
    marks.learn(&Resource::new("r").unwrap(), Token::new(34).unwrap());
    for marks in [&marks as &dyn Marks, &behind] {
        assert_eq!(marks.vet(&claim("r", 33)).await.unwrap(), stale(34));
        assert_eq!(marks.vet(&claim("r", 34)).await.unwrap(), Verdict::Accepted);
    }
    // A lower one that is heard later, as of a transaction that was slow to answer, is no news.
    assert_eq!(behind.remembered(), 1);
}
