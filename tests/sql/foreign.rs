//! Other writers: the command-line clients of the databases, and Python. They claim by SQL, on an
//! enforced table, as docs/sql.md shows, and are fenced against this crate and each other.

use std::process::{Command, Output, Stdio};

use fencing::sql::{Enforce, FencedTx};
use sqlx::Sqlite;

use crate::support::{Db, Harness, claim, set};

/// A table that is enforced, with item 1 at 10 and mark 33.
async fn enforced<H: Harness>() -> Db<H> {
    let db = Db::<H>::with_stock().await;
    let pool = db.pool(1).await;
    Enforce::new("inventory", "inventory:item:{id}").unwrap().install(&pool).await.unwrap();
    FencedTx::begin(&pool, &claim(33)).await.unwrap().commit().await.unwrap();
    db
}

/// Runs a program, with `input` as its standard input.
fn run(command: &mut Command, input: &str) -> Output {
    use std::io::Write as _;
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap_or_else(|error| {
        panic!("{command:?} did not start ({error}): run the tests by tests/run, which installs it")
    });
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(output: &Output) -> String {
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{out}{err}")
}

/// What a writer does: nothing at all but the write, or a claim before it.
enum Write {
    Unclaimed,
    Under(i64),
}

/// The three things a foreign writer can do, and what it must see.
async fn is_fenced<H: Harness>(db: &Db<H>, writer: impl Fn(Write) -> Output) {
    let refused = writer(Write::Unclaimed);
    assert!(!refused.status.success(), "{}", text(&refused));
    assert!(text(&refused).contains("fencing: not claimed"), "{}", text(&refused));
    assert_eq!(db.quantity().await, 10);

    let done = writer(Write::Under(34));
    assert!(done.status.success(), "{}", text(&done));
    assert_eq!((db.quantity().await, db.mark().await), (34, Some(34)));

    let stale = writer(Write::Under(33));
    assert!(!stale.status.success(), "{}", text(&stale));
    assert!(text(&stale).contains("fencing: stale token"), "{}", text(&stale));
    assert_eq!((db.quantity().await, db.mark().await), (34, Some(34)));

    let pool = db.pool(1).await;
    assert!(FencedTx::begin(&pool, &claim(33)).await.unwrap_err().is_stale());
    let mut tx = FencedTx::begin(&pool, &claim(35)).await.unwrap();
    set::<H>(&mut tx, 35).await.unwrap();
    tx.commit().await.unwrap();
    pool.close().await;

    let stale = writer(Write::Under(34));
    assert!(text(&stale).contains("fencing: stale token"), "{}", text(&stale));
    let again = writer(Write::Unclaimed);
    assert!(text(&again).contains("fencing: not claimed"), "{}", text(&again));
    assert_eq!((db.quantity().await, db.mark().await), (35, Some(35)));
    // The first claim of a resource, and the floor.
    let done = writer(Write::Under(36));
    assert!(done.status.success(), "{}", text(&done));
}

const UPDATE: &str = "UPDATE inventory SET quantity = ";

mod postgres {
    use sqlx::Postgres;

    use super::*;

    #[tokio::test]
    async fn psql_is_fenced() {
        let db = enforced::<Postgres>().await;
        is_fenced(&db, |write| {
            let input = match write {
                Write::Unclaimed => format!("{UPDATE} 99 WHERE id = 1;"),
                Write::Under(token) => format!(
                    "BEGIN; SELECT fencing_claim('inventory:item:1', {token}); \
                     {UPDATE} {token} WHERE id = 1; COMMIT;"
                ),
            };
            let mut psql = Command::new("psql");
            psql.arg(server("FENCING_TEST_POSTGRES")).args(["-X", "-v", "ON_ERROR_STOP=1"]);
            psql.env("PGOPTIONS", format!("-c search_path={}", db.name()));
            run(&mut psql, &input)
        })
        .await;
    }

    #[tokio::test]
    async fn python_is_fenced() {
        let db = enforced::<Postgres>().await;
        let script = "
    import os, sys, psycopg2
    conn = psycopg2.connect(os.environ['URL'], options='-c search_path=' + os.environ['NAME'])
    with conn, conn.cursor() as cursor:
        if len(sys.argv) > 1:
            cursor.execute('SELECT fencing_claim(%s, %s)', ('inventory:item:1', int(sys.argv[1])))
        quantity = int(sys.argv[1]) if len(sys.argv) > 1 else 99
        cursor.execute('UPDATE inventory SET quantity = %s WHERE id = 1', (quantity,))
    ";
        is_fenced(&db, |write| {
            let mut python = python(script, &write);
            python.env("URL", server("FENCING_TEST_POSTGRES")).env("NAME", db.name());
            run(&mut python, "")
        })
        .await;
    }
}

mod mysql {
    use sqlx::MySql;

    use super::*;

    #[tokio::test]
    async fn the_mysql_client_is_fenced() {
        let db = enforced::<MySql>().await;
        is_fenced(&db, |write| {
            let input = match write {
                Write::Unclaimed => format!("{UPDATE} 99 WHERE id = 1;"),
                Write::Under(token) => format!(
                    "START TRANSACTION; CALL fencing_claim('inventory:item:1', {token}); \
                     {UPDATE} {token} WHERE id = 1; \
                     CALL fencing_unclaim('inventory:item:1'); COMMIT;"
                ),
            };
            let [host, port, user] = mysql_server();
            let mut mysql = Command::new("mysql");
            mysql.args(["--no-defaults", "-h", &host, "-P", &port, "-u", &user, &db.name()]);
            run(&mut mysql, &input)
        })
        .await;
    }

    #[tokio::test]
    async fn python_is_fenced() {
        let db = enforced::<MySql>().await;
        let script = "
    import os, sys, pymysql
    conn = pymysql.connect(host=os.environ['HOST'], port=int(os.environ['PORT']),
        user=os.environ['USER'], database=os.environ['NAME'])
    cursor = conn.cursor()
    if len(sys.argv) > 1:
        cursor.execute('CALL fencing_claim(%s, %s)', ('inventory:item:1', int(sys.argv[1])))
    quantity = int(sys.argv[1]) if len(sys.argv) > 1 else 99
    cursor.execute('UPDATE inventory SET quantity = %s WHERE id = 1', (quantity,))
    if len(sys.argv) > 1:
        cursor.execute('CALL fencing_unclaim(%s)', ('inventory:item:1',))
    conn.commit()
    ";
        is_fenced(&db, |write| {
            let [host, port, user] = mysql_server();
            let mut python = python(script, &write);
            python.env("HOST", host).env("PORT", port).env("USER", user).env("NAME", db.name());
            run(&mut python, "")
        })
        .await;
    }
}

mod sqlite {
    use super::*;

    #[tokio::test]
    async fn the_sqlite_shell_is_fenced() {
        let db = enforced::<Sqlite>().await;
        is_fenced(&db, |write| {
            let input = match write {
                Write::Unclaimed => format!("{UPDATE} 99 WHERE id = 1;"),
                Write::Under(token) => format!(
                    "PRAGMA foreign_keys = ON; BEGIN IMMEDIATE; \
                     INSERT INTO fencing_claim VALUES ('inventory:item:1', {token}); \
                     {UPDATE} {token} WHERE id = 1; DELETE FROM fencing_claims; COMMIT;"
                ),
            };
            run(Command::new("sqlite3").arg("-bail").arg(file(&db)), &input)
        })
        .await;
    }

    #[tokio::test]
    async fn i6_the_sqlite_shell_cannot_forget_its_claim_with_foreign_keys_on() {
        let db = enforced::<Sqlite>().await;
        let forgets = "BEGIN IMMEDIATE; INSERT INTO fencing_claim VALUES ('inventory:item:1', 34); \
                       UPDATE inventory SET quantity = 34 WHERE id = 1; COMMIT;";
        let on = format!("PRAGMA foreign_keys = ON; {forgets}");
        let output = run(Command::new("sqlite3").arg("-bail").arg(file(&db)), &on);
        assert!(text(&output).contains("FOREIGN KEY"), "{}", text(&output));
        let alone =
            "PRAGMA foreign_keys = ON; INSERT INTO fencing_claim VALUES ('inventory:item:1', 34);";
        let output = run(Command::new("sqlite3").arg("-bail").arg(file(&db)), alone);
        assert!(text(&output).contains("FOREIGN KEY"), "{}", text(&output));
        assert_eq!((db.quantity().await, db.mark().await), (10, Some(33)));

        let output = run(Command::new("sqlite3").arg("-bail").arg(file(&db)), forgets);
        assert!(output.status.success(), "{}", text(&output));
        let pool = db.pool(1).await;
        let mut conn = pool.acquire().await.unwrap();
        set::<Sqlite>(&mut conn, 99).await.unwrap();
        drop(conn);
        FencedTx::begin(&pool, &claim(35)).await.unwrap().commit().await.unwrap();
        assert!(set::<Sqlite>(&mut pool.acquire().await.unwrap(), 100).await.is_err());
    }

    #[tokio::test]
    async fn python_is_fenced() {
        let db = enforced::<Sqlite>().await;
        let script = "
    import os, sys, sqlite3
    conn = sqlite3.connect(os.environ['FILE'], isolation_level=None)
    conn.execute('PRAGMA foreign_keys = ON')
    conn.execute('BEGIN IMMEDIATE')
    if len(sys.argv) > 1:
        conn.execute('INSERT INTO fencing_claim VALUES (?, ?)', ('inventory:item:1', int(sys.argv[1])))
    quantity = int(sys.argv[1]) if len(sys.argv) > 1 else 99
    conn.execute('UPDATE inventory SET quantity = ? WHERE id = 1', (quantity,))
    conn.execute('DELETE FROM fencing_claims')
    conn.execute('COMMIT')
    ";
        is_fenced(&db, |write| run(python(script, &write).env("FILE", file(&db)), "")).await;
    }
}

/// The interpreter of the system, which has the drivers Debian packages.
fn python(script: &str, write: &Write) -> Command {
    let mut python = Command::new("/usr/bin/python3");
    // The scripts are indented.
    python.args(["-c", &format!("if True:{script}")]);
    if let Write::Under(token) = write {
        python.arg(token.to_string());
    }
    python
}

fn server(variable: &str) -> String {
    std::env::var(variable).unwrap()
}

/// Host, port and user out of `mysql://user@host:port/database`.
fn mysql_server() -> [String; 3] {
    let url = server("FENCING_TEST_MYSQL");
    let (user, rest) = url.strip_prefix("mysql://").unwrap().split_once('@').unwrap();
    let (host, rest) = rest.split_once(':').unwrap();
    let (port, _) = rest.split_once('/').unwrap();
    [host, port, user].map(str::to_owned)
}

fn file(db: &Db<Sqlite>) -> std::path::PathBuf {
    db.options.get_filename().to_path_buf()
}
