-- Dumps of each table in key order, from after the key (:a, :b, :c), and restores.

-- name: within_bytes
-- The rows of `part` up to :bytes in total; the last one may exceed that.
SELECT * FROM (
    SELECT part.*, sum(size_) OVER (ORDER BY number_) - size_ AS before_ FROM part
) parts WHERE before_ < :bytes ORDER BY number_

-- name: dump_holders
WITH part AS (
    SELECT id, owner, kind, created, extract(epoch FROM used)::float8 AS used, size, status, previous, conversation,
        continuation, fields, body, length(fields) + length(body) AS size_, row_number() OVER (ORDER BY id) AS number_
    FROM toolwire.holders WHERE id > :a ORDER BY id LIMIT :rows
)
{within_bytes}

-- name: dump_items
WITH part AS (
    SELECT i.holder, i.made, i.place, i.owner, i.id, {whole_id} AS whole_id, i.item, length(i.item) AS size_,
        row_number() OVER (ORDER BY i.holder, i.made, i.place) AS number_
    FROM toolwire.items i JOIN toolwire.holders h ON h.id = i.holder
    WHERE (i.holder, i.made, i.place) > (:a, :b, :c) ORDER BY i.holder, i.made, i.place LIMIT :rows
)
{within_bytes}

-- name: dump_events
WITH part AS (
    SELECT j.{response}, j.first, h.owner, j.count, j.frames, length(j.frames) AS size_,
        row_number() OVER (ORDER BY j.{response}, j.first) AS number_
    FROM {journal} j JOIN toolwire.holders h ON h.id = j.{response}
    WHERE (j.{response}, j.first) > (:a, :b) ORDER BY j.{response}, j.first LIMIT :rows
)
{within_bytes}

-- name: dump_runs
WITH part AS (
    SELECT id, owner, epoch, is_over, is_started, is_cancelled, plan, length(plan) AS size_,
        row_number() OVER (ORDER BY id) AS number_
    FROM toolwire.runs WHERE id > :a ORDER BY id LIMIT :rows
)
{within_bytes}

-- name: dump_values
WITH part AS (
    SELECT owner, kind, {key_index}, key AS key_, value, extract(epoch FROM used)::float8 AS used_,
        length(key) + length(value) AS size_, row_number() OVER (ORDER BY owner, kind, {key_index}) AS number_
    FROM toolwire.kept WHERE (owner, kind, {key_index}) > (:a, :b, :c) ORDER BY owner, kind, {key_index} LIMIT :rows
)
{within_bytes}

-- name: restore_holder
INSERT INTO toolwire.holders
    (id, owner, kind, created, used, size, status, previous, conversation, continuation, fields, body)
VALUES (:id, :owner, :kind, :created, to_timestamp(:used), :size, :status, :previous, :conversation, :continuation,
    :fields, :body) ON CONFLICT DO NOTHING

-- name: restore_run
INSERT INTO toolwire.runs (id, owner, member, epoch, is_over, is_started, is_cancelled, plan)
SELECT :id, :owner, '', :epoch, :is_over, :is_started, :is_cancelled, :plan
FROM toolwire.holders WHERE id = :id AND owner = :owner ON CONFLICT DO NOTHING

-- name: restore_value
INSERT INTO toolwire.kept (owner, kind, {key_columns}, value, size, used)
VALUES (:owner, :kind, {key_values}, :value, :size, to_timestamp(:used)) ON CONFLICT DO NOTHING
