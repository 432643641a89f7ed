-- What makes lists quick; nothing needs it to be right.
CREATE INDEX runs_newest ON runs (tenant, created_at, run_id);
CREATE INDEX runs_by_status ON runs (tenant, status, created_at, run_id);
CREATE INDEX runs_by_task ON runs (task_id);
CREATE INDEX runs_by_project ON runs (project_id, created_at, run_id) WHERE project_id IS NOT NULL;
CREATE INDEX projects_newest ON projects (tenant, created_at, project_id);
CREATE INDEX schedules_newest ON schedules (tenant, created_at, schedule_id);
CREATE INDEX questions_open ON questions (run_id) WHERE answered_at IS NULL;
