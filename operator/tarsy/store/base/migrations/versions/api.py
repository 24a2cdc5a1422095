"""The tables of the API: owners of investigations, lists and search, the audit, and process facts."""

from __future__ import annotations

from alembic import op

revision = "api"
down_revision = "providers"

# A search finds the names of Kubernetes by their parts, so what makes Postgres' parser take `shop/web` for a file,
# `web-0.shop.svc` for a host and `web-0` for one word with a sign gives way to spaces, in texts and in searches alike.
# No text makes this fail: a word of over 2 kB is left out, and the vectors of three texts of 64 Ki characters, each of
# four bytes, are within 1 MB together, the limit of one.
WORDS = """
CREATE FUNCTION tarsy_plain(given text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT regexp_replace(given, '[-+./~&<]', ' ', 'g') $$;

CREATE FUNCTION tarsy_words(given text) RETURNS tsvector LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT to_tsvector('simple', tarsy_plain(left(given, 65536))) $$;

CREATE FUNCTION tarsy_query(given text[]) RETURNS tsquery LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
  SELECT websearch_to_tsquery('simple', string_agg('"' || tarsy_plain(phrase) || '"', ' ')) FROM unnest(given) AS phrase
$$
"""

# The columns change places: what lists read of 100,000 rows stands before what is wide, which takes half the time. What
# is wide is out of line (toast_tuple_target), and what is counted on a row finds room in its page, so that no index
# changes. A list takes one processor and not all of them (parallel_workers).
#
# New words wait in a list until there are 64 kB of them, the least that Postgres takes: the admission that goes
# over it sorts them all into the index, which takes 10 ms there, and 200 ms at the default of 4 MB. Nothing is to be
# known of which words are frequent (STATISTICS 0): the planner would look into the words of each row for such a one,
# which takes a second.
INVESTIGATIONS = """
ALTER TABLE investigations RENAME CONSTRAINT investigations_pkey TO before_pkey;
ALTER TABLE investigations RENAME TO before;

CREATE TABLE investigations (
  id                uuid PRIMARY KEY,
  admitted_at       timestamptz NOT NULL DEFAULT now(),
  namespace         text NOT NULL,
  namespace_uid     text,
  ending            text,
  ended_at          timestamptz,
  purged_at         timestamptz,
  alert_type        text NOT NULL,
  chain_name        text,
  author            text NOT NULL DEFAULT '',
  fingerprint       text,
  name              text NOT NULL,
  generation        bigint NOT NULL,
  alert_data        text NOT NULL,
  severity          text,
  runbook_url       text,
  alert_status      text CONSTRAINT investigations_alert_status_check CHECK (alert_status IN ('firing', 'resolved')),
  duplicates        bigint NOT NULL DEFAULT 0,
  chain_namespace   text,
  chain_generation  bigint,
  chain_hash        text,
  chain_version     integer,
  chain             json,
  stage_names       text[] NOT NULL DEFAULT '{}',
  stage_agents      integer[] NOT NULL DEFAULT '{}',
  on_resolved       text,
  chain_ttl_seconds bigint,
  ttl_seconds       bigint,
  gone_at           timestamptz,
  words             tsvector
) WITH (fillfactor = 85, toast_tuple_target = 700, parallel_workers = 0);

INSERT INTO investigations (
  id, admitted_at, namespace, ending, ended_at, alert_type, chain_name, fingerprint, name, generation, alert_data,
  severity, runbook_url, alert_status, duplicates, chain_namespace, chain_generation, chain_hash, chain_version, chain,
  stage_names, stage_agents, on_resolved, chain_ttl_seconds, ttl_seconds, gone_at, words
)
SELECT id, admitted_at, namespace, ending, before.ended_at, alert_type, chain_name, fingerprint, name, generation,
  alert_data, severity, runbook_url, alert_status, duplicates, chain_namespace, chain_generation, chain_hash,
  chain_version, chain, stage_names, stage_agents, on_resolved, chain_ttl_seconds, ttl_seconds, gone_at,
  tarsy_words(alert_data) || tarsy_words(coalesce(final_analysis, '')) || tarsy_words(coalesce(summary, ''))
FROM before LEFT JOIN runs ON runs.investigation = id AND number = 0;

ALTER TABLE work DROP CONSTRAINT work_investigation_fkey,
  ADD FOREIGN KEY (investigation) REFERENCES investigations ON DELETE CASCADE;
ALTER TABLE runs DROP CONSTRAINT runs_investigation_fkey,
  ADD FOREIGN KEY (investigation) REFERENCES investigations ON DELETE CASCADE;
ALTER TABLE identities DROP CONSTRAINT identities_investigation_fkey,
  ADD FOREIGN KEY (investigation) REFERENCES investigations ON DELETE CASCADE;
ALTER TABLE receipts DROP CONSTRAINT receipts_investigation_fkey,
  ADD FOREIGN KEY (investigation) REFERENCES investigations ON DELETE CASCADE;
DROP TABLE before;

CREATE INDEX investigations_fingerprint ON investigations (namespace, fingerprint, admitted_at)
  WHERE fingerprint IS NOT NULL;
CREATE INDEX investigations_open ON investigations (namespace) WHERE ended_at IS NULL;
CREATE INDEX investigations_present ON investigations (ended_at) WHERE ended_at IS NOT NULL AND gone_at IS NULL;
CREATE INDEX investigations_listed ON investigations (namespace, admitted_at, id) WHERE purged_at IS NULL;
CREATE INDEX investigations_counted ON investigations (namespace, ending, namespace_uid) WHERE purged_at IS NULL;
CREATE INDEX investigations_words ON investigations USING gin (words) WITH (gin_pending_list_limit = 64);
ALTER TABLE investigations ALTER COLUMN words SET STATISTICS 0;
"""

TABLES = """
ALTER TABLE receipts ADD COLUMN address text NOT NULL DEFAULT '';

CREATE TABLE audit (
  id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
  at            timestamptz NOT NULL DEFAULT now(),
  who           text NOT NULL,
  address       text NOT NULL,
  action        text NOT NULL,
  investigation uuid NOT NULL,
  namespace     text NOT NULL,
  name          text NOT NULL
);
CREATE INDEX audit_investigation ON audit (investigation);

CREATE TABLE catalogue (
  process uuid NOT NULL,
  kind    text NOT NULL,
  name    text NOT NULL,
  state   text NOT NULL,
  since   timestamptz NOT NULL DEFAULT now(),
  seen_at timestamptz NOT NULL DEFAULT now(),
  detail  json NOT NULL DEFAULT '{}',
  PRIMARY KEY (process, kind, name)
);
"""

# A body that was written by hand may be of any shape, and hold what Postgres cannot unescape: it counts for nothing.
COUNTED = """
CREATE FUNCTION pg_temp.listed(body json, name text) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
  RETURN CASE json_typeof(body -> name) WHEN 'array' THEN json_array_length(body -> name) ELSE 0 END;
EXCEPTION WHEN others THEN
  RETURN 0;
END $$
"""
CALLED = """
CREATE FUNCTION pg_temp.is_there(body json, name text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RETURN coalesce(json_typeof(body -> name) = 'object', false);
EXCEPTION WHEN others THEN
  RETURN false;
END $$
"""
COUNTS = """
ALTER TABLE entries
  ADD COLUMN messages integer NOT NULL DEFAULT 0,
  ADD COLUMN model_calls integer NOT NULL DEFAULT 0,
  ADD COLUMN tool_calls integer NOT NULL DEFAULT 0;
UPDATE entries
SET messages = pg_temp.listed(body, 'messages') + pg_temp.listed(body, 'runs'),
  tool_calls = pg_temp.listed(body, 'runs'),
  model_calls = CAST(pg_temp.is_there(body, 'call') AS integer)
WHERE kind IN ('ExecutionStarted', 'Answered', 'Unanswered', 'FellBack', 'ContextCompacted', 'ToolsAnswered');
"""


def upgrade() -> None:
    for function in (COUNTED, CALLED):
        op.execute(function)
    for statement in (COUNTS + WORDS + ";" + INVESTIGATIONS + TABLES).split(";"):
        if statement.strip():
            op.execute(statement)
