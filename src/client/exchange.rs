//! One request to the lock endpoint, and what its answer means.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use futures_core::future::BoxFuture;
use http::header::RETRY_AFTER;
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::Connect;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::{ClientError, ClientErrorKind};
use crate::lock::api::MAX_BODY_LEN;
use crate::{Problem, ProblemKind, Resource};

/// Sends a request and reads the whole answer. Not generic over the connector, so that neither
/// are [`LockClient`](super::LockClient) and [`Lease`](super::Lease).
pub(super) trait Transport: Send + Sync {
    fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> BoxFuture<'static, Result<Answer, ClientError>>;
}

/// Runs what the pool of connections needs. Unlike the executor of hyper-util it does not panic
/// where there is no runtime: a lease may be dropped anywhere, and the connection of its last
/// request with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Runtime;

impl<F> hyper::rt::Executor<F> for Runtime
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(future);
        }
    }
}

impl<C> Transport for Client<C, Full<Bytes>>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> BoxFuture<'static, Result<Answer, ClientError>> {
        let response = self.request(request);
        Box::pin(async move {
            let response = response.await.map_err(|error| {
                if error.is_connect() { not_reached(error) } else { no_answer(error) }
            })?;
            let (head, body) = response.into_parts();
            let body =
                Limited::new(body, MAX_BODY_LEN).collect().await.map_err(no_answer)?.to_bytes();
            Ok(Answer { status: head.status, headers: head.headers, body })
        })
    }
}

type Source = Box<dyn std::error::Error + Send + Sync>;

fn not_reached(source: impl Into<Source>) -> ClientError {
    ClientError::new(ClientErrorKind::Unavailable, "the lock endpoint could not be reached")
        .with_source(source)
}

/// No answer came, or not all of it.
pub(super) fn no_answer(source: impl Into<Source>) -> ClientError {
    ClientError::new(
        ClientErrorKind::OutcomeUnknown,
        "the lock endpoint gave no answer, so what became of the request is not known",
    )
    .with_source(source)
}

/// The time for an answer was over.
#[derive(Debug)]
pub(super) struct TimedOut(pub(super) Duration);

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no answer within {:?}", self.0)
    }
}

impl std::error::Error for TimedOut {}

/// A whole answer.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// The part of a problem document that matters here.
#[derive(Deserialize)]
struct WireProblem {
    #[serde(rename = "type")]
    kind: String,
    detail: Option<String>,
}

impl Answer {
    /// The body as JSON; the error says that nothing is known about what the server did.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        serde_json::from_slice(&self.body).map_err(|source| {
            ClientError::new(
                ClientErrorKind::OutcomeUnknown,
                "the answer is not one of the lock endpoint: check the URL and the proxies",
            )
            .with_answer(self.status, None)
            .with_source(source)
        })
    }

    fn problem(&self) -> Option<WireProblem> {
        let problem: WireProblem = serde_json::from_slice(&self.body).ok()?;
        problem.kind.starts_with(Problem::TYPE_PREFIX).then_some(problem)
    }

    /// Whether it is a problem of this crate of that kind. A 404 of a proxy is none.
    pub(super) fn is(&self, kind: ProblemKind) -> bool {
        self.problem().is_some_and(|problem| name(&problem) == kind.name())
    }

    /// Whether it is a 404 of the endpoint itself.
    pub(super) fn is_not_found(&self) -> bool {
        self.status == StatusCode::NOT_FOUND && self.problem().is_some()
    }

    /// When the server wants to be asked again; dates are not understood.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let seconds = self.headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
        Some(Duration::from_secs(seconds))
    }

    /// The error of an answer that is not a success.
    pub(super) fn into_error(self) -> ClientError {
        use ClientErrorKind::{OutcomeUnknown, Refused, Unavailable};
        let problem = self.problem();
        let kind = match self.status {
            StatusCode::TOO_MANY_REQUESTS => Unavailable,
            StatusCode::REQUEST_TIMEOUT => OutcomeUnknown,
            _ if problem.as_ref().is_some_and(|p| name(p) == ProblemKind::OVERLOADED.name()) => {
                Unavailable
            }
            // The server or a proxy before it failed, maybe after the store had done its part.
            status if status.is_server_error() => OutcomeUnknown,
            _ => Refused,
        };
        let what = match kind {
            Unavailable => "the lock endpoint is overloaded",
            OutcomeUnknown => {
                "the lock endpoint failed, so what became of the request is not known"
            }
            _ => "the lock endpoint refused",
        };
        let message: Cow<'static, str> =
            match problem.as_ref().and_then(|problem| problem.detail.as_deref()) {
                Some(detail) => format!("{what}: {}", presentable(detail)).into(),
                None => what.into(),
            };
        let problem = problem.as_ref().map(|problem| presentable(name(problem)));
        ClientError::new(kind, message).with_answer(self.status, problem)
    }
}

fn name(problem: &WireProblem) -> &str {
    problem.kind.strip_prefix(Problem::TYPE_PREFIX).unwrap_or(&problem.kind)
}

/// Text from the other side, fit for one line of a log.
fn presentable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect()
}

/// Where the endpoint is.
#[derive(Clone, Debug)]
pub(super) struct Base {
    scheme: Scheme,
    authority: Authority,
    /// Empty, or begins with a slash and does not end with one.
    prefix: String,
}

impl Base {
    pub(super) fn parse(url: &str) -> Result<Self, ClientError> {
        let refused = |why: &str| ClientError::invalid(format!("{why}, url=`{}`", public(url)));
        let uri: Uri = url.parse().map_err(|source| {
            refused("the URL of the lock endpoint is malformed").with_source(source)
        })?;
        let parts = uri.into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
            return Err(refused("the URL of the lock endpoint must begin with `http://`"));
        };
        if authority.as_str().contains('@') {
            return Err(refused("the URL must not carry a user or password: use `with_key`"));
        }
        if parts.path_and_query.as_ref().is_some_and(|path| path.query().is_some()) {
            return Err(refused("the URL of the lock endpoint must not have a query"));
        }
        let path = parts.path_and_query.as_ref().map_or("", |path| path.path());
        Ok(Self { scheme, authority, prefix: path.trim_end_matches('/').to_owned() })
    }

    pub(super) fn is_plain_http(&self) -> bool {
        self.scheme == Scheme::HTTP
    }

    /// The URL of a lock, with `/renew` or `/token` or nothing after it.
    pub(super) fn lock(&self, resource: &Resource, tail: &str) -> Result<Uri, ClientError> {
        let path = format!("{}/locks/{}{tail}", self.prefix, resource.to_path_segment());
        Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(path)
            .build()
            .map_err(|source| {
                ClientError::invalid("the URL of the lock cannot be built").with_source(source)
            })
    }
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.prefix)
    }
}

/// A URL without the password that may be in it.
fn public(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => {
            format!("{}<secret>{}", &url[..scheme + 3], &url[at..])
        }
        (None, Some(at)) => format!("<secret>{}", &url[at..]),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_prefix_is_kept() {
        let resource = Resource::new("a/b %é").unwrap();
        for (url, lock) in [
            ("http://127.0.0.1:7070", "http://127.0.0.1:7070/locks/a%2Fb%20%25%C3%A9/renew"),
            ("http://127.0.0.1:7070/", "http://127.0.0.1:7070/locks/a%2Fb%20%25%C3%A9/renew"),
            ("https://x.y/api/v1/", "https://x.y/api/v1/locks/a%2Fb%20%25%C3%A9/renew"),
            ("http://[::1]:80/p", "http://[::1]:80/p/locks/a%2Fb%20%25%C3%A9/renew"),
        ] {
            let base = Base::parse(url).unwrap();
            assert_eq!(base.lock(&resource, "/renew").unwrap().to_string(), lock);
        }
    }

    #[test]
    fn bad_urls_are_refused_and_passwords_not_repeated() {
        for bad in ["", "127.0.0.1:7070", "/locks", "http://", "http://a b", "http://h/?q=1", "*"] {
            let error = Base::parse(bad).unwrap_err();
            assert_eq!(error.kind(), ClientErrorKind::Invalid, "{bad}");
        }
        let error = Base::parse("http://me:hunter2@h/").unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
        let error = Base::parse("me:hunter2@h").unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    #[test]
    fn longest_names_fit_into_a_url() {
        let base = Base::parse("http://127.0.0.1:7070").unwrap();
        for name in ["%".repeat(255), "é".repeat(127), "..".to_owned()] {
            assert!(base.lock(&Resource::new(name).unwrap(), "").is_ok());
        }
    }
}
