-- The marks: the highest token each resource has accepted. Never lowered, never deleted by use.
-- seq counts the accepted claims; last_spent is the last token that wrote under the strict policy.
-- Times are milliseconds since the Unix epoch, by the clock of the database.
CREATE TABLE {prefix}marks (
    resource   TEXT    NOT NULL PRIMARY KEY CHECK (length(CAST(resource AS BLOB)) BETWEEN 1 AND 255),
    last_token INTEGER NOT NULL CHECK (last_token > 0),
    last_spent INTEGER NOT NULL DEFAULT 0 CHECK (last_spent >= 0),
    seq        INTEGER NOT NULL DEFAULT 1,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The claims of the transaction that is open, for the triggers of enforced tables: a row is made and
-- deleted in it. With PRAGMA foreign_keys = ON, the reference to a floor that does not exist makes
-- a commit fail that forgot to delete it.
CREATE TABLE {prefix}claims (
    resource TEXT    NOT NULL PRIMARY KEY,
    token    INTEGER NOT NULL,
    deleted  INTEGER NOT NULL DEFAULT 0 REFERENCES {prefix}floor (id) DEFERRABLE INITIALLY DEFERRED
) STRICT, WITHOUT ROWID;

-- The grants, one row for each resource, kept at release and expiry. Before the first grant of a
-- resource its row may have the token 0 and no grant.
CREATE TABLE {prefix}locks (
    resource         TEXT    NOT NULL PRIMARY KEY CHECK (length(CAST(resource AS BLOB)) BETWEEN 1 AND 255),
    token            INTEGER NOT NULL CHECK (token >= 0),
    owner            TEXT    CHECK (length(CAST(owner AS BLOB)) BETWEEN 1 AND 255),
    owner_token_hash BLOB    CHECK (length(owner_token_hash) = 32),
    acquired_at      INTEGER,
    expires_at       INTEGER,
    hold_until       INTEGER,
    released_at      INTEGER,
    CHECK ((owner IS NULL) = (owner_token_hash IS NULL)),
    CHECK ((owner IS NULL) = (acquired_at IS NULL)),
    CHECK ((owner IS NULL) = (expires_at IS NULL))
) STRICT, WITHOUT ROWID;

-- No new grant is at or below the floor, and a resource without a mark accepts only what is above
-- it. The epoch grows when an administrator lowers a mark, so that caches of marks forget.
-- enforced is 1 while some table has the triggers that ask for claims.
CREATE TABLE {prefix}floor (
    id       INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    floor    INTEGER NOT NULL CHECK (floor >= 0),
    epoch    INTEGER NOT NULL DEFAULT 0,
    enforced INTEGER NOT NULL DEFAULT 0 CHECK (enforced IN (0, 1))
) STRICT;
INSERT INTO {prefix}floor (id, floor) VALUES (1, 0);

-- What administrators did, and what was granted.
CREATE TABLE {prefix}audit (
    id          INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at          INTEGER NOT NULL,
    event       TEXT    NOT NULL,
    resource    TEXT,
    token       INTEGER,
    owner       TEXT,
    actor       TEXT,
    approved_by TEXT,
    reason      TEXT
) STRICT;

-- Which of these files have been run, so that any migrator may run them.
CREATE TABLE {prefix}schema (
    version    INTEGER NOT NULL PRIMARY KEY,
    applied_at INTEGER NOT NULL
) STRICT;
INSERT INTO {prefix}schema (version, applied_at)
VALUES (1, CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER));
