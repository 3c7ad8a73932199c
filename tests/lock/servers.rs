//! What only a store on a server can get wrong: row locks, clocks, lost connections, start-up.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use fencing::Resource;
use fencing::lock::{Acquired, LockStore, SqlLocks, SqlLocksErrorKind};
use fencing::sql::{FenceOptions, Isolation, Tables};
use fencing::testing::ManualClock;
use sqlx::{Connection, MySql, Postgres};
use tokio::sync::Barrier;

use crate::proxy::{Proxy, Then};
use crate::site::{Answer, Site, Timed, app, ask, release, take, until};
use crate::support::{Db, Harness, Options, Server, on_every_server, poll_times};

on_every_server! {
    i3_the_clock_is_read_after_the_locks,
    i2_a_bump_or_purge_that_comes_first_counts,
    i2_a_bump_or_purge_that_comes_second_waits,
    case_22_fifty_first_acquires_over_two_servers,
    case_43_the_clocks_of_the_servers_do_not_count,
    time_zones_and_the_repeated_hour_do_not_count,
    case_22_a_deadlock_is_taken_again,
    a_lost_answer_is_asked_for_again,
    a_lost_connection_is_unavailable_and_recovers,
    case_33_a_step_dropped_at_any_await_leaves_no_transaction_behind,
    a_server_that_takes_no_writes_is_told_at_start,
    the_documented_privileges_are_enough,
    unusable_tables_are_told_at_start,
    a_missing_floor_fails_closed,
    other_tables_are_locks_of_their_own,
}

/// A server that keeps locks.
trait Locked: Server + Timed {
    /// How many connections to this database wait for a lock.
    const WAITING: &str;
    /// The time in milliseconds.
    const NOW: &str;
    /// The zone of the tests, in which the clocks go back in October.
    const ZONE: &str;
    /// How far the connection is ahead of UTC, in hours.
    const AHEAD: &str;
    /// Statements after which the connection is not the victim of a deadlock.
    fn no_victim() -> String;
    /// Connections that are, also when it comes about a second after they began to wait.
    fn victim(options: Options<Self>) -> Options<Self> {
        options
    }

    async fn database() -> Db<Self>
    where
        Self: Sized,
    {
        let db = Db::<Self>::empty().await;
        let pool = db.pool(1).await;
        fencing::sql::migrate(&pool).await.unwrap();
        pool.close().await;
        db
    }

    /// A role that may do with the tables what these grants say: what, and on which table.
    async fn role(db: &Db<Self>, grants: &[(&str, &str)]) -> Role<Self>
    where
        Self: Sized;
}

/// A role, and how to drop it.
struct Role<H: Server> {
    options: Options<H>,
    drop: String,
}

impl Locked for Postgres {
    const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
         AND application_name = current_setting('application_name')";
    const NOW: &str = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)";
    const ZONE: &str = "SET TIME ZONE 'CET-1CEST,M3.5.0,M10.5.0/3'";
    const AHEAD: &str = "SELECT extract(timezone_hour FROM clock_timestamp())";

    /// The victim is the one that finds it.
    fn no_victim() -> String {
        "SET deadlock_timeout = '60s'".to_owned()
    }

    fn victim(options: Options<Self>) -> Options<Self> {
        options.options([("deadlock_timeout", "1500ms")])
    }

    async fn database() -> Db<Self> {
        let mut db = Db::<Self>::empty().await;
        // By which to find its own connections among all of the server.
        let name = db.name();
        db.options = db.options.clone().application_name(&name);
        let pool = db.pool(1).await;
        fencing::sql::migrate(&pool).await.unwrap();
        pool.close().await;
        db
    }

    async fn role(db: &Db<Self>, grants: &[(&str, &str)]) -> Role<Self> {
        let (role, schema) = (format!("r{}", db.name()), db.name());
        let mut text =
            format!("CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role}");
        for (what, table) in grants {
            text = format!("{text}; GRANT {what} ON {table} TO {role}");
        }
        let mut conn = db.connect().await;
        Self::script(&mut conn, &text).await.unwrap();
        conn.close().await.unwrap();
        let options = db.options.clone().username(&role);
        Role { options, drop: format!("DROP OWNED BY {role}; DROP ROLE {role}") }
    }
}

impl Locked for MySql {
    /// What InnoDB tells of waits is of no use here: it is a copy that is not refreshed while it is
    /// looked at. No statement of these tests runs this long unless it waits.
    const WAITING: &str = "SELECT count(*) FROM information_schema.processlist \
         WHERE db = DATABASE() AND command IN ('Query', 'Execute') AND time_ms > 100 \
         AND info REGEXP 'locks|floor' AND id <> CONNECTION_ID()";
    const NOW: &str = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000";
    const ZONE: &str = "SET time_zone = 'SYSTEM'";
    const AHEAD: &str = "SELECT TIMESTAMPDIFF(HOUR, UTC_TIMESTAMP(), NOW())";

    /// The victim is the one that has changed fewer rows.
    fn no_victim() -> String {
        let rows = vec!["(0, 'x')"; 100].join(", ");
        format!("INSERT INTO fencing_audit (at, event) VALUES {rows}")
    }

    async fn role(db: &Db<Self>, grants: &[(&str, &str)]) -> Role<Self> {
        let (role, name) = (format!("r{}", db.name()), db.name());
        let mut text = format!("CREATE USER {role}@'%'");
        for (what, table) in grants {
            text = format!("{text}; GRANT {what} ON {name}.{table} TO {role}@'%'");
        }
        let mut conn = db.connect().await;
        Self::script(&mut conn, &text).await.unwrap();
        conn.close().await.unwrap();
        let options = db.options.clone().username(&role);
        Role { options, drop: format!("DROP USER {role}@'%'") }
    }
}

async fn locks<H: Locked>(db: &Db<H>, connections: u32) -> SqlLocks<H> {
    SqlLocks::new(db.pool(connections).await).await.unwrap()
}

fn taking(app: &Router, resource: &str, owner: &str) -> tokio::task::JoinHandle<Answer> {
    let (app, resource, owner) = (app.clone(), resource.to_owned(), owner.to_owned());
    tokio::spawn(async move { take(&app, &resource, &owner).await })
}

async fn until_waiting<H: Locked>(db: &Db<H>, waiting: i64) {
    let what = format!("{waiting} wait for a lock");
    until(&what, async || db.number(H::WAITING).await == Some(waiting)).await;
}

async fn begun<H: Locked>(db: &Db<H>, statements: &str) -> H::Connection {
    let mut other = db.connect().await;
    H::script(&mut other, &format!("START TRANSACTION; {statements}")).await.unwrap();
    other
}

/// Interleaving H4: whatever it waits for (the floor, the row, another that makes the row and gives
/// up or not), the time of a grant is read when both locks are held.
async fn i3_the_clock_is_read_after_the_locks<H: Locked>() {
    let db = H::database().await;
    let app = app(locks(&db, 2).await);
    take(&app, "row", "before").await.granted();
    release(&app, "row", "before").await.is(204);
    let cases = [
        ("floor", "UPDATE fencing_floor SET floor = floor + 1 WHERE id = 1", "COMMIT"),
        ("floor-of-old", "UPDATE fencing_floor SET floor = floor + 1 WHERE id = 1", "ROLLBACK"),
        ("row", "UPDATE fencing_locks SET token = token + 1 WHERE resource = 'row'", "COMMIT"),
        ("row", "SELECT * FROM fencing_locks WHERE resource = 'row' FOR UPDATE", "ROLLBACK"),
        ("made", "INSERT INTO fencing_locks (resource, token) VALUES ('made', 0)", "COMMIT"),
        ("undone", "INSERT INTO fencing_locks (resource, token) VALUES ('undone', 0)", "ROLLBACK"),
    ];
    for (n, (resource, hold, end)) in cases.into_iter().enumerate() {
        let owner = format!("owner-{n}");
        let mut other = begun(&db, hold).await;
        let waiting = taking(&app, resource, &owner);
        until_waiting(&db, 1).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let let_go = db.number(H::NOW).await.unwrap();
        H::run(&mut other, end).await.unwrap();
        let answer = waiting.await.unwrap();
        assert_eq!(answer.granted()["remaining_ms"], 60_000, "{hold}");
        let acquired_at =
            format!("SELECT acquired_at FROM fencing_locks WHERE resource = '{resource}'");
        let acquired_at = db.number(&acquired_at).await.unwrap();
        assert!(acquired_at >= let_go, "{hold}; {end}: {} ms too early", let_go - acquired_at);
        release(&app, resource, &owner).await.is(204);
        other.close().await.unwrap();
    }
}

/// Interleaving C4, the side of the grant: a floor that rises, and a row that changes or goes,
/// while an acquire waits count for it.
async fn i2_a_bump_or_purge_that_comes_first_counts<H: Locked>() {
    let db = H::database().await;
    let app = app(locks(&db, 2).await);
    for resource in ["purged", "bumped"] {
        take(&app, resource, "a").await.granted();
        release(&app, resource, "a").await.is(204);
    }
    let purge =
        "UPDATE fencing_floor SET floor = 57; DELETE FROM fencing_locks WHERE resource = 'purged'";
    let bump =
        "UPDATE fencing_floor SET floor = 1000; UPDATE fencing_locks SET token = token + 2000";
    for (statements, resource, expected) in [(purge, "purged", 58), (bump, "bumped", 2002)] {
        let mut other = begun(&db, statements).await;
        let waiting = taking(&app, resource, "b");
        until_waiting(&db, 1).await;
        H::run(&mut other, "COMMIT").await.unwrap();
        assert_eq!(waiting.await.unwrap().granted_token(), expected);
    }
    // The row is gone between the look at it and the lock on it.
    let mut other = begun(&db, purge.replace("57", "3000").as_str()).await;
    let waiting = taking(&app, "purged", "c");
    until_waiting(&db, 1).await;
    H::run(&mut other, "COMMIT").await.unwrap();
    assert_eq!(waiting.await.unwrap().granted_token(), 3001);
}

/// The other order: a bump or purge waits for a grant that has read the floor, and counts it.
async fn i2_a_bump_or_purge_that_comes_second_waits<H: Locked>() {
    let db = H::database().await;
    let proxy = Proxy::before(&db).await;
    let app = app(SqlLocks::new(db.pool_with(1, proxy.options(&db)).await).await.unwrap());
    for (round, resource) in ["new", "new", "old"].into_iter().enumerate() {
        let owner = format!("{round}");
        proxy.at(H::COMMIT, Then::Hold);
        let waiting = taking(&app, resource, &owner);
        proxy.seen().await;
        let mut other = db.connect().await;
        let bump = tokio::spawn(async move {
            // What a purge chooses is looked at when the floor is locked.
            let statements = "START TRANSACTION; UPDATE fencing_floor SET floor = floor + 100; \
                 UPDATE fencing_floor SET floor = GREATEST(floor, \
                 (SELECT MAX(token) FROM fencing_locks)) WHERE id = 1; \
                 DELETE FROM fencing_locks; COMMIT";
            H::script(&mut other, statements).await.unwrap();
        });
        until_waiting(&db, 1).await;
        assert!(!bump.is_finished());
        proxy.release();
        let granted = waiting.await.unwrap().granted_token();
        bump.await.unwrap();
        let floor = db.number("SELECT floor FROM fencing_floor").await.unwrap();
        assert!(floor >= granted, "{floor} after a grant of {granted}");
        let next = take(&app, resource, &format!("{round}-next")).await.granted_token();
        assert!(next > granted, "{next} after {granted}");
        release(&app, resource, &format!("{round}-next")).await.is(204);
    }
}

/// Case 22 and interleaving H3: of many first acquires of one name, over two servers, one wins, and
/// none is an error.
async fn case_22_fifty_first_acquires_over_two_servers<H: Locked>() {
    let db = H::database().await;
    let servers = [app(locks(&db, 10).await), app(locks(&db, 4).await)];
    for round in 0..4 {
        let start = Arc::new(Barrier::new(50));
        let tasks: Vec<_> = (0..50)
            .map(|n| {
                let (app, start) = (servers[n % 2].clone(), start.clone());
                tokio::spawn(async move {
                    start.wait().await;
                    take(&app, &format!("job-{round}"), &format!("{n}")).await
                })
            })
            .collect();
        let mut won = 0;
        for task in tasks {
            let answer = task.await.unwrap();
            assert_eq!(answer.status, 200, "{answer:?}");
            if answer.json["acquired"] == true {
                assert_eq!(answer.granted_token(), 1);
                won += 1;
            }
        }
        assert_eq!(won, 1, "round {round}");
    }
}

/// Case 43: two servers whose clocks are three minutes apart, one of them months in the past, agree
/// on who holds what: the time is the database's.
async fn case_43_the_clocks_of_the_servers_do_not_count<H: Locked>() {
    let db = H::database().await;
    let [slow, fast] = [0, 180_000].map(|ahead| {
        let clock = ManualClock::new();
        clock.set_epoch_ms(ManualClock::START_EPOCH_MS + ahead);
        clock
    });
    let slow = app(locks(&db, 2).await.with_clock(Arc::new(slow)));
    let fast = app(locks(&db, 2).await.with_clock(Arc::new(fast)));
    assert_eq!(take(&slow, "job", "a").await.granted_token(), 1);
    take(&fast, "job", "b").await.held();
    assert_eq!(take(&fast, "job", "a").await.granted_token(), 1, "the same secret at the other");
    release(&fast, "job", "a").await.is(204);
    let before = db.number(H::NOW).await.unwrap();
    assert_eq!(take(&fast, "job", "b").await.granted_token(), 2);
    take(&slow, "job", "c").await.held();
    let acquired_at = db.number("SELECT acquired_at FROM fencing_locks").await.unwrap();
    assert!((before..before + 60_000).contains(&acquired_at), "{acquired_at}");
}

/// In the hour that comes twice, half past two is two moments.
async fn time_zones_and_the_repeated_hour_do_not_count<H: Locked>() {
    let site = Site::server::<H>().await.with_every_connection::<H>(H::ZONE).await;
    let half_past_two_in_summer = 1_729_989_000_000;
    site.clock.set_epoch_ms(half_past_two_in_summer);
    let minutes = |n: u64| n * 60_000;
    let ahead = async || site.number::<H>(H::AHEAD).await;
    assert_eq!(ahead().await, 2, "the zone is in force");
    let granted = site.take("job", "a", minutes(90)).await;
    assert_eq!(granted.granted()["acquired_at"], "2024-10-27T00:30:00.000Z");
    site.pass(minutes(60));
    assert_eq!(ahead().await, 1);
    site.take("job", "b", 1000).await.held();
    assert_eq!(site.show("job").await.is(200).json["remaining_ms"], minutes(30));
    site.pass(minutes(30) - 1);
    site.take("job", "b", 1000).await.held();
    site.pass(1);
    let granted = site.take("job", "b", minutes(90)).await;
    assert_eq!(granted.granted()["acquired_at"], "2024-10-27T02:00:00.000Z");
    assert_eq!(granted.granted()["remaining_ms"], minutes(90));
}

/// A deadlock with statements that lock in another order: the step is the victim, was not applied,
/// and is taken again.
async fn case_22_a_deadlock_is_taken_again<H: Locked>() {
    let db = H::database().await;
    let pool = db.pool_with(1, H::victim(db.options.clone())).await;
    let app = app(SqlLocks::new(pool).await.unwrap());
    take(&app, "job", "a").await.granted();
    release(&app, "job", "a").await.is(204);
    let row_first = "SELECT * FROM fencing_locks WHERE resource = 'job' FOR UPDATE";
    let mut other = db.connect().await;
    H::script(&mut other, &format!("START TRANSACTION; {row_first}; {}", H::no_victim()))
        .await
        .unwrap();
    let waiting = taking(&app, "job", "b");
    until_waiting(&db, 1).await;
    // It has the floor and waits for the row.
    H::run(&mut other, "UPDATE fencing_floor SET floor = 7").await.unwrap();
    H::run(&mut other, "COMMIT").await.unwrap();
    assert_eq!(waiting.await.unwrap().granted_token(), 8);
}

/// Case 40 with a server that dies after the commit: the answer is lost, the grant is not, and the
/// same owner token finds it.
async fn a_lost_answer_is_asked_for_again<H: Locked>() {
    let db = H::database().await;
    let proxy = Proxy::before(&db).await;
    let app = app(SqlLocks::new(db.pool_with(1, proxy.options(&db)).await).await.unwrap());
    for (then, granted) in [(Then::CutAfter, true), (Then::CutBefore, false)] {
        let resource = format!("{then:?}");
        proxy.at(H::COMMIT, then);
        let answer = take(&app, &resource, "a").await;
        answer.problem(503, "lock-unavailable").header("retry-after");
        let lower = answer.text.to_lowercase();
        assert!(
            !["sql", "connection", "eof", "end of"].iter().any(|w| lower.contains(w)),
            "{lower}"
        );
        // The server may still be busy with it.
        until("the commit is judged", async || {
            let count = format!("SELECT count(*) FROM fencing_locks WHERE resource = '{resource}'");
            db.number(&count).await == Some(i64::from(granted))
        })
        .await;
        assert_eq!(take(&app, &resource, "a").await.granted_token(), 1);
        take(&app, &resource, "b").await.held();
    }
}

async fn a_lost_connection_is_unavailable_and_recovers<H: Locked>() {
    let db = H::database().await;
    let proxy = Proxy::before(&db).await;
    let app = app(SqlLocks::new(db.pool_with(2, proxy.options(&db)).await).await.unwrap());
    take(&app, "job", "a").await.granted();
    // While a step waits for the row.
    let mut other =
        begun(&db, "SELECT * FROM fencing_locks WHERE resource = 'job' FOR UPDATE").await;
    let waiting = taking(&app, "job", "b");
    until_waiting(&db, 1).await;
    proxy.cut();
    waiting.await.unwrap().problem(503, "lock-unavailable");
    H::run(&mut other, "ROLLBACK").await.unwrap();
    take(&app, "job", "b").await.held();
    // While all connections are idle.
    proxy.cut();
    take(&app, "job", "b").await.held();
    release(&app, "job", "a").await.is(204);
    assert_eq!(take(&app, "job", "b").await.granted_token(), 2);
}

/// Cases 33 and 34: a step dropped at any of its awaits is taken wholly or not at all, and leaves
/// the pool, of one connection, fit for the next.
async fn case_33_a_step_dropped_at_any_await_leaves_no_transaction_behind<H: Locked>() {
    let db = H::database().await;
    let locks = locks(&db, 1).await;
    let ask = ask("a");
    let mut finished = 0;
    for polls in 0..200 {
        let resource = Resource::new(format!("job-{polls}")).unwrap();
        let done = poll_times(polls, locks.acquire(&resource, &ask)).await.is_some();
        finished += u32::from(done);
        let other = Resource::new(format!("other-{polls}")).unwrap();
        let next = locks.acquire(&other, &ask).await.unwrap();
        assert!(matches!(next, Acquired::Granted(_)), "after {polls} polls: {next:?}");
        let seen = format!("SELECT count(*) FROM fencing_locks WHERE resource = '{other}'");
        assert_eq!(db.number(&seen).await, Some(1), "after {polls} polls");
        // A connection that was closed may still be at its commit for a moment. Its locks are gone
        // when the row can be had.
        let again = locks.acquire(&resource, &ask).await.unwrap();
        let (Acquired::Granted(held) | Acquired::Repeated(held)) = again else {
            panic!("after {polls} polls: {again:?}")
        };
        assert_eq!(held.token.get(), 1, "after {polls} polls");
        assert!(locks.pool().size() <= 1);
        if finished > 3 {
            return;
        }
    }
    panic!("a step takes more than 200 polls");
}

/// A replica, or a node that was told to take no writes.
async fn a_server_that_takes_no_writes_is_told_at_start<H: Locked>() {
    let db = H::database().await;
    let pool = db.pool(1).await;
    let app = app(SqlLocks::new(pool.clone()).await.unwrap());
    let mut conn = pool.acquire().await.unwrap();
    H::script(&mut conn, H::READ_ONLY).await.unwrap();
    drop(conn);
    take(&app, "job", "a").await.problem(503, "lock-unavailable");
    let error = SqlLocks::new(pool).await.unwrap_err();
    assert!(
        [SqlLocksErrorKind::TakesNoWrites, SqlLocksErrorKind::Database].contains(&error.kind()),
        "{error:?}"
    );
}

/// What `docs/sql.md` says a lock server needs is enough; less is an error at start that says so.
async fn the_documented_privileges_are_enough<H: Locked>() {
    let db = H::database().await;
    let needed = [
        ("SELECT", "fencing_locks"),
        ("INSERT", "fencing_locks"),
        ("UPDATE", "fencing_locks"),
        ("SELECT", "fencing_floor"),
        ("UPDATE (id)", "fencing_floor"),
        ("SELECT", "fencing_schema"),
    ];
    for missing in [Some(0), Some(1), Some(2), Some(3), None] {
        let grants: Vec<_> = needed
            .iter()
            .enumerate()
            .filter(|(n, _)| Some(*n) != missing)
            .map(|(_, grant)| *grant)
            .chain([("SELECT", "fencing_marks"), ("SELECT", "fencing_audit")])
            .collect();
        let role = H::role(&db, &grants).await;
        let pool = db.pool_with(1, role.options).await;
        let opened = SqlLocks::new(pool.clone()).await;
        match missing {
            None => {
                let app = app(opened.unwrap());
                assert_eq!(take(&app, "job", "a").await.granted_token(), 1);
                release(&app, "job", "a").await.is(204);
                // It cannot lower what was granted by way of the floor.
                let mut conn = pool.acquire().await.unwrap();
                assert!(H::run(&mut conn, "UPDATE fencing_floor SET floor = 0").await.is_err());
                assert!(H::run(&mut conn, "DELETE FROM fencing_locks").await.is_err());
            }
            Some(missing) => {
                let error = opened.unwrap_err();
                let kinds = [SqlLocksErrorKind::Denied, SqlLocksErrorKind::Tables];
                assert!(kinds.contains(&error.kind()), "without {:?}: {error:?}", needed[missing]);
            }
        }
        pool.close().await;
        let mut conn = db.connect().await;
        H::script(&mut conn, &role.drop).await.unwrap();
    }
}

async fn unusable_tables_are_told_at_start<H: Locked>() {
    let empty = Db::<H>::empty().await;
    let error = SqlLocks::new(empty.pool(1).await).await.unwrap_err();
    assert_eq!(error.kind(), SqlLocksErrorKind::Tables, "{error:?}");
    let db = H::database().await;
    let mut conn = db.connect().await;
    H::run(&mut conn, "ALTER TABLE fencing_locks DROP COLUMN hold_until").await.unwrap();
    let error = SqlLocks::open(db.options.clone()).await.unwrap_err();
    assert_eq!(error.kind(), SqlLocksErrorKind::Tables, "{error:?}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("fencing_locks.hold_until"), "{source}");
}

/// A row that is not there is a refusal, never a grant without it.
async fn a_missing_floor_fails_closed<H: Locked>() {
    let db = H::database().await;
    let app = app(locks(&db, 1).await);
    let mut conn = db.connect().await;
    H::run(&mut conn, "DELETE FROM fencing_floor").await.unwrap();
    take(&app, "job", "a").await.problem(503, "lock-unavailable");
}

/// Another prefix is other locks; a step is at READ COMMITTED whatever the options say.
async fn other_tables_are_locks_of_their_own<H: Locked>() {
    let db = H::database().await;
    let pool = db.pool(4).await;
    let options = FenceOptions::new()
        .tables(Tables::with_prefix("other_").unwrap())
        .isolation(Isolation::Serializable);
    options.migrate(&pool).await.unwrap();
    let other = app(SqlLocks::with_options(pool.clone(), options).await.unwrap());
    let default = app(SqlLocks::new(pool).await.unwrap());
    take(&default, "job", "a").await.granted();
    assert_eq!(take(&other, "job", "b").await.granted_token(), 1);
    let mut conn = db.connect().await;
    H::run(&mut conn, "START TRANSACTION").await.unwrap();
    H::run(&mut conn, "UPDATE other_locks SET token = 5, released_at = 1").await.unwrap();
    let waiting = taking(&other, "job", "c");
    until_waiting(&db, 1).await;
    H::run(&mut conn, "COMMIT").await.unwrap();
    assert_eq!(waiting.await.unwrap().granted_token(), 6, "not a serialization failure");
}
