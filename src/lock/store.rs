//! The store behind the lock endpoint.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;

use super::OwnerTokenHash;
use super::rules::{Acquire, Ask, Grant, Refusal, Row};
use crate::marks::Issuer;
use crate::{Resource, Token};

/// A store of locks: grants, renews and releases, each in one atomic and durable step.
///
/// There is no SQL in this trait: a consensus store fits it too. The trait is object safe. What
/// each step decides is written down once, in [`rules`](super::rules).
///
/// # Cancellation
///
/// A step whose future is dropped may or may not have been taken; it is never half taken.
pub trait LockStore: fmt::Debug + Send + Sync + 'static {
    /// Grants `resource`, or tells why not.
    fn acquire<'a>(
        &'a self,
        resource: &'a Resource,
        ask: &'a Ask,
    ) -> BoxFuture<'a, Result<Acquired, StoreError>>;

    /// Extends the live grant of the secret. The token stays.
    fn renew<'a>(
        &'a self,
        resource: &'a Resource,
        secret: &'a OwnerTokenHash,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Result<Held, Refusal>, StoreError>>;

    /// Ends the live grant of the secret. Asked again for the last grant, it answers the same.
    fn release<'a>(
        &'a self,
        resource: &'a Resource,
        secret: &'a OwnerTokenHash,
    ) -> BoxFuture<'a, Result<Result<(), Refusal>, StoreError>>;

    /// The live grant of `resource`.
    fn show<'a>(
        &'a self,
        resource: &'a Resource,
    ) -> BoxFuture<'a, Result<Option<Held>, StoreError>>;

    /// The highest token granted for `resource`, or the floor where that is higher; `None` when
    /// neither exists.
    fn highest_token<'a>(
        &'a self,
        resource: &'a Resource,
    ) -> BoxFuture<'a, Result<Option<Token>, StoreError>>;

    /// Calls `released` with each resource that another store over the same locks has released, as
    /// soon as it is told of it; with `None` when it may have missed some. Runs until it is
    /// dropped.
    ///
    /// An endpoint wakes those who wait with it, and polls all the same: a call too many or too
    /// few does no harm. Unless a store says otherwise it never calls.
    fn watch<'a>(&'a self, released: Released<'a>) -> BoxFuture<'a, ()> {
        let _ = released;
        Box::pin(std::future::pending())
    }
}

/// What is called with a resource that was released, or with `None` for any: see
/// [`LockStore::watch`].
pub type Released<'a> = &'a (dyn Fn(Option<&Resource>) + Send + Sync);

macro_rules! forward {
    ($($pointer:ident),*) => {$(
        impl<S: LockStore + ?Sized> LockStore for $pointer<S> {
            fn acquire<'a>(
                &'a self,
                resource: &'a Resource,
                ask: &'a Ask,
            ) -> BoxFuture<'a, Result<Acquired, StoreError>> {
                (**self).acquire(resource, ask)
            }

            fn renew<'a>(
                &'a self,
                resource: &'a Resource,
                secret: &'a OwnerTokenHash,
                ttl: Duration,
            ) -> BoxFuture<'a, Result<Result<Held, Refusal>, StoreError>> {
                (**self).renew(resource, secret, ttl)
            }

            fn release<'a>(
                &'a self,
                resource: &'a Resource,
                secret: &'a OwnerTokenHash,
            ) -> BoxFuture<'a, Result<Result<(), Refusal>, StoreError>> {
                (**self).release(resource, secret)
            }

            fn show<'a>(
                &'a self,
                resource: &'a Resource,
            ) -> BoxFuture<'a, Result<Option<Held>, StoreError>> {
                (**self).show(resource)
            }

            fn highest_token<'a>(
                &'a self,
                resource: &'a Resource,
            ) -> BoxFuture<'a, Result<Option<Token>, StoreError>> {
                (**self).highest_token(resource)
            }

            fn watch<'a>(&'a self, released: Released<'a>) -> BoxFuture<'a, ()> {
                (**self).watch(released)
            }
        }
    )*};
}

forward!(Arc, Box);

/// A live grant, at a time of the store's clock.
#[derive(Clone, Debug)]
pub struct Held {
    /// The fencing token.
    pub token: Token,
    /// The grant.
    pub grant: Grant,
    /// The time it was looked at, milliseconds since the Unix epoch.
    pub now: i64,
}

impl Held {
    /// A grant out of a store.
    ///
    /// # Errors
    ///
    /// When `token` is no token: a granted row has one.
    pub fn new(token: i64, grant: Grant, now: i64) -> Result<Self, StoreError> {
        Ok(Self { token: Token::new(token).map_err(StoreError::new)?, grant, now })
    }
}

/// The answer to an acquire.
#[derive(Clone, Debug)]
pub enum Acquired {
    /// Granted anew, durably.
    Granted(Held),
    /// The live grant of the same owner token, extended, durably.
    Repeated(Held),
    /// Another holds it for this long, unless it renews or releases.
    Held(Duration),
    /// The owner token had its grant, which has ended.
    Spent,
    /// The tokens of this resource are used up.
    Exhausted,
}

impl Acquired {
    /// The answer that goes with a decision of the rules, once it is written and committed.
    ///
    /// # Errors
    ///
    /// When a granted row has no token or no grant, which the rules never make.
    pub fn new(decision: Acquire, now: i64) -> Result<Self, StoreError> {
        let held = |row: Row| match row.grant {
            Some(grant) => Held::new(row.token, grant, now),
            None => Err(StoreError::new("a granted row has no grant")),
        };
        Ok(match decision {
            Acquire::Granted(row) => Self::Granted(held(row)?),
            Acquire::Repeated(row) => Self::Repeated(held(row)?),
            Acquire::Held(remaining) => Self::Held(remaining),
            Acquire::Spent => Self::Spent,
            Acquire::Exhausted => Self::Exhausted,
        })
    }
}

/// The store of locks did not answer. Whether the step was taken is not known.
#[derive(Debug)]
pub struct StoreError(Box<dyn StdError + Send + Sync>);

impl StoreError {
    /// Keeps what it came from, for logs. It is never shown to a client.
    pub fn new(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self(source.into())
    }

    #[cfg(feature = "_sql")]
    pub(crate) fn into_source(self) -> Box<dyn StdError + Send + Sync> {
        self.0
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the store of locks did not answer")
    }
}

impl StdError for StoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

/// A store of locks in this process is asked how far it has granted.
impl<S: LockStore + ?Sized> From<Arc<S>> for Issuer {
    fn from(store: Arc<S>) -> Self {
        Self::new(move |resource| {
            let store = Arc::clone(&store);
            async move { store.highest_token(&resource).await }
        })
    }
}
