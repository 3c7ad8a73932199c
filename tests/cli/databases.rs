//! `fencing serve` on a database server: two of them over one database, and start-up errors.

use rustix::process::Signal;
use serde_json::json;

use crate::command_line::{one_line, text};
use crate::process::{Server, fencing, run};
use crate::support::{Db, Harness, on_every_server};

/// A database as the program meets it.
trait Program: Harness {
    const NO_DATABASE: &str;
    const DENIED: &str;
    const WRONG_PASSWORD: &str;

    /// The server of a URL as another user, in another database.
    fn url_as(db: &Db<Self>, user: &str, database: &str) -> String
    where
        Self: Sized;
    /// A database in which the password of a role counts.
    fn passworded(db: &Db<Self>) -> String
    where
        Self: Sized;
    /// Makes a role that may connect, with a password, and nothing else.
    fn role(db: &Db<Self>, password: &str) -> (String, String, String)
    where
        Self: Sized;
}

impl Program for sqlx::Postgres {
    const NO_DATABASE: &str = "does not exist";
    const DENIED: &str = "permission denied for schema";
    const WRONG_PASSWORD: &str = "password authentication failed";

    fn url_as(db: &Db<Self>, user: &str, database: &str) -> String {
        let (port, schema) = (db.options.get_port(), db.name());
        format!("postgres://{user}@127.0.0.1:{port}/{database}?options[search_path]={schema}")
    }

    fn passworded(_: &Db<Self>) -> String {
        "passworded".to_owned()
    }

    fn role(db: &Db<Self>, password: &str) -> (String, String, String) {
        let (role, schema) = (format!("r{}", db.name()), db.name());
        let make = format!(
            "CREATE ROLE {role} LOGIN PASSWORD '{password}'; GRANT USAGE ON SCHEMA {schema} TO {role}"
        );
        let drop = format!("DROP OWNED BY {role}; DROP ROLE {role}");
        (role, make, drop)
    }
}

impl Program for sqlx::MySql {
    const NO_DATABASE: &str = "Unknown database";
    const DENIED: &str = "denied";
    const WRONG_PASSWORD: &str = "Access denied";

    fn url_as(db: &Db<Self>, user: &str, database: &str) -> String {
        format!("mysql://{user}@127.0.0.1:{}/{database}", db.options.get_port())
    }

    fn passworded(db: &Db<Self>) -> String {
        db.name()
    }

    fn role(db: &Db<Self>, password: &str) -> (String, String, String) {
        let (role, name) = (format!("r{}", db.name()), db.name());
        let make = format!(
            "CREATE USER {role}@'%' IDENTIFIED BY '{password}'; \
             GRANT SELECT ON {name}.* TO {role}@'%'"
        );
        (role.clone(), make, format!("DROP USER {role}@'%'"))
    }
}

on_every_server! {
    two_servers_over_one_database_and_a_restart,
    an_unusable_database_is_one_clear_line,
    a_password_is_printed_nowhere,
}

async fn two_servers_over_one_database_and_a_restart<H: Program>() {
    let db = Db::<H>::empty().await;
    let serve = || Server::with(["--listen", "127.0.0.1:0", "--database", &db.url()]);
    let (one, two) = (serve(), serve());
    assert_eq!(one.take("job", "a", 3_600_000).granted_token(), 1);
    assert_eq!(two.take("job", "b", 1000).json["acquired"], false);
    assert_eq!(two.take("job", "a", 3_600_000).granted_token(), 1);
    one.signal(Signal::TERM);
    assert_eq!(one.end().0, Some(0));
    two.signal(Signal::KILL);
    two.end();
    let three = serve();
    let held = three.get("/locks/job");
    assert_eq!((held.status, &held.json["token"]), (200, &json!(1)));
    assert_eq!(three.take("job", "b", 1000).json["acquired"], false);
}

fn serve(url: &str) -> std::process::Output {
    run(&["serve", "--listen", "127.0.0.1:0", "--database", url])
}

async fn an_unusable_database_is_one_clear_line<H: Program>() {
    let db = Db::<H>::empty().await;
    let (user, scheme) = {
        let url = db.url();
        let (scheme, rest) = url.split_once("://").unwrap();
        (rest.split('@').next().unwrap().to_owned(), scheme.to_owned())
    };
    // Nobody listens, the URL makes no sense, there is no such database.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    one_line(&serve(&format!("{scheme}://{user}@{free}/x")), &["cannot serve", "refused"]);
    for wrong in ["127.0.0.1:port/x", "[::1/x", "127.0.0.1:99999/x"] {
        one_line(&serve(&format!("{scheme}://{user}@{wrong}")), &["cannot read the database url"]);
    }
    one_line(&serve(&H::url_as(&db, &user, "no_such_database")), &[H::NO_DATABASE]);

    // A role that may not make tables, with a password that is wrong, then right.
    let (role, make, drop) = H::role(&db, "right-one");
    let mut conn = db.connect().await;
    H::script(&mut conn, &make).await.unwrap();
    let passworded = H::passworded(&db);
    for (password, says) in [("hunter2", H::WRONG_PASSWORD), ("", H::WRONG_PASSWORD)] {
        let url = H::url_as(&db, &format!("{role}:{password}"), &passworded);
        one_line(&serve(&url), &["cannot serve", says, &role]);
    }
    let database = db.url();
    let database = database.rsplit('/').next().unwrap().split('?').next().unwrap();
    let url = H::url_as(&db, &format!("{role}:right-one"), database);
    one_line(&serve(&url), &["cannot serve", H::DENIED]);

    // Tables of a later version, and tables that are not ours.
    drop_server(Server::with(["--listen", "127.0.0.1:0", "--database", &db.url()]));
    let later = "INSERT INTO fencing_schema (version, applied_at) \
                 SELECT MAX(version) + 1, 0 FROM fencing_schema";
    H::run(&mut conn, later).await.unwrap();
    one_line(&serve(&db.url()), &["tables", "newer"]);
    H::run(&mut conn, "DROP TABLE fencing_schema").await.unwrap();
    one_line(&serve(&db.url()), &["tables", "choose another prefix"]);
    H::script(&mut conn, &drop).await.unwrap();
}

fn drop_server(server: Server) {
    server.signal(Signal::TERM);
    assert_eq!(server.end().0, Some(0));
}

/// Not in errors, and not in the most talkative log.
async fn a_password_is_printed_nowhere<H: Program>() {
    let db = Db::<H>::empty().await;
    let (role, make, drop) = H::role(&db, "hunter2");
    let mut conn = db.connect().await;
    H::script(&mut conn, &make).await.unwrap();
    for database in [H::passworded(&db), "no_such_database".to_owned()] {
        let url = H::url_as(&db, &format!("{role}:hunter2"), &database);
        for wrong in
            [url.clone(), url.replace("hunter2", "hunter2:x"), url.replace("127.0.0.1:", "")]
        {
            let mut command = fencing();
            command.args(["serve", "--listen", "127.0.0.1:0", "--log", "trace"]);
            let output = command.env("FENCING_DATABASE", wrong).output().unwrap();
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
            assert!(said.contains("fencing: "), "{said}");
            assert!(!said.contains("hunter2"), "{said}");
        }
    }
    H::script(&mut conn, &drop).await.unwrap();
}
