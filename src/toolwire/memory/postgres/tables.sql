-- The tables, step by step: the first makes version 1, the next version 2, and so on. A step only adds.

-- name: tables
CREATE TABLE toolwire.holders (
    id text COLLATE "C" PRIMARY KEY,
    owner text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    created float8 NOT NULL,
    used timestamptz NOT NULL DEFAULT now(),
    size bigint NOT NULL,
    status text NOT NULL,
    previous text COLLATE "C" NOT NULL,
    conversation text COLLATE "C" NOT NULL,
    continuation text COLLATE "C" NOT NULL,
    fields bytea NOT NULL,
    body bytea NOT NULL,
    places bigint NOT NULL DEFAULT 0,
    written_by text NOT NULL DEFAULT ''
);
CREATE INDEX holders_by_use ON toolwire.holders (used);
CREATE INDEX holders_by_owner ON toolwire.holders (owner, used) INCLUDE (size);

CREATE TABLE toolwire.items (
    holder text COLLATE "C" NOT NULL,
    made smallint NOT NULL,
    place bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    whole_id bytea,
    owner text COLLATE "C" NOT NULL,
    call text COLLATE "C",
    item bytea NOT NULL,
    PRIMARY KEY (holder, made, place)
);
CREATE INDEX items_by_id ON toolwire.items (owner, id);
CREATE INDEX items_by_call ON toolwire.items (owner, call) WHERE call IS NOT NULL;

CREATE TABLE toolwire.runs (
    id text COLLATE "C" PRIMARY KEY,
    owner text COLLATE "C" NOT NULL,
    member text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    is_over boolean NOT NULL DEFAULT false,
    is_started boolean NOT NULL DEFAULT false,
    is_cancelled boolean NOT NULL DEFAULT false,
    claimed text NOT NULL DEFAULT '',
    plan bytea NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX runs_by_member ON toolwire.runs (member) WHERE NOT is_over;
CREATE INDEX runs_cancelled ON toolwire.runs (member) WHERE is_cancelled AND NOT is_over;

CREATE TABLE toolwire.journal (
    response text COLLATE "C" NOT NULL,
    first bigint NOT NULL,
    count bigint NOT NULL,
    epoch bigint NOT NULL,
    frames bytea NOT NULL,
    PRIMARY KEY (response, first)
);

CREATE TABLE toolwire.members (
    id text COLLATE "C" PRIMARY KEY,
    host text NOT NULL,
    socket text NOT NULL,
    lasts float8 NOT NULL,
    until timestamptz NOT NULL,
    since timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

CREATE SEQUENCE toolwire.epochs;
CREATE TABLE toolwire.leases (
    name text COLLATE "C" PRIMARY KEY,
    member text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    step bigint NOT NULL DEFAULT 0,
    moved_by text NOT NULL DEFAULT ''
) WITH (fillfactor = 50);
CREATE INDEX leases_by_member ON toolwire.leases (member);

CREATE TABLE toolwire.kept (
    owner text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    digest bytea NOT NULL,
    key bytea NOT NULL,
    value bytea NOT NULL,
    size bigint NOT NULL,
    used timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (owner, kind, digest)
);
CREATE INDEX kept_by_use ON toolwire.kept (used);
CREATE INDEX kept_by_owner ON toolwire.kept (owner, used) INCLUDE (size);

CREATE TABLE toolwire.dropped (
    holder text COLLATE "C" PRIMARY KEY,
    dropped_by text NOT NULL
);
CREATE TABLE toolwire.probes (id text PRIMARY KEY, data bytea NOT NULL);

-- name: index_of_continued
CREATE INDEX holders_by_previous ON toolwire.holders (previous) WHERE previous <> '';

-- name: count_runs
-- Counts unfinished runs under an advisory lock, which is taken before any row lock: a waiting statement locks no row.
CREATE FUNCTION toolwire.count_runs(of_owner text, OUT in_all bigint, OUT owned bigint)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(7306084412);
    SELECT count(*), count(*) FILTER (WHERE r.owner = of_owner) INTO in_all, owned
    FROM toolwire.runs r WHERE NOT r.is_over;
END
$$;

-- name: turns
-- Turns that the console keeps.
CREATE TABLE toolwire.turns (
    number bigserial PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    owner text COLLATE "C" NOT NULL,
    facts bytea NOT NULL,
    content bytea NOT NULL,
    size bigint NOT NULL,
    used timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX turns_by_use ON toolwire.turns (used);
CREATE INDEX turns_by_owner ON toolwire.turns (owner, used) INCLUDE (size);

-- name: commits
-- The tokens of the latest transactions, for processes that lose the answer to a COMMIT.
CREATE TABLE toolwire.commits (
    token text COLLATE "C" PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX commits_by_time ON toolwire.commits (at);

-- name: issued_keys
-- Keys of clients. A change takes its number from `key_changes`, whose row it locks: changes commit in their order.
CREATE TABLE toolwire.issued_keys (
    name text COLLATE "C" PRIMARY KEY,
    facts bytea NOT NULL,
    change bigint NOT NULL
);
CREATE INDEX issued_keys_by_change ON toolwire.issued_keys (change);
CREATE TABLE toolwire.key_changes (latest bigint NOT NULL);
INSERT INTO toolwire.key_changes VALUES (0);

-- name: usage
-- What turns used. A row is one turn, or the sum of those of an hour, whose `span` is 3600.
CREATE TABLE toolwire.usage (
    id text COLLATE "C" PRIMARY KEY,
    span bigint NOT NULL,
    at float8 NOT NULL,
    hour bigint NOT NULL,
    key text NOT NULL,
    team text NOT NULL,
    model text NOT NULL,
    backend text NOT NULL,
    dialect text NOT NULL,
    outcome text NOT NULL,
    turns bigint NOT NULL,
    input bigint NOT NULL,
    output bigint NOT NULL,
    cached bigint NOT NULL,
    cache_write bigint NOT NULL,
    reasoning bigint NOT NULL,
    calls bigint NOT NULL,
    notes bigint NOT NULL,
    duration bigint NOT NULL
);
CREATE INDEX usage_by_time ON toolwire.usage (span, at);
