//! The same on the system's own clock, with TTLs short enough to wait for.

use std::time::Duration;

use fencing::client::{LockClient, LostReason, ReleaseOutcome};

use crate::fault::FaultServer;
use crate::{ms, soon};

async fn lease(server: &mut FaultServer, ttl: Duration) -> fencing::client::Lease {
    let client = LockClient::new(&server.url()).unwrap();
    let acquire = tokio::spawn(client.acquire("r").ttl(ttl).into_future());
    server.next().await.grant(33, 0);
    soon(acquire).await.unwrap().unwrap().unwrap()
}

#[tokio::test]
async fn a_lease_renews_itself_on_the_systems_clock() {
    let mut server = FaultServer::start().await;
    let lease = lease(&mut server, ms(1500)).await;
    for _ in 0..3 {
        server.next_renewal().await.renew(33);
    }
    assert!(lease.is_held());
    let release = tokio::spawn(lease.release());
    loop {
        let call = server.next().await;
        if call.method == "DELETE" {
            call.released();
            break;
        }
        call.renew(33);
    }
    assert_eq!(soon(release).await.unwrap().unwrap(), ReleaseOutcome::Released);
}

#[tokio::test]
async fn a_lease_expires_on_the_systems_clock() {
    let mut server = FaultServer::start().await;
    let lease = lease(&mut server, ms(200)).await;
    assert_eq!(soon(lease.lost()).await.reason(), LostReason::Expired);
    assert!(!lease.is_held());
}

/// Case 51: the only thread of the runtime is blocked past the TTL. No renewal is sent when it
/// runs again.
#[tokio::test(flavor = "current_thread")]
async fn a_thread_blocked_past_the_ttl_finds_the_lease_lost() {
    let mut server = FaultServer::start().await;
    let lease = lease(&mut server, ms(600)).await;
    std::thread::sleep(ms(700));
    assert!(!lease.is_held());
    assert_eq!(soon(lease.lost()).await.reason(), LostReason::Expired);
    server.next_release().await.problem(404, "not-held");
    server.assert_quiet();
}
