-- The marks: the highest token each resource has accepted. Never lowered, never deleted by use.
-- seq counts the accepted claims; last_spent is the last token that wrote under the strict policy;
-- claim_xid is the transaction of the last accepted claim, for the triggers of enforced tables.
-- Times are milliseconds since the Unix epoch, by the clock of the database. Names are compared
-- byte by byte. The fill factor leaves room for updates in place: a mark is written often.
CREATE TABLE {prefix}marks (
    resource   text   COLLATE "C" NOT NULL PRIMARY KEY CHECK (octet_length(resource) BETWEEN 1 AND 255),
    last_token bigint NOT NULL CHECK (last_token > 0),
    last_spent bigint NOT NULL DEFAULT 0 CHECK (last_spent >= 0),
    seq        bigint NOT NULL DEFAULT 1,
    claim_xid  xid8,
    updated_at bigint NOT NULL
) WITH (fillfactor = 70);

-- The grants, one row for each resource, kept at release and expiry. Before the first grant of a
-- resource its row may have the token 0 and no grant.
CREATE TABLE {prefix}locks (
    resource         text   COLLATE "C" NOT NULL PRIMARY KEY CHECK (octet_length(resource) BETWEEN 1 AND 255),
    token            bigint NOT NULL CHECK (token >= 0),
    owner            text   COLLATE "C" CHECK (octet_length(owner) BETWEEN 1 AND 255),
    owner_token_hash bytea  CHECK (octet_length(owner_token_hash) = 32),
    acquired_at      bigint,
    expires_at       bigint,
    hold_until       bigint,
    released_at      bigint,
    CHECK ((owner IS NULL) = (owner_token_hash IS NULL)),
    CHECK ((owner IS NULL) = (acquired_at IS NULL)),
    CHECK ((owner IS NULL) = (expires_at IS NULL))
) WITH (fillfactor = 70);

-- No new grant is at or below the floor, and a resource without a mark accepts only what is above
-- it. The epoch grows when an administrator lowers a mark, so that caches of marks forget.
CREATE TABLE {prefix}floor (
    id    integer NOT NULL PRIMARY KEY CHECK (id = 1),
    floor bigint  NOT NULL CHECK (floor >= 0),
    epoch bigint  NOT NULL DEFAULT 0
);
INSERT INTO {prefix}floor (id, floor) VALUES (1, 0);

-- What administrators did, and what was granted.
CREATE TABLE {prefix}audit (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          bigint NOT NULL,
    event       text   NOT NULL,
    resource    text   COLLATE "C",
    token       bigint,
    owner       text   COLLATE "C",
    actor       text,
    approved_by text,
    reason      text
);

-- Which of these files have been run, so that any migrator may run them.
CREATE TABLE {prefix}schema (
    version    bigint NOT NULL PRIMARY KEY,
    applied_at bigint NOT NULL
);
INSERT INTO {prefix}schema (version, applied_at)
VALUES (1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint);
