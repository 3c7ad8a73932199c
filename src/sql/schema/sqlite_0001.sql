-- The marks: the highest token each resource has accepted. Never lowered, never deleted by use.
CREATE TABLE {prefix}marks (
    resource   TEXT    NOT NULL PRIMARY KEY CHECK (length(CAST(resource AS BLOB)) BETWEEN 1 AND 255),
    last_token INTEGER NOT NULL CHECK (last_token > 0),
    last_spent INTEGER NOT NULL DEFAULT 0,
    seq        INTEGER NOT NULL DEFAULT 1,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The grants, one row for each resource, kept at release and expiry.
CREATE TABLE {prefix}locks (
    resource         TEXT    NOT NULL PRIMARY KEY CHECK (length(CAST(resource AS BLOB)) BETWEEN 1 AND 255),
    token            INTEGER NOT NULL CHECK (token > 0),
    owner            TEXT    NOT NULL,
    owner_token_hash BLOB    NOT NULL CHECK (length(owner_token_hash) = 32),
    acquired_at      INTEGER NOT NULL,
    expires_at       INTEGER NOT NULL,
    hold_until       INTEGER,
    released_at      INTEGER
) STRICT, WITHOUT ROWID;

-- No new grant is at or below the floor, and a resource without a mark accepts only what is above.
CREATE TABLE {prefix}floor (
    id    INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    floor INTEGER NOT NULL CHECK (floor >= 0)
) STRICT;
INSERT INTO {prefix}floor (id, floor) VALUES (1, 0);

CREATE TABLE {prefix}audit (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    at          INTEGER NOT NULL,
    event       TEXT    NOT NULL,
    resource    TEXT,
    token       INTEGER,
    owner       TEXT,
    actor       TEXT,
    approved_by TEXT,
    reason      TEXT
) STRICT;
