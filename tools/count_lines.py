"""Count the lines of `src/frcl` by package, and those that serve what the library did at an earlier commit.

    python tools/count_lines.py              # both counts
    python tools/count_lines.py --features   # and the lines of each later feature, with its definitions

Every line counts: code, docstrings, comments, blank lines. The earlier commit is that of the plan for the house as it
is now (3beee6a); its own count leaves the reproduction of the paper out, which has left the package since.

A line is *later* where it belongs to a definition that serves nothing but a feature that came afterwards. LATER names
these: whole packages, modules, and definitions of other modules. The rule is one-sided, so that the count of what was
there before is rather too large:

- whatever is not named there counts as earlier, also where a later feature made it longer;
- a function, class or method of a named module counts as earlier where the earlier commit has its name, and no module
  that is not named has it today;
- of a module that is named, docstring, imports and constants are later too; of other modules they are earlier.

A definition that was there before the first later feature (REBUILT) has grown since by what those features need of it.
The last line printed counts each of these definitions with no more lines than it had then, and what is not named in
LATER and came since in full.

A definition in LATER that the earlier commit has ends the count with an error; entries that name nothing are listed.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BEFORE = "3beee6a"
REBUILT = "cef74ec"  # the house as it is now, before the first later feature

LATER = {
    "Poisson likelihood": "likelihoods/poisson",
    "exact Gaussian process": "exact learners/exact_gp methods:_exact_gp",
    "task inference and predictions without the task": """inference learners/mixture learners/types:Beliefs
        learners/base:SequentialLearner._over_tasks learners/base:SequentialLearner._stands
        learners/base:SequentialLearner._ended learners/base:SequentialLearner._sums
        learners/base:SequentialLearner._answering learners/base:State.window learners/state:LearnerState.window
        learners/predict:Predictor._points_in learners/predict:Predictor.beliefs learners/predict:Predictor._at_mean
        learners/predict:Predictor._classes_at_points learners/predict:Predictor.targets_at_points
        learners/options:FRCLOptions.inference_of_task baselines/options:TrainingOptions.inference_of_task
        learners/base:SequentialLearner._beliefs learners/base:SequentialLearner._in_task learners/frcl:FRCL._beliefs
        learners/frcl:FRCL._in_task baselines/common:Baseline._beliefs learners/options:FRCLOptions.inference_by_points
        learners/predict:joined
        experiment/metrics:AgnosticRow experiment/metrics:evaluated experiment/keeper:_agnostic
        experiment/results:Result.names_no_task report/figures:no_task_figure""",
    "structured covariances, alignment, natural gradients": """engine/natural posterior:aligned_mean
        posterior:second_moment summary:_mean_factor learners/task:Model.is_natural
        learners/task:_aligned learners/task:Model.start_of_q learners/frcl:FRCL.feature_scale
        features:common_scale""",
    "Kronecker curvature, KL around kept heads": """regularisers/kronecker regularisers/recentred
        regularisers/protocol:Unmoved""",
    "sequential tests of boundaries": """boundary/sequential boundary/profile boundary/settings:Waits
        boundary/detector:BoundaryDetector._calibrated boundary/detector:BoundaryDetector._predicted
        boundary/detector:BoundaryDetector.go_on boundary/detector:BoundaryDetector.profile
        boundary/detector:BoundaryDetector.grow boundary/detector:BoundaryDetector.ended
        boundary/detector:BoundaryDetector.tests_labels boundary/detector:BoundaryDetector._floor
        boundary/detector:Watched learners/state:_log_density boundary/detector:BoundaryDetector.level""",
    "sharp and gradual changes": "boundary/aftermath boundary/detector:BoundaryDetector.change",
    "tasks that return, labels that appear": """learners/streaming learners/state:Window.came
        learners/state:Window.data_without learners/state:Window.recoded learners/state:estimated_size
        learners/state:LearnerState.number learners/state:LearnerState.estimate_size
        learners/predict:Predictor.weights
        regularisers/protocol:Regulariser.replace likelihoods/base:with_labels likelihoods/base:all_labels
        engine/train:Optimiser._guarded""",
    "prequential streams": """experiment/prequential experiment/tracking report/stream cli/stream adapters/river
        experiment/metrics:delays_of""",
    "bounded memory, smaller inputs": """budget learners/budget summary:StoredInputs summary:stored_inputs
        summary:marginal errors:BudgetError regularisers/protocol:Regulariser.added_bytes
        regularisers/quadratic:Curvature.added_bytes regularisers/quadratic:EWC.added_bytes
        regularisers/current_inputs:CurrentInputs.added_bytes""",
    "forgetting on purpose": """learners/forget learners/ensemble:Ensemble.forget
        learners/ensemble:Ensemble._all_or_none regularisers/protocol:Regulariser.forget
        regularisers/protocol:drop_task regularisers/protocol:edit_lists learners/base:SequentialLearner._drop
        baselines/common:Baseline._drop baselines/vcl:VCL._drop baselines/progressive:Progressive._drop""",
    "deployment, learners without their network": """learners/deploy learners/networks features:uninitialised
        learners/ensemble:Ensemble._deployed learners/frcl:FRCL._deployed learners/base:SequentialLearner._deployed
        baselines/penalised:Penalised._deployed baselines/progress_and_compress:ProgressAndCompress._deployed""",
    "held-out temperature": "likelihoods/temperature learners/held_out",
    "frozen networks, batch norm, pre-trained networks": """frozen pretrained
        features:FeatureMap.ahead features:FeatureMap.inputs features:FeatureMap.through_front
        features:FeatureMap.outputs
        features:trained_parts learners/task:Model.map_ahead""",
    "colour images, folders of images": "image_networks data/cifar data/cifar_files data/images",
    "loaders, several inputs, augmentation": """inputs augment data/options:BenchmarkOptions.augmentation
        learners/base:checked_steps regularisers/replay:Replayed regularisers/replay:Replay._changed""",
    "optimisers and schedules": "engine/train:OptimiserOptions engine/train:Rule engine/train:Optimiser.schedule",
    "several processes": "distributed engine/parallel experiment/runner:_follow learners/objective:draws_of_rows",
    "sweeps, resumed and extended searches": """experiment/sweep cli/sweep adapters/ray experiment/tune:Search
        cli/tune:_check_engine cli/tune:_resumed
        experiment/tune:_beyond experiment/tune:_is_possible cli/tune:edge_wins
        experiment/config:foreign experiment/config:setting_for""",
    "scikit-learn, Avalanche": "adapters sklearn",
    "completion and shared options of commands": "cli/options:completed cli/options:keys",
    "further baselines": """baselines/gdumb baselines/memory
        baselines/rehearsal baselines/er baselines/derpp baselines/agem
        baselines/options:SharedHeadOptions
        baselines/options:EROptions baselines/options:DERppOptions baselines/options:AGEMOptions
        baselines/options:GDumbOptions baselines/shared_head baselines/sfsvi baselines/sampled
        baselines/options:FROMPOptions baselines/options:SFSVIOptions
        baselines/penalised:Penalised._head_rows
        regularisers/memorable_past regularisers/function_space regularisers/jacobians regularisers/heads:head_rows
        regularisers/heads:one_head regularisers/heads:grown_head regularisers/heads:Rows
        regularisers/heads:row_tensors""",
    "notebooks": """learners/types:html_table learners/types:learner_html learners/types:Prediction._repr_html_
        learners/types:_shown learners/types:progress_bar learners/types:Accounts._repr_html_
        learners/frcl:FRCL._repr_html_""",
    "damaged and hostile files and states": """learners/loaded:check_equal learners/loaded:width_of
        checks learners/loaded:check_learned learners/loaded:check_settings_of learners/loaded:check_frcl
        regularisers/protocol:Regulariser.check_state regularisers/heads:check_heads
        learners/loaded:_check_current learners/loaded:_check_summary learners/loaded:_check_window
        baselines/common:Baseline._check_saved baselines/vcl:VCL._check baselines/penalised:Penalised._check
        baselines/single:Single._check files:write_at files:sync_folder files:sweep files:open_regular
        files:read_arrays files:_read_array files:check_version cli/check experiment/keeper:Written files:_in_order
        regularisers/current_inputs:CurrentInputs.check_state regularisers/quadratic:Curvature.check_state
        regularisers/quadratic:EWC.check_state regularisers/replay:Replay.check_state experiment/results:_check_lengths
        learners/loaded:non_finite experiment/keeper:Keeper._write files:_naming
        boundary/detector:BoundaryDetector._finite
        data/files:within data/files:check_files""",
    "threads and interruptions": """engine/program:StepLock engine/program:indivisible
        learners/frcl:FRCL._undoing weights learners/base:SequentialLearner._changing learners/base:State.branch
        baselines/common:BaselineState.branch engine/program:Unit.count""",
    "predictions of one example": """few learners/few learners/predict:Predictor.in_task summary:raw_moments
        learners/predict:Predictor._features learners/predict:Predictor._weighted learners/types:Later
        exact/fixed:RandomFeatures.whole exact/fixed:_with_bias exact/model:ExactModel._of_few""",
    "further measures of speed": """bench/cpu:wide_step bench/cpu:one_example bench/cpu:no_task bench/peers
        bench/cpu:baseline_step bench/cpu:replay_flat""",
}


def definitions(text: str) -> dict[str, range]:
    """The lines of every function and class, and of every method as "Class.method", with the blank ones after them."""
    lines, found = text.splitlines(), dict[str, range]()

    def add(name: str, node: ast.FunctionDef | ast.ClassDef) -> None:
        first = min([node.lineno, *(one.lineno for one in node.decorator_list)]) - 1
        end = node.end_lineno or node.lineno
        while end < len(lines) and not lines[end].strip():
            end += 1
        found[name] = range(first, end)

    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            add(node.name, node)
        if isinstance(node, ast.ClassDef):
            for inner in (one for one in node.body if isinstance(one, ast.FunctionDef)):
                add(f"{node.name}.{inner.name}", inner)
    return found


def modules_at(commit: str) -> dict[str, str]:
    """The text of each module of the package at a commit, without the reproduction of the paper."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    files = git("ls-tree", "-r", "--name-only", commit, "src/frcl").split()
    wanted = [file for file in files if file.endswith(".py") and "reproduce" not in file]
    return {file.removeprefix("src/frcl/").removesuffix(".py"): git("show", f"{commit}:{file}") for file in wanted}


def owners(module: str, text: str) -> list[str]:
    """For each line the innermost definition that it belongs to, or the module."""
    found = [f"<{module}>"] * len(text.splitlines())
    for name, part in definitions(text).items():  # a class before its methods
        found[part.start : part.stop] = [name] * len(part)
    return found


def feature_of(module: str, name: str = "") -> str | None:
    """The later feature that a module belongs to, or a definition in it by its own name."""
    wanted = {f"{module}:{name}"} if name else {module, module.partition("/")[0]}
    return next((feature for feature, entries in LATER.items() if wanted & set(entries.split())), None)


def main() -> None:
    old = modules_at(BEFORE)
    before = {name for text in old.values() for name in definitions(text)}
    paths = sorted((ROOT / "src" / "frcl").rglob("*.py"))
    texts = {str(path.relative_to(ROOT / "src" / "frcl").with_suffix("")): path.read_text() for path in paths}
    others = {name for module, text in texts.items() if feature_of(module) is None for name in definitions(text)}
    total, later, named = Counter[str](), Counter[str](), {entry for text in LATER.values() for entry in text.split()}
    left = Counter[str]()  # lines that serve no later feature alone, by definition
    for module, text in texts.items():
        named -= {module, module.partition("/")[0]}
        lines: list[str | None] = [feature_of(module)] * len(text.splitlines())
        for name, part in definitions(text).items():  # a class before its methods
            feature = feature_of(module, name)
            if feature is not None and name in before:
                sys.exit(f"{module}:{name} is no later definition: {BEFORE} has it")
            if feature is not None or name in before - others:
                lines[part.start : part.stop] = [feature] * len(part)
            named -= {f"{module}:{name}"}
        total[module.partition("/")[0] if "/" in module else "."] += len(lines)
        later.update(feature for feature in lines if feature is not None)
        left.update(owner for owner, feature in zip(owners(module, text), lines, strict=True) if feature is None)
    for entry in sorted(named):
        print(f"LATER names {entry}, which does not exist")
    for package, count in sorted(total.items()):
        print(f"{package:14}{count:7,}")
    print(f"{'src/frcl':14}{total.total():7,}")
    if "--features" in sys.argv:
        for feature, count in later.most_common():
            print(f"    {count:5,}  {feature}: {' '.join(LATER[feature].split())}")
    print(f"of these serve later features alone: {later.total():,}")
    had = sum(text.count("\n") for text in old.values())
    print(f"all others: {left.total():,}, where {BEFORE} had {had:,}")
    then = Counter(owner for module, text in modules_at(REBUILT).items() for owner in owners(module, text))
    grown = sum(max(0, count - then[name]) for name, count in left.items() if name in then)
    print(f"without what definitions of {REBUILT} ({then.total():,}) have grown by since: {left.total() - grown:,}")


if __name__ == "__main__":
    main()
