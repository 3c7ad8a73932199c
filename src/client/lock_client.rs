use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Method, Request};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::TokioTimer;
use serde::Serialize;
use tokio::runtime::Handle;

use super::acquire::Acquire;
use super::error::ClientError;
use super::exchange::{Answer, Base, Runtime, TimedOut, Transport, no_answer};
use super::timing::{Either, race, until};
use crate::clock::{Clock, SystemClock};
use crate::lock::OwnerToken;
use crate::lock::api::{LockView, OWNER_TOKEN_HEADER, TokenView};
use crate::marks::Issuer;
use crate::{InvalidResource, Resource, Token};

/// A client of the lock endpoint.
///
/// It keeps connections alive between requests. Clones share them and are cheap.
///
/// ```
/// use std::time::Duration;
///
/// use fencing::client::LockClient;
///
/// let client = LockClient::new("http://127.0.0.1:7070/internal")?
///     .with_key("s3cret")?
///     .with_timeout(Duration::from_secs(2));
/// assert_eq!(client.url(), "http://127.0.0.1:7070/internal");
/// # Ok::<(), fencing::client::ClientError>(())
/// ```
#[derive(Clone)]
pub struct LockClient {
    base: Base,
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    timeout: Duration,
    authorization: Option<HeaderValue>,
}

/// How long an answer may take, unless the client is told otherwise.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an unused connection is kept: less than servers and proxies usually keep it, so that a
/// request rarely meets a connection that is just being closed.
const IDLE: Duration = Duration::from_secs(20);

impl LockClient {
    /// A client of the endpoint at `url`, such as `http://127.0.0.1:7070`. A path in the URL is
    /// put before `/locks/...`.
    ///
    /// # Errors
    ///
    /// [`Invalid`](super::ClientErrorKind::Invalid) for anything but an absolute `http` URL without user,
    /// password and query. For `https` bring a connector:
    /// [`with_connector`](Self::with_connector).
    pub fn new(url: &str) -> Result<Self, ClientError> {
        let base = Base::parse(url)?;
        if !base.is_plain_http() {
            return Err(ClientError::invalid(format!(
                "only `http` is built in; for TLS use `LockClient::with_connector`, url=`{base}`"
            )));
        }
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Ok(Self::over(base, connector))
    }

    /// A client that connects by `connector`: for TLS the `HttpsConnector` of hyper-rustls or
    /// hyper-tls, for a Unix socket the one of hyperlocal.
    ///
    /// ```
    /// use fencing::client::LockClient;
    /// use hyper_util::client::legacy::connect::HttpConnector;
    ///
    /// let connector = HttpConnector::new(); // an `HttpsConnector` is made around one of these
    /// let client = LockClient::with_connector("http://127.0.0.1:7070", connector)?;
    /// # Ok::<(), fencing::client::ClientError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), without the limit to `http`.
    pub fn with_connector<C>(url: &str, connector: C) -> Result<Self, ClientError>
    where
        C: Connect + Clone + Send + Sync + 'static,
    {
        Ok(Self::over(Base::parse(url)?, connector))
    }

    fn over<C>(base: Base, connector: C) -> Self
    where
        C: Connect + Clone + Send + Sync + 'static,
    {
        let http: Client<C, Full<Bytes>> = Client::builder(Runtime)
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        Self {
            base,
            transport: Arc::new(http),
            clock: Arc::new(SystemClock),
            timeout: DEFAULT_TIMEOUT,
            authorization: None,
        }
    }

    /// Sends `key` as `Authorization: Bearer` with each request.
    ///
    /// # Errors
    ///
    /// [`Invalid`](super::ClientErrorKind::Invalid) for a key that cannot stand in a header.
    pub fn with_key(mut self, key: &str) -> Result<Self, ClientError> {
        self.authorization = Some(secret_value(&format!("Bearer {key}"))?);
        Ok(self)
    }

    /// Sets how long an answer may take, beside the time an acquire waits for the lock; 5 s unless
    /// it is set, at least 1 ms. A lease takes less where its TTL is short.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.max(Duration::from_millis(1));
        self
    }

    /// Takes the time from `clock`, for tests.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Where the endpoint is.
    #[must_use]
    pub fn url(&self) -> String {
        self.base.to_string()
    }

    /// Begins to acquire the lock of `resource`: set what is needed, then await it.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # use fencing::testing::LockServer;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = LockServer::start().await?;
    /// # let client = server.client();
    /// let lease = client
    ///     .acquire("report:2024-05")
    ///     .owner("worker-a")
    ///     .ttl(Duration::from_secs(30))
    ///     .wait(Duration::from_secs(5))
    ///     .await?;
    /// match lease {
    ///     Some(lease) => println!("we hold it under token {}", lease.token()),
    ///     None => println!("another has held it for five seconds; do something else"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire<R>(&self, resource: R) -> Acquire
    where
        R: TryInto<Resource, Error: Into<InvalidResource>>,
    {
        Acquire::new(self.clone(), resource.try_into().map_err(Into::into))
    }

    /// Who holds `resource`, without the secret; `None` when nobody does.
    ///
    /// This is for people and dashboards. It is no way to find out whether one still holds a lock:
    /// the answer is old when it arrives.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; it is not tried again.
    pub async fn show(&self, resource: &Resource) -> Result<Option<LockView>, ClientError> {
        self.read(resource, "").await
    }

    /// The highest token granted for `resource`, or the floor of the endpoint where that is higher;
    /// `None` when there is neither. A guard whose marks do not outlive it starts from here.
    ///
    /// # Errors
    ///
    /// [`ClientError`]; it is not tried again. A guard that gets none must not start from nothing.
    pub async fn highest_token(&self, resource: &Resource) -> Result<Option<Token>, ClientError> {
        let view: Option<TokenView> = self.read(resource, "/token").await?;
        Ok(view.map(|view| view.token))
    }

    async fn read<T>(&self, resource: &Resource, tail: &str) -> Result<Option<T>, ClientError>
    where
        T: serde::de::DeserializeOwned,
    {
        let request = self.request(Method::GET, resource, tail, Bytes::new())?;
        let answer = self.exchange(request, self.timeout).await;
        let read = match answer {
            Err(error) => Err(error),
            Ok(answer) if answer.is_not_found() => Ok(None),
            Ok(answer) if answer.status.is_success() => answer.json().map(Some),
            Ok(answer) => Err(answer.into_error()),
        };
        // To read changes nothing, so nothing is left open.
        read.map_err(ClientError::with_known_outcome)
    }

    pub(super) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// A request whose body is JSON.
    pub(super) fn post(
        &self,
        resource: &Resource,
        tail: &str,
        body: &impl Serialize,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let body = serde_json::to_vec(body).map_err(|source| {
            ClientError::invalid("the request cannot be written as JSON").with_source(source)
        })?;
        self.request(Method::POST, resource, tail, body.into())
    }

    /// The request that releases a grant. The secret goes in a header: proxies may strip the body
    /// of a DELETE.
    pub(super) fn delete(
        &self,
        resource: &Resource,
        secret: &OwnerToken,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let mut request = self.request(Method::DELETE, resource, "", Bytes::new())?;
        let header = HeaderName::from_static(OWNER_TOKEN_HEADER);
        request.headers_mut().insert(header, secret_value(secret.reveal())?);
        Ok(request)
    }

    fn request(
        &self,
        method: Method,
        resource: &Resource,
        tail: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let has_body = !body.is_empty();
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = self.base.lock(resource, tail)?;
        let headers = request.headers_mut();
        if has_body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        Ok(request)
    }

    /// Sends a request once and reads the whole answer, within `limit`.
    pub(super) async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
        limit: Duration,
    ) -> Result<Answer, ClientError> {
        runtime()?;
        let end = self.clock.elapsed().saturating_add(limit);
        match race(self.transport.send(request), until(self.clock(), end)).await {
            Either::Left(answer) => answer,
            Either::Right(()) => Err(no_answer(TimedOut(limit))),
        }
    }
}

impl fmt::Debug for LockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockClient").field("url", &self.url()).finish_non_exhaustive()
    }
}

/// The runtime of the caller. Connections and timers need one; without it they would panic.
pub(super) fn runtime() -> Result<Handle, ClientError> {
    Handle::try_current().map_err(|source| {
        ClientError::invalid("the client works within a tokio runtime only").with_source(source)
    })
}

/// A header value that no `Debug` shows.
fn secret_value(text: &str) -> Result<HeaderValue, ClientError> {
    // The error of the conversion does not repeat the text.
    let mut value = HeaderValue::from_str(text).map_err(|source| {
        ClientError::invalid("the key cannot stand in a header").with_source(source)
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// The endpoint is asked how far it has granted.
impl From<LockClient> for Issuer {
    fn from(client: LockClient) -> Self {
        Self::new(move |resource| {
            let client = client.clone();
            async move { client.highest_token(&resource).await }
        })
    }
}
