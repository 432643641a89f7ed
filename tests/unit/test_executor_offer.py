"""When a run settles what it offers its model."""

from libs.contracts import events as e
from libs.contracts.tools import Semantics
from libs.contracts.values import Offered
from services.executor.decision.activity import Offer
from services.executor.decision.decide import Do, foresee, settle
from tests.unit.test_executor_decide import NOW, SPECS, call, env, owned, result, turn


def asked_for(name: str) -> list[e.LogEvent]:
    """The intent and the result of the first call of the first turn."""
    requested = e.ToolRequested(
        call_id="call_1_0",
        name=name,
        arguments={},
        semantics=Semantics.READ_ONLY,
        idempotency_key="k",
        needs_workspace=False,
    )
    return [requested, result("call_1_0")]


def test_what_a_run_offers_is_settled_before_its_first_request_and_named_in_it_alone() -> None:
    offered = Offered(digest="d" * 64, names=sorted(SPECS))
    state = owned()
    assert settle(state, env()._replace(to_offer=True)).then == Do((Offer(),))
    settled = settle(state, env()._replace(to_offer=True, offer=offered))
    (requested,) = settled.events
    assert isinstance(requested, e.ModelRequested)
    assert requested.offered == offered
    state = foresee(state, [requested, turn(1, calls=[call("echo", 0)]), *asked_for("echo")], NOW)
    assert state.offered == offered
    later = settle(state, env()).events[-1]
    assert isinstance(later, e.ModelRequested)
    assert later.offered is None
    assert foresee(state, [later], NOW).offered == offered
