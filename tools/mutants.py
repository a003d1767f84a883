"""Break the formulas one at a time, on purpose, and show that the tests notice.

Each mutation is applied to a copy of the package; the tests named beside it must then fail. Run by `make mutants`;
words as arguments select some of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Mutant:
    what: str
    file: str  # in src/frcl, or in paper if it begins so
    old: str
    new: str
    tests: str


MUTANTS = (
    Mutant("sign of log|K| in the KL", "summary.py",
           "0.5 * (trace + terms.C * logdet_from_cholesky(chol_K))",
           "0.5 * (trace - terms.C * logdet_from_cholesky(chol_K))", "tests/test_summary.py"),
    Mutant("½ of the KL left out", "summary.py",
           "0.5 * (trace + terms.C * logdet) + terms.constant",
           "(trace + terms.C * logdet) + terms.constant", "tests/test_summary.py"),
    Mutant("½ of the weight-space KL left out", "linalg.py",
           "return 0.5 * (second_moment / prior_variance", "return (second_moment / prior_variance",
           "tests/test_linalg.py"),
    Mutant("transposed factor in equation 5", "summary.py",
           "factor = Phi @ q.factor.double().tril()", "factor = Phi @ q.factor.double().tril().mT",
           "tests/test_summary.py"),
    Mutant("upper triangle of L counted", "posterior.py",
           "return Posterior(q.mean, q.factor.tril())", "return Posterior(q.mean, q.factor)", "tests/test_summary.py"),
    Mutant("upper triangle of L counted in training", "posterior.py",
           "q = Posterior(mean, factor * lower)", "q = Posterior(mean, factor)", "tests/test_posterior.py"),
    Mutant("slope above the diagonal of L", "posterior.py",
           ", by_A).mul_(lower)", ", by_A)", "tests/test_posterior.py"),
    Mutant("log-determinant left out of the slope of L", "posterior.py",
           "sub_(by_kl / L.diagonal(dim1=-2, dim2=-1))", "sub_(0.0)", "tests/test_posterior.py"),
    Mutant("half the slope of the variance", "posterior.py",
           "A * (2.0 * by_variance.mT)", "A * by_variance.mT", "tests/test_posterior.py"),
    Mutant("prior variance left out of the slope of the KL", "posterior.py",
           "pull = by_kl / s", "pull = by_kl", "tests/test_posterior.py"),
    Mutant("K for CK in the learned prior variance", "posterior.py",
           "return second_moment / q.mean.numel()", "return second_moment / q.mean.shape[1]", "tests/test_prior.py"),
    Mutant("swapped arguments of the KL", "linalg.py",
           "spread = solve_lower(chol_prior, L).square()", "spread = solve_lower(L, chol_prior).square()",
           "tests/test_linalg.py"),
    Mutant("noise left out of q(u)", "summary.py",
           "u_noise, posterior_noise=u_noise, prior_std=prior_std)",
           "u_noise, posterior_noise=0.0, prior_std=prior_std)", "tests/test_summary.py"),
    Mutant("noise of q(u) left out of the gradient", "summary.py",
           "C * inverse_Phi - X @ (X.mT @ Phi) - extra[:, None, None] * (inverse @ inverse_Phi)",
           "C * inverse_Phi - X @ (X.mT @ Phi)", "tests/test_summary.py"),
    Mutant("weight of the KL left out of its gradient", "summary.py",
           "return upstream.to(gradient.dtype)[:, None, None] * gradient, None, None", "return gradient, None, None",
           "tests/test_prior.py"),
    Mutant("padded points counted", "summary.py",
           "noise * terms.mask + (1 - terms.mask)", "noise * torch.ones_like(terms.mask)", "tests/test_summary.py"),
    Mutant("features at padded points not masked", "summary.py",
           "fixed = torch.where(terms.mask[..., None] > 0, fixed, 0.0)", "pass", "tests/test_summary.py"),
    Mutant("K for M in log|K| when M > K", "summary.py",
           "logdet_from_cholesky(chol_B) + missing * u_noise.log()", "logdet_from_cholesky(chol_B)",
           "tests/test_summary.py"),
    Mutant("predictive variance without the part that u leaves open", "summary.py",
           "common = left + belief.posterior_noise * a.square().sum(1)",
           "common = belief.posterior_noise * a.square().sum(1)", "tests/test_summary.py"),
    Mutant("B for N in the scale of the KL", "learners/objective.py",
           "kl_now / constants.N)", "kl_now / len(x))", "tests/test_objective.py"),
    Mutant("the current task's KL not weighed", "learners/objective.py",
           "now = times(self.options.prior_weight, ", "now = times(1.0, ", "tests/test_objective.py"),
    Mutant("a learning rate that decays too early", "engine/adam.py",
           "(last + 1 - self._count) / over", "(last - self._count) / over", "tests/test_engine.py"),
    Mutant("a resumed fit forgets that its learning rate decays", "learners/task.py",
           "current.optimiser.decays(options.steps, options.lr_decay)",
           "current.step or current.optimiser.decays(options.steps, options.lr_decay)", "tests/test_checkpoint.py"),
    Mutant("minibatches scored at once in another order", "learners/stream.py",
           "[torch.cat(list(minibatches))] if at_once", "[torch.cat(list(reversed(minibatches)))] if at_once",
           "tests/test_stream.py"),
    Mutant("an option that a file does not know counts as that of the method", "experiment/config.py",
           'return {**parts, "learner": type(parts["learner"])()}', "return parts", "tests/test_experiment_runner.py"),
    Mutant("B for N in the scale of the past KL", "regularisers/functional.py",
           "times(self.weight, kl / step.N)", "times(self.weight, kl / 8)", "tests/test_summary.py"),
    Mutant("summed instead of mean log-likelihood", "learners/objective.py",
           "return log_p.mean(), kl_now", "return log_p.sum(), kl_now", "tests/test_objective.py"),
    Mutant("σ_w left out of the KL", "summary.py",
           "scale = terms.prior_std[:, None, None]", "scale = torch.ones_like(terms.prior_std)[:, None, None]",
           "tests/test_prior.py"),
    Mutant("σ_w left out of the gradient of the KL", "summary.py",
           "gradient = (scale * gradient).to(Phi.dtype)", "gradient = gradient.to(Phi.dtype)", "tests/test_prior.py"),
    Mutant("sub-sampled tasks not scaled up", "regularisers/functional.py",
           "prior_kl(Phi_z, part.terms, part.smallest).sum() * scale",
           "prior_kl(Phi_z, part.terms, part.smallest).sum()", "tests/test_summary.py"),
    Mutant("initial points stored instead of those found", "selection/trace.py",
           "index = swaps.index.cpu().clone()", "index = torch.stack([searches[i].start for i in members])",
           "tests/test_selection.py"),
    Mutant("rank-two update with the wrong sign", "selection/trace.py",
           "last.addcmul_(along, ratio, value=-1)", "last.addcmul_(along, ratio, value=1)", "tests/test_selection.py"),
    Mutant("proposal accepted when it is worse", "selection/trace.py",
           "(fall > 0) >", "(fall < 0) >", "tests/test_selection.py"),
    Mutant("points of Z not left out of the predictive criterion", "selection/base.py",
           "rest[index] = False", "rest[index] = True", "tests/test_selection.py"),
    Mutant("label sign of the Bernoulli likelihood", "likelihoods/bernoulli.py",
           "sign = (2 * y - 1).to(mean.dtype)", "sign = (1 - 2 * y).to(mean.dtype)", "tests/test_likelihoods.py"),
    Mutant("variance for std in the softmax", "likelihoods/softmax.py",
           "f = torch.addcmul(mean, (variance + SMALL).sqrt(), draws)",
           "f = torch.addcmul(mean, variance + SMALL, draws)", "tests/test_likelihoods.py"),
    Mutant("variance left out of the Gaussian likelihood", "likelihoods/gaussian.py",
           "error = ((y - mean).square() + variance)", "error = (y - mean).square()", "tests/test_likelihoods.py"),
    Mutant("padding counted in a Gaussian divergence", "likelihoods/gaussian.py",
           "torch.where(own > 0, old - new, 0.0)", "old - new", "tests/test_likelihoods.py"),
    Mutant("½ of a Gaussian divergence left out", "likelihoods/gaussian.py",
           "(0.5 * (precision * difference.square()))", "(precision * difference.square())",
           "tests/test_likelihoods.py"),
    Mutant("divergence of two softmax distributions turned round", "likelihoods/softmax.py",
           "(log_old.exp() * between)", "(log_new.exp() * -between)", "tests/test_likelihoods.py"),
    Mutant("classes that a task does not have counted in a divergence", "likelihoods/softmax.py",
           ".masked_fill(absent, -torch.inf)", "", "tests/test_likelihoods.py"),
    Mutant("variance left out of a Poisson rate", "likelihoods/poisson.py",
           "(y * mean - bounded_exp(mean + 0.5 * variance)", "(y * mean - bounded_exp(mean)", "tests/test_poisson.py"),
    Mutant("variance of the rate left out of the variance of a count", "likelihoods/poisson.py",
           "rate + rate.square() * torch.expm1(variance.clamp(max=2 * HIGHEST))", "rate", "tests/test_poisson.py"),
    Mutant("scale of the quadrature left out of a Poisson predictive", "likelihoods/poisson.py",
           " - 0.5 * w.log1p()", "", "tests/test_poisson.py"),
    Mutant("quadrature of counts centred on the mean of f", "likelihoods/poisson.py",
           "z = centre + points", "z = 0 * centre + points", "tests/test_poisson.py"),
    Mutant("padding counted in a Poisson divergence", "likelihoods/poisson.py",
           "torch.where(own > 0, f, 0.0)", "f", "tests/test_likelihoods.py"),
    Mutant("counts below zero accepted", "likelihoods/poisson.py",
           "(values < 0) | (values != values.round())", "values != values.round()", "tests/test_poisson.py"),
    Mutant("classes that a task has not shown are tested too", "learners/stream.py",
           "functions = sorted(current.shown) if _has_classes(current) and not detector.all_functions else None",
           "functions = None",
           "tests/test_stream.py"),
    Mutant("classes that a task has shown are forgotten by a checkpoint", "learners/checkpoint.py",
           "shown=set(saved.shown)", "shown=set()", "tests/test_stream.py"),
    Mutant("the test beside has the reference of the other", "boundary.py",
           "self._statistic(self._old(self.beside, last)", "self._statistic(self._old(self.window, given)",
           "tests/test_boundary.py"),
    Mutant("boundary test with the other tail", "boundary.py",
           "difference = old.mean(0) - new.mean(0)", "difference = new.mean(0) - old.mean(0)",
           "tests/test_boundary.py"),
    Mutant("biased variance in Welch's test", "boundary.py",
           "part_new = new.var(0, correction=1)", "part_new = new.var(0, correction=0)", "tests/test_boundary.py"),
    Mutant("score with one direction of the KL", "boundary.py",
           "return 0.25 * ((variance - k).square() / (variance * k) + square * (1 / k + 1 / variance))",
           "return 0.5 * ((variance + square) / k - 1.0)", "tests/test_boundary.py"),
    Mutant("summary that aliases the live posterior (missing clone)", "summary.py",
           "FunctionBelief(q.mean.clone(), q.factor.tril().clone(), u_noise",
           "FunctionBelief(q.mean, q.factor.tril().clone(), u_noise", "tests/test_summary.py"),
    Mutant("state that aliases the live tensors (missing clone)", "codec.py",
           "tensors[place] = value.detach().clone()", "tensors[place] = value.detach()", "tests/test_checkpoint.py"),
    Mutant("numbers that are not finite read from a checkpoint", "codec.py",
           "if not math.isfinite(data):", "if False:", "tests/test_trees_codec.py"),
    Mutant("a summary read whose parts do not fit", "learners/checkpoint.py",
           "_check_summary(number, summary)", "pass", "tests/test_checkpoint.py"),
    Mutant("random streams not restored", "learners/checkpoint.py",
           "streams.restore(saved.streams)", "pass", "tests/test_checkpoint.py"),
    Mutant("head kept when the network moved", "learners/predict.py",
           "if cached is None or cached[0] != version:", "if cached is None:", "tests/test_learner.py"),
    Mutant("class columns permuted on the way back to labels", "likelihoods/targets.py",
           "labels = tuple(sorted(set(_distinct(values) if declared is None else declared)))",
           "labels = tuple(sorted(set(_distinct(values) if declared is None else declared), reverse=True))",
           "tests/test_likelihood_targets.py"),
    Mutant("bias column forgotten", "features/functional.py",
           "out.new_ones(out.shape[0], 1)", "out.new_zeros(out.shape[0], 1)", "tests/test_features.py"),
    Mutant("σ_w left out of the prediction", "summary.py",
           "Phi = belief.prior_std * raw", "Phi = raw", "tests/test_prior.py"),
    Mutant("σ_w of the summary ignored in an old task's head", "summary.py",
           "Phi = belief.prior_std * Phi_z.double()", "Phi = Phi_z.double()", "tests/test_prior.py"),
    Mutant("σ_w left out of the weights of an old task's head", "summary.py",
           "Head(belief.prior_std * (P.mT @", "Head((P.mT @", "tests/test_prior.py"),
    Mutant("feature scale left out of the mean alone", "learners/predict.py",
           "times(self._model.options.feature_scale, weights[:-1])", "weights[:-1]", "tests/test_ensemble.py"),
    Mutant("σ_w² left out of the boundary score", "learners/objective.py",
           "symmetrised_kl(moments, variance * Phi.square().sum(1))", "symmetrised_kl(moments, Phi.square().sum(1))",
           "tests/test_prior.py"),
    Mutant("feature scale ignored", "learners/task.py",
           "return FeatureMap(self.net, self.options.feature_scale)", "return FeatureMap(self.net, 1.0)",
           "tests/test_learner.py"),
    Mutant("the K×K form for a task with few points", "summary.py",
           "compute = _kl_through_points if fewest <= Phi.shape[2]",
           "compute = _kl_through_points if Phi.shape[1] <= Phi.shape[2]", "tests/test_summary.py"),
    Mutant("ELBO of a part of the task not scaled up", "selection/supervised.py",
           "return kl - task.size * float(expected.double().mean())", "return kl - float(expected.double().sum())",
           "tests/test_selection.py"),
    Mutant("Adam's gradient not made contiguous", "engine/adam.py",
           "[gradients[n].contiguous() for n in names]", "[gradients[n] for n in names]", "tests/test_engine.py"),
    Mutant("streams not rewound when a chunk is taken up again", "seeding.py",
           "self.rewind()", "pass", "tests/test_engine.py"),
    Mutant("what was drawn ahead saved as if it had been used", "seeding.py",
           "return self._now() if self._held is None else", "return self._now() if True else", "tests/test_engine.py"),
    Mutant("constant of merged anchors left out", "regularisers/quadratic.py",
           ' + constants["rest"]', "", "tests/test_methods_penalties.py"),
    Mutant("gradient of SI's own penalty counted", "regularisers/path.py",
           "(gradient[name] - held)", "gradient[name]", "tests/test_methods_penalties.py"),
    Mutant("padded classes not masked", "regularisers/replay.py",
           " + absent[tasks][:, None]", "", "tests/test_methods_penalties.py"),
    Mutant("padded examples counted", "regularisers/replay.py",
           "torch.where(real, loss, 0.0)", "loss", "tests/test_methods_penalties.py"),
    Mutant("divergence of the predictions turned round", "regularisers/heads.py",
           "log_old.exp() * between", "log_new.exp() * -between", "tests/test_holds.py"),
    Mutant("½ of a regression task's divergence left out", "regularisers/heads.py",
           "0.5 * squares", "squares", "tests/test_holds.py"),
    Mutant("classes that an old task does not have counted", "regularisers/heads.py",
           "(there == 0) & (classes[:, None] > 0), -torch.inf)", "(there == 0) & (classes[:, None] > 0), 0.0)",
           "tests/test_holds.py"),
    Mutant("padded rows of old heads trained", "regularisers/heads.py",
           "return heads * self.own[..., None]", "return heads", "tests/test_holds.py"),
    Mutant("old functions summed over the minibatch", "regularisers/current_inputs.py",
           "apart.mean(1).sum()", "apart.sum()", "tests/test_holds.py"),
    Mutant("sampled tasks not scaled up at the current inputs", "regularisers/current_inputs.py",
           " * (tasks / part.tasks)", "", "tests/test_holds.py"),
    Mutant("sampled tasks not scaled up at stored predictions", "regularisers/memory_targets.py",
           " * (tasks / part.tasks)", "", "tests/test_holds.py"),
    Mutant("points that stand for themselves alone", "regularisers/memory_targets.py",
           "size / mean.shape[1]", "1.0", "tests/test_holds.py"),
    Mutant("old curvature without its decay", "regularisers/quadratic.py",
           "decay * before[name] + value", "before[name] + value", "tests/test_holds.py"),
    Mutant("anchor that aliases the live weights (missing clone)", "regularisers/curvature.py",
           "theta[name].detach().clone()", "theta[name].detach()", "tests/test_holds.py"),
    Mutant("noise left out of a regression task's curvature", "regularisers/fisher.py",
           "precision.expand(len(rows), -1)", "torch.ones_like(precision).expand(len(rows), -1)",
           "tests/test_holds.py"),
    Mutant("N left out of the stored predictions", "regularisers/memory_targets.py",
           "step.scale) / step.N", "step.scale)", "tests/test_plus.py"),
    Mutant("N left out of the curvature", "regularisers/quadratic.py",
           "return self.weight * total / step.N", "return self.weight * total", "tests/test_plus.py"),
    Mutant("network of the beginning that aliases the live one (missing clone)", "regularisers/current_inputs.py",
           "copied(task.theta) if task.past", "dict(task.theta) if task.past", "tests/test_plus.py"),
    Mutant("old heads of the wrong tasks", "regularisers/heads.py",
           "else step.heads[step.tasks]", "else step.heads[: len(step.tasks)]", "tests/test_plus.py"),
    Mutant("weight of the functional part ignored", "regularisers/functional.py",
           "return times(self.weight, kl / step.N)", "return kl / step.N", "tests/test_summary.py"),
    Mutant("one function of two classes taken for a softmax of one", "likelihoods/bernoulli.py",
           "return softmax_fisher_terms(with_zero(f))", "return softmax_fisher_terms(f)", "tests/test_plus.py"),
    Mutant("correction of an old head with the wrong sign", "summary.py",
           "moved = belief.mean.double().mT - Phi_z.double() @ v",
           "moved = Phi_z.double() @ v - belief.mean.double().mT", "tests/test_plus.py"),
    Mutant("σ_w left out of the correction of an old head", "summary.py",
           "weights=v + belief.prior_std * (head.P.mT @ moved)", "weights=v + (head.P.mT @ moved)",
           "tests/test_prior.py"),
    Mutant("σ_w not kept with a summary in function space", "learners/task.py",
           "belief_from_function(q, options.u_noise, std)", "belief_from_function(q, options.u_noise)",
           "tests/test_prior.py"),
    Mutant("the learned σ_w not kept with a summary", "learners/task.py",
           "std = options.prior.std(triangular(q))",
           "std = 1.0 if options.prior_std == 'learned' else options.prior.std(q)", "tests/test_prior.py"),
    Mutant("trained heads not given back to the summaries", "learners/task.py",
           "state.past = [*state.summaries(), summary]", "state.past = [*state.past, summary]", "tests/test_plus.py"),
    Mutant("copy of the network not counted", "regularisers/current_inputs.py",
           'return {"network": list(theta.values())}', "return {}", "tests/test_plus.py"),
    Mutant("share of a head's variance forgotten", "learners/predict.py",
           "variance = times(model.options.head_variance, variance)", "pass", "tests/test_plus.py"),
    Mutant("variance of a tempered function divided by T alone", "likelihoods/temperature.py",
           "variance / temperature.square()", "variance / temperature", "tests/test_best_temperature.py"),
    Mutant("prior of the temperature left out", "likelihoods/temperature.py",
           "0.5 * (log_tau.double() / PRIOR).square() - log_p.sum()", "-log_p.sum()", "tests/test_best_temperature.py"),
    Mutant("the wrong section of the temperatures kept", "likelihoods/temperature.py",
           "if at_left < at_right:", "if at_left > at_right:", "tests/test_best_temperature.py"),
    Mutant("examples held out are learned from all the same", "learners/task.py",
           "return (x[learned], y[learned]), (x[held], y[held])", "return (x, y), (x[held], y[held])",
           "tests/test_temperature.py"),
    Mutant("temperature chosen on what was learned from", "learners/task.py",
           "held, learned = rows[:count], rows[count:]", "held, learned = rows[-count:], rows[count:]",
           "tests/test_temperature.py"),
    Mutant("a class held out as a whole", "learners/task.py",
           "if bool(missing.any()):", "if False:", "tests/test_temperature.py"),
    Mutant("a task closed before all of it is known", "learners/frcl.py",
           "streams, after = self._state.streams.state(), self._state.snapshot()",
           "streams, after = self._state.streams.state(), self._state", "tests/test_temperature.py"),
    Mutant("temperature not used in a prediction", "learners/predict.py",
           "if temperature is not None:", "if temperature is None:", "tests/test_temperature.py"),
    Mutant("a seed that another process has is measured all the same", "paper/runs.py",
           "BusyError:\n                return False", "BusyError:\n                pass",
           "tests/paper/test_processes.py"),
    Mutant("an interrupted run not taken up", "paper/measure.py",
           "if run.seeds == set(unmeasured):", "if False:", "tests/paper/test_processes.py"),
    Mutant("seeds with other options put together", "paper/measure.py",
           "if stored is not None and differences(stored, state.cell.config()):", "if False:",
           "tests/paper/test_processes.py"),
    Mutant("result files written without waiting for each other", "paper/measure.py",
           'with locked(path.with_name(f".{path.stem}.lock"), wait=True):', "if True:",
           "tests/paper/test_processes.py"),
    Mutant("NLL and ECE chosen where they are highest", "experiment/tune.py",
           'value if by == "accuracy" else -value', "value", "tests/test_experiment_tune.py"),
    Mutant("calibration compared on other seeds", "paper/frontier.py",
           'if seed["seed"] in both', "", "tests/paper/test_frontier.py"),
    Mutant("variance between members left out", "learners/ensemble.py",
           " + centres.var(0, correction=0)", "", "tests/test_ensemble.py"),
    Mutant("members with one seed", "learners/ensemble.py",
           '{"seed": chosen.seed + i}', '{"seed": chosen.seed}', "tests/test_ensemble.py"),
    Mutant("some members left with a task that others could not begin", "learners/ensemble.py",
           "self.load_state_dict(before)", "pass", "tests/test_ensemble.py"),
)  # fmt: skip


def base_of(mutant: Mutant) -> Path:
    """The folder with the package that it changes."""
    return ROOT if mutant.file.startswith("paper/") else ROOT / "src"


def path_of(mutant: Mutant) -> Path:
    """The file that it changes."""
    base = base_of(mutant)
    return base / mutant.file if base == ROOT else base / "frcl" / mutant.file


def caught(mutant: Mutant) -> bool:
    """Whether the tests fail, by an assertion or an error inside a test, on the mutated package."""
    with tempfile.TemporaryDirectory() as folder:
        for package in (ROOT / "src" / "frcl", ROOT / "paper"):
            shutil.copytree(package, Path(folder) / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        target = Path(folder) / path_of(mutant).relative_to(base_of(mutant))
        target.write_text(target.read_text().replace(mutant.old, mutant.new))
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"),
            *("-o", f"pythonpath={folder}", mutant.tests),
        ]
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if result.returncode > 1:
            raise SystemExit(f"the tests could not run on {mutant.what!r}:\n{result.stdout}{result.stderr}")
        return result.returncode == 1


def main(words: list[str]) -> int:
    """All mutations, or those whose name, file or tests contain one of the words."""
    chosen = [one for one in MUTANTS if not words or any(w in f"{one.what} {one.file} {one.tests}" for w in words)]
    survivors = []
    for number, mutant in enumerate(chosen, 1):
        begin = time.perf_counter()
        found = caught(mutant)
        survivors += [] if found else [mutant]
        verdict = "caught" if found else "SURVIVED"
        print(f"{number:2}/{len(chosen)} {verdict:8} {time.perf_counter() - begin:5.1f} s  {mutant.what}", flush=True)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutations caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
