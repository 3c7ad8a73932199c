//! A service whose writes are fenced. It does not know whose tokens they are.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::put;
use bytes::Bytes;
use fencing::client::attach;
use fencing::guard::{FenceLayer, Gate};
use fencing::marks::MemoryMarks;
use fencing::{Claim, Resource, Token};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;

use crate::Error;

type Texts = Arc<Mutex<BTreeMap<String, String>>>;

async fn set(State(texts): State<Texts>, claim: Claim, text: String) -> StatusCode {
    let name = claim.resource().to_string();
    texts.lock().unwrap_or_else(PoisonError::into_inner).insert(name, text);
    StatusCode::NO_CONTENT
}

async fn show(State(texts): State<Texts>, Path(name): Path<String>) -> Result<String, StatusCode> {
    let texts = texts.lock().unwrap_or_else(PoisonError::into_inner);
    texts.get(&format!("report:{name}")).cloned().ok_or(StatusCode::NOT_FOUND)
}

pub(crate) struct Reports {
    address: SocketAddr,
    http: Client<HttpConnector, Full<Bytes>>,
}

impl Reports {
    /// Serves on a free port until the process ends.
    pub(crate) async fn serve() -> Result<Self, Error> {
        let fence = FenceLayer::new(MemoryMarks::ephemeral())
            .resource("report:{name}")
            .exclusive(Gate::new());
        let app = Router::new()
            .route("/reports/{name}", put(set).get(show))
            .route_layer(fence)
            .with_state(Texts::default());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move { axum::serve(listener, app).await });
        Ok(Self { address, http: Client::builder(TokioExecutor::new()).build_http() })
    }

    fn url(&self, name: &str) -> String {
        format!("http://{}/reports/{name}", self.address)
    }

    /// A write, under whatever token the lock gave.
    pub(crate) async fn write(
        &self,
        name: &str,
        token: Token,
        text: &'static str,
    ) -> Result<StatusCode, Error> {
        let claim = Claim::new(Resource::new(format!("report:{name}"))?, token);
        let mut request = Request::put(self.url(name)).body(Full::from(text))?;
        attach(&mut request, &claim);
        Ok(self.http.request(request).await?.status())
    }

    pub(crate) async fn read(&self, name: &str) -> Result<String, Error> {
        let answer = self.http.get(self.url(name).parse()?).await?;
        let text = answer.into_body().collect().await?.to_bytes();
        Ok(String::from_utf8(text.to_vec())?)
    }
}
