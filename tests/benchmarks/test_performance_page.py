"""Tables of docs/performance.md are made from figures."""

import json

import pytest

from scripts.pages import performance, speed_chart
from tests.benchmarks.test_bench import part


def rounds(*ms, **others):
    median = sorted(ms)[len(ms) // 2]
    return {"ms": median, "median": median, "low": min(ms), "high": max(ms), "rounds": ms, **others}


def steps(*ms):
    return rounds(*ms, cpu_ms=2.0, peak_mb=300.0, model_mb=100.0, processor=5.0)


LIMIT = {
    "machine": {
        "products": {"numpy": 183.0, "xla": 160.0, "torch": 170.0},
        "convolutions": {"(64, 16, 32, 16, 3)": 90.0},
        "torch's convolutions": {"(64, 16, 32, 16, 3)": 95.0},
        "GB/s": 20.5,
        "GFLOP/s": 183.0,
    },
    "programs": {
        "mlp": {
            "ms": 2.0,
            "low": 1.9,
            "high": 2.2,
            "compute_ms": 1.7,
            "copy_ms": 0.1,
            "host_ms": 0.15,
            "wait_ms": 0.05,
            "gflop": 0.3,
            "of_peak": 0.82,
            "products_ms": 1.25,
            "products_of_peak": 0.91,
            "gbytes": 0.01,
            "of_bandwidth": 0.25,
        }
    },
    "engines": {
        "mlp": {"jfluid": steps(2, 4, 8), "JAX": steps(4, 4, 8), "Fluid": steps(6, 12, 24)},
        "ctr_dnn": {"jfluid": steps(20, 20, 20), "Fluid": steps(40, 40, 40)},
    },
}
FOUND = {
    "limit": LIMIT,
    "detection": {
        "ssd": {
            "ms": {"paddle.fluid": 400.0, "paddle.fluid, 2 replicas": 316.2, "jfluid": 212.0},
            "ratio": 1.5,
            "low": 1.44,
            "high": 1.54,
        }
    },
    "dygraph": {
        "mlp": {
            "jfluid, eager": steps(2, 4, 8),
            "paddle.fluid, eager": steps(6, 6, 24),
            "jfluid, static": steps(2, 2, 2),
            "paddle.fluid, static": steps(4, 8, 16),
        }
    },
    "operators": {"jfluid": rounds(34, 36, 40, processor=35.0)},
    "replicas": {"mlp": {f"jfluid {mode}": steps(2, 2, 2) for mode in ("one", "replicas", "apart", "reduce")}},
    "host": {
        "dict": {
            "run_us": 120.0,
            "call_us": 70.0,
            "beyond_us": 50.0,
            "low": 48.0,
            "high": 55.0,
            "beyond_clock_us": 52.0,
        }
    },
    "heights": {"sgd": {"ms": {"100000": 18.0, "10000000": 18.5}, "ratio": 1.03, "low": 1.0, "high": 1.06}},
    "servers": {
        "1+1": {
            "local": {"ms": 8.0, "cpu_ms": 14.0},
            "sync, memory": {
                "ms": 10.0,
                "cpu_ms": 16.0,
                "server_cpu_ms": 3.0,
                "examples_s": 51200.0,
                "to_local": {"ratio": 1.25, "low": 1.2, "high": 1.4},
                "to_fluid": {"ratio": 3.1, "low": 3.0, "high": 3.3},
                "parts": {"compute": 7.5, "exchange": 2.5, "call": 2.25, "server's apply": 1.5},
            },
        }
    },
    "quality": {
        "best": 0.7951,
        "auc": {
            "sync": {"jfluid": [0.784, 0.786], "paddle.fluid": [0.783]},
            "geo": {"jfluid": [0.78]},
        },
    },
    "tables": {"look-ups": {"value": 12.0, "unit": "M rows/s", "goal": 10, "text": "12.0 M rows/s"}},
    "startup": {
        "import": 0.91,
        "resnet50_built": 0.4,
        "first": 3.5,
        "second": 1.6,
        "linear": 1.02,
        "long": [{"operators": 1000, "build": 0.5, "first": 2.0}],
    },
    "memory": {
        "parameters_mb": 1024.0,
        "replicas": 4,
        "optimizers": {"adam": {"one device": 3761.0, "Reduce": 4491.0}},
    },
    "feeding": {
        "models": {"mlp": {"jfluid": {"fed_ms": 1.25, "loaders": [{"busy": 0.0, "ms": 1.4, "waits": 0.01}]}}},
        "crossing": {"low": 2000.0, "median": 2500.0, "high": 3000.0},
    },
    "dataset": {"lines_s": {"jfluid": [8e5, 9e5]}, "parser_mb_s": 1000.0, "waits": 0.012},
}
ROWS = {
    "limit": [
        "| mlp | 2.00 (1.90 to 2.20) | 1.70 | 0.10 | 0.15 | 0.05 |\n",
        "| mlp | 0.30 | 82% | 1.25 | 91% | 0.01 (25%) |\n",
        "| mlp | 4.00 | 4.00: 1.00 (1.00 to 2.00) | 12.0: 3.00 (3.00 to 3.00) | JAX: 1.00 |",
        "| ctr_dnn | 20.0 |  | 40.0: 2.00 (2.00 to 2.00) | Fluid: 2.00 |",
        "| ctr_dnn | 100 |  | 100 |",
        "XLA 90, PyTorch (oneDNN) 95 GFLOP/s |",
    ],
    "detection": ["| ssd | 400, 316 in 2 replicas | 212 | 1.50 (1.44 to 1.54) |"],
    "dygraph": ["| mlp | 4.00 (5.00) | 2.00 (5.00): 0.50 (0.25 to 1.00) | 6.00 (5.00): 3.00"],
    "operators": ["| jfluid | 36.0 (34.0 to 40.0) | 35.0 |"],
    "replicas": ["| mlp | 2.00 | 2.00 | 2.00 | 2.00 | 1.00 (1.00 to 1.00) |"],
    "host": ["| dict | 120 | 70 | 50 (48 to 55) | 52 |"],
    "heights": ["| sgd | 18.0 | 18.5 | 1.030 (1.00 to 1.06) |"],
    "servers": [
        "### 1 trainer, 1 server\n",
        "| no servers | 8.00 |  |  |  |",
        "| no servers | 14.0 |  |  |",
        "| sync, memory | 10.0 | 51,200 | 1.25 (1.20 to 1.40) | 3.10 (3.00 to 3.30) |",
        "| sync, memory | 16.0 | 3.0 | 1.36 |",
        "; memory as transport",
        "| part | sync, ms |",
        "| compute | 7.50 |",
        "| server's apply | 1.50 |",
    ],
    "quality": [
        "itself reaches 0.7951.",
        "| sync | 0.7850 (0.7840 to 0.7860) | 0.7830 (0.7830 to 0.7830) |",
        "| geo | 0.7800 (0.7800 to 0.7800) |  |",
    ],
    "tables": ["| look-ups | 12.0 M rows/s | 10 |"],
    "startup": ["| resnet_cifar, first start to the end of step 1 | 3.50 |"],
    "memory": ["which 1024 are parameters", "| adam | 3761 | 4491 | 1.19 |"],
    "feeding": ["| mlp, jfluid | 1.25 | 1.40 |", "| mlp, jfluid | 1.0% |", "2500 MB/s (2000 to 3000)"],
    "dataset": ["| an epoch over a QueueDataset, jfluid | 850,000 lines/s (800,000 to 900,000) |"],
}


def page(*names):
    return "".join(f"<!-- figures: {n} -->\nold {n}\n<!-- end -->\nprose\n" for n in names)


@pytest.mark.parametrize("name", performance._TABLES)
def test_a_region_is_filled_with_its_figures_and_says_where_they_are_from(name):
    figures = json.loads(json.dumps(FOUND[name]))  # as a file gives them
    text = performance.filled(page(name, "memory"), {name: part(figures)})
    assert f"old {name}" not in text and text.count("prose") == 2
    assert " on 2026-11-22 (commit abc). Machine: 2 cores (P), load 0.0 before, Python 3.11.7, JAX 0.10.2." in text
    for row in ROWS[name]:
        assert row in text
    assert name == "memory" or "old memory" in text  # what was not measured stays
    assert performance.filled(text, {name: part(figures)}) == text


@pytest.mark.parametrize("name", performance._TABLES)
def test_a_table_has_a_caption_and_at_most_six_columns(name):
    lines = performance._TABLES[name](FOUND[name]).split("\n")
    heads = [i for i, line in enumerate(lines) if line.startswith("| ---")]
    assert heads
    captions = {lines[i - 3] for i in heads if not lines[i - 3].startswith("|")}
    assert captions and all(caption.endswith(".") for caption in captions)
    assert all(lines[i].count("---") <= 6 for i in heads)
    assert not any(title.isspace() for i in heads for title in lines[i - 1].split("|")[1:-1])


def test_the_summary_compares_with_the_fastest_way_of_each_engine():
    parts = {name: part(FOUND[name]) for name in ("limit", "detection", "dygraph")}
    regions = "<!-- summary -->\nold\n<!-- end -->\nprose\n" + page(*parts)
    text = performance.filled(regions, parts)
    for row in (
        "| program | jfluid, ms a step | Fluid 1.8.5 / jfluid | hand-written JAX / jfluid | ",
        "| mlp | 4.00 | 3.00 | 1.00 |  |  |",
        "| ssd | 212 | 1.50 |  |  |  |",
        "| mlp, imperative | 4.00 | 3.00 |  |  |  |",
    ):
        assert row in text
    assert performance.filled(text, parts) == text and "old" not in text
    assert "old\n" in performance.filled(regions, {})


def test_figures_and_regions_belong_together():
    with pytest.raises(ValueError, match="figures without a region in the page: host"):
        performance.filled(page("limit"), {"host": part(FOUND["host"])})
    with pytest.raises(ValueError, match="no figures of hosts"):
        performance.filled(page("hosts"), {})
    named = performance._REGION.findall(performance._PAGE.read_text())
    assert sorted(region[1] for region in named) == sorted(performance._TABLES)


def test_the_chart_has_a_bar_for_each_figure():
    groups = speed_chart.bars(json.loads(performance.RESULTS.read_text())["parts"])
    text = speed_chart.chart()
    assert len(groups["mlp"]) == len(performance.CHOICES)
    for program, bars in groups.items():
        assert f">{program}<" in text
        for bar in bars:
            assert bar.low <= bar.median <= bar.high and f">{bar.median:.3g}<" in text
