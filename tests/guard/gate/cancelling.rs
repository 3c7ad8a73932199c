//! Older requests that are cancelled instead of only waited for.

use fencing::guard::OvertakenError;

use super::*;

fn stage() -> Stage {
    Stage::with(MemoryMarks::ephemeral(), |gate| gate.cancel_older(true))
}

#[tokio::test]
async fn i4_a_cancelled_request_is_answered_that_its_outcome_is_unknown() {
    let stage = stage();
    let mut older = stage.put("/files/a", 33);
    older.pending();
    let mut newer = stage.put("/files/a", 34);
    newer.pending();
    assert!(older.woken());
    // What the test itself holds of it is not the layer's to drop.
    drop(stage.permit(33));
    let response = older.ready();
    assert_eq!(kind(&response), (500, "outcome-unknown"));
    assert!(!response.headers().contains_key("retry-after"));
    assert!(newer.woken());
    newer.pending();
    assert_eq!(stage.inside(), [33, 34], "33 was called, and is not inside any more");
}

#[tokio::test]
async fn an_answer_that_is_there_is_given_though_the_request_is_overtaken() {
    let stage = stage();
    let mut older = stage.put("/files/a", 33);
    older.pending();
    stage.answer(33, "");
    stage.put("/files/a", 34).pending();
    let response = older.ready();
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn work_that_holds_a_permit_is_waited_for() {
    let stage = stage();
    let mut older = stage.put("/files/a", 33);
    older.pending();
    let permit = stage.permit(33);
    let mut newer = stage.put("/files/a", 34);
    newer.pending();
    assert_eq!(kind(&older.ready()), (500, "outcome-unknown"));
    assert!(!newer.woken());
    newer.pending();
    assert_eq!(stage.inside(), [33]);
    drop(permit);
    assert!(newer.woken());
    newer.pending();
    assert_eq!(stage.inside(), [33, 34]);
}

#[tokio::test]
async fn a_response_on_its_way_is_cut_off_by_an_error() {
    let stage = stage();
    let mut older = stage.put("/files/a", 33);
    older.pending();
    stage.answer(33, Body::new(Endless));
    let mut body = older.ready().into_body();
    drop(older);
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "more");
    let mut newer = stage.put("/files/a", 34);
    newer.pending();
    let error = body.frame().await.unwrap().unwrap_err();
    assert!(is_overtaken(&error), "{error:?}");
    assert!(body.frame().await.is_none());
    assert!(newer.woken());
    newer.pending();
    assert_eq!(stage.inside(), [34]);
    drop(body);
}

fn is_overtaken(error: &(dyn std::error::Error + 'static)) -> bool {
    error.is::<OvertakenError>() || error.source().is_some_and(is_overtaken)
}

/// A body that goes on for ever.
struct Endless;

impl http_body::Body for Endless {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
        Poll::Ready(Some(Ok(http_body::Frame::data(bytes::Bytes::from_static(b"more")))))
    }
}
