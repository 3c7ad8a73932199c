-- Which of these files have been run, so that any migrator may run them. First, because MySQL
-- commits each CREATE TABLE by itself: what broke off in the middle is known as ours.
CREATE TABLE IF NOT EXISTS {prefix}schema (
    version    BIGINT NOT NULL PRIMARY KEY,
    applied_at BIGINT NOT NULL
) ENGINE = InnoDB;

-- The marks: the highest token each resource has accepted. Never lowered, never deleted by use.
-- seq counts the accepted claims; last_spent is the last token that wrote under the strict policy;
-- claim_conn is the connection whose open transaction has claimed, for the triggers of enforced
-- tables: it is set back to 0 before the commit. Times are milliseconds since the Unix epoch, by the clock of the database. Names are bytes, so
-- that no collation makes two of them one.
CREATE TABLE IF NOT EXISTS {prefix}marks (
    resource   VARBINARY(255) NOT NULL PRIMARY KEY CHECK (length(resource) >= 1),
    last_token BIGINT NOT NULL CHECK (last_token > 0),
    last_spent BIGINT NOT NULL DEFAULT 0 CHECK (last_spent >= 0),
    seq        BIGINT NOT NULL DEFAULT 1,
    claim_conn BIGINT NOT NULL DEFAULT 0,
    updated_at BIGINT NOT NULL
) ENGINE = InnoDB;

-- The grants, one row for each resource, kept at release and expiry. Before the first grant of a
-- resource its row may have the token 0 and no grant.
CREATE TABLE IF NOT EXISTS {prefix}locks (
    resource         VARBINARY(255) NOT NULL PRIMARY KEY CHECK (length(resource) >= 1),
    token            BIGINT NOT NULL CHECK (token >= 0),
    owner            VARCHAR(255) CHARACTER SET utf8mb4 CHECK (length(owner) BETWEEN 1 AND 255),
    owner_token_hash VARBINARY(32) CHECK (length(owner_token_hash) = 32),
    acquired_at      BIGINT,
    expires_at       BIGINT,
    hold_until       BIGINT,
    released_at      BIGINT,
    CHECK ((owner IS NULL) = (owner_token_hash IS NULL)),
    CHECK ((owner IS NULL) = (acquired_at IS NULL)),
    CHECK ((owner IS NULL) = (expires_at IS NULL))
) ENGINE = InnoDB;

-- No new grant is at or below the floor, and a resource without a mark accepts only what is above
-- it. The epoch grows when an administrator lowers a mark, so that caches of marks forget.
CREATE TABLE IF NOT EXISTS {prefix}floor (
    id    INT    NOT NULL PRIMARY KEY CHECK (id = 1),
    floor BIGINT NOT NULL CHECK (floor >= 0),
    epoch BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;
INSERT INTO {prefix}floor (id, floor) VALUES (1, 0) ON DUPLICATE KEY UPDATE floor = floor;

-- What administrators did, and what was granted.
CREATE TABLE IF NOT EXISTS {prefix}audit (
    id          BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at          BIGINT NOT NULL,
    event       VARCHAR(64) CHARACTER SET utf8mb4 NOT NULL,
    resource    VARBINARY(255),
    token       BIGINT,
    owner       VARCHAR(255) CHARACTER SET utf8mb4,
    actor       TEXT CHARACTER SET utf8mb4,
    approved_by TEXT CHARACTER SET utf8mb4,
    reason      TEXT CHARACTER SET utf8mb4
) ENGINE = InnoDB;

INSERT INTO {prefix}schema (version, applied_at)
VALUES (1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)
ON DUPLICATE KEY UPDATE version = version;
