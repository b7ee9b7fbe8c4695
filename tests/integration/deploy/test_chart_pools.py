"""Pools of a model's workers beside its main ones: labels, sizes, and that no pod belongs to two of them."""

from __future__ import annotations

import pytest

from scripts.chart.rendering import NO_RENDERER, RenderError, has_renderer
from stratos_autoscaler.kubernetes.noted_pools import NotedPools
from tests.support.kube.chart_objects import Object, container, kinds, one, variables
from tests.support.kube.chart_rendering import checked, rendered

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)


def test_a_model_has_pools_of_labelled_workers_beside_its_main_ones() -> None:
    models = [
        {
            "name": "base",
            "source": {"claim": {"name": "base"}},
            "decode": {"floor": 1, "autoscaling": {"minReplicas": 2}, "config": {"logLevel": "DEBUG"}},
            "pools": {
                "fast": {
                    "decode": {
                        "replicas": 3,
                        "floor": 2,
                        "gpu": {"count": 1},
                        "config": {"scheduler": {"maxNumSeqs": 4}},
                    },
                    "prefill": {"replicas": 1},
                },
                "slow": {"decode": {"replicas": 2, "floor": 0, "warmSpares": 1}},
            },
        }
    ]
    found = checked({"models": models})
    workers = {name for name in kinds(found, "Deployment") if "decode" in name or "prefill" in name}
    pools = {"demo-decode-base-fast", "demo-prefill-base-fast", "demo-decode-base-slow"}
    assert workers == {"demo-decode-base", "demo-prefill-base", "demo-spare-decode-base-slow", *pools}
    sizes = {name: one(found, "Deployment", name)["spec"].get("replicas") for name in workers}
    assert [sizes[name] for name in sorted(pools)] == [3, 2, 1]
    assert sizes["demo-decode-base"] is None, "its autoscaler says"
    labels = {
        name: variables(container(found, name)).get(f"STRATOS_{name.split('-')[1].upper()}_WORKER_POOL")
        for name in workers
        if "spare" not in name
    }
    assert labels == {
        "demo-decode-base": None, "demo-prefill-base": None, "demo-decode-base-fast": "fast",
        "demo-prefill-base-fast": "fast", "demo-decode-base-slow": "slow",
    }  # fmt: skip
    fast = container(found, "demo-decode-base-fast")
    assert variables(fast)["STRATOS_DECODE_WORKER_SCHEDULER__MAX_NUM_SEQS"] == "4"
    assert variables(fast)["STRATOS_DECODE_WORKER_LOG_LEVEL"] == "DEBUG", (
        "what the model says of the role holds as well"
    )
    assert "nvidia.com/gpu" in fast["resources"]["limits"]
    selectors = [
        tuple(
            sorted(
                one(found, kind, name)["spec"]["selector"]
                .get("matchLabels", one(found, kind, name)["spec"]["selector"])
                .items()
            )
        )
        for kind in ("Deployment",)
        for name in sorted(workers - {"demo-spare-decode-base-slow"})
    ]
    assert len(set(selectors)) == 5, "no pod belongs to two pools"
    budgets = {name: one(found, "PodDisruptionBudget", name)["spec"] for name in kinds(found, "PodDisruptionBudget")}
    assert budgets["demo-decode-base-fast"]["minAvailable"] == 2
    scaled = NotedPools(()).now(kinds(found, "Deployment").values())
    assert {pool.deployment for pool in scaled} == {"demo-decode-base", "demo-prefill-base"}, "others have fixed sizes"


def test_a_pool_of_spot_workers_says_so_of_itself_alone() -> None:
    spot = {"replicas": 4, "config": {"isSpot": True}, "scheduling": {"nodeSelector": {"capacity": "spot"}}}
    found = checked(
        {"models": [{"name": "base", "source": {"claim": {"name": "base"}}, "pools": {"spot": {"decode": spot}}}]}
    )
    names = [name for name in kinds(found, "Deployment") if "decode" in name or "prefill" in name]
    told = {name: variables(container(found, name)).get("STRATOS_DECODE_WORKER_IS_SPOT") for name in names}
    assert {name for name, value in told.items() if value} == {"demo-decode-base-spot"}
    assert told["demo-decode-base-spot"] == "true"
    assert one(found, "Deployment", "demo-decode-base-spot")["spec"]["template"]["spec"]["nodeSelector"] == {
        "capacity": "spot"
    }


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (
            [
                {"name": "a", "source": {"claim": {"name": "m"}}, "pools": {"b": {"decode": {"replicas": 1}}}},
                {"name": "a-b", "source": {"claim": {"name": "other"}}},
            ],
            "another pool has the name decode-a-b already",
        ),
        (
            [
                {
                    "name": "a",
                    "source": {"claim": {"name": "m"}},
                    "pools": {"b": {"decode": {"autoscaling": {"mode": "hpa"}}}},
                }
            ],
            "autoscaling",
        ),
        ([{"name": "a", "source": {"claim": {"name": "m"}}, "pools": {"Not A Label": {"decode": {}}}}], "Not A Label"),
    ],
)
def test_pools_that_cannot_be_are_refused(models: list[Object], message: str) -> None:
    with pytest.raises(RenderError, match=message):
        rendered({"models": models})
