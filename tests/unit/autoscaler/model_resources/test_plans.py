"""The next writes for a Model: as it comes, changes, is refused, and goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stratos_autoscaler.kubernetes.noted_pools import POOL
from stratos_autoscaler.model_resources.observed import JOB_NAME, ObservedModel
from stratos_autoscaler.model_resources.plan import FINALIZER, ModelPlan, plan_end, plan_life, plan_refusal
from stratos_autoscaler.model_resources.status import status_of
from stratos_autoscaler.model_resources.steps import Apply, Delete, Finalize
from stratos_autoscaler.model_resources.wanted.spec import RefusedModel, StatusReason, read_spec
from tests.support.worlds.model_templates import OTHER_SOURCE, model, pool, templates_with, wanted_of

Object = dict[str, Any]
TEMPLATES = templates_with()


class World:
    """A Model, and objects of its own that writes make."""

    def __init__(self, found: Object, templates: Any = TEMPLATES) -> None:
        self.model, self.templates = found, templates
        self.objects: dict[tuple[str, str], Object] = {}
        self.more: dict[str, Any] = {}

    def plan(self) -> ModelPlan:
        observed = ObservedModel(objects=self.objects, **self.more)
        if "deletionTimestamp" in self.model["metadata"]:
            return plan_end(self.model, self.templates, observed)
        wanted = wanted_of(self.model, self.templates)
        return plan_life(self.model, read_spec(self.model), wanted, self.templates.head, observed)

    def turn(self) -> ModelPlan:
        """ModelPlan, and do it."""
        plan = self.plan()
        for step in plan.steps:
            if isinstance(step, Apply):
                item = step.item
                live = {**item, "metadata": {**item["metadata"], "resourceVersion": "5", "uid": "u"}}
                self.objects[item["kind"], item["metadata"]["name"]] = live
            elif isinstance(step, Delete):
                del self.objects[step.kind, step.name]
            else:
                self.model["metadata"]["finalizers"] = list(step.finalizers)
        status = status_of(
            self.model, plan.story, ObservedModel(objects=self.objects, **self.more), "2026-01-01T00:00:00Z"
        )
        self.model["status"] = status
        return plan

    def end_job(self, kind: str = "Complete") -> str:
        ((_, name),) = [key for key in self.objects if key[0] == "Job"]
        self.objects["Job", name]["status"] = {"conditions": [{"type": kind, "status": "True", "message": "why"}]}
        return name

    def settle(self) -> None:
        """Everything is there, and recorded."""
        self.turn()
        self.end_job()
        self.turn()
        assert not self.turn().steps


def kinds_of(plan: ModelPlan) -> list[str]:
    return [step.item["kind"] for step in plan.steps if isinstance(step, Apply)]


def test_the_finalizer_is_there_before_anything_else() -> None:
    world = World(model(is_ours=False))
    assert world.turn().steps == [Finalize((FINALIZER,))]
    found = kinds_of(world.turn())
    assert sorted(found) == sorted(["Deployment", "PodDisruptionBudget", "HorizontalPodAutoscaler"] * 2 + ["Job"])
    assert world.plan().steps == []


def test_a_model_is_recorded_once_for_what_it_says() -> None:
    world = World(model())
    world.turn()
    names = [world.end_job()]
    world.turn()
    world.objects.pop(("Job", names[0]))  # its time is over
    assert world.turn().steps == []
    world.model["spec"] |= {"decode": {"maxReplicas": 5}}
    assert "Job" not in kinds_of(world.turn()), "sizes are nothing that gateways are told"
    for source in (OTHER_SOURCE, model()["spec"]["source"]):
        world.model["spec"] |= {"source": source}
        assert "Job" in kinds_of(world.turn())
        names.append(world.end_job())
        world.turn()
        assert world.plan().steps == []
        world.objects.pop(("Job", names[-1]))
    assert len(set(names)) == 3, "the first source is the newest again, by another job"


def test_an_older_job_is_gone_before_the_next_one_begins() -> None:
    world = World(model())
    world.turn()
    world.model["spec"] |= {"source": OTHER_SOURCE}
    plan = world.turn()
    assert "Job" not in kinds_of(plan)
    assert [step.is_foreground for step in plan.steps if isinstance(step, Delete)] == [True], "with its pods"
    assert "Job" in kinds_of(world.turn())


def test_no_worker_is_replaced_before_gateways_were_told_of_its_source() -> None:
    """A source that has another name already is never recorded: the workers that serve stay."""
    world = World(model())
    world.settle()
    serving(world)
    world.model["spec"] |= {"source": OTHER_SOURCE}
    assert kinds_of(world.turn()) == [], "the older job is taken away"
    assert kinds_of(world.turn()) == ["Job"]
    world.end_job("Failed")
    assert not world.turn().steps
    assert {kind for kind, holds in conditions(world).items() if holds == "True"} == {"Ready", "Loading", "Failed"}
    world.end_job()
    assert kinds_of(world.turn()) == ["Deployment", "Deployment"]


def conditions(world: World) -> dict[str, str]:
    return {found["type"]: found["status"] for found in world.model["status"]["conditions"]}


def test_a_size_that_another_one_gave_is_kept_and_its_version_is_named() -> None:
    templates = templates_with(default=pool("decode", mode="none", min_workers=2, max_workers=2))
    world = World(model(), templates)
    world.turn()
    key = ("Deployment", "demo-decode-chat")
    assert world.objects[key]["spec"]["replicas"] == 2
    world.objects[key]["spec"] = {**world.objects[key]["spec"], "replicas": 7}
    world.model["spec"] |= {"source": OTHER_SOURCE}
    (step,) = [s for s in world.turn().steps if isinstance(s, Apply) and s.item["kind"] == "Deployment"]
    assert (step.item["spec"]["replicas"], step.version) == (7, "5")
    world.model["spec"] |= {"decode": {"replicas": 3}}
    world.turn()
    assert world.objects[key]["spec"]["replicas"] == 3, "the Model asks for another number than before"


def test_the_size_of_a_pool_that_has_an_owner_is_never_set() -> None:
    world = World(model())
    world.turn()
    key = ("Deployment", "demo-decode-chat")
    assert "replicas" not in world.objects[key]["spec"]
    world.objects[key]["spec"] = {**world.objects[key]["spec"], "replicas": 4}
    world.model["spec"] |= {"source": OTHER_SOURCE}
    world.turn()
    assert world.objects[key]["spec"]["replicas"] == 4


def test_what_a_spec_or_a_template_no_longer_has_goes() -> None:
    world = World(model())
    world.settle()
    world.model["spec"] |= {"prefill": {"replicas": 0}}
    world.turn()
    assert {name for kind, name in world.objects if kind != "Job"} == {"demo-decode-chat"}
    world.templates = templates_with(default=[*pool("prefill"), *pool("decode", mode="planner")])
    world.turn()
    assert {kind for kind, _ in world.objects if kind != "Job"} == {"Deployment", "PodDisruptionBudget"}


def test_a_refused_model_changes_nothing() -> None:
    plan = plan_refusal(model(), RefusedModel(StatusReason.NAME_OF_VALUES, "values have it"))
    assert plan.steps == ()
    status = status_of(model(), plan.story, ObservedModel(), "now")
    shown = {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}
    assert shown == {
        "Ready": ("False", "NameBelongsToValues"),
        "Loading": ("False", "NoProblem"),
        "Failed": ("True", "NameBelongsToValues"),
    }
    assert (status["state"], status["message"]) == ("Failed", "values have it")


@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_model_goes_off_the_list_then_drains_then_ends(is_loaded: bool) -> None:
    world = World(model())
    world.turn()
    if is_loaded:
        world.end_job()
        world.turn()
    world.model["metadata"]["deletionTimestamp"] = "now"
    plan = world.turn()
    assert [type(step) for step in plan.steps] == [Delete], "a job that still records ends before all else"
    plan = world.turn()
    assert kinds_of(plan) == ["Job"]
    assert plan.story.leaving is StatusReason.RETIRING
    assert any(kind == "Deployment" for kind, _ in world.objects)
    world.end_job()
    for world.more in ({"num_busy": None}, {"num_busy": 3}):
        plan = world.turn()
        assert (plan.steps, plan.story.leaving) == ((), StatusReason.DRAINING)
    world.more = {"num_busy": 0, "pods": [{"metadata": {"name": "p"}, "status": {}}]}
    assert {step.name for step in world.turn().steps if isinstance(step, Delete)} == {
        "demo-prefill-chat", "demo-decode-chat"
    }  # fmt: skip
    assert list(world.turn().steps) == [], "its pods drain"
    world.more = {"num_busy": 0}
    assert world.turn().steps == [Finalize(())]


def test_requests_that_never_end_are_waited_for_no_longer_than_that() -> None:
    world = World(model())
    world.settle()
    world.model["metadata"]["deletionTimestamp"] = "now"
    world.turn()
    world.turn()
    world.end_job()
    world.more = {"num_busy": 3, "is_patient": False}
    assert world.plan().story.leaving is StatusReason.STOPPING


def test_a_job_that_cannot_take_the_records_away_is_made_again() -> None:
    world = World(model())
    world.settle()
    world.model["metadata"]["deletionTimestamp"] = "now"
    world.turn()
    world.turn()
    world.end_job("Failed")
    plan = world.turn()
    assert plan.story.problem is not None
    assert plan.story.problem.reason is StatusReason.RETIRE_FAILED
    assert kinds_of(world.turn()) == ["Job"]


def test_a_job_that_fails_says_its_last_words() -> None:
    world = World(model())
    world.turn()
    ((_, name),) = [key for key in world.objects if key[0] == "Job"]
    ended = {"terminated": {"exitCode": 1, "message": "Error: an adapter has the name 'chat'"}}
    state = {"name": "record", "lastState": ended, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    pod = {"metadata": {"name": "job-1", "labels": {JOB_NAME: name}}, "status": {"containerStatuses": [state]}}
    world.more = {"job_pods": [pod]}
    problem = world.turn().story.problem
    assert problem is not None
    assert (problem.reason, problem.message) == (
        StatusReason.RECORD_FAILED,
        "job-1: Error: an adapter has the name 'chat'",
    )


def serving(world: World, **counts: int) -> None:
    for (kind, _), found in world.objects.items():
        if kind == "Deployment":
            found["spec"] = {**found["spec"], "replicas": counts.get("replicas", 2)}
            found["status"] = {"readyReplicas": counts.get("ready", 2), "updatedReplicas": counts.get("updated", 2)}


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda world: serving(world), ("Ready", "Serving", "True", "False")),
        (lambda world: serving(world, ready=1), ("Ready", "Starting", "True", "True")),
        (lambda world: serving(world, updated=1), ("Ready", "Starting", "True", "True")),
        (lambda world: serving(world, ready=0), ("Loading", "Starting", "False", "True")),
        (lambda world: serving(world, replicas=0, ready=0), ("Ready", "Asleep", "True", "False")),
    ],
    ids=["serves", "one of two", "rolls", "none yet", "asleep"],
)  # fmt: skip
def test_the_status_says_how_it_stands(change: Callable[[World], None], shown: tuple[str, ...]) -> None:
    world = World(model(servedName="team/chat"))
    world.settle()
    change(world)
    world.turn()
    status = world.model["status"]
    by_type = {c["type"]: c["status"] for c in status["conditions"]}
    assert (status["state"], status["reason"], by_type["Ready"], by_type["Loading"]) == shown
    assert (status["servedName"], status["revision"], status["observedGeneration"]) == ("team/chat", "a" * 12, 1)
    assert status["pools"]["decode"]["deployment"] == "demo-decode-chat"


@pytest.mark.parametrize("text", ["{", "[]", "null", "{}"])
def test_an_annotation_that_another_hand_broke_ends_nothing(text: str) -> None:
    world = World(model())
    world.settle()
    world.objects["Deployment", "demo-decode-chat"]["metadata"]["annotations"][POOL] = text
    world.turn()
    pools = world.model["status"]["pools"]
    assert (pools["decode"]["mode"], pools["prefill"]["mode"]) == ("", "hpa")


def test_a_model_whose_record_was_lost_is_recorded_again_once_its_status_says_so() -> None:
    world = World(model())
    world.settle()
    ((_, name),) = [key for key in world.objects if key[0] == "Job"]
    world.objects.pop(("Job", name))
    world.model["status"]["record"] = None
    assert kinds_of(world.turn()) == ["Job"]


def test_a_model_that_no_gateway_was_told_of_is_not_ready() -> None:
    world = World(model())
    world.turn()
    serving(world)
    world.turn()
    assert (world.model["status"]["state"], world.model["status"]["reason"]) == ("Loading", "Recording")
    assert world.model["status"]["pools"]["decode"]["shown"] == "2/2"


def test_the_time_of_a_condition_is_that_of_its_change() -> None:
    world = World(model())
    world.settle()
    serving(world)
    world.turn()
    observed = ObservedModel(objects=world.objects)
    later = status_of(world.model, world.plan().story, observed, "2026-02-02T00:00:00Z")
    assert {c["lastTransitionTime"] for c in later["conditions"]} == {"2026-01-01T00:00:00Z"}
    serving(world, ready=0)
    later = status_of(world.model, world.plan().story, observed, "2026-02-02T00:00:00Z")
    changed = {c["type"] for c in later["conditions"] if c["lastTransitionTime"] == "2026-02-02T00:00:00Z"}
    assert changed == {"Ready", "Loading"}
