//! The report_file example from outside: level exclusive over real files, through crashes.

#![cfg(feature = "full")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests are tests, which clippy cannot see"
)]

mod service;

use std::fs;

use self::service::{PATIENCE, Service, Starting, put, somebody_writes, temporary_files};

#[tokio::test]
async fn a_report_is_published_with_the_token_of_its_producer() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path()).await;
    assert_eq!(service.get(None).await.status, 404);
    let answer = service.put(34, "all\nis well").await;
    assert_eq!((answer.status, &answer.headers["x-fencing-token"]), (204, &"34".parse().unwrap()));
    assert_eq!(service.put(33, "zombie").await.status, 412);
    let report = service.get(None).await;
    assert_eq!(report.body, "all\nis well");
    assert_eq!(report.token(), "34");
    let file = fs::read_to_string(folder.path().join("daily.report")).unwrap();
    let head = r#"{"producer":{"resource":"report:daily","token":34},"length":11}"#;
    assert_eq!(file, format!("{head}\nall\nis well"));
    assert_eq!(temporary_files(folder.path()), 0);
}

/// 33 has written its temporary file and pauses; 34 comes. Without the gate 33 would rename last.
#[tokio::test]
async fn i1_a_paused_writer_is_waited_for_and_gives_up() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path()).await;
    let base = service.base.clone();
    let zombie = tokio::spawn(async move { put(&base, 33, "zombie", 8000).await });
    somebody_writes(folder.path()).await;
    assert_eq!(service.put(34, "newer").await.status, 204);
    let zombie = zombie.await.unwrap();
    assert_eq!(zombie.status, 412);
    assert!(zombie.body.contains("urn:fencing:problem:stale-token"), "{}", zombie.body);
    let report = service.get(None).await;
    assert_eq!((report.body.as_str(), report.token()), ("newer", "34"));
    assert_eq!(temporary_files(folder.path()), 0);
}

/// M6: a disconnect drops the future of the handler, not the write.
#[tokio::test]
async fn i1_a_writer_whose_client_hung_up_is_waited_for_too() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path()).await;
    let base = service.base.clone();
    let zombie = tokio::spawn(async move { put(&base, 33, "zombie", 8000).await });
    somebody_writes(folder.path()).await;
    zombie.abort();
    assert_eq!(service.put(34, "newer").await.status, 204);
    // It has left for good before 34 came in, so there is nothing to wait for here.
    assert_eq!(temporary_files(folder.path()), 0);
    assert_eq!(service.get(None).await.body, "newer");
}

#[tokio::test]
async fn i5_a_crash_loses_neither_report_nor_mark() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path()).await;
    assert_eq!(service.put(33, "old").await.status, 204);
    // 35 has read, and will write what it makes of it.
    assert_eq!(service.get(Some(35)).await.body, "old");
    let base = service.base.clone();
    let unfinished = tokio::spawn(async move { put(&base, 35, "new", 8000).await });
    somebody_writes(folder.path()).await;
    unfinished.abort();
    service.kill().await;
    assert_eq!(temporary_files(folder.path()), 1);

    let service = Service::start(folder.path()).await;
    assert_eq!(temporary_files(folder.path()), 0);
    let report = service.get(None).await;
    assert_eq!((report.body.as_str(), report.token()), ("old", "33"));
    // The claim of 35 was there before the crash, although nothing was written under it.
    assert_eq!(service.put(34, "zombie").await.status, 412);
    assert_eq!(service.put(35, "new").await.status, 204);
}

#[tokio::test]
async fn i5_lost_marks_are_seeded_by_the_tokens_in_the_reports() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path()).await;
    assert_eq!(service.put(34, "report").await.status, 204);
    service.kill().await;
    for file in ["marks.db", "marks.db-wal", "marks.db-shm"] {
        let _ = fs::remove_file(folder.path().join(file));
    }
    let service = Service::start(folder.path()).await;
    assert_eq!(service.put(33, "zombie").await.status, 412);
    assert_eq!(service.put(34, "again").await.status, 204);
}

/// A rolling deploy.
#[tokio::test]
async fn a_second_process_waits_until_the_first_has_left_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let first = Service::start(folder.path()).await;
    let mut second = Starting::new(folder.path());
    assert_eq!(second.error_line().await, "waiting for another process to leave the folder");
    assert_eq!(first.put(34, "by the first").await.status, 204);
    first.kill().await;
    let second = second.ready().await;
    assert_eq!(second.put(33, "zombie").await.status, 412);
    assert_eq!(second.get(None).await.body, "by the first");
}

#[tokio::test]
async fn a_report_that_something_else_broke_keeps_the_service_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path()).await;
    assert_eq!(service.put(34, "a report").await.status, 204);
    service.kill().await;
    let path = folder.path().join("daily.report");
    let whole = fs::read(&path).unwrap();
    for broken in [&whole[..whole.len() - 1], &whole[..5], b""] {
        fs::write(&path, broken).unwrap();
        let mut starting = Starting::new(folder.path());
        let error = tokio::time::timeout(PATIENCE, starting.error_line()).await.unwrap();
        assert!(error.starts_with("report_file: cannot read the report: "), "{error}");
        assert!(error.contains("daily.report"), "{error}");
    }
}
