//! Places and templates in an axum router.

use axum::Router;
use axum::routing;
use fencing::guard::FenceLayer;
use fencing::marks::{Marks, MemoryMarks};
use fencing::{Claim, Problem, ProblemKind, Resource};
use http::{Method, Request};
use std::sync::Arc;
use tower_http::cors::CorsLayer;

use crate::support::{Body, TOKEN, get, put, refusal, refused, request, send, status, text};

async fn handler(claim: Option<Claim>) -> String {
    claim.map_or(String::new(), |claim| claim.resource().to_string())
}

fn fence(template: &str) -> FenceLayer {
    FenceLayer::new(MemoryMarks::ephemeral()).resource(template)
}

fn inventory() -> Router {
    Router::new()
        .route("/inventory/{id}", routing::put(handler).get(handler))
        .route_layer(fence("inventory:item:{id}"))
}

#[tokio::test]
async fn a_lower_token_is_refused_and_an_accepted_one_is_echoed() {
    let app = inventory();
    let response = send(&app, put("/inventory/1", "34")).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()[TOKEN]),
        (200, &"34".parse().unwrap())
    );
    assert_eq!(text(response).await, "inventory:item:1");
    let refusal = refusal(&app, put("/inventory/1", "33")).await;
    assert_eq!((refusal.status, refusal.name), (412, "stale-token"));
    assert_eq!(
        refusal.document,
        serde_json::json!({
            "type": "urn:fencing:problem:stale-token",
            "title": "The resource has accepted a higher fencing token",
            "status": 412, "resource": "inventory:item:1", "token": 33, "last_token": 34,
        })
    );
    assert_eq!(status(&app, put("/inventory/2", "33")).await, 200);
}

/// 404 comes first: the fence is behind the routing.
#[tokio::test]
async fn an_unknown_path_is_not_fenced() {
    assert_eq!(status(&inventory(), put("/nowhere", "")).await, 404);
    assert_eq!(status(&inventory(), put("/nowhere", "9")).await, 404);
}

/// `Router::route_layer` wraps the 405 of a known path too, the one of a method router does not.
/// This pins what the docs say of axum.
#[tokio::test]
async fn an_unknown_method_is_fenced_only_where_the_whole_route_is() {
    let delete = |token| request(Method::DELETE, "/inventory/1", token);
    let whole = inventory();
    assert_eq!(refused(&whole, delete("")).await, (428, "missing-token"));
    assert_eq!(status(&whole, delete("9")).await, 405);
    let methods = routing::put(handler).route_layer(fence("inventory:item:{id}"));
    let methods = Router::new().route("/inventory/{id}", methods);
    assert_eq!(status(&methods, delete("")).await, 405);
    assert_eq!(status(&methods, delete("9")).await, 405);
    assert_eq!(status(&methods, put("/inventory/1", "1")).await, 200, "no 405 raised the mark");
    assert_eq!(refused(&methods, put("/inventory/1", "")).await, (428, "missing-token"));
}

/// What the docs say of `layer`: it wraps the fallback too, where there are no parameters.
#[tokio::test]
async fn under_layer_instead_of_route_layer_the_fallback_is_fenced_too() {
    let app = Router::new()
        .route("/inventory/{id}", routing::put(handler))
        .layer(fence("inventory:item:{id}"));
    assert_eq!(status(&app, put("/inventory/1", "34")).await, 200);
    assert_eq!(refused(&app, put("/inventory/1", "33")).await, (412, "stale-token"));
    assert_eq!(refused(&app, put("/nowhere", "34")).await, (500, "misconfigured"));
    assert_eq!(refused(&app, put("/nowhere", "")).await, (428, "missing-token"));
}

/// Around the whole router no route was chosen yet.
#[tokio::test]
async fn i6_around_a_router_it_fails_closed() {
    use tower::Layer;
    let app = fence("inventory:item:{id}")
        .layer(Router::new().route("/inventory/{id}", routing::put(handler)));
    assert_eq!(refused(&app, put("/inventory/1", "34")).await, (500, "misconfigured"));
}

/// Case 8: all spellings of the same bytes are one resource.
#[tokio::test]
async fn spellings_of_one_name_share_a_mark() {
    let app = Router::new().route("/docs/{id}", routing::put(handler)).route_layer(fence("{id}"));
    assert_eq!(text(send(&app, put("/docs/a%2Fb", "9")).await).await, "a/b");
    for uri in ["/docs/a%2Fb", "/docs/a%2fb", "/docs/%61%2Fb", "/docs/%61%2f%62"] {
        let refusal = refusal(&app, put(uri, "3")).await;
        assert_eq!((refusal.status, &refusal.document["resource"]), (412, &"a/b".into()), "{uri}");
    }
    // NFC and NFD are different bytes; so is a plus sign from a space.
    assert_eq!(status(&app, put("/docs/%C3%A9", "9")).await, 200);
    assert_eq!(status(&app, put("/docs/e%CC%81", "3")).await, 200);
    assert_eq!(text(send(&app, put("/docs/a+b", "9")).await).await, "a+b");
    assert_eq!(text(send(&app, put("/docs/a%20b", "3")).await).await, "a b");
}

/// Case 8 and case 32: what is no name is refused before anything else happens.
#[tokio::test]
async fn what_is_no_name_is_an_invalid_resource() {
    let app = Router::new().route("/docs/{id}", routing::put(handler)).route_layer(fence("{id}"));
    let long = format!("/docs/{}", "x".repeat(256));
    for uri in [
        "/docs/%FF",
        "/docs/%00",
        "/docs/a%0Ab",
        "/docs/%C3",
        "/docs/a%zz",
        "/docs/a%2",
        "/docs/%",
        &long,
    ] {
        assert_eq!(refused(&app, put(uri, "3")).await, (400, "invalid-resource"), "{uri}");
    }
    // 255 bytes are a name. Two that differ at the end only are two.
    let longest = "x".repeat(254);
    assert_eq!(status(&app, put(&format!("/docs/{longest}a"), "9")).await, 200);
    assert_eq!(status(&app, put(&format!("/docs/{longest}b"), "3")).await, 200);
}

#[tokio::test]
async fn nested_routers_see_the_parameters_of_the_prefix() {
    let inner = Router::new()
        .route("/item/{id}", routing::put(handler))
        .route_layer(fence("{tenant}:item:{id}"));
    let app = Router::new().nest("/t/{tenant}", inner);
    assert_eq!(text(send(&app, put("/t/acme/item/1%32", "34")).await).await, "acme:item:12");
    assert_eq!(status(&app, put("/t/other/item/12", "3")).await, 200, "tenants are apart");
    assert_eq!(refused(&app, put("/t/acme/item/12", "33")).await, (412, "stale-token"));
    // The prefix is checked too, which the nested router does not see any more.
    assert_eq!(refused(&app, put("/t/a%zz/item/1", "3")).await, (400, "invalid-resource"));
    assert_eq!(refused(&app, put("/t/%FF/item/1", "3")).await, (400, "invalid-resource"));
    // `a:item:b` and `c` would be the resource of `a` and `b:item:c`.
    assert_eq!(refused(&app, put("/t/a:item:b/item/c", "3")).await, (400, "invalid-resource"));
    assert_eq!(text(send(&app, put("/t/a/item/b:item:c", "3")).await).await, "a:item:b:item:c");
}

#[tokio::test]
async fn nested_services_and_merged_routers_work() {
    let marks: Arc<dyn Marks> = Arc::new(MemoryMarks::ephemeral());
    let part = |marks: &Arc<dyn Marks>| {
        Router::new()
            .route("/inventory/{id}", routing::put(handler))
            .route_layer(FenceLayer::new(Arc::clone(marks)).resource("inventory:item:{id}"))
    };
    let app = Router::new()
        .nest("/v1", part(&marks))
        .nest_service("/v2", part(&marks))
        .merge(part(&marks));
    assert_eq!(status(&app, put("/v1/inventory/12", "34")).await, 200);
    for uri in ["/v1/inventory/12", "/v2/inventory/12", "/inventory/1%32"] {
        assert_eq!(refused(&app, put(uri, "33")).await, (412, "stale-token"), "{uri}");
    }
}

/// A wildcard is decoded like any parameter: `%2F` and `/` in it are the same bytes.
#[tokio::test]
async fn a_wildcard_is_a_parameter_of_its_name() {
    let app =
        Router::new().route("/w/{*rest}", routing::put(handler)).route_layer(fence("w:{rest}"));
    assert_eq!(text(send(&app, put("/w/a/b%2fc", "34")).await).await, "w:a/b/c");
    assert_eq!(refused(&app, put("/w/a%2Fb/c", "33")).await, (412, "stale-token"));
}

/// i6: a template that does not fit its route lets nothing through, and is no panic.
#[tokio::test]
async fn i6_a_template_that_does_not_fit_is_misconfigured() {
    let at = |template: &str| {
        Router::new().route("/inventory/{id}", routing::put(handler)).route_layer(fence(template))
    };
    for template in ["item:{idd}", "item:{id", "item:}", "item:{}", "", "a\nb", "{id}{id}", "{*id}"]
    {
        let refusal = refusal(&at(template), put("/inventory/1", "34")).await;
        assert_eq!((refusal.status, refusal.name), (500, "misconfigured"), "{template}");
        assert!(refusal.document.get("detail").is_some());
    }
    // One name twice: `first` and `second` must not be mixed up, so neither wins.
    let inner = Router::new().route("/{id}", routing::put(handler)).route_layer(fence("item:{id}"));
    let app = Router::new().nest("/{id}", inner);
    assert_eq!(refused(&app, put("/first/second", "34")).await, (500, "misconfigured"));
    // A template without parameters is one resource for all.
    let app = at("report:nightly");
    assert_eq!(status(&app, put("/inventory/1", "34")).await, 200);
    assert_eq!(refused(&app, put("/inventory/2", "33")).await, (412, "stale-token"));
}

#[tokio::test]
async fn head_and_options_pass_without_a_token_and_are_checked_with_one() {
    let app = Router::new()
        .route("/doc/{id}", routing::get(handler).put(handler).options(handler))
        .route_layer(fence("doc:{id}"));
    for method in [Method::HEAD, Method::OPTIONS] {
        assert_eq!(status(&app, request(method.clone(), "/doc/1", "")).await, 200);
    }
    let response = send(&app, request(Method::HEAD, "/doc/1", "34")).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()[TOKEN]),
        (200, &"34".parse().unwrap())
    );
    assert_eq!(status(&app, request(Method::HEAD, "/doc/1", "33")).await, 412);
    assert_eq!(status(&app, request(Method::OPTIONS, "/doc/1", "33")).await, 412);
    assert_eq!(refused(&app, put("/doc/1", "33")).await, (412, "stale-token"));
}

fn preflight() -> Request<Body> {
    Request::options("/inventory/1")
        .header("origin", "https://shop.example")
        .header("access-control-request-method", "PUT")
        .header("access-control-request-headers", TOKEN)
        .body(Body::default())
        .unwrap()
}

fn cors() -> CorsLayer {
    CorsLayer::new()
        .allow_origin(["https://shop.example".parse().unwrap()])
        .allow_methods([Method::PUT])
        .allow_headers([http::HeaderName::from_static(TOKEN)])
}

/// Case 6: a preflight, to which no browser attaches the header, is answered by CORS. With CORS
/// outermost a refusal has its headers, so that the page can read it.
#[tokio::test]
async fn a_preflight_is_no_write() {
    let outside = inventory().layer(cors());
    let inside = Router::new()
        .route("/inventory/{id}", routing::put(handler).layer(cors()))
        .route_layer(fence("inventory:item:{id}"));
    for app in [outside.clone(), inside] {
        let response = send(&app, preflight()).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["access-control-allow-headers"], TOKEN);
    }
    let mut request = put("/inventory/1", "");
    request.headers_mut().insert("origin", "https://shop.example".parse().unwrap());
    let refusal = refusal(&outside, request).await;
    assert_eq!(refusal.name, "missing-token");
    assert_eq!(refusal.headers["access-control-allow-origin"], "https://shop.example");
}

/// M3: only one who may come in at all may raise a mark.
#[tokio::test]
async fn m3_authentication_outside_comes_first() {
    let app = inventory().layer(axum::middleware::from_fn(
        |request: axum::extract::Request, next: axum::middleware::Next| async move {
            if request.headers().contains_key("authorization") {
                return next.run(request).await;
            }
            axum::response::IntoResponse::into_response(http::StatusCode::UNAUTHORIZED)
        },
    ));
    assert_eq!(status(&app, put("/inventory/1", "9000")).await, 401);
    let mut known = put("/inventory/1", "5");
    known.headers_mut().insert("authorization", "Bearer x".parse().unwrap());
    assert_eq!(status(&app, known).await, 200, "the mark was not poisoned");
}

/// The layer goes wherever a layer of axum goes, as it is: `Infallible` stays `Infallible`.
#[tokio::test]
async fn the_layer_fits_every_place_of_axum() {
    let app: Router = Router::new()
        .route("/a/{id}", routing::put(handler).layer(fence("a:{id}")))
        .route("/b/{id}", routing::put(handler).route_layer(fence("b:{id}")))
        .route_service("/c/{id}", routing::put(handler))
        .route_layer(fence("any:{id}"))
        .layer(tower::ServiceBuilder::new().layer(CorsLayer::new()));
    for uri in ["/a/1", "/b/1", "/c/1"] {
        assert_eq!(status(&app, put(uri, "3")).await, 200);
    }
    let function = |parts: &http::request::Parts| -> Result<Resource, Problem> {
        Ok(Resource::from_path_segment(parts.uri.path().trim_start_matches('/'))?)
    };
    let layer = FenceLayer::new(MemoryMarks::ephemeral()).resource_with(function);
    let app: Router = Router::new().route("/{id}", routing::put(handler)).route_layer(layer);
    assert_eq!(text(send(&app, put("/x%41", "3")).await).await, "xA");
}

/// A read that does not pass the fence needs no parameters, so a template is not looked at.
#[tokio::test]
async fn a_read_without_a_token_does_not_ask_for_the_resource() {
    let app = Router::new().route("/docs/{id}", routing::get(handler)).route_layer(fence("{idd}"));
    assert_eq!(status(&app, get("/docs/1", "")).await, 200);
    assert_eq!(refused(&app, get("/docs/1", "3")).await, (500, "misconfigured"));
}

/// The trap the docs name: a handler that reads the parameter as a number writes one row for both
/// spellings, and the fence has a mark for each. A canonical name closes it.
#[tokio::test]
async fn two_spellings_of_one_row_are_two_resources_unless_the_name_is_canonical() {
    let app = inventory();
    assert_eq!(status(&app, put("/inventory/1", "34")).await, 200);
    assert_eq!(status(&app, put("/inventory/01", "33")).await, 200, "the zombie gets through");

    let canonical = |parts: &http::request::Parts| -> Result<Resource, Problem> {
        let (_, id) = parts.uri.path().rsplit_once('/').unwrap_or_default();
        let id: i64 = id.parse().map_err(|_| Problem::new(ProblemKind::INVALID_RESOURCE))?;
        Ok(Resource::new(format!("inventory:item:{id}"))?)
    };
    let layer = FenceLayer::new(MemoryMarks::ephemeral()).resource_with(canonical);
    let app = Router::new().route("/inventory/{id}", routing::put(handler)).route_layer(layer);
    assert_eq!(status(&app, put("/inventory/1", "34")).await, 200);
    for uri in ["/inventory/1", "/inventory/01", "/inventory/+1"] {
        assert_eq!(refused(&app, put(uri, "33")).await, (412, "stale-token"), "{uri}");
    }
    assert_eq!(refused(&app, put("/inventory/x", "34")).await, (400, "invalid-resource"));
}
