//! Files in memory behind a plain hyper server, fenced at level exclusive: no framework needed.
//!
//! ```sh
//! cargo run --features full --example plain_hyper -- 127.0.0.1:8080
//! curl -i -X PUT http://127.0.0.1:8080/files/report -H 'X-Fencing-Token: 1' -d 'hello'
//! curl http://127.0.0.1:8080/files/report
//! ```
//!
//! With `--check` it serves on a free port, plays a holder, its successor and a zombie against
//! itself, and says how that went by its exit code.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use fencing::client::{AttachClaim, Lease, ReleaseOutcome};
use fencing::guard::{FenceLayer, Gate};
use fencing::marks::MemoryMarks;
use fencing::testing::LockServer;
use fencing::{Problem, ProblemKind, Resource};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tower::{ServiceBuilder, ServiceExt, service_fn};

type Failure = Box<dyn Error + Send + Sync>;

/// What is protected. It ends with the process, and so may the marks.
type Files = Arc<Mutex<BTreeMap<Resource, Bytes>>>;

const LARGEST_FILE: usize = 1 << 20;

/// `/files/{name}` is the resource `file:{name}`.
fn file(parts: &Parts) -> Result<Resource, Problem> {
    let name = parts.uri.path().strip_prefix("/files/").filter(|name| !name.contains('/'));
    let name = name.ok_or_else(|| {
        Problem::new(ProblemKind::INVALID_RESOURCE).with_detail("the path is /files/{name}")
    })?;
    let name = Resource::from_path_segment(name)?;
    Ok(Resource::new(format!("file:{name}"))?)
}

/// What the fence lets through.
async fn serve_file(
    files: Files,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let file = match file(&parts) {
        Ok(file) => file,
        Err(problem) => return Ok(problem.into_http()),
    };
    let mut response = Response::new(Full::default());
    *response.status_mut() = match parts.method {
        Method::PUT => match Limited::new(body, LARGEST_FILE).collect().await {
            Ok(whole) => {
                let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
                files.insert(file, whole.to_bytes());
                StatusCode::NO_CONTENT
            }
            Err(_) => StatusCode::BAD_REQUEST,
        },
        Method::GET => {
            let found = files.lock().unwrap_or_else(PoisonError::into_inner).get(&file).cloned();
            let status = if found.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND };
            *response.body_mut() = Full::new(found.unwrap_or_default());
            status
        }
        _ => StatusCode::METHOD_NOT_ALLOWED,
    };
    Ok(response)
}

async fn serve(listener: TcpListener) -> io::Result<()> {
    let files = Files::default();
    // The only process that has the files is this one, so a gate is enough: a newer token waits
    // until the requests of older ones have left.
    let fence =
        FenceLayer::new(MemoryMarks::ephemeral()).resource_with(file).exclusive(Gate::new());
    let service = ServiceBuilder::new()
        .layer(fence)
        .service(service_fn(move |request| serve_file(Arc::clone(&files), request)));
    loop {
        let (stream, _) = listener.accept().await?;
        let service = TowerToHyperService::new(service.clone());
        tokio::spawn(async move {
            let server = auto::Builder::new(TokioExecutor::new());
            // A connection that breaks is its client's affair.
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let result = match std::env::args().nth(1).as_deref() {
        Some("--check") => check().await,
        Some(address) => listen(address).await,
        None => listen("127.0.0.1:8080").await,
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("plain_hyper: {error}");
            ExitCode::FAILURE
        }
    }
}

#[allow(clippy::print_stdout, reason = "the ready line is for whoever started it")]
async fn listen(address: &str) -> Result<(), Failure> {
    let listener =
        TcpListener::bind(address).await.map_err(|e| format!("{e}, address=`{address}`"))?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(serve(listener).await?)
}

/// Two workers that take turns, one of them paused past the end of its lease.
async fn check() -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(serve(listener));
    let locks = LockServer::start().await?;
    let ttl = Duration::from_secs(10);

    let zombie = locks.client().acquire("file:report").ttl(ttl).await?.ok_or("not free")?;
    expect("the holder writes", put(address, &zombie, "first").await?, 204)?;

    locks.clock().suspend(ttl); // the holder is paused, and its lease ends
    let holder = locks.client().acquire("file:report").ttl(ttl).await?.ok_or("not free")?;
    expect("its successor writes", put(address, &holder, "second").await?, 204)?;
    expect("the zombie writes", put(address, &zombie, "third").await?, 412)?;
    expect("its successor writes again", put(address, &holder, "fourth").await?, 204)?;

    let http: Client<HttpConnector, Full<Bytes>> =
        Client::builder(TokioExecutor::new()).build_http();
    let stranger = Request::put(uri(address)).body(Full::from("fifth"))?;
    expect("a stranger writes", http.request(stranger).await?.status(), 428)?;
    let read = http.get(uri(address).parse()?).await?.into_body().collect().await?.to_bytes();
    if read != "fourth" {
        return Err(format!("the file is not what the last holder wrote, file=`{read:?}`").into());
    }
    if holder.release().await? != ReleaseOutcome::Released {
        return Err("the lock was not held to the end".into());
    }
    server.abort();
    Ok(())
}

fn uri(address: SocketAddr) -> String {
    format!("http://{address}/files/report")
}

/// A write under a lease, through a client that puts the claim on whatever it sends.
async fn put(
    address: SocketAddr,
    lease: &Lease,
    text: &'static str,
) -> Result<StatusCode, Failure> {
    let http = Client::builder(TokioExecutor::new()).build_http();
    let http = ServiceBuilder::new().layer(AttachClaim::new(lease.claim().clone())).service(http);
    let request = Request::put(uri(address)).body(Full::<Bytes>::from(text))?;
    let status = http.oneshot(request).await?.status();
    if status == StatusCode::PRECONDITION_FAILED {
        // Final: everybody who works under this lease is told, and nothing is sent again.
        lease.report_stale();
    }
    Ok(status)
}

#[allow(clippy::print_stdout, reason = "what went on is for people to read")]
fn expect(what: &str, status: StatusCode, expected: u16) -> Result<(), Failure> {
    println!("{what}: {status}");
    if status == expected { Ok(()) } else { Err(format!("{what}: not {expected}").into()) }
}
