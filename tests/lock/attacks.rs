//! The attack list of the endpoint, each by its number.

use http::Method;
use serde_json::json;

use crate::site::{Site, on_every_store, raw};

async fn atk_01_what_another_holds_is_not_acquired(site: Site) {
    let a = site.take("job", "a", 60_000).await;
    site.pass(10_000);
    let b = site.take("job", "b", 60_000).await;
    b.held();
    assert_eq!(b.json["resource"], "job");
    let lock = site.show("job").await;
    assert_eq!(lock.json["token"], a.granted_token());
    assert_eq!(lock.json["owner"], "a");
    assert_eq!(lock.json["remaining_ms"], 50_000);
}

async fn atk_02_the_lock_of_another_is_not_released(site: Site) {
    site.take("job", "a", 60_000).await.granted();
    site.release("job", "b").await.problem(403, "not-yours");
    assert_eq!(site.show("job").await.json["owner"], "a");
}

async fn atk_03_an_expired_lock_goes_to_the_next_with_a_higher_token(site: Site) {
    let a = site.take("job", "a", 1000).await.granted_token();
    site.pass(999);
    site.take("job", "b", 1000).await.held();
    site.pass(1);
    let b = site.take("job", "b", 1000).await.granted_token();
    assert!(b > a, "{b} after {a}");
}

async fn atk_04_the_lock_of_another_is_not_renewed(site: Site) {
    let a = site.take("job", "a", 60_000).await;
    site.pass(1000);
    site.renew("job", "b", 60_000).await.problem(403, "not-yours");
    assert_eq!(site.show("job").await.json["expires_at"], a.granted()["expires_at"]);
}

async fn atk_05_a_ttl_of_zero_or_less_is_refused(site: Site) {
    for ttl in ["0", "-1", "-9223372036854775808"] {
        for field in ["ttl_seconds", "ttl_ms"] {
            let body = format!("{{\"owner\":\"a\",\"{field}\":{ttl}}}");
            raw(&site.app, Method::POST, "/locks/job", body).await.invalid_field(field);
        }
    }
    site.show("job").await.problem(404, "not-held");
}

async fn atk_06_sql_in_a_name_is_a_name(site: Site) {
    let names = [
        (
            "Robert'); DROP TABLE fencing_locks;--",
            "Robert'%29%3B%20DROP%20TABLE%20fencing_locks%3B--",
        ),
        ("' OR '1'='1", "%27%20OR%20%271%27%3D%271"),
        ("\"; --", "%22%3B%20--"),
        ("%", "%25"),
        ("_", "_"),
    ];
    for (name, segment) in names {
        let granted = site.take(segment, "a", 60_000).await;
        assert_eq!(granted.granted()["resource"], name);
        assert_eq!(granted.granted_token(), 1, "{name} is a lock of its own");
    }
    for (_, segment) in names {
        site.show(segment).await.is(200);
        site.release(segment, "a").await.is(204);
    }
}

async fn atk_07_a_blank_owner_is_refused(site: Site) {
    for owner in ["", " ", "\t", "\u{2003}", "a\u{0}b"] {
        let body = json!({ "owner": owner, "ttl_seconds": 30 });
        site.acquire("job", body).await.invalid_field("owner");
    }
    site.acquire("job", json!({ "ttl_seconds": 30 })).await.invalid_field("owner");
    site.acquire("job", json!({ "owner": "x".repeat(256), "ttl_ms": 1 }))
        .await
        .invalid_field("owner");
    site.show("job").await.problem(404, "not-held");
}

async fn atk_08_a_ttl_as_text_or_fraction_is_refused(site: Site) {
    for ttl in ["\"30\"", "60.5", "30.0", "1e3", "1e400", "18446744073709551616", "true", "[30]"] {
        let body = format!("{{\"owner\":\"a\",\"ttl_seconds\":{ttl}}}");
        raw(&site.app, Method::POST, "/locks/job", body).await.invalid_field("ttl_seconds");
        let body = format!("{{\"owner_token\":\"0123456789abcdef\",\"ttl_ms\":{ttl}}}");
        raw(&site.app, Method::POST, "/locks/job/renew", body).await.invalid_field("ttl_ms");
    }
    site.show("job").await.problem(404, "not-held");
}

async fn atk_09_the_same_grant_again_is_the_same_token_extended(site: Site) {
    let first = site.take("job", "a", 10_000).await;
    site.pass(4000);
    let body =
        json!({ "owner": "renamed", "ttl_ms": 10_000, "owner_token": crate::site::secret("a") });
    let again = site.acquire("job", body).await;
    assert_eq!(again.granted_token(), first.granted_token());
    assert_eq!(again.granted()["owner"], "a", "the first label stays");
    assert_eq!(again.granted()["acquired_at"], first.granted()["acquired_at"]);
    assert_eq!(again.granted()["remaining_ms"], 10_000);
    // A shorter repeat shortens nothing.
    let short = site.take("job", "a", 1).await;
    assert_eq!(short.granted()["remaining_ms"], 10_000);
}

/// Fifty at once: one wins, the rest are told so, and nothing fails.
async fn atk_10_of_many_at_once_exactly_one_wins(site: Site) {
    let site = std::sync::Arc::new(site);
    for round in 1..=3 {
        let start = std::sync::Arc::new(tokio::sync::Barrier::new(50));
        let tasks: Vec<_> = (0..50)
            .map(|n| {
                let (site, start) = (site.clone(), start.clone());
                tokio::spawn(async move {
                    start.wait().await;
                    site.take("job", &format!("{round}-{n}"), 60_000).await
                })
            })
            .collect();
        let mut winners = Vec::new();
        for (n, task) in tasks.into_iter().enumerate() {
            let answer = task.await.unwrap();
            assert_eq!(answer.status, 200, "{answer:?}");
            if answer.json["acquired"] == true {
                assert_eq!(answer.granted_token(), round);
                winners.push(n);
            } else {
                answer.held();
            }
        }
        let [winner] = winners[..] else { panic!("round {round}: {winners:?}") };
        site.release("job", &format!("{round}-{winner}")).await.is(204);
    }
}

async fn atk_11_a_free_or_expired_lock_is_not_found(site: Site) {
    site.show("job").await.problem(404, "not-held");
    site.take("job", "a", 1000).await.granted();
    site.show("job").await.is(200);
    site.pass(1000);
    site.show("job").await.problem(404, "not-held");
    site.take("job", "b", 1000).await.granted();
    site.release("job", "b").await.is(204);
    site.show("job").await.problem(404, "not-held");
}

async fn atk_12_an_over_long_name_is_refused(site: Site) {
    let long = "x".repeat(256);
    site.take(&long, "a", 1000).await.problem(400, "invalid-resource");
    site.show(&long).await.problem(400, "invalid-resource");
    site.token(&long).await.problem(400, "invalid-resource");
    site.renew(&long, "a", 1000).await.problem(400, "invalid-resource");
    site.release(&long, "a").await.problem(400, "invalid-resource");
    // 128 characters of two bytes each, spelt in 768 bytes.
    site.show(&"%C3%A9".repeat(128)).await.problem(400, "invalid-resource");
    // The longest names are each a lock of their own.
    for last in ["y", "z"] {
        let name = format!("{}{last}", "x".repeat(254));
        assert_eq!(site.take(&name, "a", 1000).await.granted_token(), 1);
    }
}

on_every_store! {
    atk_01_what_another_holds_is_not_acquired,
    atk_02_the_lock_of_another_is_not_released,
    atk_03_an_expired_lock_goes_to_the_next_with_a_higher_token,
    atk_04_the_lock_of_another_is_not_renewed,
    atk_05_a_ttl_of_zero_or_less_is_refused,
    atk_06_sql_in_a_name_is_a_name,
    atk_07_a_blank_owner_is_refused,
    atk_08_a_ttl_as_text_or_fraction_is_refused,
    atk_09_the_same_grant_again_is_the_same_token_extended,
    atk_10_of_many_at_once_exactly_one_wins,
    atk_11_a_free_or_expired_lock_is_not_found,
    atk_12_an_over_long_name_is_refused,
}
