use proptest::prelude::*;

use super::*;
use crate::lock::OwnerToken;

fn hash(n: u8) -> OwnerTokenHash {
    format!("owner-token-{n:04}").parse::<OwnerToken>().unwrap().hash()
}

fn ask(secret: u8, ttl_ms: u64) -> Ask {
    Ask {
        owner: format!("owner-{secret}"),
        owner_token_hash: hash(secret),
        ttl: Duration::from_millis(ttl_ms),
        max_hold: None,
    }
}

fn granted(decision: Acquire) -> Row {
    match decision {
        Acquire::Granted(row) => row,
        other => panic!("{other:?}"),
    }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[test]
fn the_first_grant_is_one_above_the_floor() {
    assert_eq!(granted(acquire(None, 0, 1000, &ask(1, 10))).token, 1);
    assert_eq!(granted(acquire(None, 57, 1000, &ask(1, 10))).token, 58);
    let released = Row { token: 3, grant: None };
    assert_eq!(granted(acquire(Some(released.clone()), 57, 1000, &ask(1, 10))).token, 58);
    assert_eq!(granted(acquire(Some(Row { token: 80, ..released }), 57, 1, &ask(1, 10))).token, 81);
}

#[test]
fn a_grant_ends_at_its_expiry_and_not_before() {
    let row = granted(acquire(None, 0, 1000, &ask(1, 500)));
    let grant = row.grant.clone().unwrap();
    assert!(grant.is_live(1499));
    assert!(!grant.is_live(1500));
    assert_eq!(grant.remaining(1499), ms(1));
    assert_eq!(grant.remaining(9999), ms(0));
    assert_eq!(acquire(Some(row.clone()), 0, 1499, &ask(2, 500)), Acquire::Held(ms(1)));
    assert_eq!(granted(acquire(Some(row.clone()), 0, 1500, &ask(2, 500))).token, 2);
    assert!(live(Some(row.clone()), 1499).is_some());
    assert!(live(Some(row), 1500).is_none());
}

#[test]
fn a_repeat_keeps_token_label_and_start_and_extends() {
    let row = granted(acquire(None, 0, 1000, &ask(1, 500)));
    let again = Ask { owner: "another label".into(), ..ask(1, 800) };
    let Acquire::Repeated(after) = acquire(Some(row.clone()), 0, 1100, &again) else { panic!() };
    assert_eq!(after.token, row.token);
    let (before, after) = (row.grant.unwrap(), after.grant.unwrap());
    assert_eq!(after.owner, "owner-1");
    assert_eq!(after.acquired_at, before.acquired_at);
    assert_eq!(after.expires_at, 1900);
}

#[test]
fn a_short_repeat_or_renewal_shortens_nothing() {
    let row = granted(acquire(None, 0, 1000, &ask(1, 5000)));
    let Acquire::Repeated(after) = acquire(Some(row.clone()), 0, 1100, &ask(1, 1)) else {
        panic!()
    };
    assert_eq!(after.grant.unwrap().expires_at, 6000);
    assert_eq!(renew(row.grant, 1100, &hash(1), ms(1)).unwrap().expires_at, 6000);
}

#[test]
fn the_last_owner_token_is_spent_after_release_and_after_expiry() {
    let row = granted(acquire(None, 0, 1000, &ask(1, 500)));
    assert_eq!(acquire(Some(row.clone()), 0, 1500, &ask(1, 500)), Acquire::Spent);
    let Ok(Release::Released(grant)) = release(row.grant, 1100, &hash(1)) else { panic!() };
    let row = Row { token: 1, grant: Some(grant) };
    assert_eq!(acquire(Some(row), 0, 1100, &ask(1, 500)), Acquire::Spent);
}

/// Case 36: no renewal without the holder's secret, and none after expiry.
#[test]
fn an_expired_grant_is_never_revived() {
    let row = granted(acquire(None, 0, 1000, &ask(1, 1000)));
    assert_eq!(renew(row.grant.clone(), 2000, &hash(1), ms(9)), Err(Refusal::NotHeld));
    // Not held comes before not yours, whatever the secret.
    assert_eq!(renew(row.grant.clone(), 2000, &hash(2), ms(9)), Err(Refusal::NotHeld));
    let row = granted(acquire(Some(row), 0, 3000, &ask(2, 1000)));
    assert_eq!(renew(row.grant, 3000, &hash(1), ms(9)), Err(Refusal::NotYours));
    assert_eq!(renew(None, 3000, &hash(1), ms(9)), Err(Refusal::NotHeld));
}

#[test]
fn a_release_can_be_repeated_while_its_grant_is_the_last() {
    let row = granted(acquire(None, 0, 1000, &ask(1, 1000)));
    assert_eq!(release(row.grant.clone(), 1100, &hash(2)), Err(Refusal::NotYours));
    let Ok(Release::Released(grant)) = release(row.grant, 1100, &hash(1)) else { panic!() };
    assert!(!grant.is_live(1100));
    for now in [1100, 5000] {
        let again = release(Some(grant.clone()), now, &hash(1));
        assert_eq!(again, Ok(Release::AlreadyReleased));
    }
    assert_eq!(release(Some(grant.clone()), 1100, &hash(2)), Err(Refusal::NotHeld));
    let row = Row { token: 1, grant: Some(grant) };
    let row = granted(acquire(Some(row), 0, 1200, &ask(2, 1000)));
    assert_eq!(release(row.grant, 1300, &hash(1)), Err(Refusal::NotYours));
}

#[test]
fn an_expired_grant_cannot_be_released() {
    let row = granted(acquire(None, 0, 1000, &ask(1, 1000)));
    assert_eq!(release(row.grant, 2000, &hash(1)), Err(Refusal::NotHeld));
    assert_eq!(release(None, 2000, &hash(1)), Err(Refusal::NotHeld));
}

#[test]
fn a_hold_limit_bounds_the_grant_and_every_renewal() {
    let limited = Ask { max_hold: Some(ms(1500)), ..ask(1, 1000) };
    let row = granted(acquire(None, 0, 1000, &limited));
    let grant = row.grant.clone().unwrap();
    assert_eq!((grant.expires_at, grant.hold_until), (2000, Some(2500)));
    assert_eq!(renew(Some(grant), 1900, &hash(1), ms(1000)).unwrap().expires_at, 2500);
    // A repeat may not move the limit.
    let moved = Ask { max_hold: Some(ms(99_999)), ..ask(1, 1000) };
    let Acquire::Repeated(row) = acquire(Some(row), 0, 1900, &moved) else { panic!() };
    assert_eq!(row.grant.unwrap().expires_at, 2500);
    let short = Ask { max_hold: Some(ms(10)), ..ask(1, 1000) };
    assert_eq!(granted(acquire(None, 0, 1000, &short)).grant.unwrap().expires_at, 1010);
}

/// M12: at the end of the range the answer is a refusal, not a token that clients round.
#[test]
fn tokens_end_at_two_to_the_53_less_one() {
    let max = Token::MAX_GRANTED.get();
    assert_eq!(granted(acquire(None, max - 1, 0, &ask(1, 1))).token, max);
    assert_eq!(acquire(None, max, 0, &ask(1, 1)), Acquire::Exhausted);
    let full = Row { token: max, grant: None };
    assert_eq!(acquire(Some(full), 0, 0, &ask(1, 1)), Acquire::Exhausted);
    assert_eq!(acquire(None, i64::MAX, 0, &ask(1, 1)), Acquire::Exhausted);
    // The holder of the last token may still repeat and renew.
    let last = granted(acquire(None, max - 1, 0, &ask(1, 9)));
    assert!(matches!(acquire(Some(last), max, 0, &ask(1, 9)), Acquire::Repeated(_)));
}

#[test]
fn enormous_times_saturate() {
    let endless = Ask { max_hold: Some(Duration::MAX), ttl: Duration::MAX, ..ask(1, 1) };
    let row = granted(acquire(None, 0, 1_700_000_000_000, &endless));
    assert_eq!(row.grant.as_ref().unwrap().expires_at, i64::MAX);
    assert!(row.grant.unwrap().remaining(i64::MIN) > Duration::ZERO);
}

#[test]
fn the_highest_token_counts_the_floor() {
    let row = Row { token: 5, grant: None };
    assert_eq!(highest_token(None, 0), None);
    assert_eq!(highest_token(None, 7), Token::new(7).ok());
    assert_eq!(highest_token(Some(&row), 0), Token::new(5).ok());
    assert_eq!(highest_token(Some(&row), 7), Token::new(7).ok());
}

#[derive(Clone, Debug)]
enum Op {
    Acquire {
        secret: u8,
        ttl: u64,
        max_hold: Option<u64>,
    },
    Renew {
        secret: u8,
        ttl: u64,
    },
    Release {
        secret: u8,
    },
    /// Purge: the floor rises to the token of the row, which goes.
    Purge,
    /// The floor rises.
    Bump(i64),
    /// The clock steps, either way.
    Clock(i64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..5u8, 1..60u64, proptest::option::of(1..200u64))
            .prop_map(|(secret, ttl, max_hold)| Op::Acquire { secret, ttl, max_hold }),
        3 => (0..5u8, 1..60u64).prop_map(|(secret, ttl)| Op::Renew { secret, ttl }),
        3 => (0..5u8).prop_map(|secret| Op::Release { secret }),
        1 => Just(Op::Purge),
        1 => (0..50i64).prop_map(Op::Bump),
        4 => (-20..40i64).prop_map(Op::Clock),
    ]
}

proptest! {
    /// I2 and I3 over any sequence of operations and steps of the clock.
    #[test]
    fn i2_i3_tokens_rise_and_one_grant_lives(ops in proptest::collection::vec(op(), 1..120)) {
        let (mut row, mut floor, mut now) = (None::<Row>, 0i64, 1_000_000i64);
        let mut highest = 0;
        for op in ops {
            let before = row.clone();
            let was_live = live(before.clone(), now);
            match op {
                Op::Acquire { secret, ttl, max_hold } => {
                    let ask = Ask { max_hold: max_hold.map(ms), ..ask(secret, ttl) };
                    match acquire(row.clone(), floor, now, &ask) {
                        Acquire::Granted(new) => {
                            prop_assert!(was_live.is_none(), "granted over a live grant");
                            prop_assert!(new.token > highest && new.token > floor);
                            highest = new.token;
                            let grant = new.grant.as_ref().unwrap();
                            prop_assert!(grant.is_live(now) && !grant.remaining(now).is_zero());
                            prop_assert!(grant.remaining(now) <= ms(ttl));
                            row = Some(new);
                        }
                        Acquire::Repeated(new) => {
                            let (token, old) = was_live.unwrap();
                            prop_assert_eq!(new.token, token);
                            let grant = new.grant.as_ref().unwrap();
                            prop_assert_eq!(grant.owner_token_hash, hash(secret));
                            prop_assert!(grant.expires_at >= old.expires_at);
                            row = Some(new);
                        }
                        Acquire::Held(left) => {
                            let (_, old) = was_live.unwrap();
                            prop_assert!(old.owner_token_hash != hash(secret));
                            prop_assert!(!left.is_zero());
                        }
                        Acquire::Spent => {
                            prop_assert!(was_live.is_none());
                            let last = before.unwrap().grant.unwrap();
                            prop_assert_eq!(last.owner_token_hash, hash(secret));
                        }
                        Acquire::Exhausted => prop_assert!(false, "far from the end"),
                    }
                }
                Op::Renew { secret, ttl } => {
                    let grant = row.as_ref().and_then(|row| row.grant.clone());
                    match renew(grant, now, &hash(secret), ms(ttl)) {
                        Ok(new) => {
                            let (token, old) = was_live.unwrap();
                            prop_assert_eq!(old.owner_token_hash, hash(secret));
                            prop_assert!(new.expires_at >= old.expires_at);
                            prop_assert!(new.expires_at <= new.hold_until.unwrap_or(i64::MAX));
                            row = Some(Row { token, grant: Some(new) });
                        }
                        Err(Refusal::NotHeld) => prop_assert!(was_live.is_none()),
                        Err(Refusal::NotYours) => {
                            prop_assert!(was_live.unwrap().1.owner_token_hash != hash(secret));
                        }
                    }
                }
                Op::Release { secret } => {
                    let grant = row.as_ref().and_then(|row| row.grant.clone());
                    match release(grant, now, &hash(secret)) {
                        Ok(Release::Released(new)) => {
                            let (token, old) = was_live.unwrap();
                            prop_assert_eq!(old.owner_token_hash, hash(secret));
                            row = Some(Row { token, grant: Some(new) });
                            prop_assert!(live(row.clone(), now).is_none());
                        }
                        Ok(Release::AlreadyReleased) => prop_assert!(was_live.is_none()),
                        Err(Refusal::NotHeld) => prop_assert!(was_live.is_none()),
                        Err(Refusal::NotYours) => {
                            prop_assert!(was_live.unwrap().1.owner_token_hash != hash(secret));
                        }
                    }
                }
                Op::Purge => {
                    if was_live.is_none() && let Some(row) = row.take() {
                        floor = floor.max(row.token);
                    }
                }
                Op::Bump(by) => floor += by,
                Op::Clock(by) => now += by,
            }
            let seed = highest_token(row.as_ref(), floor).map_or(0, Token::get);
            prop_assert!(seed >= highest, "a restarted guard would start below a granted token");
        }
    }
}
