//! How a refusal is written for the one who asked.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response};

use crate::Problem;

/// Refusals are written as the request asks: to gRPC as a status in a response of trailers only,
/// to all others as a problem document. The body of the response must be `From<Bytes>`.
#[derive(Clone, Copy, Debug)]
pub struct Documents(());

/// Refusals have no body, which for gRPC is all there is to say. The body of the response must be
/// `Default`, as that of tonic is. Made by [`FenceLayer::grpc`](super::FenceLayer::grpc).
#[derive(Clone, Copy, Debug)]
pub struct Grpc(());

/// What a fence can make a response body of type `R` of: [`Documents`] or [`Grpc`].
#[diagnostic::on_unimplemented(
    message = "a fence cannot make the refusal of a request: the response body is `{R}`",
    note = "with a body that is not `From<Bytes>` but `Default`, as tonic's, say `FenceLayer::grpc`"
)]
pub trait Respond<R>: sealed::Sealed {
    /// The body: the document made by the function, where there is one.
    #[doc(hidden)]
    fn body(document: impl FnOnce() -> Vec<u8>) -> R;

    /// Whether that is the document.
    #[doc(hidden)]
    const HAS_DOCUMENT: bool;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Documents {}
    impl Sealed for super::Grpc {}
}

impl<R: From<Bytes>> Respond<R> for Documents {
    const HAS_DOCUMENT: bool = true;

    fn body(document: impl FnOnce() -> Vec<u8>) -> R {
        R::from(Bytes::from(document()))
    }
}

impl<R: Default> Respond<R> for Grpc {
    const HAS_DOCUMENT: bool = false;

    fn body(_: impl FnOnce() -> Vec<u8>) -> R {
        R::default()
    }
}

/// A refusal on its way to the one who asked.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) problem: Problem,
    /// The content type of a gRPC request.
    pub(super) grpc: Option<HeaderValue>,
}

impl Refusal {
    /// The answer to the request whose headers these are.
    pub(super) fn new(problem: Problem, headers: &HeaderMap) -> Self {
        Self { problem, grpc: grpc_content_type(headers) }
    }

    pub(super) fn into_response<W: Respond<R>, R>(self) -> Response<R> {
        let Self { problem, grpc } = self;
        if let Some(media_type) = grpc {
            return problem.into_trailers_only(W::body(Vec::new), media_type);
        }
        let mut response = problem.clone().into_head(W::body(|| problem.to_json()));
        if W::HAS_DOCUMENT {
            let media_type = HeaderValue::from_static(Problem::MEDIA_TYPE);
            response.headers_mut().insert(CONTENT_TYPE, media_type);
        }
        response
    }
}

/// The content type of the request if it is gRPC: `application/grpc`, alone or followed by a
/// format (`+proto`), or that of gRPC-Web (`-web`), which takes the same answer. It is the content
/// type of the answer too: each kind of client looks for its own.
pub(super) fn grpc_content_type(headers: &HeaderMap) -> Option<HeaderValue> {
    let media_type = headers.get(CONTENT_TYPE)?;
    let (name, rest) = media_type.as_bytes().split_at_checked("application/grpc".len())?;
    let is_grpc = name.eq_ignore_ascii_case(b"application/grpc")
        && matches!(rest.first(), None | Some(b'+' | b'-' | b';' | b' ' | b'\t'));
    is_grpc.then(|| media_type.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_is_known_by_its_content_type() {
        let is_grpc = |media_type: &str| {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, media_type.parse().unwrap())]);
            grpc_content_type(&headers).is_some()
        };
        for grpc in [
            "application/grpc",
            "application/grpc+proto",
            "application/grpc;x=y",
            "Application/gRPC+json",
            "application/grpc-web-text+proto",
        ] {
            assert!(is_grpc(grpc), "{grpc}");
        }
        for other in ["", "application/json", "application/grp", "application/grpcurl", "text/html"]
        {
            assert!(!is_grpc(other), "{other}");
        }
        assert!(grpc_content_type(&HeaderMap::new()).is_none());
    }
}
