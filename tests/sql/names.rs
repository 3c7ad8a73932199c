//! Every resource is its own, on every database, and no token is bent to fit.

use fencing::Token;
use fencing::sql::{FenceErrorKind, FencedTx};

use crate::support::{Db, Harness, claim, claim_on, on_every_database};

on_every_database! {
    case_3_the_whole_range_of_tokens_is_kept,
    case_31_names_are_compared_byte_by_byte,
    case_32_long_names_are_neither_cut_nor_merged,
    the_database_refuses_what_the_crate_would_not_send,
}

/// Case 3: the highest token is stored as it is, and the resource can be used after it.
async fn case_3_the_whole_range_of_tokens_is_kept<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    for token in [1, Token::MAX_GRANTED.get(), i64::MAX, i64::MAX] {
        FencedTx::begin(&pool, &claim(token)).await.unwrap().commit().await.unwrap();
        assert_eq!(db.mark().await, Some(token));
    }
    let error = FencedTx::begin(&pool, &claim(i64::MAX - 1)).await.unwrap_err();
    assert_eq!(error.kind(), FenceErrorKind::Stale { last_token: Token::MAX });
}

/// Case 31: neither case nor a trailing space nor an accent makes two names one.
async fn case_31_names_are_compared_byte_by_byte<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    let names =
        ["Job", "job", "Job ", "j\u{f6}b", "jo\u{308}b", "jOb", " Job", "'; --", "\u{1f512}"];
    for (token, name) in (1..).zip(names) {
        FencedTx::begin(&pool, &claim_on(name, token)).await.unwrap().commit().await.unwrap();
    }
    for (token, name) in (1..).zip(names) {
        if let Ok(below) = Token::new(token - 1) {
            let error = FencedTx::begin(&pool, &claim_on(name, below.get())).await.unwrap_err();
            let last_token = Token::new(token).unwrap();
            assert_eq!(error.kind(), FenceErrorKind::Stale { last_token }, "{name:?}");
        }
    }
    let count = db.number("SELECT count(*) FROM fencing_marks").await;
    assert_eq!(count, Some(i64::try_from(names.len()).unwrap()));
}

/// Case 32: names that are equal in all bytes but the last are two resources.
async fn case_32_long_names_are_neither_cut_nor_merged<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    for length in [64, 69, 191, 254] {
        let (a, b) = ("x".repeat(length) + "a", "x".repeat(length) + "b");
        FencedTx::begin(&pool, &claim_on(&a, 9)).await.unwrap().commit().await.unwrap();
        FencedTx::begin(&pool, &claim_on(&b, 3)).await.unwrap().commit().await.unwrap();
        assert!(FencedTx::begin(&pool, &claim_on(&a, 8)).await.unwrap_err().is_stale());
    }
    let multibyte = "\u{e9}".repeat(127);
    FencedTx::begin(&pool, &claim_on(&multibyte, 9)).await.unwrap().commit().await.unwrap();
    let length = "SELECT max(octet_length(resource)) FROM fencing_marks";
    assert_eq!(db.number(length).await, Some(255));
}

async fn the_database_refuses_what_the_crate_would_not_send<H: Harness>() {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    let mut conn = pool.acquire().await.unwrap();
    let long = "x".repeat(256);
    for (name, token) in [("", "1"), (&*long, "1"), ("r", "0"), ("r", "-1"), ("r", "NULL")] {
        let insert = format!(
            "INSERT INTO fencing_marks (resource, last_token, updated_at) VALUES ('{name}', {token}, 0)"
        );
        assert!(H::run(&mut conn, &insert).await.is_err(), "{insert}");
    }
    assert!(
        H::run(&mut conn, "INSERT INTO fencing_floor (id, floor) VALUES (2, 0)").await.is_err()
    );
    assert!(H::run(&mut conn, "UPDATE fencing_floor SET floor = -1").await.is_err());
}
