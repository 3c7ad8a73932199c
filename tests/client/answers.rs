//! Reads, and answers meant to do harm.

use fencing::Resource;
use fencing::client::ClientErrorKind;
use serde_json::json;

use crate::{Setup, secs, setup, soon};

fn resource() -> Resource {
    Resource::new("r").unwrap()
}

#[tokio::test]
async fn show_tells_who_holds_it() {
    let Setup { mut server, client, .. } = setup().await;
    let show = tokio::spawn({
        let client = client.clone();
        async move { client.show(&resource()).await }
    });
    let call = server.next().await;
    assert_eq!((&*call.method, &*call.path), ("GET", "/locks/r"));
    call.renew_for(33, secs(7));
    let lock = soon(show).await.unwrap().unwrap().unwrap();
    assert_eq!((lock.token.get(), &*lock.owner, lock.remaining_ms), (33, "me", 7000));

    let show = tokio::spawn(async move { client.show(&resource()).await });
    server.next().await.problem(404, "not-held");
    assert!(soon(show).await.unwrap().unwrap().is_none());
}

#[tokio::test]
async fn the_highest_token_is_a_seed_only_when_the_endpoint_says_so() {
    let Setup { mut server, client, .. } = setup().await;
    type Answer = fn(crate::fault::Call);
    let answers: [(Answer, Result<Option<i64>, ClientErrorKind>); 6] = [
        (|call| call.json(200, &json!({"resource": "r", "token": 57})), Ok(Some(57))),
        (|call| call.problem(404, "not-held"), Ok(None)),
        // A proxy's 404 must not start a guard from nothing.
        (|call| call.html(404), Err(ClientErrorKind::Refused)),
        (|call| call.html(200), Err(ClientErrorKind::Unavailable)),
        (|call| call.problem(503, "lock-unavailable"), Err(ClientErrorKind::Unavailable)),
        (drop, Err(ClientErrorKind::Unavailable)),
    ];
    for (answer, expected) in answers {
        let client = client.clone();
        let asked = tokio::spawn(async move { client.highest_token(&resource()).await });
        let call = server.next().await;
        assert_eq!(&*call.path, "/locks/r/token");
        answer(call);
        let got = soon(asked).await.unwrap();
        assert_eq!(got.map(|t| t.map(fencing::Token::get)).map_err(|e| e.kind()), expected);
    }
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off() {
    let Setup { mut server, client, .. } = setup().await;
    let asked = tokio::spawn(async move { client.highest_token(&resource()).await });
    let mut flood = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..20 {
        flood.extend_from_slice(b"1000\r\n");
        flood.extend_from_slice(&[b' '; 0x1000]);
        flood.extend_from_slice(b"\r\n");
    }
    // No clock moves, so it is the limit that ends this, not the timeout.
    server.next().await.stall_after(flood);
    let error = soon(asked).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Unavailable);
}

#[tokio::test]
async fn details_of_the_server_stay_on_one_line() {
    let Setup { mut server, client, .. } = setup().await;
    let asked = tokio::spawn(client.acquire("r").into_future());
    let detail = format!("first\nsecond{}", "x".repeat(5000));
    let body = json!({"type": "urn:fencing:problem:invalid-field", "detail": detail});
    server.next().await.json(422, &body);
    let text = soon(asked).await.unwrap().unwrap_err().to_string();
    assert!(text.contains("first second") && !text.contains('\n'), "{text}");
    assert!(text.len() < 400, "{}", text.len());
}
