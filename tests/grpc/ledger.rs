//! A service and its client, written by hand as `tonic-build` would write them: messages are text.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::{Buf, BufMut};
use fencing::guard::{FenceLayer, Grpc};
use fencing::marks::Marks;
use fencing::{Claim, ClaimState, Problem, ProblemKind, Resource, Token};
use http::request::Parts;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::{AsciiMetadataValue, MetadataMap};
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};
use tower::{Layer, Service, service_fn};

/// Messages that are text.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Text;

impl Codec for Text {
    type Encode = String;
    type Decode = String;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Text {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, item: String, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put_slice(item.as_bytes());
        Ok(())
    }
}

impl Decoder for Text {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let bytes = from.copy_to_bytes(from.remaining());
        String::from_utf8(bytes.to_vec()).map(Some).map_err(|e| Status::internal(e.to_string()))
    }
}

/// Counts the calls that reach it, and answers with the claim it was given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    calls: Arc<AtomicUsize>,
}

impl NamedService for Ledger {
    const NAME: &'static str = "test.Ledger";
}

type Reply<T> = Result<Response<T>, Status>;

impl Ledger {
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    async fn write(request: Request<String>) -> Reply<String> {
        Ok(Response::new(claimed(&request)?))
    }

    /// Commits under its claim, let us say.
    async fn commit(request: Request<String>) -> Reply<String> {
        request.extensions().get::<Claim>().unwrap().note(ClaimState::Committed);
        Self::write(request).await
    }

    /// Finds in its transaction, let us say, that the claim is stale.
    async fn late(request: Request<String>) -> Reply<String> {
        let claim = request.extensions().get::<Claim>().cloned().unwrap();
        claim.note(ClaimState::Stale);
        let problem = Problem::stale(&claim, Token::new(99).unwrap());
        Err(Status::from_header_map(&problem.to_grpc_trailers()).unwrap())
    }

    async fn upload(request: Request<Streaming<String>>) -> Reply<String> {
        let claim = claimed(&request)?;
        let mut messages = request.into_inner();
        let mut count = 0;
        while messages.message().await?.is_some() {
            count += 1;
        }
        Ok(Response::new(format!("{claim} wrote {count}")))
    }

    async fn watch(
        request: Request<String>,
    ) -> Reply<tokio_stream::Iter<std::vec::IntoIter<Result<String, Status>>>> {
        let claim = claimed(&request)?;
        let messages: Vec<_> = (0..3).map(|n| Ok(format!("{claim} saw {n}"))).collect();
        Ok(Response::new(tokio_stream::iter(messages)))
    }

    async fn chat(
        request: Request<Streaming<String>>,
    ) -> Reply<Pin<Box<dyn tokio_stream::Stream<Item = Result<String, Status>> + Send>>> {
        let claim = claimed(&request)?;
        let echo = request.into_inner().map(move |message| Ok(format!("{claim}: {}", message?)));
        Ok(Response::new(Box::pin(echo)))
    }
}

/// The claim, as a handler of tonic finds it.
fn claimed<T>(request: &Request<T>) -> Result<String, Status> {
    let claim = request.extensions().get::<Claim>();
    let claim = claim.ok_or_else(|| Status::internal("no fence"))?;
    Ok(format!("{}={}", claim.resource(), claim.token()))
}

impl Service<http::Request<Body>> for Ledger {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        self.calls.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(Text);
            Ok(match request.uri().path() {
                "/test.Ledger/Write" => grpc.unary(service_fn(Self::write), request).await,
                "/test.Ledger/Commit" => grpc.unary(service_fn(Self::commit), request).await,
                "/test.Ledger/Late" => grpc.unary(service_fn(Self::late), request).await,
                "/test.Ledger/Upload" => {
                    grpc.client_streaming(service_fn(Self::upload), request).await
                }
                "/test.Ledger/Watch" => {
                    grpc.server_streaming(service_fn(Self::watch), request).await
                }
                "/test.Ledger/Chat" => grpc.streaming(service_fn(Self::chat), request).await,
                path => Status::unimplemented(path).into_http(),
            })
        })
    }
}

/// The resource a call is about: its path names a method only, so it is in the metadata, which
/// takes visible ASCII. Hence percent-encoding, as in a path.
pub(crate) fn from_metadata(parts: &Parts) -> Result<Resource, Problem> {
    let name = parts.headers.get("resource").ok_or_else(|| {
        Problem::new(ProblemKind::INVALID_RESOURCE).with_detail("name it in the metadata")
    })?;
    let name = name.to_str().map_err(|_| Problem::new(ProblemKind::INVALID_RESOURCE))?;
    Ok(Resource::from_path_segment(name)?)
}

pub(crate) fn fence(marks: impl Marks) -> FenceLayer<fencing::guard::Resolver, Grpc> {
    FenceLayer::new(marks).grpc().resource_with(from_metadata)
}

/// A server on a port of its own, stopped when the test ends.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Site {
    /// The layer around the whole server.
    pub(crate) async fn start<L, S>(layer: L, ledger: Ledger) -> Self
    where
        L: Layer<Routes, Service = S> + Clone + Send + 'static,
        S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
    {
        Self::serve(|listener| {
            let server = Server::builder().layer(layer).add_service(ledger);
            server.serve_with_incoming(TcpIncoming::from(listener))
        })
        .await
    }

    pub(crate) async fn serve<F, E>(server: impl FnOnce(TcpListener) -> F) -> Self
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: std::fmt::Debug,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = server(listener);
        let task = tokio::spawn(async move { server.await.unwrap() });
        Self { address, task }
    }

    pub(crate) async fn connect(&self) -> Client {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        Client(tonic::client::Grpc::new(endpoint.connect().await.unwrap()))
    }
}

/// The client of a [`Ledger`].
#[derive(Clone, Debug)]
pub(crate) struct Client(tonic::client::Grpc<Channel>);

impl Client {
    pub(crate) async fn write(&mut self, resource: &str, token: &str) -> Reply<String> {
        self.unary("Write", request(resource, token)).await
    }

    pub(crate) async fn unary(&mut self, method: &str, request: Request<String>) -> Reply<String> {
        self.0.ready().await.unwrap();
        self.0.unary(request, path(method), Text).await
    }

    pub(crate) async fn upload(
        &mut self,
        request: Request<ReceiverStream<String>>,
    ) -> Reply<String> {
        self.0.ready().await.unwrap();
        self.0.client_streaming(request, path("Upload"), Text).await
    }

    pub(crate) async fn watch(&mut self, request: Request<String>) -> Reply<Streaming<String>> {
        self.0.ready().await.unwrap();
        self.0.server_streaming(request, path("Watch"), Text).await
    }

    pub(crate) async fn chat(
        &mut self,
        request: Request<ReceiverStream<String>>,
    ) -> Reply<Streaming<String>> {
        self.0.ready().await.unwrap();
        self.0.streaming(request, path("Chat"), Text).await
    }
}

fn path(method: &str) -> http::uri::PathAndQuery {
    format!("/test.Ledger/{method}").parse().unwrap()
}

/// A call with a token, or without when `token` is empty; the same for the resource.
pub(crate) fn request(resource: &str, token: &str) -> Request<String> {
    with_claim("message".to_owned(), resource, token)
}

pub(crate) fn with_claim<T>(message: T, resource: &str, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    let mut put = |name: &'static str, value: &str| {
        if !value.is_empty() {
            request.metadata_mut().append(name, value.parse::<AsciiMetadataValue>().unwrap());
        }
    };
    put("resource", resource);
    put("x-fencing-token", token);
    request
}

pub(crate) fn text<'a>(metadata: &'a MetadataMap, name: &str) -> Option<&'a str> {
    metadata.get(name).map(|value| value.to_str().unwrap())
}

/// A refusal as a client sees it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) code: tonic::Code,
    pub(crate) name: String,
    pub(crate) last_token: Option<String>,
    pub(crate) pushback: String,
}

/// What must be a refusal of the fence.
pub(crate) fn refused<T: std::fmt::Debug>(reply: Reply<T>) -> Refused {
    let status = reply.unwrap_err();
    let metadata = status.metadata();
    let name = text(metadata, "fencing-problem").unwrap_or_else(|| panic!("{status:?}")).to_owned();
    assert!(status.message().starts_with(&name), "{status:?}");
    // That of a call that was cancelled had been accepted.
    if name != "outcome-unknown" {
        assert_eq!(text(metadata, "x-fencing-token"), None, "a refusal carries no token back");
    }
    Refused {
        code: status.code(),
        name,
        last_token: text(metadata, "fencing-last-token").map(str::to_owned),
        pushback: text(metadata, "grpc-retry-pushback-ms").unwrap().to_owned(),
    }
}
