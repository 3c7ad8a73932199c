//! Whatever is thrown at the endpoint is answered, by its own kinds of answers.

use axum::body::Body;
use http::{Method, Request};
use proptest::prelude::*;

use crate::site::{Site, send};

/// What tends to break parsers, among what is nearly right.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![
        "[0-9]{1,20}",
        "-?[0-9]{1,3}\\.[0-9]{1,3}([eE][+-]?[0-9]{1,3})?",
        "\"[ -~é]{0,40}\"".prop_map(|text| text.replace('\\', "\\\\")),
        "\"[0-9a-z]{16,20}\"",
        Just("\"\\u0000\\ud800\"".to_owned()),
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("[[{}]]".to_owned()),
        Just("30".to_owned()),
    ];
    let key = prop_oneof![
        Just("owner"),
        Just("ttl_seconds"),
        Just("ttl_ms"),
        Just("max_hold_ms"),
        Just("owner_token"),
        Just("other"),
    ];
    let object = proptest::collection::vec((key, value), 0..7).prop_map(|fields| {
        let fields: Vec<_> = fields.iter().map(|(k, v)| format!("\"{k}\":{v}")).collect();
        format!("{{{}}}", fields.join(",")).into_bytes()
    });
    prop_oneof![
        3 => object,
        1 => proptest::collection::vec(any::<u8>(), 0..200),
        1 => "[\\[\\]{}\":,0-9a-z ]{0,60}".prop_map(String::into_bytes),
    ]
}

fn path() -> impl Strategy<Value = String> {
    let segment = prop_oneof![
        3 => Just("job".to_owned()),
        2 => "(%[0-9a-fA-F]{2}|[!$'()*+,;=:@a-z0-9.~_-]|%[g-z%]){0,30}",
        1 => Just("%00".to_owned()),
        1 => Just("x".repeat(300)),
        1 => Just("..".to_owned()),
    ];
    let tail = prop_oneof![
        3 => Just(""),
        2 => Just("/renew"),
        2 => Just("/token"),
        1 => Just("/"),
        1 => Just("/other"),
        1 => Just("/renew/renew"),
        1 => Just("?a=%zz&b"),
    ];
    (segment, tail).prop_map(|(segment, tail)| format!("/locks/{segment}{tail}"))
}

fn method() -> impl Strategy<Value = Method> {
    prop_oneof![
        5 => Just(Method::POST),
        2 => Just(Method::GET),
        3 => Just(Method::DELETE),
        1 => Just(Method::PUT),
        1 => Just(Method::HEAD),
        1 => Just(Method::OPTIONS),
        1 => Just(Method::from_bytes(b"BREW").unwrap()),
    ]
}

type Headers = Vec<(&'static str, Vec<u8>)>;

fn headers() -> impl Strategy<Value = Headers> {
    let content_type = prop_oneof![
        6 => Just(b"application/json".to_vec()),
        1 => Just(b"application/json; charset=\xff".to_vec()),
        1 => Just(b"text/plain".to_vec()),
    ]
    .prop_map(|value| ("content-type", value));
    let noise = proptest::collection::vec(any::<u8>(), 0..150);
    let secret = prop_oneof![Just(b"0123456789abcdef".to_vec()), noise.clone(),]
        .prop_map(|value| ("x-lock-owner-token", value));
    let id = noise.clone().prop_map(|value| ("x-request-id", value));
    let length = prop_oneof![Just(b"99999999999999999999".to_vec()), Just(b"-1".to_vec())]
        .prop_map(|value| ("content-length", value));
    let any = prop_oneof![6 => content_type, 2 => secret, 2 => id, 1 => length];
    proptest::collection::vec(any, 0..4)
}

fn thrown() -> impl Strategy<Value = (Method, String, Headers, Vec<u8>)> {
    (method(), path(), headers(), body())
}

fn throw_everything(site: impl AsyncFn() -> Site, cases: u32) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let site = runtime.block_on(site());
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let outcome = runner.run(&thrown(), |(method, path, headers, body)| {
        let mut request = Request::builder().method(&method).uri(&path);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        // What no HTTP library would let through is not sent.
        let Ok(request) = request.body(Body::from(body)) else { return Ok(()) };
        let answer = runtime.block_on(send(&site.app, request));
        let status = answer.status.as_u16();
        let ours = [200, 204, 400, 403, 404, 405, 409, 413, 415, 422];
        prop_assert!(ours.contains(&status), "{method} {path}: {answer:?}");
        let routers_own = answer.text.is_empty() && (status == 404 || status == 405);
        if status >= 400 && !routers_own && method != Method::HEAD {
            answer
                .problem(status, answer.json["type"].as_str().unwrap().rsplit(':').next().unwrap());
        }
        if status != 404 {
            prop_assert!(answer.headers.contains_key("x-request-id"), "{answer:?}");
            prop_assert_eq!(answer.header("cache-control"), "no-store");
        }
        Ok(())
    });
    outcome.unwrap();
}

mod memory {
    #[test]
    fn whatever_is_thrown_at_it_is_answered() {
        super::throw_everything(crate::site::Site::memory, 3000);
    }
}

mod sqlite {
    #[test]
    fn whatever_is_thrown_at_it_is_answered() {
        super::throw_everything(crate::site::Site::sqlite, 300);
    }
}

mod postgres {
    #[test]
    fn whatever_is_thrown_at_it_is_answered() {
        super::throw_everything(crate::site::Site::server::<sqlx::Postgres>, 300);
    }
}

mod mysql {
    #[test]
    fn whatever_is_thrown_at_it_is_answered() {
        super::throw_everything(crate::site::Site::server::<sqlx::MySql>, 300);
    }
}
