//! Who comes in, and when.

use std::sync::OnceLock;
use std::time::Duration;

use fencing::marks::{Check, MarksError, MarksErrorKind};
use fencing::{Claim, Token, Verdict};

use super::*;
use crate::support::get;

#[tokio::test]
async fn i1_a_newer_token_enters_only_when_older_ones_have_left() {
    let stage = Stage::new();
    let mut older = stage.put("/files/a", 33);
    older.pending();
    let mut newer = stage.put("/files/a", 34);
    newer.pending();
    assert_eq!(stage.inside(), [33]);

    stage.answer(33, "written under 33");
    let response = older.ready();
    drop(older);
    // The body has not been sent yet.
    assert!(!newer.woken());
    newer.pending();
    assert_eq!(stage.inside(), [] as [i64; 0]);

    assert_eq!(header(&response).unwrap(), "33");
    let mut body = response.into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "written under 33");
    assert!(!newer.woken());
    assert!(body.frame().await.is_none());
    // It has ended, which is enough: it need not be dropped.
    assert!(newer.woken());
    newer.pending();
    assert_eq!(stage.inside(), [34]);
    stage.answer(34, "");
    assert_eq!(header(&newer.ready()).unwrap(), "34");
    drop(newer);
    assert_eq!(stage.gate.visited(), 0);
}

#[tokio::test]
async fn requests_of_one_token_run_together() {
    let stage = Stage::new();
    let mut requests = [(); 3].map(|()| stage.put("/files/a", 33));
    requests.iter_mut().for_each(Running::pending);
    assert_eq!(stage.inside(), [33, 33, 33]);
    let mut newer = [(); 2].map(|()| stage.put("/files/a", 34));
    newer.iter_mut().for_each(Running::pending);
    for request in &mut requests[..2] {
        stage.answer(33, "");
        drop(request.ready());
        assert!(!newer[0].woken() && !newer[1].woken());
    }
    stage.answer(33, "");
    drop(requests[2].ready());
    assert!(newer[0].woken() && newer[1].woken());
    newer.iter_mut().for_each(Running::pending);
    assert_eq!(stage.inside(), [34, 34]);
}

#[tokio::test]
async fn newcomers_of_older_tokens_are_turned_away_while_a_newer_one_waits() {
    let stage = Stage::new();
    let mut older = stage.put("/files/a", 33);
    older.pending();
    let mut newer = stage.put("/files/a", 34);
    newer.pending();
    let response = stage.put("/files/a", 33).ready();
    assert_eq!(kind(&response), (412, "stale-token"));
    assert!(header(&response).is_none());
}

#[tokio::test]
async fn resources_do_not_wait_for_each_other() {
    let stage = Stage::new();
    stage.put("/files/a", 33).pending();
    let mut older = stage.put("/files/a", 33);
    older.pending();
    let mut other = stage.put("/files/b", 34);
    other.pending();
    assert_eq!(stage.inside().last(), Some(&34));
    assert_eq!(stage.gate.visited(), 2);
}

#[tokio::test]
async fn an_accepted_claim_that_is_overtaken_in_the_queue_is_stale_at_once() {
    let stage = Stage::new();
    let mut first = stage.put("/files/a", 33);
    first.pending();
    let mut second = stage.put("/files/a", 34);
    second.pending();
    let mut third = stage.put("/files/a", 35);
    third.pending();
    assert!(second.woken());
    let response = second.ready();
    assert_eq!(kind(&response), (412, "stale-token"));
    let problem = response.extensions().get::<Problem>().unwrap();
    assert_eq!(problem.last_token(), Some(Token::new(35).unwrap()));
    assert!(header(&response).is_none());

    stage.answer(33, "");
    drop(first.ready());
    assert!(third.woken());
    third.pending();
    assert_eq!(stage.inside(), [35]);
}

/// A store that answers when it is told to, out of marks in memory that it asked before.
#[derive(Clone, Debug, Default)]
struct SlowMarks(Arc<Mutex<Vec<oneshot::Sender<()>>>>, Arc<Mutex<Option<i64>>>);

impl Marks for SlowMarks {
    fn advance(&self, claim: &Claim) -> Check {
        let offered = claim.token();
        let mut mark = self.1.lock().unwrap();
        let verdict = match *mark {
            Some(last) if last > offered.get() => {
                Verdict::Stale { last_token: Token::new(last).unwrap() }
            }
            _ => {
                *mark = Some(offered.get());
                Verdict::Accepted
            }
        };
        let (send, receive) = oneshot::channel();
        self.0.lock().unwrap().push(send);
        Check::Pending(Box::pin(async move {
            receive.await.map_err(|_| MarksError::new(MarksErrorKind::Unavailable))?;
            Ok(verdict)
        }))
    }
}

impl SlowMarks {
    /// Delivers the answer to the request that asked as the `nth` of those without an answer.
    fn deliver(&self, nth: usize) {
        self.0.lock().unwrap().remove(nth).send(()).unwrap();
    }
}

/// The verdict on 33 is on its way while 34 is accepted, enters, writes and leaves. The gate must
/// remember 34, although nobody of it is there any more.
#[tokio::test]
async fn i1_a_verdict_that_comes_late_does_not_let_an_overtaken_token_in() {
    let marks = SlowMarks::default();
    let stage = Stage::with(marks.clone(), |gate| gate);
    let mut older = stage.put("/files/a", 33);
    older.pending();
    let mut newer = stage.put("/files/a", 34);
    newer.pending();
    marks.deliver(1);
    newer.pending();
    assert_eq!(stage.inside(), [34]);
    stage.answer(34, "");
    drop(newer.ready());
    drop(newer);

    marks.deliver(0);
    assert!(older.woken());
    let response = older.ready();
    assert_eq!(kind(&response), (412, "stale-token"));
    assert_eq!(stage.inside(), [] as [i64; 0]);
    drop((older, response));
    assert_eq!(stage.gate.visited(), 0);
}

/// Accepts 33, and before it can say so 34 is served from its arrival to its end.
#[derive(Clone, Debug)]
struct Overtaking(Arc<OnceLock<Router>>, Arc<MemoryMarks>);

impl Marks for Overtaking {
    fn advance(&self, claim: &Claim) -> Check {
        let verdict = self.1.decide(claim);
        if claim.token().get() == 33 {
            let newer = self.0.get().unwrap().clone().oneshot(put("/empty/a", "34"));
            assert_eq!(Running::new(newer).ready().status(), 200);
        }
        verdict.into()
    }
}

#[tokio::test]
async fn i1_the_gate_remembers_who_passed_by_while_the_mark_was_checked() {
    let marks = Overtaking(Arc::default(), Arc::new(MemoryMarks::ephemeral()));
    let stage = Stage::with(marks.clone(), |gate| gate);
    marks.0.set(stage.app.clone()).unwrap();
    assert_eq!(kind(&stage.put("/files/a", 33).ready()), (412, "stale-token"));
    assert_eq!((stage.inside().len(), stage.gate.visited()), (0, 0));
}

#[tokio::test]
async fn i6_a_store_that_fails_lets_nobody_in_and_leaves_nothing_behind() {
    let marks = SlowMarks::default();
    let stage = Stage::with(marks.clone(), |gate| gate);
    let mut request = stage.put("/files/a", 33);
    request.pending();
    assert_eq!(stage.gate.visited(), 1);
    marks.0.lock().unwrap().clear();
    let response = request.ready();
    assert_eq!(kind(&response), (503, "fence-unavailable"));
    drop(request);
    assert_eq!((stage.inside().len(), stage.gate.visited()), (0, 0));
}

#[tokio::test]
async fn who_does_not_leave_in_time_makes_the_newer_contended() {
    let stage = Stage::new();
    let mut older = stage.put("/files/a", 33);
    older.pending();
    let mut newer = stage.put("/files/a", 34);
    newer.pending();
    stage.clock.advance(Gate::DEFAULT_DRAIN_TIMEOUT - Duration::from_millis(1));
    assert!(!newer.woken());
    stage.clock.advance(Duration::from_millis(1));
    assert!(newer.woken());
    let response = newer.ready();
    assert_eq!(kind(&response), (503, "contended"));
    assert_eq!(response.headers()["retry-after"], "1");
    assert!(header(&response).is_none());
    assert_eq!(stage.inside(), [33]);
    drop(newer);

    // It was overtaken all the same: the mark stands.
    assert_eq!(kind(&stage.put("/files/a", 33).ready()), (412, "stale-token"));
    stage.answer(33, "");
    drop(older.ready());
    drop(older);
    let mut again = stage.put("/files/a", 34);
    again.pending();
    assert_eq!(stage.inside(), [34]);
}

#[tokio::test]
async fn the_drain_timeout_can_be_set_and_the_turn_wins_a_tie() {
    let timeout = Duration::from_millis(5);
    let stage = Stage::with(MemoryMarks::ephemeral(), |gate| gate.drain_timeout(timeout));
    let mut older = stage.put("/files/a", 33);
    older.pending();
    let mut newer = stage.put("/files/a", 34);
    newer.pending();
    stage.clock.advance(timeout);
    drop(older);
    stage.handlers.lock().unwrap().clear();
    newer.pending();
    assert_eq!(stage.inside(), [34]);
}

/// M6: work that outlives the handler keeps the permit.
#[tokio::test]
async fn a_clone_of_the_permit_keeps_newer_tokens_out() {
    let stage = Stage::new();
    let mut older = stage.put("/files/a", 33);
    older.pending();
    let permit = stage.permit(33);
    let mut newer = stage.put("/files/a", 34);
    newer.pending();
    stage.handlers.lock().unwrap().clear();
    // The client hangs up: the future of the handler goes, the blocking work does not.
    drop(older);
    assert!(permit.is_overtaken());
    let (go_on, told) = std::sync::mpsc::channel::<()>();
    let writing = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        told.recv().unwrap();
    });
    newer.pending();
    assert_eq!(stage.inside(), [] as [i64; 0]);
    go_on.send(()).unwrap();
    writing.await.unwrap();
    assert!(newer.woken());
    newer.pending();
    assert_eq!(stage.inside(), [34]);
}

#[tokio::test]
async fn one_that_hangs_up_in_the_queue_leaves_it_to_the_others() {
    let stage = Stage::new();
    let mut older = stage.put("/files/a", 33);
    older.pending();
    let mut waiting = [(); 3].map(|()| Some(stage.put("/files/a", 34)));
    waiting.iter_mut().flatten().for_each(Running::pending);
    let woken = Arc::clone(&waiting[1].as_ref().unwrap().woken);
    waiting[1] = None;
    // Forgotten at once, not only when 33 leaves: that may take long, and many may come and go.
    assert_eq!(Arc::strong_count(&woken), 1);
    stage.answer(33, "");
    drop(older.ready());
    drop(older);
    // Woken, and gone without having looked.
    assert!(waiting[0].as_ref().unwrap().woken());
    waiting[0] = None;
    let last = waiting[2].as_mut().unwrap();
    assert!(last.woken());
    last.pending();
    assert_eq!(stage.inside(), [34]);
    stage.answer(34, "");
    drop(last.ready());
    waiting[2] = None;
    assert_eq!(stage.gate.visited(), 0);
}

#[tokio::test]
async fn a_handler_learns_that_it_is_overtaken() {
    let stage = Stage::new();
    let mut older = stage.put("/files/a", 33);
    older.pending();
    let permit = stage.permit(33);
    let watched = permit.clone();
    let mut watch = Running::new(async move {
        watched.overtaken().await;
        Ok::<_, ()>(Response::new(Body::empty()))
    });
    watch.pending();
    // Not by its like, nor by one that the mark refuses.
    stage.put("/files/a", 33).pending();
    drop(stage.put("/files/a", 32).ready());
    assert!(!permit.is_overtaken() && !watch.woken());
    stage.put("/files/a", 34).pending();
    assert!(permit.is_overtaken() && watch.woken());
    drop(watch.ready());
    let fresh = permit.overtaken();
    assert!(std::pin::pin!(fresh).poll(&mut Context::from_waker(Waker::noop())).is_ready());
}

#[tokio::test]
async fn a_request_that_claims_nothing_passes_without_a_permit() {
    let stage = Stage::new();
    stage.put("/files/a", 33).pending();
    let mut older = stage.put("/files/a", 33);
    older.pending();
    let response = send(&stage.app, get("/files/a", "")).await;
    assert_eq!(response.status(), 200);
    // With a token it is a claim like any other.
    let mut reader = Running::new(stage.app.clone().oneshot(get("/files/a", "34")));
    reader.pending();
}

#[tokio::test]
async fn a_panic_in_a_handler_is_the_end_of_its_visit() {
    async fn fails(_: GatePermit) {
        panic!("on purpose");
    }
    let gate = Gate::new();
    let layer = FenceLayer::new(MemoryMarks::ephemeral());
    let layer = layer.resource("file:{name}").exclusive(gate.clone());
    let app: Router = Router::new().route("/files/{name}", routing::put(fails)).route_layer(layer);
    let request = tokio::spawn(app.oneshot(put("/files/a", "33")));
    assert!(request.await.unwrap_err().is_panic());
    assert_eq!(gate.visited(), 0);
}
