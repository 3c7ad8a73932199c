use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_core::future::BoxFuture;

use super::{MarksError, MarksErrorKind};
use crate::{Resource, Token};

/// Who grants the tokens, to be asked how far it has come: the lock endpoint, as a rule.
///
/// [`SeededMarks`](super::SeededMarks) start from it, and a layer that knows it refuses tokens that
/// it [cannot have granted](crate::guard::FenceLayer::issued_by). A
/// [`LockClient`](crate#the-parts) is one (`client.into()`), so is a store of locks in the same
/// process.
///
/// Cloning is cheap.
///
/// ```
/// use fencing::marks::Issuer;
/// use fencing::{Resource, Token};
///
/// // A service of one's own that counts.
/// async fn highest(resource: Resource) -> Result<Option<Token>, std::io::Error> {
///     Ok((resource.as_str() == "report").then_some(Token::MIN))
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let issuer = Issuer::new(highest);
/// assert_eq!(issuer.highest_token(&Resource::new("report")?).await?, Some(Token::MIN));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Issuer {
    lookup: Arc<Lookup>,
    grants_all: bool,
}

type Lookup =
    dyn Fn(Resource) -> BoxFuture<'static, Result<Option<Token>, MarksError>> + Send + Sync;

impl Issuer {
    /// An issuer that is asked by a function: for the highest token it has granted of a resource, or
    /// its floor where that is higher, or `None` when it never granted one.
    ///
    /// What it answers has to be as new as the question.
    pub fn new<F, A, E>(highest_token: F) -> Self
    where
        F: Fn(Resource) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Option<Token>, E>> + Send + 'static,
        E: StdError + Send + Sync + 'static,
    {
        Self { grants_all: true, ..Self::of_some(highest_token) }
    }

    /// One that need not be the issuer of every resource: `None` says nothing.
    pub(crate) fn of_some<F, A, E>(highest_token: F) -> Self
    where
        F: Fn(Resource) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Option<Token>, E>> + Send + 'static,
        E: StdError + Send + Sync + 'static,
    {
        let lookup: Arc<Lookup> = Arc::new(move |resource| {
            let answer = highest_token(resource);
            Box::pin(async move {
                let failed =
                    |error| MarksError::new(MarksErrorKind::Unavailable).with_source(error);
                answer.await.map_err(failed)
            })
        });
        Self { lookup, grants_all: false }
    }

    /// The highest token granted of a resource, or the floor of the issuer where that is higher;
    /// `None` when it never granted one.
    ///
    /// # Errors
    ///
    /// [`MarksError`] when it did not answer.
    #[must_use = "nobody is asked until it is awaited"]
    pub fn highest_token(
        &self,
        resource: &Resource,
    ) -> BoxFuture<'static, Result<Option<Token>, MarksError>> {
        (self.lookup)(resource.clone())
    }

    /// Whether nobody else grants tokens, so that what it did not grant does not exist.
    pub(crate) fn grants_all(&self) -> bool {
        self.grants_all
    }
}

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issuer").finish_non_exhaustive()
    }
}
