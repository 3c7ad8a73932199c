//! Keys: who is let in, and how far.

use axum::Router;
use axum::body::Body;
use fencing::lock::{AccessKey, KeyRing};
use http::{Method, Request};
use serde_json::json;

use crate::site::{Answer, Site, secret, send};

struct Guarded {
    app: Router,
    ring: KeyRing,
    site: Site,
}

impl Guarded {
    /// An endpoint with a key for each of the lines, which lack the digest only.
    async fn new(lines: &[(&str, &str)]) -> (Self, Vec<AccessKey>) {
        let keys: Vec<_> = lines.iter().map(|_| AccessKey::random().unwrap()).collect();
        let text: String = keys
            .iter()
            .zip(lines)
            .map(|(key, (name, rest))| format!("{name} {} {rest}\n", key.digest()))
            .collect();
        let ring = KeyRing::new(text.parse().unwrap());
        let site = Site::memory().await;
        let app = site.with(|endpoint| endpoint.with_keys(ring.clone()));
        (Self { app, ring, site }, keys)
    }

    async fn ask(&self, method: Method, path: &str, key: Option<&AccessKey>) -> Answer {
        let mut request = Request::builder()
            .method(&method)
            .uri(path)
            .header("content-type", "application/json")
            .header("x-lock-owner-token", secret("a"));
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {}", key.reveal()));
        }
        let body = json!({ "owner": "a", "ttl_ms": 1000, "owner_token": secret("a") }).to_string();
        let body = if method == Method::POST { Body::from(body) } else { Body::empty() };
        send(&self.app, request.body(body).unwrap()).await
    }
}

/// Everything the endpoint serves: method, what follows the name, whether `lock` is enough.
const ROUTES: [(Method, &str, bool); 5] = [
    (Method::POST, "", true),
    (Method::GET, "", false),
    (Method::POST, "/renew", true),
    (Method::GET, "/token", false),
    (Method::DELETE, "", true),
];

#[tokio::test]
async fn every_route_asks_for_a_key_first() {
    let (guarded, _) = Guarded::new(&[("someone", "admin *")]).await;
    let stranger = AccessKey::random().unwrap();
    for (method, tail, _) in ROUTES {
        // A name that is none, too: who asks is found out first.
        for name in ["job", "a%zz", "%00"] {
            for key in [None, Some(&stranger)] {
                let answer =
                    guarded.ask(method.clone(), &format!("/locks/{name}{tail}"), key).await;
                answer.problem(401, "unauthenticated");
                assert_eq!(answer.header("www-authenticate"), "Bearer realm=\"fencing\"");
                assert!(!answer.text.contains(stranger.reveal()));
                answer.header("x-request-id");
            }
        }
    }
    let nobody_took_it = guarded.site.show("job").await;
    nobody_took_it.problem(404, "not-held");
}

#[tokio::test]
async fn a_key_goes_as_far_as_its_role_and_its_prefix() {
    let lines = [("worker", "lock job:"), ("viewer", "read job:"), ("root", "admin job:")];
    let (guarded, keys) = Guarded::new(&lines).await;
    let [worker, viewer, root] = &*keys else { panic!() };
    for (method, tail, by_lock) in ROUTES {
        let ask = |name: &str, key| {
            let (guarded, method) = (&guarded, method.clone());
            let path = format!("/locks/{name}{tail}");
            async move { guarded.ask(method, &path, Some(key)).await }
        };
        for key in &keys {
            let answer = ask("jobless", key).await;
            answer.problem(403, "forbidden");
            assert_eq!(answer.json["resource"], "jobless", "{answer:?}");
            // The encoded spelling is the same name, and no way around.
            ask("%6Aobless", key).await.problem(403, "forbidden");
        }
        let (may, may_not) = if by_lock { (worker, viewer) } else { (viewer, worker) };
        ask("job:1", may_not).await.problem(403, "forbidden");
        assert!(ask("job:1", may).await.status.is_success(), "{method} {tail}");
        if !by_lock {
            assert!(ask("%6Aob:1", root).await.status.is_success(), "{method} {tail}");
        }
    }
}

#[tokio::test]
async fn keys_are_exchanged_while_it_runs() {
    let (guarded, keys) = Guarded::new(&[("worker", "lock *")]).await;
    let new = AccessKey::random().unwrap();
    let take = |key| guarded.ask(Method::POST, "/locks/job", Some(key));
    take(&keys[0]).await.granted();
    take(&new).await.problem(401, "unauthenticated");
    guarded.ring.replace(format!("worker {} lock *", new.digest()).parse().unwrap());
    take(&keys[0]).await.problem(401, "unauthenticated");
    take(&new).await.granted();
}

/// Without keys the endpoint does not look at the header: a proxy in front may have its own.
#[tokio::test]
async fn an_endpoint_without_keys_asks_for_none() {
    let site = Site::memory().await;
    let request = Request::get("/locks/job").header("authorization", "Basic eDp5");
    send(&site.app, request.body(Body::empty()).unwrap()).await.problem(404, "not-held");
}

/// A body that comes by drops does not hold a connection for ever.
#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_is_given_up() {
    let site = Site::memory().await;
    let endless = futures_util::stream::pending::<Result<bytes::Bytes, std::io::Error>>();
    let request = Request::post("/locks/job")
        .header("content-type", "application/json")
        .body(Body::from_stream(endless));
    send(&site.app, request.unwrap()).await.problem(400, "malformed-body");
}
