//! Who gets, keeps and gives back a lock: decisions only, no I/O and no clock.
//!
//! A store locks the row of the resource and the floor, reads its clock *after* that, asks the
//! rules, writes what they say and commits durably before it answers.

use std::time::Duration;

use super::OwnerTokenHash;
use crate::Token;

/// The row of a resource, kept at release and expiry, so that its token never starts again.
///
/// Times are milliseconds since the Unix epoch, by the store's clock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The highest token granted, 0 before the first grant.
    pub token: i64,
    /// The last grant; `None` before the first.
    pub grant: Option<Grant>,
}

/// A grant, live or ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The label of who holds it.
    pub owner: String,
    /// The hash of its secret.
    pub owner_token_hash: OwnerTokenHash,
    /// When it was granted.
    pub acquired_at: i64,
    /// When it ends unless it is renewed.
    pub expires_at: i64,
    /// No renewal reaches beyond this time.
    pub hold_until: Option<i64>,
    /// When it was released.
    pub released_at: Option<i64>,
}

impl Grant {
    /// Whether it holds the resource at `now`.
    #[must_use]
    pub fn is_live(&self, now: i64) -> bool {
        self.released_at.is_none() && self.expires_at > now
    }

    /// How long it still lives at `now`.
    #[must_use]
    pub fn remaining(&self, now: i64) -> Duration {
        Duration::from_millis(u64::try_from(self.expires_at.saturating_sub(now)).unwrap_or(0))
    }

    /// Extends it to `now + ttl`, within its hold limit. Never shortens it.
    fn extend(&mut self, now: i64, ttl: Duration) {
        let until = add(now, ttl).min(self.hold_until.unwrap_or(i64::MAX));
        self.expires_at = self.expires_at.max(until);
    }
}

/// What an acquire asks for.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The label of who asks.
    pub owner: String,
    /// The hash of the secret of the grant to be.
    pub owner_token_hash: OwnerTokenHash,
    /// How long the grant shall live, in whole milliseconds, at least one.
    pub ttl: Duration,
    /// How long it may be held in all.
    pub max_hold: Option<Duration>,
}

/// The answer to an acquire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Acquire {
    /// A new grant: write this row, commit, then answer with it.
    Granted(Row),
    /// The live grant of the same owner token, extended: write, commit and answer likewise.
    Repeated(Row),
    /// Another holds it for this long, unless it renews or releases.
    Held(Duration),
    /// The owner token had its grant, which has ended.
    Spent,
    /// The tokens of this resource are used up.
    Exhausted,
}

/// Decides an acquire.
#[must_use]
pub fn acquire(row: Option<Row>, floor: i64, now: i64, ask: &Ask) -> Acquire {
    let last = row.as_ref().map_or(0, |row| row.token);
    if let Some(Row { token, grant: Some(mut grant) }) = row {
        let same = grant.owner_token_hash == ask.owner_token_hash;
        match (grant.is_live(now), same) {
            (true, true) => {
                grant.extend(now, ask.ttl);
                return Acquire::Repeated(Row { token, grant: Some(grant) });
            }
            (true, false) => return Acquire::Held(grant.remaining(now)),
            (false, true) => return Acquire::Spent,
            (false, false) => {}
        }
    }
    let highest = last.max(floor);
    if highest >= Token::MAX_GRANTED.get() {
        return Acquire::Exhausted;
    }
    let hold_until = ask.max_hold.map(|hold| add(now, hold));
    Acquire::Granted(Row {
        token: highest + 1,
        grant: Some(Grant {
            owner: ask.owner.clone(),
            owner_token_hash: ask.owner_token_hash,
            acquired_at: now,
            expires_at: add(now, ask.ttl).min(hold_until.unwrap_or(i64::MAX)),
            hold_until,
            released_at: None,
        }),
    })
}

/// Why a grant is not renewed or released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Nobody holds the resource. An expired grant is nobody's: it is never revived.
    NotHeld,
    /// Another holds it.
    NotYours,
}

/// Decides a renewal: the grant to write, its token unchanged.
///
/// # Errors
///
/// [`Refusal::NotHeld`] before [`Refusal::NotYours`], whatever the secret.
pub fn renew(
    grant: Option<Grant>,
    now: i64,
    secret: &OwnerTokenHash,
    ttl: Duration,
) -> Result<Grant, Refusal> {
    let mut grant = grant.filter(|grant| grant.is_live(now)).ok_or(Refusal::NotHeld)?;
    if grant.owner_token_hash != *secret {
        return Err(Refusal::NotYours);
    }
    grant.extend(now, ttl);
    Ok(grant)
}

/// The answer to a release.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Release {
    /// Write this grant, commit, then answer.
    Released(Grant),
    /// It was released before, by this very owner token.
    AlreadyReleased,
}

/// Decides a release.
///
/// # Errors
///
/// [`Refusal::NotHeld`] when nobody holds the resource and the last grant was not released by
/// this owner token; [`Refusal::NotYours`] when another holds it.
pub fn release(
    grant: Option<Grant>,
    now: i64,
    secret: &OwnerTokenHash,
) -> Result<Release, Refusal> {
    let mut grant = grant.ok_or(Refusal::NotHeld)?;
    let same = grant.owner_token_hash == *secret;
    if grant.is_live(now) {
        if !same {
            return Err(Refusal::NotYours);
        }
        grant.released_at = Some(now);
        return Ok(Release::Released(grant));
    }
    if same && grant.released_at.is_some() {
        return Ok(Release::AlreadyReleased);
    }
    Err(Refusal::NotHeld)
}

/// The grant that holds the resource at `now`, with its token.
#[must_use]
pub fn live(row: Option<Row>, now: i64) -> Option<(i64, Grant)> {
    let row = row?;
    Some((row.token, row.grant.filter(|grant| grant.is_live(now))?))
}

/// The highest token that can have been granted; `None` when there is none.
#[must_use]
pub fn highest_token(row: Option<&Row>, floor: i64) -> Option<Token> {
    Token::new(row.map_or(0, |row| row.token).max(floor)).ok()
}

fn add(at: i64, duration: Duration) -> i64 {
    at.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
