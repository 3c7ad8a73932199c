use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};

use serde::{Deserialize, Serialize};

use crate::{Resource, Token};

/// What a writer asserts: that it holds `resource` under `token`. To *claim* is to raise the mark
/// of the resource to one's token.
///
/// A claim comes from a [`Lease`](crate#the-lock) on the client's side, and out of the request on
/// the side of the resource. It can travel in a job: with serde it is
/// `{"resource":"inventory:item:1","token":34}`.
///
/// Clones share their [state](Self::state), so that whoever answers a request can know what became
/// of its claim. Two claims are equal when resource and token are.
#[derive(Clone, Serialize, Deserialize)]
pub struct Claim {
    resource: Resource,
    token: Token,
    #[serde(skip)]
    progress: Arc<Progress>,
}

impl Claim {
    /// A claim on `resource` under `token`, unspent.
    #[must_use]
    pub fn new(resource: Resource, token: Token) -> Self {
        Self { resource, token, progress: Arc::default() }
    }

    /// What is claimed.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    /// The token it is claimed under.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// What became of this claim and its clones so far.
    #[must_use]
    pub fn state(&self) -> ClaimState {
        self.progress.state()
    }

    /// Whether something was committed under this claim or a clone of it, whatever came after.
    #[must_use]
    pub fn has_committed(&self) -> bool {
        self.progress.state.load(Ordering::Acquire) & COMMITTED != 0
    }

    /// The mark this claim or a clone of it was last refused against, where whoever refused it
    /// [told](Self::note_stale).
    #[must_use]
    pub fn last_token(&self) -> Option<Token> {
        Token::new(self.progress.last_token.load(Ordering::Acquire)).ok()
    }

    /// Notes what became of the claim. For stores; a store outside this crate that claims and
    /// writes in one unit calls it too.
    pub fn note(&self, state: ClaimState) {
        self.progress.note(state);
    }

    /// Notes [`Stale`](ClaimState::Stale), and the committed mark `last_token` it was refused
    /// against. For stores: a [deferred layer](crate::guard::FenceLayer::deferred) tells it to its
    /// cache.
    pub fn note_stale(&self, last_token: Token) {
        self.progress.last_token.fetch_max(last_token.get(), Ordering::AcqRel);
        self.progress.note(ClaimState::Stale);
    }
}

impl PartialEq for Claim {
    fn eq(&self, other: &Self) -> bool {
        self.resource == other.resource && self.token == other.token
    }
}

impl Eq for Claim {}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("resource", &self.resource.as_str())
            .field("token", &self.token.get())
            .field("state", &self.state())
            .finish()
    }
}

/// What became of a [`Claim`]: the last thing noted of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ClaimState {
    /// Nothing was done with it yet, or all that was begun was rolled back.
    Unspent,
    /// A fenced transaction under it is open.
    Open,
    /// The mark was raised to it, and nothing written with it.
    Claimed,
    /// A write under it was committed.
    Committed,
    /// It was refused: the mark is above its token.
    Stale,
    /// A write or commit under it was sent and no verdict came back.
    Unknown,
}

#[derive(Default)]
struct Progress {
    /// The last state in the low bits; beside it, never taken back, whether the mark was raised and
    /// whether a write was committed.
    state: AtomicU8,
    /// The highest mark it was refused against, or 0.
    last_token: AtomicI64,
}

const COMMITTED: u8 = 0x80;
const CLAIMED: u8 = 0x40;

impl Progress {
    fn note(&self, state: ClaimState) {
        let code = match state {
            ClaimState::Unspent => 0,
            ClaimState::Open => 1,
            ClaimState::Claimed => 2 | CLAIMED,
            ClaimState::Committed => 3 | COMMITTED,
            ClaimState::Stale => 4,
            ClaimState::Unknown => 5,
        };
        let update = |old: u8| Some(old & (COMMITTED | CLAIMED) | code);
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
    }

    fn state(&self) -> ClaimState {
        let now = self.state.load(Ordering::Acquire);
        match now & !(COMMITTED | CLAIMED) {
            1 => ClaimState::Open,
            2 => ClaimState::Claimed,
            3 => ClaimState::Committed,
            4 => ClaimState::Stale,
            5 => ClaimState::Unknown,
            // A later transaction that was rolled back does not undo an earlier commit, nor does it
            // lower the mark.
            _ if now & COMMITTED != 0 => ClaimState::Committed,
            _ if now & CLAIMED != 0 => ClaimState::Claimed,
            _ => ClaimState::Unspent,
        }
    }
}

/// The answer to a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a verdict that is not looked at fences nothing"]
pub enum Verdict {
    /// The mark was at or below the token, and is the token now.
    Accepted,
    /// The resource has accepted a higher token: this attempt was certainly not applied.
    Stale {
        /// The mark, or the floor where the resource has no mark.
        last_token: Token,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Claim {
        Claim::new(Resource::new("r").unwrap(), Token::new(34).unwrap())
    }

    #[test]
    fn clones_share_their_state_and_equality_ignores_it() {
        let claim = claim();
        let clone = claim.clone();
        clone.note(ClaimState::Committed);
        assert_eq!(claim.state(), ClaimState::Committed);
        assert_eq!(claim, Claim::new(claim.resource().clone(), claim.token()));
    }

    #[test]
    fn a_commit_is_never_forgotten() {
        let claim = claim();
        assert!(!claim.has_committed());
        claim.note(ClaimState::Committed);
        for later in [ClaimState::Open, ClaimState::Stale, ClaimState::Unknown, ClaimState::Claimed]
        {
            claim.note(later);
            assert_eq!(claim.state(), later);
            assert!(claim.has_committed());
        }
        claim.note(ClaimState::Unspent);
        assert_eq!(claim.state(), ClaimState::Committed);
    }

    #[test]
    fn a_raised_mark_is_not_forgotten_when_a_transaction_is_rolled_back() {
        let claim = claim();
        for state in [ClaimState::Claimed, ClaimState::Open, ClaimState::Unspent] {
            claim.note(state);
        }
        assert_eq!((claim.state(), claim.has_committed()), (ClaimState::Claimed, false));
        assert_eq!(claim.last_token(), None);
        claim.clone().note_stale(Token::new(40).unwrap());
        assert_eq!((claim.state(), claim.last_token()), (ClaimState::Stale, Token::new(40).ok()));
    }

    #[test]
    fn a_claim_travels_as_json_and_arrives_unspent() {
        let claim = claim();
        claim.note(ClaimState::Committed);
        let json = serde_json::to_string(&claim).unwrap();
        assert_eq!(json, r#"{"resource":"r","token":34}"#);
        let back: Claim = serde_json::from_str(&json).unwrap();
        assert_eq!(back, claim);
        assert_eq!(back.state(), ClaimState::Unspent);
        assert!(serde_json::from_str::<Claim>(r#"{"resource":"","token":34}"#).is_err());
        assert!(serde_json::from_str::<Claim>(r#"{"resource":"r","token":0}"#).is_err());
    }
}
