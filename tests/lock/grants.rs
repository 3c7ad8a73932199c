//! Who holds what, and under which token.

use crate::site::{Site, on_every_store};

/// Cases 28 and 39: over release, expiry and the floor, each grant has a higher token than all
/// before it.
async fn i2_tokens_rise_over_release_expiry_and_floor(site: Site) {
    let mut last = 0;
    let mut higher = |token: i64| {
        assert!(token > last, "{token} after {last}");
        last = token;
    };
    higher(site.take("job", "a", 1000).await.granted_token());
    site.release("job", "a").await.is(204);
    higher(site.take("job", "b", 1000).await.granted_token());
    site.pass(1000);
    higher(site.take("job", "c", 1000).await.granted_token());
    site.release("job", "c").await.is(204);
    site.lift_floor(100).await;
    higher(site.take("job", "d", 1000).await.granted_token());
    assert!(last > 100);
    assert_eq!(site.take("first", "a", 1000).await.granted_token(), 101, "above the floor");
}

/// Case 43: between grants there is one holder, by the one clock of the store. A step of it back
/// keeps a lock longer; it never makes two holders.
async fn i3_one_holder_by_the_clock_of_the_store(site: Site) {
    let start = fencing::testing::ManualClock::START_EPOCH_MS;
    site.take("job", "a", 10_000).await.granted();
    site.clock.set_epoch_ms(start - 180_000);
    site.take("job", "b", 10_000).await.held();
    site.clock.set_epoch_ms(start + 10_000);
    let b = site.take("job", "b", 10_000).await.granted_token();
    site.renew("job", "a", 10_000).await.problem(403, "not-yours");
    // Back again, before the end of a's grant: it is b's all the same.
    site.clock.set_epoch_ms(start + 5000);
    site.renew("job", "a", 10_000).await.problem(403, "not-yours");
    assert_eq!(site.show("job").await.json["token"], b);
}

/// Case 36: an expired grant is not renewed, whether or not another came.
async fn an_expired_grant_is_not_revived(site: Site) {
    let a = site.take("job", "a", 1000).await.granted_token();
    assert_eq!(site.renew("job", "a", 1000).await.is(200).json["token"], a, "same token");
    site.pass(2000);
    site.renew("job", "a", 1000).await.problem(404, "not-held");
    site.renew("job", "wrong", 1000).await.problem(404, "not-held");
    let b = site.take("job", "b", 1000).await;
    site.renew("job", "a", 1000).await.problem(403, "not-yours");
    let now = site.show("job").await;
    assert_eq!(now.json["expires_at"], b.granted()["expires_at"]);
    site.renew("never", "a", 1000).await.problem(404, "not-held");
}

/// A renewal with a shorter TTL that overtakes a longer one takes nothing away.
async fn a_renewal_never_shortens(site: Site) {
    site.take("job", "a", 10_000).await.granted();
    assert_eq!(site.renew("job", "a", 60_000).await.json["remaining_ms"], 60_000);
    assert_eq!(site.renew("job", "a", 1000).await.json["remaining_ms"], 60_000);
}

/// Case 40, the server's side: a lost answer is asked for again; a late one grants nothing anew.
async fn an_acquire_can_be_asked_again(site: Site) {
    let first = site.take("job", "a", 10_000).await.granted_token();
    assert_eq!(site.take("job", "a", 10_000).await.granted_token(), first);
    site.release("job", "a").await.is(204);
    let late = site.take("job", "a", 10_000).await;
    late.problem(409, "spent-owner-token");
    site.show("job").await.problem(404, "not-held");
    // The same label with a new owner token is a new client.
    let next = site.take("job", "a2", 1000).await.granted_token();
    assert!(next > first);
    site.pass(1000);
    site.take("job", "a2", 1000).await.problem(409, "spent-owner-token");
}

/// The same owner token twice at once is one grant.
async fn one_owner_token_at_once_is_one_grant(site: Site) {
    let site = std::sync::Arc::new(site);
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let site = site.clone();
            tokio::spawn(async move { site.take("job", "a", 10_000).await.granted_token() })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), 1);
    }
}

/// Case 47: an issuer that fell behind a mark is lifted by a bump, and grants above it.
async fn a_bump_lifts_a_restored_issuer(site: Site) {
    for n in 0..40 {
        let owner = format!("{n}");
        site.take("job", &owner, 1000).await.granted();
        site.release("job", &owner).await.is(204);
    }
    assert_eq!(site.token("job").await.json["token"], 40);
    site.lift_floor(57).await;
    assert_eq!(site.take("job", "a", 1000).await.granted_token(), 58);
}

on_every_store! {
    i2_tokens_rise_over_release_expiry_and_floor,
    i3_one_holder_by_the_clock_of_the_store,
    an_expired_grant_is_not_revived,
    a_renewal_never_shortens,
    an_acquire_can_be_asked_again,
    one_owner_token_at_once_is_one_grant,
    a_bump_lifts_a_restored_issuer,
}
