//! Tokens that cannot have been granted.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;

use crate::clock;
use crate::marks::bounds::Bounds;
use crate::marks::{Check, Issuer, Marks, MarksError, MarksErrorKind};
use crate::{Claim, Resource, Token, Verdict};

/// A store of marks behind a question: can this token have been granted?
///
/// One huge token would raise the mark out of the reach of every token to come. So before a mark is
/// raised, whoever grants the tokens is asked how far it has come, and where nobody can be asked, a
/// jump of the mark may be limited. Asked is once for each new token: what was granted stays so.
pub(super) struct Plausible(Arc<Inner>);

struct Inner {
    marks: Arc<dyn Marks>,
    issuer: Option<Issuer>,
    max_jump: Option<u64>,
    /// The highest token known to be plausible.
    plausible: Bounds,
}

const CAPACITY: usize = 1 << 16;
/// A lock service that was restored from a backup has granted less than is remembered here.
const MAX_AGE: Duration = Duration::from_secs(600);

impl Plausible {
    pub(super) fn new(
        marks: Arc<dyn Marks>,
        issuer: Option<Issuer>,
        max_jump: Option<u64>,
    ) -> Self {
        let plausible = Bounds::new(CAPACITY, MAX_AGE);
        Self(Arc::new(Inner { marks, issuer, max_jump, plausible }))
    }

    /// Asks first, if need be, and then `decide`s.
    fn asking(&self, claim: &Claim, decide: fn(&dyn Marks, &Claim) -> Check) -> Check {
        let inner = &self.0;
        if inner.plausible.reaches(claim.resource(), claim.token(), clock::elapsed()) {
            return decide(&inner.marks, claim);
        }
        // What is refused anyway need not be asked about.
        if let refused @ Check::Ready(Ok(Verdict::Stale { .. }) | Err(_)) = inner.marks.vet(claim) {
            return refused;
        }
        let (inner, claim) = (Arc::clone(inner), claim.clone());
        Check::Pending(Box::pin(async move {
            inner.ask(&claim).await?;
            decide(&inner.marks, &claim).await
        }))
    }
}

impl Inner {
    async fn ask(&self, claim: &Claim) -> Result<(), MarksError> {
        let (resource, token) = (claim.resource(), claim.token());
        let asked = self.plausible.ask(resource, clock::elapsed());
        // Asked anew for each claim: an answer to an earlier question may be older than the grant.
        let granted = match &self.issuer {
            Some(issuer) => match issuer.highest_token(resource).await? {
                None if issuer.grants_all() => Granted::Nothing,
                None => Granted::Unknown,
                Some(highest) => Granted::UpTo(highest),
            },
            None => Granted::Unknown,
        };
        let base = match (granted, self.max_jump) {
            (Granted::Unknown, Some(_)) => self.marks.look(resource).await?,
            _ => None,
        };
        if !is_plausible(token, granted, base, self.max_jump) {
            return Err(MarksError::new(MarksErrorKind::Implausible));
        }
        let highest = match granted {
            Granted::UpTo(highest) => highest,
            Granted::Nothing | Granted::Unknown => token,
        };
        self.plausible.hear(resource, highest, asked);
        Ok(())
    }
}

/// What is known of the grants of a resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Granted {
    Unknown,
    Nothing,
    UpTo(Token),
}

/// Whether a token can exist. `base` is the mark, or the floor where there is no mark: the first
/// claim of a resource without either may jump as far as it likes.
fn is_plausible(
    token: Token,
    granted: Granted,
    base: Option<Token>,
    max_jump: Option<u64>,
) -> bool {
    match (granted, base, max_jump) {
        (Granted::UpTo(highest), _, _) => token <= highest,
        (Granted::Nothing, _, _) => false,
        (Granted::Unknown, Some(base), Some(max_jump)) => {
            u64::try_from(token.get().saturating_sub(base.get())).unwrap_or(0) <= max_jump
        }
        (Granted::Unknown, _, _) => true,
    }
}

impl Marks for Plausible {
    fn advance(&self, claim: &Claim) -> Check {
        self.asking(claim, |marks, claim| marks.advance(claim))
    }

    fn vet(&self, claim: &Claim) -> Check {
        self.asking(claim, |marks, claim| marks.vet(claim))
    }

    fn learn(&self, resource: &Resource, last_token: Token) {
        self.0.marks.learn(resource, last_token);
    }

    fn look(&self, resource: &Resource) -> BoxFuture<'static, Result<Option<Token>, MarksError>> {
        self.0.marks.look(resource)
    }
}

impl fmt::Debug for Plausible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plausible")
            .field("marks", &self.0.marks)
            .field("issuer", &self.0.issuer)
            .field("max_jump", &self.0.max_jump)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_held_against_the_grants_or_else_against_the_jump() {
        let t = |token: i64| Token::new(token).unwrap();
        let check = |token, granted, base: i64, max_jump| {
            is_plausible(t(token), granted, Token::new(base).ok(), max_jump)
        };
        for (token, plausible) in [(33, true), (34, true), (35, false), (i64::MAX, false)] {
            // A limit has no say where the grants are known.
            assert_eq!(check(token, Granted::UpTo(t(34)), 1, Some(1)), plausible, "{token}");
            assert_eq!(check(token, Granted::UpTo(t(34)), 0, None), plausible, "{token}");
        }
        assert!(!check(1, Granted::Nothing, 0, None));
        assert!(check(i64::MAX, Granted::Unknown, 34, None));
        for (token, plausible) in
            [(1, true), (34, true), (44, true), (45, false), (i64::MAX, false)]
        {
            assert_eq!(check(token, Granted::Unknown, 34, Some(10)), plausible, "{token}");
        }
        assert!(check(i64::MAX, Granted::Unknown, 0, Some(10)), "a first claim, with no floor");
        assert!(check(i64::MAX, Granted::Unknown, 1, Some(u64::MAX)));
    }
}
