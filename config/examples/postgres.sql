-- The tables that `[[upstream]] kind = "postgres"` reads with its default queries. runcast only reads: it needs SELECT on
-- both. Where your tables are others, say so with list_query, run_query and steps_query (config/runcast.toml).

CREATE TABLE agent_runs (
    id text PRIMARY KEY,
    customer_id text,
    -- queued, running, then one of completed, error, cancelled, stopped, expired; any other word counts as running.
    status text,
    created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    ended_at timestamptz,
    error text,
    summary text,
    usage jsonb,
    cost_usd numeric,
    duration_ms bigint
);

CREATE TABLE agent_steps (
    -- What tells a step from all others. It is never used twice; it may become visible in any order.
    id bigint GENERATED ALWAYS AS IDENTITY,
    agent_session_id text NOT NULL,
    -- The writer's own count: clients of the WebSocket resume by it. It may repeat and begin again.
    step_index bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- One Claude Code message (stream-json).
    data jsonb NOT NULL
);

CREATE INDEX agent_steps_by_step_index ON agent_steps (agent_session_id, step_index);
-- By this one new rows of a long run are found without looking at the old ones.
CREATE INDEX agent_steps_by_id ON agent_steps (agent_session_id, id);

-- Whoever writes tells of it in the same transaction, so that it is seen at once and not only when runcast looks again:
--   NOTIFY agent_events, '{"run_id":"…","kind":"steps"}'   after rows of agent_steps,
--   NOTIFY agent_events, '{"run_id":"…","kind":"run"}'     after a change of agent_runs.
