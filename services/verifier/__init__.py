"""Verifier: holds the answer of a run against reality.

Owns      nothing: verifiers are stateless, a dead one's round is requested again.
Consumes  the call `verify` on `<p>.tool.any.verify`.
Emits     verdicts with their evidence into the journal; sub-calls to the workspace's host (`verify-<round>-<i>`).

Reading order: rounds (one verification), claims and mentions (what an answer asserts), judgement (from facts to checks),
verdict (from checks to PASSED, FAILED, UNVERIFIED), review/ (a second model), subcalls (asking the host), app.
The protocol around a call (epoch, journal, lease) is every host's and lives in `libs/chassis/hosting.py`.
"""
