-- The tables of a file, version by version. From version 3 on, migrations only add.

-- name: version_1
CREATE TABLE IF NOT EXISTS kept (
    id INTEGER PRIMARY KEY, owner TEXT NOT NULL, kind TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
    size INTEGER NOT NULL, used REAL NOT NULL, UNIQUE (owner, kind, key)
);
CREATE INDEX IF NOT EXISTS kept_by_use ON kept (used);
CREATE INDEX IF NOT EXISTS kept_by_owner ON kept (owner, used, size);
CREATE TABLE IF NOT EXISTS holders (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, kind TEXT NOT NULL, created REAL NOT NULL, used REAL NOT NULL,
    size INTEGER NOT NULL, status TEXT NOT NULL, previous TEXT NOT NULL, conversation TEXT NOT NULL,
    continuation TEXT NOT NULL, fields BLOB NOT NULL, body BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS holders_by_use ON holders (used);
CREATE TABLE IF NOT EXISTS items (
    holder TEXT NOT NULL, place INTEGER NOT NULL, made INTEGER NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL,
    item BLOB NOT NULL, PRIMARY KEY (holder, made, place)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS items_by_id ON items (owner, id);
CREATE TABLE IF NOT EXISTS events (
    holder TEXT NOT NULL, first INTEGER NOT NULL, owner TEXT NOT NULL, frames BLOB NOT NULL, PRIMARY KEY (holder, first)
) WITHOUT ROWID;

-- name: version_2
DROP INDEX IF EXISTS holders_by_owner;
CREATE INDEX holders_shares ON holders (owner, used, size, kind);
ALTER TABLE items ADD COLUMN call_id TEXT NOT NULL DEFAULT '';
CREATE INDEX items_by_call ON items (owner, call_id) WHERE call_id != '';
ALTER TABLE events ADD COLUMN count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE events ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
CREATE TABLE runs (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, member TEXT NOT NULL, epoch INTEGER NOT NULL, is_over INTEGER NOT NULL,
    is_started INTEGER NOT NULL, is_cancelled INTEGER NOT NULL, plan BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX runs_by_member ON runs (member, is_cancelled) WHERE is_over = 0;
CREATE TABLE members (
    id TEXT PRIMARY KEY, host TEXT NOT NULL, socket TEXT NOT NULL, boot TEXT NOT NULL, beat REAL NOT NULL,
    lease REAL NOT NULL, since REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE leases (
    name TEXT PRIMARY KEY, member TEXT NOT NULL, epoch INTEGER NOT NULL, step INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX leases_by_member ON leases (member);
CREATE TABLE epochs (latest INTEGER NOT NULL);
INSERT INTO epochs VALUES (0);
CREATE TABLE schema (version INTEGER NOT NULL, compatible INTEGER NOT NULL);
INSERT INTO schema VALUES (2, 2);

-- name: version_3
CREATE INDEX holders_by_previous ON holders (previous) WHERE previous != '';
UPDATE schema SET version = 3;

-- name: version_4
CREATE TABLE IF NOT EXISTS turns (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, facts BLOB NOT NULL,
    content BLOB NOT NULL, size INTEGER NOT NULL, used REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS turns_by_use ON turns (used);
CREATE INDEX IF NOT EXISTS turns_by_owner ON turns (owner, used, size);
UPDATE schema SET version = 4;

-- name: version_5
CREATE TABLE IF NOT EXISTS issued_keys (
    name TEXT PRIMARY KEY, facts BLOB NOT NULL, change INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS issued_keys_by_change ON issued_keys (change);
CREATE TABLE IF NOT EXISTS key_changes (latest INTEGER NOT NULL);
INSERT INTO key_changes SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM key_changes);
UPDATE schema SET version = 5;

-- name: version_6
CREATE TABLE IF NOT EXISTS usage (
    id TEXT PRIMARY KEY, span INTEGER NOT NULL, at REAL NOT NULL, hour INTEGER NOT NULL, key TEXT NOT NULL,
    team TEXT NOT NULL, model TEXT NOT NULL, backend TEXT NOT NULL, dialect TEXT NOT NULL, outcome TEXT NOT NULL,
    turns INTEGER NOT NULL, input INTEGER NOT NULL, output INTEGER NOT NULL, cached INTEGER NOT NULL,
    cache_write INTEGER NOT NULL, reasoning INTEGER NOT NULL, calls INTEGER NOT NULL, notes INTEGER NOT NULL,
    duration INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS usage_by_time ON usage (span, at);
UPDATE schema SET version = 6;
