//! What every store of [`Marks`] must do, as a suite its author runs.
//!
//! [`run`] takes one store through all of it. Where marks outlive the process or are shared by
//! several, also give two handles of the same marks to [`run_shared`]: two pools over one database,
//! or one before and one after a restart. Each check is a function of its own too, for a test
//! harness that is to show them one by one.
//!
//! Every check takes resource names that no run before it has used, so that a suite may run over
//! a database again and again, at the same time as others, and leaves marks behind.
//!
//! The checks need a tokio runtime with time enabled. What several do at once is only then truly
//! at once when the runtime has several threads.
//!
//! ```
//! use fencing::marks::{MemoryMarks, conformance};
//!
//! # #[tokio::main]
//! # async fn main() {
//! conformance::run(MemoryMarks::ephemeral()).await;
//! # }
//! ```
//!
//! # Panics
//!
//! It is a suite of tests: whatever the store does wrong is a panic that says what. An error in
//! place of a verdict is wrong too: the store is not in trouble here, and a few dozen callers at
//! once are not many. So is an answer that takes half a minute.

// What is said above of panics holds for each check.
#![allow(clippy::missing_panics_doc, clippy::panic, reason = "a check that fails panics")]

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use super::Marks;
use crate::{Claim, Resource, Token, Verdict};

/// The longest a store may take for an answer here.
const PATIENCE: Duration = Duration::from_secs(30);

/// All checks over one store.
pub async fn run(marks: impl Marks) {
    let marks: Arc<dyn Marks> = Arc::new(marks);
    first_claims_are_accepted(&marks).await;
    equal_and_higher_tokens_are_accepted(&marks).await;
    lower_tokens_are_stale_and_change_nothing(&marks).await;
    the_whole_range_of_tokens_is_kept(&marks).await;
    resources_are_told_apart_byte_by_byte(&marks).await;
    first_claims_at_once_do_not_fail(&marks).await;
    claims_at_once_are_decided_one_by_one(&marks).await;
    dropped_checks_harm_nobody(&marks).await;
}

/// All checks over two handles of the same marks.
pub async fn run_shared(a: impl Marks, b: impl Marks) {
    let (a, b): (Arc<dyn Marks>, Arc<dyn Marks>) = (Arc::new(a), Arc::new(b));
    let resource = Names::new().next("shared");
    accepted(&a, &resource, 34).await;
    stale(&b, &resource, 33, 34).await;
    accepted(&b, &resource, 35).await;
    stale(&a, &resource, 34, 35).await;
    for seed in 0..4 {
        race(&[Arc::clone(&a), Arc::clone(&b)], seed).await;
    }
    first_claims(&[a, b]).await;
}

/// The first claim of a resource is accepted whatever its token, and is its mark from then on.
pub async fn first_claims_are_accepted(marks: &Arc<dyn Marks>) {
    let mut names = Names::new();
    for token in [1, 2, 34, Token::MAX_GRANTED.get(), i64::MAX] {
        let resource = names.next("first");
        accepted(marks, &resource, token).await;
        mark_is(marks, &resource, token).await;
    }
    // A name as long as names get.
    let longest = names.next("");
    let longest = format!("{:é<1$}", longest.as_str(), Resource::MAX_LEN);
    let longest = cut(&longest, Resource::MAX_LEN);
    accepted(marks, &longest, 7).await;
    mark_is(marks, &longest, 7).await;
}

/// One token writes as often as it likes, also after another resource was written; a higher one
/// takes over.
pub async fn equal_and_higher_tokens_are_accepted(marks: &Arc<dyn Marks>) {
    let mut names = Names::new();
    let (one, other) = (names.next("equal"), names.next("equal"));
    for _ in 0..3 {
        accepted(marks, &one, 7).await;
        accepted(marks, &other, 3).await;
    }
    accepted(marks, &one, 8).await;
    accepted(marks, &one, 4000).await;
    accepted(marks, &one, 4000).await;
    mark_is(marks, &one, 4000).await;
    mark_is(marks, &other, 3).await;
}

/// A token below the mark is stale, is told the mark, and leaves it as it is.
pub async fn lower_tokens_are_stale_and_change_nothing(marks: &Arc<dyn Marks>) {
    let resource = Names::new().next("lower");
    accepted(marks, &resource, 34).await;
    for token in [33, 1, 33, 2] {
        stale(marks, &resource, token, 34).await;
    }
    accepted(marks, &resource, 34).await;
    accepted(marks, &resource, 35).await;
    stale(marks, &resource, 34, 35).await;
}

/// Tokens are compared as integers of 63 bits, nothing is rounded, cut or compared as text.
pub async fn the_whole_range_of_tokens_is_kept(marks: &Arc<dyn Marks>) {
    let resource = Names::new().next("range");
    // As text, 9 is above 10. As doubles, 2^53 and 2^53 + 1 are the same; so are the last two.
    let rising = [9, 10, i64::from(i32::MAX), i64::from(u32::MAX) + 1, 1 << 53, (1 << 53) + 1]
        .into_iter()
        .chain([i64::MAX - 1, i64::MAX]);
    let mut last = None;
    for token in rising {
        accepted(marks, &resource, token).await;
        if let Some(lower) = last {
            stale(marks, &resource, lower, token).await;
        }
        last = Some(token);
    }
    accepted(marks, &resource, i64::MAX).await;
}

/// Names that some database, somewhere, takes for the same are different resources.
pub async fn resources_are_told_apart_byte_by_byte(marks: &Arc<dyn Marks>) {
    let stem = Names::new().next("bytes");
    let endings = [
        "Job",
        "job",
        "JOB",
        "Job ",
        " Job",
        "jöb",
        "jo\u{308}b",
        "Jo",
        "Job%",
        "J_b",
        "J%b",
        "Job\\",
        "Job'",
        "Job\"",
        "ﬁ",
        "fi",
        "ß",
        "ss",
        "ı",
        "i",
        "I",
        "\u{1f512}",
        "\u{1f513}",
        "e\u{301}",
        "é",
        "e",
        "k",
        "\u{212a}",
        "１",
        "1",
        "01",
        "1.0",
        "-",
        "\u{200b}-",
    ];
    let resources: Vec<_> =
        endings.iter().map(|ending| name(&format!("{stem}:{ending}"))).collect();
    for (resource, token) in resources.iter().zip(1000..) {
        accepted(marks, resource, token).await;
    }
    for (resource, token) in resources.iter().zip(1000..) {
        mark_is(marks, resource, token).await;
    }
    // Two long names that differ at the end only.
    let long = format!("{:x<1$}", stem.as_str(), Resource::MAX_LEN - 1);
    let (a, b) = (name(&format!("{long}a")), name(&format!("{long}b")));
    accepted(marks, &a, 9).await;
    accepted(marks, &b, 3).await;
    mark_is(marks, &a, 9).await;
    mark_is(marks, &b, 3).await;
}

/// Fifty first claims of one resource at once: none fails, the highest token is the mark, and
/// each loser was stale or before.
pub async fn first_claims_at_once_do_not_fail(marks: &Arc<dyn Marks>) {
    first_claims(&[Arc::clone(marks)]).await;
}

/// Many tasks claim a few resources with random tokens. There must be an order of the claims, each
/// at one moment between its question and its answer, in which every verdict is right.
pub async fn claims_at_once_are_decided_one_by_one(marks: &Arc<dyn Marks>) {
    for seed in 0..8 {
        race(&[Arc::clone(marks)], seed).await;
    }
}

/// A check may be dropped at any time, as happens whenever a client hangs up. The mark was raised
/// or was not; the store goes on.
pub async fn dropped_checks_harm_nobody(marks: &Arc<dyn Marks>) {
    let mut names = Names::new();
    // A store with a pool of connections must not lose one each time.
    for polls in 0..64_usize {
        let (known, fresh) = (names.next("dropped"), names.next("dropped"));
        accepted(marks, &known, 10).await;
        for resource in [&known, &fresh] {
            drop_after(polls % 16, marks, resource, 20).await;
        }
        // What was dropped may also still be under way, and take effect between any two of these.
        for token in [15, 14] {
            match ask(marks, &known, token).await {
                Verdict::Accepted => assert_eq!(token, 15, "{known}: 14 was accepted below 15"),
                Verdict::Stale { last_token } => {
                    let last = last_token.get();
                    assert!(last == 20 || (last, token) == (15, 14), "{known}: whose is {last}?");
                }
            }
        }
        accepted(marks, &known, 20).await;
        accepted(marks, &fresh, 21).await;
        stale(marks, &fresh, 20, 21).await;
    }
}

/// Polls a check some times, then drops it.
async fn drop_after(polls: usize, marks: &Arc<dyn Marks>, resource: &Resource, token: i64) {
    let mut check = pin!(marks.advance(&claim(resource, token)));
    for _ in 0..polls {
        if poll_fn(|cx| Poll::Ready(check.as_mut().poll(cx).is_ready())).await {
            return;
        }
        tokio::task::yield_now().await;
    }
}

async fn first_claims(handles: &[Arc<dyn Marks>]) {
    const CLAIMS: i64 = 50;
    let resource = Names::new().next("at-once");
    let history = History::default();
    // Neither the lowest nor the highest token comes first.
    let tasks = (0..CLAIMS).map(|n| vec![(resource.clone(), n * 7 % CLAIMS + 1)]);
    let answers = history.record(handles, tasks.collect()).await;
    check_history(&answers);
    mark_is(&handles[0], &resource, CLAIMS).await;
}

async fn race(handles: &[Arc<dyn Marks>], seed: u64) {
    const TASKS: usize = 8;
    const CLAIMS: usize = 40;
    let mut names = Names::new();
    let resources = [names.next("race"), names.next("race"), names.next("race")];
    let mut random = fastrand::Rng::with_seed(seed);
    let mut highest = [0; 3];
    let tasks = (0..TASKS).map(|_| {
        let claim = |at| {
            let which = random.usize(..resources.len());
            // The tokens rise over time, as those of an issuer do, by less than they scatter:
            // every claim may turn out either way.
            let token = i64::try_from(at).unwrap_or(0) + random.i64(1..=20);
            highest[which] = token.max(highest[which]);
            (resources[which].clone(), token)
        };
        (0..CLAIMS).map(claim).collect()
    });
    let history = History::default();
    let answers = history.record(handles, tasks.collect()).await;
    check_history(&answers);
    for (resource, highest) in resources.iter().zip(highest) {
        mark_is(&handles[0], resource, highest).await;
    }
}

/// A claim, its answer, and when it was asked and answered on one counter that all tasks share.
struct Answered {
    resource: Resource,
    offered: i64,
    verdict: Verdict,
    asked: u64,
    answered: u64,
}

impl Answered {
    /// The mark right after the claim was decided.
    fn mark(&self) -> i64 {
        match self.verdict {
            Verdict::Accepted => self.offered,
            Verdict::Stale { last_token } => last_token.get(),
        }
    }
}

#[derive(Default)]
struct History(Arc<AtomicU64>);

impl History {
    /// Each task makes its claims one after another, all tasks at once.
    async fn record(
        &self,
        handles: &[Arc<dyn Marks>],
        tasks: Vec<Vec<(Resource, i64)>>,
    ) -> Vec<Answered> {
        let start = Arc::new(tokio::sync::Barrier::new(tasks.len()));
        let running: Vec<_> = tasks
            .into_iter()
            .zip(handles.iter().cycle())
            .map(|(claims, marks)| {
                let (marks, now) = (Arc::clone(marks), Arc::clone(&self.0));
                let start = Arc::clone(&start);
                tokio::spawn(async move {
                    start.wait().await;
                    let mut answers = Vec::with_capacity(claims.len());
                    for (resource, offered) in claims {
                        let asked = now.fetch_add(1, Ordering::SeqCst);
                        let verdict = ask(&marks, &resource, offered).await;
                        let answered = now.fetch_add(1, Ordering::SeqCst);
                        answers.push(Answered { resource, offered, verdict, asked, answered });
                    }
                    answers
                })
            })
            .collect();
        let mut answers = Vec::new();
        for task in running {
            match task.await {
                Ok(part) => answers.extend(part),
                Err(failed) => std::panic::resume_unwind(failed.into_panic()),
            }
        }
        answers
    }
}

/// A mark is a register that only rises. Its history has a right order if no claim was answered
/// from a mark below one that an earlier answer had shown, and none from a mark that nobody had
/// asked for by then.
fn check_history(answers: &[Answered]) {
    for late in answers {
        let same = || answers.iter().filter(|it| it.resource == late.resource);
        let (resource, offered) = (&late.resource, late.offered);
        for early in same().filter(|early| early.answered < late.asked) {
            assert!(
                late.mark() >= early.mark(),
                "{resource}: token {offered} was answered with {:?} after the mark had been {}",
                late.verdict,
                early.mark(),
            );
        }
        if let Verdict::Stale { last_token } = late.verdict {
            assert!(last_token.get() > offered, "{resource}: {offered} is not below {last_token}");
            assert!(
                same().any(|it| it.offered == last_token.get()
                    && it.verdict == Verdict::Accepted
                    && it.asked < late.answered),
                "{resource}: token {offered} was refused for {last_token}, which was not accepted",
            );
        }
    }
}

/// Names that nobody has used before.
struct Names {
    run: u64,
    count: u32,
}

impl Names {
    fn new() -> Self {
        Self { run: fastrand::u64(..), count: 0 }
    }

    fn next(&mut self, of: &str) -> Resource {
        self.count += 1;
        name(&format!("conformance:{:016x}:{}:{of}", self.run, self.count))
    }
}

fn name(text: &str) -> Resource {
    Resource::new(text).unwrap_or_else(|invalid| panic!("{text}: {invalid}"))
}

/// The longest name of at most `len` bytes that `text` begins with.
fn cut(text: &str, len: usize) -> Resource {
    name(&text[..text.floor_char_boundary(len)])
}

fn claim(resource: &Resource, token: i64) -> Claim {
    let token = Token::new(token).unwrap_or_else(|invalid| panic!("{token}: {invalid}"));
    Claim::new(resource.clone(), token)
}

async fn ask(marks: &Arc<dyn Marks>, resource: &Resource, token: i64) -> Verdict {
    match tokio::time::timeout(PATIENCE, marks.advance(&claim(resource, token))).await {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(error)) => {
            let source = std::error::Error::source(&error);
            panic!("{resource}: token {token} got no verdict: {error} ({source:?})")
        }
        Err(_) => panic!("{resource}: token {token} got no answer within {PATIENCE:?}"),
    }
}

async fn accepted(marks: &Arc<dyn Marks>, resource: &Resource, token: i64) {
    let verdict = ask(marks, resource, token).await;
    assert_eq!(verdict, Verdict::Accepted, "{resource}: token {token}");
}

async fn stale(marks: &Arc<dyn Marks>, resource: &Resource, token: i64, last: i64) {
    match ask(marks, resource, token).await {
        Verdict::Stale { last_token } => {
            assert_eq!(last_token.get(), last, "{resource}: the mark that token {token} was told");
        }
        Verdict::Accepted => panic!("{resource}: token {token} was accepted below {last}"),
    }
}

/// Looks at a mark without raising it: by a token below it, and its own.
async fn mark_is(marks: &Arc<dyn Marks>, resource: &Resource, mark: i64) {
    if mark > 1 {
        stale(marks, resource, mark - 1, mark).await;
        stale(marks, resource, 1, mark).await;
    }
    accepted(marks, resource, mark).await;
}
