//! The suite must find what is wrong with a store, or it is worth nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use fencing::marks::{Check, Marks, MarksError, MarksErrorKind, MemoryMarks, conformance};
use fencing::{Claim, Resource, Token, Verdict};
use tokio::sync::Semaphore;

type Map = HashMap<String, i64>;

/// A store that keeps its marks in a map, with a fault in it.
struct Faulty {
    marks: Mutex<Map>,
    decide: fn(&mut Map, &Claim) -> Result<Verdict, MarksError>,
}

impl std::fmt::Debug for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Faulty")
    }
}

impl Marks for Faulty {
    fn advance(&self, claim: &Claim) -> Check {
        Check::Ready((self.decide)(&mut self.marks.lock().unwrap(), claim))
    }
}

/// What a right store does, under a name and with a token of one's choice.
fn right(marks: &mut Map, name: String, token: i64) -> Result<Verdict, MarksError> {
    let last = marks.entry(name).or_insert(token);
    if *last > token {
        return Ok(Verdict::Stale { last_token: Token::new(*last).unwrap() });
    }
    *last = token;
    Ok(Verdict::Accepted)
}

fn name(claim: &Claim) -> String {
    claim.resource().to_string()
}

async fn found(decide: fn(&mut Map, &Claim) -> Result<Verdict, MarksError>) -> String {
    let marks = Faulty { marks: Mutex::default(), decide };
    let failed = tokio::spawn(conformance::run(marks)).await.expect_err("the fault was not found");
    let panic = failed.into_panic();
    panic.downcast_ref::<String>().cloned().unwrap_or_else(|| format!("{:?}", panic.type_id()))
}

#[tokio::test]
async fn a_right_store_of_this_kind_passes() {
    let decide = |marks: &mut Map, claim: &Claim| right(marks, name(claim), claim.token().get());
    conformance::run(Faulty { marks: Mutex::default(), decide }).await;
}

#[tokio::test]
async fn a_store_that_refuses_the_equal_token_is_found() {
    let said = found(|marks, claim| {
        let token = claim.token().get();
        match marks.get(&name(claim)) {
            Some(last) if *last == token => Ok(Verdict::Stale { last_token: claim.token() }),
            _ => right(marks, name(claim), token),
        }
    });
    assert!(said.await.contains("Stale"));
}

#[tokio::test]
async fn a_store_whose_marks_fall_is_found() {
    let said = found(|marks, claim| {
        let verdict = right(marks, name(claim), claim.token().get());
        marks.insert(name(claim), claim.token().get());
        verdict
    });
    said.await;
}

#[tokio::test]
async fn a_store_that_accepts_everything_is_found() {
    assert!(found(|_, _| Ok(Verdict::Accepted)).await.contains("was accepted below"));
}

#[tokio::test]
async fn a_store_that_folds_case_is_found() {
    found(|marks, claim| right(marks, name(claim).to_lowercase(), claim.token().get())).await;
}

#[tokio::test]
async fn a_store_that_trims_names_is_found() {
    found(|marks, claim| right(marks, name(claim).trim_end().to_owned(), claim.token().get()))
        .await;
}

#[tokio::test]
async fn a_store_that_cuts_names_is_found() {
    found(|marks, claim| {
        let name = name(claim);
        right(marks, name[..name.floor_char_boundary(191)].to_owned(), claim.token().get())
    })
    .await;
}

#[tokio::test]
async fn a_store_that_keeps_tokens_as_doubles_is_found() {
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    found(|marks, claim| right(marks, name(claim), claim.token().get() as f64 as i64)).await;
}

#[tokio::test]
async fn a_store_that_tells_the_offered_token_as_the_mark_is_found() {
    found(|marks, claim| {
        let verdict = right(marks, name(claim), claim.token().get())?;
        Ok(match verdict {
            Verdict::Stale { .. } => Verdict::Stale { last_token: claim.token() },
            accepted => accepted,
        })
    })
    .await;
}

#[tokio::test]
async fn a_store_that_errs_is_found() {
    let said = found(|_, _| Err(MarksError::new(MarksErrorKind::Contended))).await;
    assert!(said.contains("got no verdict"), "{said}");
}

/// A store that looks, then is overtaken, then writes: the fault of a check apart from its raise.
#[derive(Debug)]
struct LooksThenWrites(Arc<Mutex<HashMap<Resource, i64>>>);

impl Marks for LooksThenWrites {
    fn advance(&self, claim: &Claim) -> Check {
        let (marks, claim) = (Arc::clone(&self.0), claim.clone());
        Check::Pending(Box::pin(async move {
            let token = claim.token().get();
            let last = marks.lock().unwrap().get(claim.resource()).copied().unwrap_or(0);
            tokio::task::yield_now().await;
            if last > token {
                return Ok(Verdict::Stale { last_token: Token::new(last).unwrap() });
            }
            marks.lock().unwrap().insert(claim.resource().clone(), token);
            Ok(Verdict::Accepted)
        }))
    }
}

#[tokio::test]
#[should_panic(expected = "after the mark had been")]
async fn a_store_that_looks_and_then_writes_is_found() {
    let marks: Arc<dyn Marks> = Arc::new(LooksThenWrites(Arc::default()));
    conformance::claims_at_once_are_decided_one_by_one(&marks).await;
}

#[tokio::test]
#[should_panic(expected = "shared")]
async fn marks_that_are_not_shared_are_found() {
    conformance::run_shared(MemoryMarks::ephemeral(), MemoryMarks::ephemeral()).await;
}

/// A store with a few connections that loses one whenever its answer is not waited for.
#[derive(Debug)]
struct LosesConnections(Arc<Semaphore>, Arc<MemoryMarks>);

impl Marks for LosesConnections {
    fn advance(&self, claim: &Claim) -> Check {
        let (pool, verdict) = (Arc::clone(&self.0), self.1.decide(claim));
        Check::Pending(Box::pin(async move {
            if let Ok(connection) = pool.acquire().await {
                connection.forget();
            }
            tokio::task::yield_now().await;
            pool.add_permits(1);
            Ok(verdict)
        }))
    }
}

/// The clock of the runtime runs ahead to the end of the suite's patience.
#[tokio::test(start_paused = true)]
#[should_panic(expected = "got no answer")]
async fn a_store_that_loses_connections_of_dropped_checks_is_found() {
    let pool = Arc::new(Semaphore::new(5));
    conformance::run(LosesConnections(pool, Arc::new(MemoryMarks::ephemeral()))).await;
}
