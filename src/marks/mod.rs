//! Stores of marks: the highest token each resource has accepted.
//!
//! [`Marks`] is what [`FenceLayer`](crate::guard::FenceLayer) asks. [`MemoryMarks`] keeps them in
//! the process; [`SqlMarks`](crate::sql::SqlMarks) in the database that also holds the data, where
//! a [`FencedTx`](crate::sql::FencedTx) finds the same mark.
//!
//! A store of your own implements one method. The suite in [`conformance`] is what it must pass.

pub(crate) mod bounds;
mod cached;
#[cfg(feature = "testing")]
pub mod conformance;
mod issuer;
mod memory;
mod seeded;

use std::error::Error as StdError;
use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::future::BoxFuture;

pub use self::cached::CachedMarks;
pub use self::issuer::Issuer;
pub use self::memory::MemoryMarks;
pub use self::seeded::SeededMarks;
use crate::{Claim, Resource, Token, Verdict};

/// A store of marks.
///
/// The trait is object safe: `Arc<dyn Marks>` is a store as well.
pub trait Marks: fmt::Debug + Send + Sync + 'static {
    /// Raises the mark of the claim's resource to its token, unless the mark is above it.
    ///
    /// The comparison and the raise are one atomic step: of any number of calls at once, each
    /// that is answered with [`Verdict::Accepted`] found a mark at or below its token and left one
    /// at or above it. A mark never falls.
    ///
    /// The answer may be there at once ([`Check::Ready`]) or have to be waited for.
    ///
    /// # Cancellation
    ///
    /// When the answer is dropped the mark may or may not have been raised; nothing else.
    fn advance(&self, claim: &Claim) -> Check;

    /// Looks at a claim that somebody else is going to decide, a transaction of the handler under a
    /// [deferred](crate::guard::FenceLayer::deferred) layer, and raises no mark. It may only refuse:
    /// `Accepted` says no more than that nothing is known against the claim.
    ///
    /// What is at hand is looked at, no more; a store that has to be asked is not asked. The
    /// provided method knows nothing.
    fn vet(&self, claim: &Claim) -> Check {
        let _ = claim;
        Verdict::Accepted.into()
    }

    /// Hears that the mark of `resource` stands at `last_token` or above, committed, by the doing of
    /// somebody else: that transaction of a handler. The provided method takes no notice.
    fn learn(&self, resource: &Resource, last_token: Token) {
        let _ = (resource, last_token);
    }

    /// Reads the mark of a resource, or the floor where there is no mark; `None` without either. A
    /// [jump limit](crate::guard::FenceLayer::max_jump) is counted from it. The provided method
    /// knows nothing, and so nothing is ever too far.
    fn look(&self, resource: &Resource) -> BoxFuture<'static, Result<Option<Token>, MarksError>> {
        let _ = resource;
        Box::pin(ready(Ok(None)))
    }

    /// Who grants the tokens, where the store can tell. A layer then refuses what cannot have been
    /// granted. The provided method knows nobody.
    fn issuer(&self) -> Option<Issuer> {
        None
    }
}

macro_rules! forward {
    ($pointer:ident) => {
        impl<M: Marks + ?Sized> Marks for $pointer<M> {
            fn advance(&self, claim: &Claim) -> Check {
                (**self).advance(claim)
            }

            fn vet(&self, claim: &Claim) -> Check {
                (**self).vet(claim)
            }

            fn learn(&self, resource: &Resource, last_token: Token) {
                (**self).learn(resource, last_token);
            }

            fn look(
                &self,
                resource: &Resource,
            ) -> BoxFuture<'static, Result<Option<Token>, MarksError>> {
                (**self).look(resource)
            }

            fn issuer(&self) -> Option<Issuer> {
                (**self).issuer()
            }
        }
    };
}

forward!(Arc);
forward!(Box);

/// The answer of a store of [`Marks`], there at once or to be waited for. It is a future.
#[must_use = "a check that is not awaited decides nothing"]
pub enum Check {
    /// The answer is there.
    Ready(Result<Verdict, MarksError>),
    /// The store has to be waited for.
    Pending(BoxFuture<'static, Result<Verdict, MarksError>>),
}

impl Future for Check {
    type Output = Result<Verdict, MarksError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Ready(answer) => Poll::Ready(answer.clone()),
            Self::Pending(answer) => answer.as_mut().poll(cx),
        }
    }
}

impl From<Verdict> for Check {
    fn from(verdict: Verdict) -> Self {
        Self::Ready(Ok(verdict))
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(answer) => f.debug_tuple("Ready").field(answer).finish(),
            Self::Pending(_) => f.write_str("Pending(<future>)"),
        }
    }
}

/// A store of marks could not give a verdict. The mark may or may not have been raised, which
/// harms nobody: the caller holds that token.
#[derive(Clone, Debug)]
pub struct MarksError {
    kind: MarksErrorKind,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// What to do about a [`MarksError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MarksErrorKind {
    /// The store did not answer: answer 503 and try later.
    Unavailable,
    /// Others were in the way for too long: try again.
    Contended,
    /// The token cannot have been granted. The mark was not raised.
    Implausible,
}

impl MarksError {
    /// An error of a kind.
    #[must_use]
    pub fn new(kind: MarksErrorKind) -> Self {
        Self { kind, source: None }
    }

    /// Keeps what it came from, for logs. It is never shown to the caller of a service.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> MarksErrorKind {
        self.kind
    }
}

impl fmt::Display for MarksError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            MarksErrorKind::Unavailable => "the store of marks did not answer",
            MarksErrorKind::Contended => "the mark was contended for too long",
            MarksErrorKind::Implausible => "the token cannot have been granted",
        })
    }
}

impl StdError for MarksError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
