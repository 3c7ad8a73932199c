//! The contract of `poll_ready`.

use std::time::Duration;

use bytes::Bytes;
use fencing::marks::{Marks, MemoryMarks};
use http::{Request, Response};
use http_body_util::Full;
use tower::limit::ConcurrencyLimit;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

use crate::support::{Body, Plain, Slow, fence, put};

/// Sends a hundred requests of which every other is refused, one after another through one
/// instance, then one more that must find a free place.
async fn hundred_requests<S>(mut service: S)
where
    S: Service<Request<Body>, Response = Response<Full<Bytes>>>,
    S::Error: std::fmt::Debug,
{
    for n in 1..=100_u32 {
        let token = if n % 2 == 0 { 1 } else { n + 1 };
        let request = put("/doc/1", &token.to_string());
        let response = service.ready().await.unwrap().call(request).await.unwrap();
        assert_eq!(response.status(), if n % 2 == 0 { 412 } else { 200 }, "request {n}");
    }
    let last = async { service.ready().await.unwrap().call(put("/doc/1", "1000")).await.unwrap() };
    let response =
        tokio::time::timeout(Duration::from_secs(10), last).await.expect("a leaked place");
    assert_eq!(response.status(), 200);
}

/// Case 10: the instance that said it was ready is the one that is called, and a refusal gives its
/// place back.
#[tokio::test]
async fn the_ready_instance_is_called_and_places_are_given_back() {
    fn limited(
        marks: impl Marks,
    ) -> impl Service<Request<Body>, Response = Response<Full<Bytes>>, Error = std::convert::Infallible>
    {
        ServiceBuilder::new().layer(fence(marks)).concurrency_limit(1).service(Plain::default())
    }
    hundred_requests(limited(MemoryMarks::ephemeral())).await;
    hundred_requests(limited(Slow(MemoryMarks::ephemeral()))).await;
}

/// Case 10, with a buffer between.
#[tokio::test]
async fn a_buffer_behind_the_fence_works() {
    let buffered = |marks: Box<dyn Marks>| {
        ServiceBuilder::new()
            .layer(fence(marks))
            .buffer(4)
            .concurrency_limit(1)
            .service(Plain::default())
    };
    hundred_requests(buffered(Box::new(MemoryMarks::ephemeral()))).await;
    hundred_requests(buffered(Box::new(Slow(MemoryMarks::ephemeral())))).await;
}

/// Case 10: a connection that is kept open and idle after a refusal must not keep the place it had
/// reserved: with one place, everybody else would wait for ever.
#[tokio::test]
async fn an_instance_that_refused_does_not_hold_a_place_while_it_is_idle() {
    for slow in [false, true] {
        let marks: Box<dyn Marks> = if slow {
            Box::new(Slow(MemoryMarks::ephemeral()))
        } else {
            Box::new(MemoryMarks::ephemeral())
        };
        let inner = ConcurrencyLimit::new(Plain::default(), 1);
        let mut one = fence(marks).layer(inner);
        let mut two = one.clone();
        let call = one.ready().await.unwrap().call(put("/doc/1", "5"));
        assert_eq!(call.await.unwrap().status(), 200);
        let call = one.ready().await.unwrap().call(put("/doc/1", "4"));
        assert_eq!(call.await.unwrap().status(), 412);
        let call = one.ready().await.unwrap().call(put("/doc/1", "x"));
        assert_eq!(call.await.unwrap().status(), 400);
        // `one` stays alive, idle.
        let ready = tokio::time::timeout(Duration::from_secs(10), two.ready()).await;
        let call = ready.expect("the place is not free").unwrap().call(put("/doc/1", "6"));
        assert_eq!(call.await.unwrap().status(), 200);
        drop(one);
    }
}

#[tokio::test]
async fn back_pressure_passes_through() {
    let (inner, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Full<Bytes>>>();
    let mut service = tower_test::mock::Spawn::new(fence(MemoryMarks::ephemeral()).layer(inner));
    handle.allow(0);
    assert!(service.poll_ready().is_pending());
    handle.allow(1);
    assert!(service.poll_ready().is_ready());
    let call = tokio::spawn(service.call(put("/doc/1", "5")));
    let (request, reply) = handle.next_request().await.unwrap();
    assert!(request.extensions().get::<fencing::Claim>().is_some());
    reply.send_response(Response::new(Full::default()));
    assert_eq!(call.await.unwrap().unwrap().status(), 200);
    // An error of `poll_ready` is the inner service's own.
    handle.send_error("closed");
    let mut service = service.into_inner();
    assert_eq!(service.ready().await.unwrap_err().to_string(), "closed");
}
