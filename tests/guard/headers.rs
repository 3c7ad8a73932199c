//! What may be in the token header.

use axum::Router;
use axum::routing;
use fencing::guard::FenceLayer;
use fencing::marks::MemoryMarks;
use http::{HeaderValue, Request};

use crate::support::{Body, TOKEN, put, refusal, refused, status};

/// A handler that must not be reached is one that answers 200.
fn app() -> Router {
    Router::new()
        .route("/doc/{id}", routing::put(|| async {}).get(|| async {}))
        .route_layer(FenceLayer::new(MemoryMarks::ephemeral()).resource("doc:{id}"))
}

fn with(values: &[&[u8]]) -> Request<Body> {
    let mut request = put("/doc/1", "");
    for value in values {
        request.headers_mut().append(TOKEN, HeaderValue::from_bytes(value).unwrap());
    }
    request
}

/// Case 1: the text form is strict, and what is no text is malformed, never absent.
#[tokio::test]
async fn anything_but_the_digits_of_a_token_is_malformed() {
    let app = app();
    assert_eq!(status(&app, put("/doc/1", "5")).await, 200);
    let values: [&[u8]; 21] = [
        b"+5",
        b"-0",
        b"-5",
        b"007",
        b"0x5",
        b"5.0",
        b"1e3",
        b"5_0",
        b"",
        b"5 6",
        b" 5",
        b"5 ",
        b"5\t",
        b"\xd1\x82",
        b"\xff",
        b"5\xff",
        b"0",
        b"5;v=1",
        b"\"5\"",
        b"5,",
        "٥".as_bytes(),
    ];
    for value in values {
        assert_eq!(refused(&app, with(&[value])).await, (400, "malformed-token"), "{value:?}");
        // A safe method may come without a token, and not with a bad one.
        let mut read = with(&[value]);
        *read.method_mut() = http::Method::GET;
        assert_eq!(refused(&app, read).await, (400, "malformed-token"), "{value:?}");
    }
    let refusal = refusal(&app, with(&[b"+5"])).await;
    assert_eq!(refusal.document["resource"], "doc:1");
    assert!(refusal.document["detail"].as_str().unwrap().contains("digits"));
    // The mark has not moved.
    assert_eq!(status(&app, put("/doc/1", "5")).await, 200);
    assert_eq!(refused(&app, put("/doc/1", "4")).await, (412, "stale-token"));
}

/// Case 2: neither the first value wins nor the last, even when they are the same.
#[tokio::test]
async fn more_than_one_token_is_malformed() {
    let app = app();
    assert_eq!(status(&app, put("/doc/1", "5")).await, 200);
    let doubled: [&[&[u8]]; 7] = [
        &[b"10", b"3"],
        &[b"3", b"10"],
        &[b"10", b"10"],
        &[b"10", b""],
        &[b"10, 3"],
        &[b"10,10"],
        &[b"10", b"10", b"10"],
    ];
    for values in doubled {
        assert_eq!(refused(&app, with(values)).await, (400, "malformed-token"), "{values:?}");
    }
    assert_eq!(status(&app, put("/doc/1", "5")).await, 200, "the mark is still 5");
}

/// Case 3: what does not fit is refused, and the resource goes on.
#[tokio::test]
async fn tokens_out_of_range_are_malformed_and_nothing_wraps() {
    let app = app();
    for value in ["9223372036854775808", "18446744073709551615", "18446744073709551616", "0"] {
        assert_eq!(refused(&app, put("/doc/1", value)).await, (400, "malformed-token"), "{value}");
    }
    assert_eq!(status(&app, put("/doc/1", "1")).await, 200);
    assert_eq!(status(&app, put("/doc/1", "9223372036854775807")).await, 200);
    let refusal = refusal(&app, put("/doc/1", "9223372036854775806")).await;
    assert_eq!(refusal.document["last_token"], i64::MAX);
    assert_eq!(status(&app, put("/doc/1", "9223372036854775807")).await, 200);
}

/// Case 9 (a): a token under a misspelt name is no token.
#[tokio::test]
async fn a_misspelt_header_is_a_missing_token() {
    let app = app();
    assert_eq!(refused(&app, put("/doc/1", "")).await, (428, "missing-token"));
    let mut request = put("/doc/1", "");
    request.headers_mut().insert("x-fence-token", HeaderValue::from_static("5"));
    assert_eq!(refused(&app, request).await, (428, "missing-token"));
}

#[tokio::test]
async fn a_long_value_or_many_of_them_are_malformed() {
    let app = app();
    let long = vec![b'9'; 64 * 1024];
    assert_eq!(refused(&app, with(&[&long])).await, (400, "malformed-token"));
    let many = vec![b"5".as_slice(); 10_000];
    assert_eq!(refused(&app, with(&many)).await, (400, "malformed-token"));
}
