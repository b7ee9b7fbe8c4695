"""The next writes for one Model, from what it asks for and what there is: no calls, no clock.

    comes    finalizer ──▶ Deployments, budgets, HPAs and the job that records it, all at once
    changes  the job that records it, where that differs ──▶ what differs is applied; what the template or the sizes no
             longer have goes. Workers of a source that is not recorded would serve no request: none is replaced before
    goes     jobs that record ──▶ the job that takes its records away ──▶ until its requests have ended
             ──▶ its Deployments ──▶ until their pods are gone ──▶ finalizer

A Model that is refused changes nothing: what it had before goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratos_autoscaler.kubernetes.api import Object
from stratos_autoscaler.model_resources.observed import ObservedModel
from stratos_autoscaler.model_resources.problems import Problem, first_problem
from stratos_autoscaler.model_resources.records import JobStage, Recorded, delete_of, job_turn, recorded
from stratos_autoscaler.model_resources.status import Story
from stratos_autoscaler.model_resources.steps import Apply, Finalize, Step
from stratos_autoscaler.model_resources.wanted.objects import APPLIED, ModelObjects, retire_job
from stratos_autoscaler.model_resources.wanted.sizes import SPEC_REPLICAS
from stratos_autoscaler.model_resources.wanted.spec import ModelSpec, RefusedModel, StatusReason
from stratos_autoscaler.model_resources.wanted.templates import Templates

FINALIZER = "stratosserve.io/retire"
KINDS = ("Deployment", "PodDisruptionBudget", "HorizontalPodAutoscaler")
"""What a Model has beside jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """Writes, in their order, and what to say."""

    story: Story
    steps: Sequence[Step] = ()


def check_names(spec: ModelSpec, templates: Templates, earlier: Mapping[str, str]) -> None:
    """Refuse a name that another one has.

    Args:
        spec: of the Model.
        templates: which know the names of values.
        earlier: names of Models that came before it, by the name that they serve.

    Raises:
        RefusedModel: the values, or an earlier Model, have it.
    """
    if spec.name in templates.names or any(f"{role}-{spec.name}" in templates.pools for role in ("prefill", "decode")):
        raise RefusedModel(
            StatusReason.NAME_OF_VALUES, f"models of the values has {spec.name!r}: a name belongs to one of both"
        )
    if spec.served_name in templates.served_names:
        raise RefusedModel(StatusReason.NAME_OF_VALUES, f"models of the values serves {spec.served_name!r} already")
    if spec.served_name in earlier:
        raise RefusedModel(
            StatusReason.NAME_TAKEN, f"Model {earlier[spec.served_name]} serves {spec.served_name!r} already"
        )


def plan_life(model: Object, spec: ModelSpec, wanted: ModelObjects, head: str, observed: ObservedModel) -> ModelPlan:
    """The next writes for a Model that is to serve.

    Args:
        model: the object.
        spec: what it asks for.
        wanted: its objects.
        head: of names of objects.
        observed: what there is.
    """
    done = recorded(model.get("status") or {})
    digest = spec.source.get("digest", "")
    finalizers = _finalizers(model)
    if FINALIZER not in finalizers:
        # Before anything else is there: a Model that is deleted in the next moment leaves no record behind.
        story = Story(recorded=done, served_name=spec.served_name, digest=digest)
        return ModelPlan(story=story, steps=[Finalize((*finalizers, FINALIZER))])
    problem, turn = first_problem(observed.of("Deployment"), observed.pods), None
    if done.digest != wanted.record_digest:
        turn = job_turn(wanted.record, f"model-{spec.name}", head, done.count, observed, StatusReason.RECORD_FAILED)
    is_recording = turn is not None and turn.state is not JobStage.DONE
    steps: list[Step] = [
        step
        for item in wanted.objects
        if (step := _apply(item, observed)) is not None and not (is_recording and done.count and _replaces(step))
    ]
    names = {(item["kind"], item["metadata"]["name"]) for item in wanted.objects}
    steps += [
        delete_of(kind, found)
        for (kind, name), found in observed.objects.items()
        if kind in KINDS and (kind, name) not in names
    ]
    if turn is not None:
        steps += turn.steps
        problem = problem or turn.problem
        if not is_recording:
            done = Recorded(digest=wanted.record_digest, count=done.count + 1)
    return ModelPlan(
        story=Story(
            recorded=done, problem=problem, served_name=spec.served_name, digest=digest, is_recording=is_recording
        ),
        steps=steps,
    )


def plan_refusal(model: Object, refused: RefusedModel, leaving: StatusReason | None = None) -> ModelPlan:
    """Nothing but the reason; ``leaving``: how far a Model is that was deleted."""
    problem = Problem(refused.reason, refused.message)
    return ModelPlan(story=Story(recorded=recorded(model.get("status") or {}), problem=problem, leaving=leaving))


def plan_end(model: Object, templates: Templates, observed: ObservedModel) -> ModelPlan:
    """The next writes for a Model that was deleted: off the list, then drained, then gone.

    Args:
        model: the object.
        templates: with the job that takes records away.
        observed: what there is; with its requests, once the records are gone.
    """
    name, uid = str(model["metadata"]["name"]), str(model["metadata"]["uid"])
    done = recorded(model.get("status") or {})
    job = retire_job(name, templates, uid)
    turn = job_turn(job, f"retire-{name}", templates.head, 0, observed, StatusReason.RETIRE_FAILED)
    if turn.state is not JobStage.DONE:
        steps = turn.steps
        if turn.state is JobStage.FAILED:  # its end must not wait for a person: the job is made again
            steps = tuple(delete_of("Job", found) for found in observed.of("Job"))
        story = Story(recorded=done, problem=turn.problem, leaving=StatusReason.RETIRING)
        return ModelPlan(story=story, steps=steps)
    deployments = list(observed.of("Deployment"))
    if deployments and observed.num_busy != 0 and observed.is_patient:
        return ModelPlan(story=Story(recorded=done, leaving=StatusReason.DRAINING))
    story = Story(recorded=done, leaving=StatusReason.STOPPING)
    if deployments or observed.pods:
        return ModelPlan(story=story, steps=[delete_of("Deployment", found) for found in deployments])
    return ModelPlan(story=story, steps=[Finalize(tuple(name for name in _finalizers(model) if name != FINALIZER))])


def is_retired(model: Object, templates: Templates, observed: ObservedModel) -> bool:
    """Whether the records of a Model that was deleted are gone: from then on its requests count."""
    plan = plan_end(model, templates, observed)
    return plan.story.leaving is not StatusReason.RETIRING


def _finalizers(model: Object) -> tuple[str, ...]:
    return tuple(model["metadata"].get("finalizers") or ())


def _apply(item: Object, observed: ObservedModel) -> Apply | None:
    """How one object becomes what it should be; ``None`` where it is."""
    live = observed.objects.get((item["kind"], item["metadata"]["name"]))
    if live is None:
        return Apply(item)
    notes: Mapping[str, Any] = live["metadata"].get("annotations") or {}
    if notes.get(APPLIED) == item["metadata"]["annotations"][APPLIED] or "deletionTimestamp" in live["metadata"]:
        return None
    made, version = item, str(live["metadata"].get("resourceVersion", ""))
    if item["kind"] == "Deployment" and not _is_resized(item, notes):
        # A size that this process set once and leaves out would become 1, so the one that is there is said again. The
        # version makes it a conflict where a scaler was quicker.
        made = {**item, "spec": {**item["spec"], "replicas": live["spec"].get("replicas", 1)}}
    return Apply(made, version)


def _replaces(step: Apply) -> bool:
    """It may replace pods that serve."""
    return step.item["kind"] == "Deployment" and bool(step.version)


def _is_resized(item: Object, notes: Mapping[str, Any]) -> bool:
    """The Model asks for another number of replicas than before."""
    asked = item["metadata"]["annotations"].get(SPEC_REPLICAS)
    return asked is not None and asked != notes.get(SPEC_REPLICAS)
