//! Fences that look right and are not, kept so that they can be seen failing. Each `trap_` test
//! passes as long as the wrong form does the wrong thing: 33 is the zombie, 34 the next holder, the
//! truth about the ledger is 5. The names tell the theory; what is right instead is in `src/sql`.

use sqlx::{MySql, Pool, Postgres, Sqlite};
use tokio::task::JoinHandle;

use crate::forms::{Waits, id_of, run_all, until_it_waits};
use crate::support::{Db, Harness};

/// What became of the statement of the one that waited, and then of item 1.
#[derive(PartialEq, Debug)]
enum Seen {
    /// It failed, by a code.
    Failed,
    /// It was applied, or had no effect; item 1 has this quantity.
    Quantity(i64),
}

use Seen::{Failed, Quantity};

struct Two<H: Harness> {
    db: Db<H>,
    a: Pool<H>,
    b: Pool<H>,
    id: i64,
}

impl<H: Waits> Two<H> {
    /// Item 1 with 10 pieces and mark 33, a ledger with 10; two connections set as `session` says.
    async fn new(session: &[&str]) -> Self {
        let db = Db::<H>::with_stock().await;
        let (a, b) = (db.pool(1).await, db.pool(1).await);
        run_all(
            &a,
            &[
                "INSERT INTO fencing_marks (resource, last_token, updated_at) VALUES ('r', 33, 0)",
                "INSERT INTO ledger VALUES (10)",
            ],
        )
        .await;
        let id = id_of(&b).await;
        for pool in [&a, &b] {
            run_all(pool, session).await;
        }
        Self { db, a, b, id }
    }

    /// A does `first` in a transaction; B runs `waiting` and waits; A does `then` and commits.
    async fn race(&self, first: &[&str], waiting: &'static str, then: &[&str]) -> Seen {
        let mut a = self.a.acquire().await.unwrap();
        H::script(&mut a, "BEGIN").await.unwrap();
        for statement in first {
            H::run(&mut a, statement).await.unwrap();
        }
        let b: JoinHandle<_> = tokio::spawn({
            let b = self.b.clone();
            async move { H::script(&mut *b.acquire().await.unwrap(), waiting).await }
        });
        until_it_waits(&self.db, self.id).await;
        for statement in then {
            H::run(&mut a, statement).await.unwrap();
        }
        H::script(&mut a, "COMMIT").await.unwrap();
        match b.await.unwrap() {
            Err(_) => Failed,
            Ok(()) => Quantity(self.db.quantity().await),
        }
    }
}

const RAISE_TO_34: &str =
    "UPDATE fencing_marks SET last_token = 34, seq = seq + 1 WHERE resource = 'r'";
const WRITE_34: &str = "UPDATE inventory SET quantity = 34 WHERE id = 1";

fn postgres(level: &str) -> Vec<String> {
    vec![format!("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")]
}

fn mariadb(level: &str, snapshot: bool) -> Vec<String> {
    vec![
        format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}"),
        // Since 10.6.18 and 10.11.8; MySQL has none.
        format!("/*M! SET SESSION innodb_snapshot_isolation = {} */", u8::from(snapshot)),
    ]
}

async fn two<H: Waits>(session: Vec<String>) -> Two<H> {
    let statements: Vec<&str> = session.iter().map(String::as_str).collect();
    Two::new(&statements).await
}

/// The condition compares a sub-select on the marks. It waits for the row that 34 has written,
/// looks at the row again, and not at the sub-select.
mod sub_select_postgres {
    use super::*;

    const STALE: &str = "UPDATE inventory SET quantity = 33 WHERE id = 1 \
        AND (SELECT last_token FROM fencing_marks WHERE resource = 'r') <= 33";

    #[tokio::test]
    async fn trap_at_read_committed_a_sub_select_overwrites_the_winner_it_waited_for() {
        let two_of = two::<Postgres>(postgres("READ COMMITTED")).await;
        assert_eq!(two_of.race(&[RAISE_TO_34, WRITE_34], STALE, &[]).await, Quantity(33));
        let two_of = two::<MySql>(mariadb("READ COMMITTED", false)).await;
        assert_eq!(two_of.race(&[RAISE_TO_34, WRITE_34], STALE, &[]).await, Quantity(33));
    }

    #[tokio::test]
    async fn above_read_committed_postgres_ends_the_one_that_waited() {
        for level in ["REPEATABLE READ", "SERIALIZABLE"] {
            let two_of = two::<Postgres>(postgres(level)).await;
            assert_eq!(two_of.race(&[RAISE_TO_34, WRITE_34], STALE, &[]).await, Failed, "{level}");
        }
    }

    #[tokio::test]
    async fn above_read_committed_mariadb_reads_the_sub_select_under_a_lock() {
        for snapshot in [false, true] {
            let two_of = two::<MySql>(mariadb("REPEATABLE READ", snapshot)).await;
            let seen = two_of.race(&[RAISE_TO_34, WRITE_34], STALE, &[]).await;
            assert_ne!(seen, Quantity(33), "snapshot isolation {snapshot}");
            let two_of = two::<MySql>(mariadb("SERIALIZABLE", snapshot)).await;
            let seen = two_of.race(&[RAISE_TO_34, WRITE_34], STALE, &[]).await;
            assert_ne!(seen, Quantity(33), "snapshot isolation {snapshot}");
        }
    }
}

/// Interleaving C2: mark and write in one statement, whose snapshot is older than its lock.
mod one_statement_postgres {
    use super::*;

    const TOUCH_33: &str = "UPDATE fencing_marks SET last_token = 33, seq = seq + 1 \
        WHERE resource = 'r'";
    const SPEND_5: &str = "INSERT INTO ledger VALUES (-5)";
    /// 34 claims in a CTE and settles the item from the ledger.
    const SETTLE: &str = "WITH m AS (UPDATE fencing_marks SET last_token = 34, seq = seq + 1 \
        WHERE resource = 'r' AND last_token <= 34 RETURNING 1) \
        UPDATE inventory SET quantity = (SELECT sum(token) FROM ledger) \
        WHERE EXISTS (SELECT 1 FROM m) AND id = 1";

    #[tokio::test]
    async fn trap_one_statement_that_reads_other_rows_reads_them_from_before_its_claim() {
        let two_of = two::<Postgres>(postgres("READ COMMITTED")).await;
        assert_eq!(two_of.race(&[TOUCH_33, SPEND_5], SETTLE, &[]).await, Quantity(10));
    }

    #[tokio::test]
    async fn trap_one_statement_that_deletes_leaves_the_rows_made_while_it_waited() {
        let two_of = two::<Postgres>(postgres("READ COMMITTED")).await;
        let forget = "WITH m AS (UPDATE fencing_marks SET last_token = 34 \
            WHERE resource = 'r' AND last_token <= 34 RETURNING 1) \
            DELETE FROM ledger WHERE EXISTS (SELECT 1 FROM m)";
        two_of.race(&[TOUCH_33, SPEND_5], forget, &[]).await;
        assert_eq!(two_of.db.number("SELECT count(*) FROM ledger").await, Some(1));
    }

    #[tokio::test]
    async fn one_row_found_by_its_key_is_read_again_and_right() {
        let two_of = two::<Postgres>(postgres("READ COMMITTED")).await;
        let add = "WITH m AS (UPDATE fencing_marks SET last_token = 34 \
            WHERE resource = 'r' AND last_token <= 34 RETURNING 1) \
            UPDATE inventory SET quantity = quantity + 1 WHERE EXISTS (SELECT 1 FROM m) AND id = 1";
        let five = "UPDATE inventory SET quantity = 5 WHERE id = 1";
        assert_eq!(two_of.race(&[TOUCH_33, five], add, &[]).await, Quantity(6));
    }

    #[tokio::test]
    async fn above_read_committed_a_claim_that_wrote_ends_the_one_that_waited() {
        for level in ["REPEATABLE READ", "SERIALIZABLE"] {
            let two_of = two::<Postgres>(postgres(level)).await;
            assert_eq!(two_of.race(&[TOUCH_33, SPEND_5], SETTLE, &[]).await, Failed, "{level}");
        }
    }

    /// Why an accepted claim always writes.
    #[tokio::test]
    async fn trap_at_repeatable_read_a_claim_that_only_locked_lets_the_old_snapshot_through() {
        let two_of = two::<Postgres>(postgres("REPEATABLE READ")).await;
        let lock = "SELECT 1 FROM fencing_marks WHERE resource = 'r' FOR UPDATE";
        assert_eq!(two_of.race(&[lock, SPEND_5], SETTLE, &[]).await, Quantity(10));
    }

    /// The multi-table UPDATE of MySQL was right in every run. Its optimizer may read a constant
    /// sub-select first, so that is not promised, and the fenced statement is a transaction there.
    #[tokio::test]
    async fn mariadb_reads_other_rows_after_it_has_the_lock_in_these_runs() {
        let settle = "UPDATE fencing_marks m STRAIGHT_JOIN inventory i \
            SET m.last_token = 34, i.quantity = (SELECT sum(token) FROM ledger) \
            WHERE m.resource = 'r' AND m.last_token <= 34 AND i.id = 1";
        for level in ["READ COMMITTED", "REPEATABLE READ"] {
            for snapshot in [false, true] {
                let two_of = two::<MySql>(mariadb(level, snapshot)).await;
                let seen = two_of.race(&[TOUCH_33], settle, &[SPEND_5]).await;
                assert_ne!(seen, Quantity(10), "{level} {snapshot}");
            }
        }
    }
}

/// Interleaving C1: "raise if higher, equal passes" holds no lock for the equal one.
mod equal_without_a_lock_postgres {
    use super::*;

    /// 33 passes by its own mark, 34 writes, 33 writes.
    async fn slip_past<H: Waits>(session: Vec<String>) -> i64 {
        let two_of = two::<H>(session).await;
        let (mut a, mut b) = (two_of.a.acquire().await.unwrap(), two_of.b.acquire().await.unwrap());
        H::script(&mut a, "BEGIN").await.unwrap();
        let raise = "UPDATE fencing_marks SET last_token = 33 WHERE resource = 'r' \
                     AND last_token < 33";
        H::run(&mut a, raise).await.unwrap();
        H::script(&mut b, "BEGIN").await.unwrap();
        H::run(&mut b, RAISE_TO_34).await.unwrap();
        H::run(&mut b, WRITE_34).await.unwrap();
        H::script(&mut b, "COMMIT").await.unwrap();
        H::run(&mut a, "UPDATE inventory SET quantity = 33 WHERE id = 1").await.unwrap();
        H::script(&mut a, "COMMIT").await.unwrap();
        two_of.db.quantity().await
    }

    #[tokio::test]
    async fn trap_a_claim_that_writes_only_to_raise_lets_the_next_holder_slip_past() {
        assert_eq!(slip_past::<Postgres>(postgres("READ COMMITTED")).await, 33);
        assert_eq!(slip_past::<MySql>(mariadb("READ COMMITTED", false)).await, 33);
    }
}

/// Interleaving C3: the fence appended to a text of the user's.
mod appended_postgres {
    use super::*;

    const FENCE: &str = "EXISTS (SELECT 1 FROM fencing_marks WHERE resource = 'r' \
        AND last_token <= 32)";

    #[tokio::test]
    async fn trap_precedence_lets_a_stale_write_past_an_appended_fence() {
        let two_of = two::<Postgres>(Vec::new()).await;
        let stale =
            format!("UPDATE inventory SET quantity = 32 WHERE id = 1 OR id = 2 AND {FENCE}");
        run_all(&two_of.a, &[&stale]).await;
        assert_eq!(two_of.db.quantity().await, 32);
    }

    #[tokio::test]
    async fn trap_a_cte_writes_whatever_an_appended_fence_says() {
        let two_of = two::<Postgres>(Vec::new()).await;
        let stale = format!(
            "WITH d AS (DELETE FROM ledger RETURNING *) \
             UPDATE inventory SET quantity = 32 WHERE id = 1 AND {FENCE}"
        );
        run_all(&two_of.a, &[&stale]).await;
        assert_eq!(two_of.db.quantity().await, 10);
        assert_eq!(two_of.db.number("SELECT count(*) FROM ledger").await, Some(0));
    }
}

/// Interleaving C4: a floor that is read without a lock.
mod floor_postgres {
    use super::*;

    /// A first claim of 33, with the floor in a sub-select of its own.
    const FIRST_33: &str = "INSERT INTO fencing_marks (resource, last_token, updated_at) \
        SELECT 'r', 33, 0 FROM fencing_floor WHERE floor < 33 \
        ON CONFLICT (resource) DO UPDATE SET last_token = 33 WHERE fencing_marks.last_token <= 33";

    #[tokio::test]
    async fn trap_a_floor_read_from_the_snapshot_lets_a_zombie_in_behind_a_purge() {
        let two_of = two::<Postgres>(postgres("READ COMMITTED")).await;
        let floor = "UPDATE fencing_floor SET floor = 57";
        let purge = "DELETE FROM fencing_marks WHERE resource = 'r'";
        run_all(&two_of.a, &["UPDATE fencing_marks SET last_token = 57"]).await;
        two_of.race(&[floor, purge], FIRST_33, &[]).await;
        let mark = "SELECT last_token FROM fencing_marks WHERE resource = 'r'";
        assert_eq!(two_of.db.number(mark).await, Some(33));
    }
}

/// Interleaving C6: the mark in the user's row, where the resource is not that row.
mod column {
    use super::*;

    async fn with_column<H: Harness>() -> (Db<H>, Pool<H>) {
        let db = Db::<H>::with_stock().await;
        let pool = db.pool(1).await;
        run_all(
            &pool,
            &[
                "ALTER TABLE inventory ADD COLUMN last_token BIGINT NOT NULL DEFAULT 0",
                "INSERT INTO inventory VALUES (2, 20, 0)",
            ],
        )
        .await;
        (db, pool)
    }

    async fn trap_a_resource_of_two_rows_has_two_marks<H: Harness>() {
        let (db, pool) = with_column::<H>().await;
        run_all(
            &pool,
            &[
                "UPDATE inventory SET quantity = 34, last_token = 34 WHERE id = 1 AND last_token <= 34",
                "UPDATE inventory SET quantity = 33, last_token = 33 WHERE id = 2 AND last_token <= 33",
            ],
        )
        .await;
        let stale = "SELECT count(*) FROM inventory WHERE quantity = 33";
        assert_eq!(db.number(stale).await, Some(1), "33 wrote after 34");
    }

    async fn trap_a_deleted_row_takes_its_mark_along<H: Harness>() {
        let (db, pool) = with_column::<H>().await;
        run_all(
            &pool,
            &[
                "DELETE FROM inventory WHERE id = 1 AND last_token <= 34",
                "INSERT INTO inventory VALUES (1, 33, 33)",
            ],
        )
        .await;
        assert_eq!(db.quantity().await, 33, "what 34 deleted, 33 has made again");
    }

    crate::support::on_every_database! {
        trap_a_resource_of_two_rows_has_two_marks,
        trap_a_deleted_row_takes_its_mark_along,
        trap_null_is_at_or_below_nothing,
    }

    async fn trap_null_is_at_or_below_nothing<H: Harness>() {
        let db = Db::<H>::with_stock().await;
        let pool = db.pool(1).await;
        run_all(
            &pool,
            &[
                "ALTER TABLE inventory ADD COLUMN last_token BIGINT",
                "UPDATE inventory SET quantity = 34 WHERE id = 1 AND last_token <= 34",
            ],
        )
        .await;
        assert_eq!(db.quantity().await, 10);
    }
}

/// Interleaving C8: triggers that ask something else than whether this transaction has claimed.
mod triggers_mysql {
    use super::*;

    #[tokio::test]
    async fn trap_a_variable_of_the_session_outlives_its_transaction_in_the_pool() {
        let db = Db::<MySql>::with_stock().await;
        let pool = db.pool(1).await;
        let trigger = "CREATE TRIGGER asks BEFORE UPDATE ON inventory FOR EACH ROW \
            IF COALESCE(@claimed, 0) <> 34 THEN SIGNAL SQLSTATE '45000'; END IF";
        run_all(&pool, &[trigger, "SET @claimed = 34", "START TRANSACTION", WRITE_34]).await;
        run_all(&pool, &["ROLLBACK", WRITE_34]).await;
        assert_eq!(db.quantity().await, 34, "the next request, without a claim");
    }
}

/// The same on SQLite, where the rule is on the column of the token.
mod triggers_sqlite {
    use super::*;

    #[tokio::test]
    async fn trap_a_rule_on_the_column_does_not_see_a_statement_that_leaves_it_out() {
        let db = Db::<Sqlite>::with_stock().await;
        let pool = db.pool(1).await;
        run_all(
            &pool,
            &[
                "ALTER TABLE inventory ADD COLUMN last_token BIGINT NOT NULL DEFAULT 34",
                "CREATE TRIGGER asks BEFORE UPDATE ON inventory WHEN NEW.last_token < OLD.last_token \
                 BEGIN SELECT RAISE(ABORT, 'stale'); END",
                "UPDATE inventory SET quantity = 99 WHERE id = 1",
                "REPLACE INTO inventory VALUES (1, 33, 33)",
            ],
        )
        .await;
        assert_eq!(db.quantity().await, 33);
    }
}
