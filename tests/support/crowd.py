"""A hundred thousand investigations, as wide as real ones are, made in SQL in half a minute."""

from __future__ import annotations

from tarsy.store.base import databases

COUNT = 100_000
NAMESPACE = "tarsy"
NAMESPACE_UID = "0a2c1f6e-5f0c-4b0e-8f3e-1b2c3d4e5f60"
_WIDE = ("alert_data", "chain", "words")
"""Columns that are out of line; to compress them would take most of the time, and no test reads them here."""
OPEN = 500
"""The newest have not ended."""
COMMON = "restarting"
"""A word that is in every alert; so are `failed` behind it, and `container`."""
RARE = "rare77"
"""A word that is in ten of them."""

# Alerts of 1 to 4 kB. They are taken apart into words once for many, because that takes most of the time.
_TEMPLATES = """
  CREATE TEMP TABLE templates AS
  SELECT number, said, tarsy_words(said) AS words, (
    SELECT json_build_object('spec', string_agg(md5(number || 's' || line), ',')) FROM generate_series(1, 45) AS line
  ) AS chain
  FROM (
    SELECT number, (
      SELECT string_agg(
        format('{"labels":{"alertname":"KubePodCrashLooping","namespace":"shop-%s","pod":"web-%s-%s"},"message":'
          '"%s back-off restarting failed container %s, exit code %s at 10.0.%s.%s %s %s %s %s"}', number % 50,
          left(md5(number || 'p' || line), 8), line, md5(line || 'm' || number), md5(line || 'c' || number), line,
          line, number % 200, left(md5(line || 'w' || number), 5), left(md5(line || 'x' || number), 5),
          left(md5(line || 'y' || number), 5), timestamptz '2026-01-01' + line * interval '1 min'), ' ')
      FROM generate_series(1, 3 + number % 12) AS line) AS said
    FROM generate_series(0, 499) AS number
  ) AS written
"""
_INVESTIGATIONS = """
  INSERT INTO investigations (id, namespace, namespace_uid, name, generation, author, alert_type, alert_data, severity,
    runbook_url, fingerprint, alert_status, chain_name, chain_namespace, chain_generation, chain_hash, chain_version,
    chain, stage_names, stage_agents, admitted_at, ended_at, ending, words)
  SELECT gen_random_uuid(), $1, $2, 'kubepodcrashlooping-' || left(md5(made || ''), 16) || made, 1,
    'person-' || made % 40 || '@example.com', 'AlertType' || made * 7 % 30, said || ' rare' || made / 10, 'critical',
    'https://runbooks.example.com/alerts/AlertType' || made * 7 % 30, left(md5(made / 4 || ''), 16), 'firing',
    'chain-' || made % 12, $1, 1, md5(made % 12 || '') || md5('x'), 1,
    templates.chain, '{look,think,tell}', '{1,3,1}', at, CASE WHEN made < $4 THEN at + interval '5 min' END,
    CASE WHEN made < $4 THEN endings[1 + made % 6] END, words || tarsy_words('rare' || made / 10)
  FROM generate_series(0, $3 - 1) AS made
  CROSS JOIN (VALUES (ARRAY['Completed', 'Completed', 'CompletedWithErrors', 'Failed', 'Cancelled', 'TimedOut']))
    AS ended (endings)
  JOIN templates ON number = made % 500
  CROSS JOIN LATERAL (SELECT timestamptz '2026-01-01' + made * interval '1 min' AS at) AS moment
"""
_BESIDE = (
    """
  INSERT INTO work (investigation, state, stale)
  SELECT id, CASE WHEN ending IS NOT NULL THEN 'ended' WHEN left(id || '', 1) < '8' THEN 'running' ELSE 'queued' END,
    false
  FROM investigations
""",
    """
  INSERT INTO runs (investigation, number, kind, started_at, ended_at, ending, reason, final_analysis, summary)
  SELECT id, 0, 'investigation', admitted_at, ended_at, ending, 'StagesCompleted', repeat('what was found. ', 100),
    'in short: it restarts'
  FROM investigations
""",
    """
  INSERT INTO stages (investigation, run, name, started_at, ended_at, outcome)
  SELECT id, 0, stage, admitted_at, ended_at, 'Completed' FROM investigations, unnest(stage_names) AS stage
""",
    """
  INSERT INTO executions (investigation, id, run, stage, kind, index, parent, name, provider, total_tokens, cost)
  SELECT investigation, name || '-0', 0, name, 'agent', 0, '', 'KubernetesAgent', 'only', 1000, 0.1 FROM stages
""",
)


async def gather(database: databases.Database) -> None:
    """Make them, in an empty database; afterwards Postgres knows of them what its autovacuum tells it later."""
    connection = await databases.connect(database.url, command_timeout=300)
    try:
        index = await connection.fetchval("SELECT indexdef FROM pg_indexes WHERE indexname = 'investigations_words'")
        await connection.execute("DROP INDEX investigations_words")
        for column in _WIDE:
            await connection.execute(f"ALTER TABLE investigations ALTER {column} SET STORAGE EXTERNAL")
        await connection.execute(_TEMPLATES)
        await connection.execute(_INVESTIGATIONS, NAMESPACE, NAMESPACE_UID, COUNT, COUNT - OPEN)
        for statement in (*_BESIDE, index, "VACUUM ANALYZE"):
            await connection.execute(statement)
    finally:
        await connection.close()
