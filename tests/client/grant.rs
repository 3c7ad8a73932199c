//! Grants that outlive their leases.

use fencing::client::{ClientErrorKind, LostReason, ReleaseOutcome, RenewOutcome};

use crate::{secs, setup, skip_pause_after, soon};

#[tokio::test]
async fn a_grant_taken_out_of_its_lease_is_neither_renewed_nor_released() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(30)).await;
    let lost = tokio::spawn(lease.lost());
    let grant = lease.into_grant().unwrap();
    assert_eq!((grant.claim.token().get(), grant.remaining), (33, secs(30)));
    assert_eq!(soon(lost).await.unwrap().reason(), LostReason::Released);
    setup.clock.advance(secs(3600));
    tokio::task::yield_now().await;
    setup.server.assert_quiet();
    assert_eq!(setup.clock.sleeping(), 0);

    let (client, secret) = (setup.client.clone(), grant.owner_token.reveal().to_owned());
    let release = tokio::spawn(async move {
        client.release_grant(grant.claim.resource(), &grant.owner_token).await
    });
    let call = setup.server.next_release().await;
    assert_eq!(call.secret(), secret);
    call.released();
    assert_eq!(soon(release).await.unwrap().unwrap(), ReleaseOutcome::Released);
}

#[tokio::test]
async fn a_lost_lease_has_no_grant_to_hand_out() {
    let mut setup = setup().await;
    let lease = setup.lease(secs(3)).await;
    setup.clock.suspend(secs(3));
    assert_eq!(lease.into_grant().unwrap_err().reason(), LostReason::Expired);
}

#[tokio::test]
async fn a_renewal_by_hand_has_three_outcomes_and_is_tried_again() {
    let mut setup = setup().await;
    let grant = setup.lease(secs(30)).await.into_grant().unwrap();
    let renew = |client: &fencing::client::LockClient| {
        let (client, grant) = (client.clone(), grant.clone());
        tokio::spawn(async move {
            client.renew_grant(grant.claim.resource(), &grant.owner_token, secs(30)).await
        })
    };
    let renewal = renew(&setup.client);
    let call = setup.server.next_renewal().await;
    assert_eq!(call.secret(), grant.owner_token.reveal());
    skip_pause_after(&setup.clock, || call.problem(503, "lock-unavailable")).await;
    setup.server.next_renewal().await.renew(33);
    let outcome = soon(renewal).await.unwrap().unwrap();
    assert!(matches!(outcome, RenewOutcome::Renewed(lock) if lock.token.get() == 33));

    let renewal = renew(&setup.client);
    setup.server.next_renewal().await.problem(404, "not-held");
    assert!(matches!(soon(renewal).await.unwrap().unwrap(), RenewOutcome::NotHeld));
    let renewal = renew(&setup.client);
    setup.server.next_renewal().await.problem(403, "not-yours");
    assert!(matches!(soon(renewal).await.unwrap().unwrap(), RenewOutcome::NotYours));
    let renewal = renew(&setup.client);
    setup.server.next_renewal().await.problem(403, "forbidden");
    let error = soon(renewal).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ClientErrorKind::Refused);
}
