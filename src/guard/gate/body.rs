use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::permit::GatePermit;
use super::visit::Overtaken;

pin_project! {
    /// The body of a response from behind a [`Gate`](super::Gate). It holds the permit of its
    /// request until it has ended or is dropped.
    pub struct PermitBody<B> {
        // Goes before the permit does, here and when it has ended: what it does when it is dropped
        // it does inside.
        #[pin]
        inner: Option<B>,
        hold: Option<Hold>,
    }
}

/// A permit, and if older requests are cancelled, what tells that one is older.
pub(super) struct Hold {
    overtaken: Option<Overtaken>,
    _permit: GatePermit,
}

/// The rest of a response was not sent, because a newer token took over the resource. See
/// [`Gate::cancel_older`](super::Gate::cancel_older).
#[derive(Debug)]
#[non_exhaustive]
pub struct OvertakenError;

impl Hold {
    pub(super) fn new(permit: GatePermit, cancel_older: bool) -> Self {
        Self { overtaken: cancel_older.then(|| permit.watch()), _permit: permit }
    }

    /// Ready when the work under the permit is to be cancelled.
    pub(super) fn poll_cancelled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.overtaken {
            Some(overtaken) => Pin::new(overtaken).poll(cx),
            None => Poll::Pending,
        }
    }
}

impl<B: Body> PermitBody<B> {
    pub(super) fn new(inner: B, hold: Option<Hold>) -> Self {
        if inner.is_end_stream() {
            Self { inner: None, hold: None }
        } else {
            Self { inner: Some(inner), hold }
        }
    }
}

/// The body of a refusal, that holds nothing.
impl<B: Default> Default for PermitBody<B> {
    fn default() -> Self {
        Self { inner: Some(B::default()), hold: None }
    }
}

impl<B: From<Bytes>> From<Bytes> for PermitBody<B> {
    fn from(bytes: Bytes) -> Self {
        Self { inner: Some(B::from(bytes)), hold: None }
    }
}

impl<B> Body for PermitBody<B>
where
    B: Body,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Data = B::Data;
    type Error = Box<dyn StdError + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, Self::Error>>> {
        let mut this = self.project();
        let Some(inner) = this.inner.as_mut().as_pin_mut() else { return Poll::Ready(None) };
        if let Some(hold) = this.hold
            && hold.poll_cancelled(cx).is_ready()
        {
            this.inner.set(None);
            *this.hold = None;
            return Poll::Ready(Some(Err(Box::new(OvertakenError))));
        }
        let frame = ready!(inner.poll_frame(cx));
        if frame.is_none() {
            this.inner.set(None);
            *this.hold = None;
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl<B> fmt::Debug for PermitBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitBody").field("held", &self.hold.is_some()).finish_non_exhaustive()
    }
}

impl fmt::Display for OvertakenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a newer token took over the resource, the rest of the response is not sent")
    }
}

impl StdError for OvertakenError {}
