"""The engine: Adam, programs alone and together, the random streams they draw from."""

import warnings

import pytest
import torch
from torch import nn

from frcl.engine.adam import Optimiser, stacked
from frcl.engine.batching import Alone, Block, can_stack
from frcl.engine.program import ROWS, Program, Terms
from frcl.engine.tensors import leaf
from frcl.engine.train import train
from frcl.errors import NumericalError, TaskError
from frcl.seeding import Streams

D = torch.float64


def regression(seed: int, *, stop: int = 30, dtype=D, rows: int = 50, chunk: int = 7, **changes) -> Program:
    """Noisy least squares: the loss reads a constant, a minibatch and noise."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=g, dtype=dtype)
    y = torch.randn(rows, generator=g, dtype=dtype)
    params = {"w": leaf(torch.randn(3, generator=g, dtype=dtype)), "b": leaf(torch.zeros((), dtype=dtype))}
    streams = Streams(seed, torch.device("cpu"))

    def draw(steps):
        return {
            ROWS: torch.randint(rows, (steps, 4), generator=streams["batches"]),
            "noise": torch.randn(steps, 3, generator=streams["likelihood"], dtype=dtype),
        }

    def loss(params, constants, x, y, noise):
        fit = (x @ (params["w"] + 0.1 * noise["noise"]) + params["b"] - y).square().mean()
        held = constants["pull"] * params["w"].square().sum()
        return Terms(fit + held, -fit, fit.new_zeros(()), held)

    given = {
        "net": nn.Identity(), "loss": loss, "optimiser": Optimiser(params, 0.01),
        "constants": {"pull": torch.tensor(0.1 * seed, dtype=dtype)},
        "x": x, "y": y, "draw": draw, "streams": streams, "step": 0, "stop": stop, "advance": lambda: None,
        "chunk": chunk,
    }  # fmt: skip
    return Program(**{**given, **changes})


def run(programs) -> list:
    return [step for taken in train(programs) for step in taken]


def test_adam_is_the_adam_of_torch():
    g = torch.Generator().manual_seed(0)
    values = {
        "a": torch.randn(4, 3, generator=g),
        "b": torch.randn(5, generator=g),
        "c": torch.randn(2, generator=g, dtype=D),
    }
    ours, theirs = ({name: leaf(v) for name, v in values.items()} for _ in range(2))
    optimiser, reference = Optimiser(ours, 0.03), torch.optim.Adam(theirs.values(), lr=0.03)

    def loss(params):
        return sum((k + 1) * (p.double() - k).pow(4).sum() for k, p in enumerate(params.values()))

    for _ in range(20):
        optimiser.step(loss(ours))
        reference.zero_grad()
        loss(theirs).backward()
        reference.step()
    for name in values:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_rate_that_falls_is_that_of_a_schedule_of_torch(dtype):
    """Ten steps, of which the rate falls over the last four: 1, …, 1, 1, 3/4, 1/2, 1/4 of it; then nothing moves."""
    start = torch.tensor([1.0, -2.0, 3.0], dtype=dtype)
    ours, theirs = {"w": leaf(start)}, start.clone().requires_grad_()
    optimiser, reference = Optimiser(ours, 0.05), torch.optim.Adam([theirs], lr=0.05)
    optimiser.falls(10, 0.4)
    share = [1.0] * 7 + [0.75, 0.5, 0.25]
    for factor in share:
        for group in reference.param_groups:
            group["lr"] = 0.05 * factor
        optimiser.step((ours["w"] ** 4).sum())
        reference.zero_grad()
        (theirs**4).sum().backward()
        reference.step()
    torch.testing.assert_close(ours["w"], theirs)
    after = ours["w"].detach().clone()
    optimiser.step((ours["w"] ** 4).sum())
    assert torch.equal(ours["w"], after)


def test_stacked_optimisers_fall_as_each():
    def falling(i):
        one = Optimiser({"w": leaf(torch.full((2,), float(i)))}, 0.1)
        one.falls(4, 1.0)
        return one

    each, alone = [falling(i) for i in range(3)], [falling(i) for i in range(3)]
    block = stacked(each)
    for _ in range(3):
        block.step((block.params["w"] ** 2).sum())
        for one in alone:
            one.step((one.params["w"] ** 2).sum())
    for one, lone in zip(each, alone, strict=True):
        torch.testing.assert_close(one.params["w"], lone.params["w"])


def test_adam_takes_a_gradient_of_any_layout():
    w, slope = torch.randn(3, 4), torch.randn(4, 3).mT
    first, second = Optimiser({"w": leaf(w)}, 0.1), Optimiser({"w": leaf(w)}, 0.1)
    first.apply({"w": slope})
    second.apply({"w": slope.contiguous()})
    assert torch.equal(first.params["w"], second.params["w"])


def test_an_optimiser_goes_on_from_its_state():
    params = {"w": leaf(torch.ones(3))}
    whole = Optimiser(params, 0.1)
    assert whole.state() == {}
    for _ in range(3):
        whole.step(params["w"].square().sum())
    copy = {"w": leaf(params["w"])}
    second = Optimiser(copy, 0.1)
    second.restore(whole.state())
    whole.step(params["w"].square().sum())
    second.step(copy["w"].square().sum())
    assert torch.equal(params["w"], copy["w"])


def test_stacked_optimisers_are_slices_of_one():
    each = [Optimiser({"w": leaf(torch.full((2,), float(i)))}, 0.1) for i in range(3)]
    block = stacked(each)
    block.step(block.params["w"].square().sum())
    for i, one in enumerate(each):
        assert one.params["w"].data_ptr() == block.params["w"][i].data_ptr()
        lone = Optimiser({"w": leaf(torch.full((2,), float(i)))}, 0.1)
        lone.step(lone.params["w"].square().sum())
        assert torch.equal(one.params["w"], lone.params["w"])
        assert torch.equal(one.state()["w::exp_avg"], lone.state()["w::exp_avg"])
        assert float(one.state()["w::step"]) == 1.0


def test_the_loss_goes_down_and_the_terms_add_up():
    logs = run([regression(1, stop=400)])
    assert len(logs) == 400
    assert sum(step[0][0] for step in logs[-50:]) < sum(step[0][0] for step in logs[:50])
    for loss, log_likelihood, now, past in (step[0] for step in logs):
        assert loss == pytest.approx(-log_likelihood + now + past)


@pytest.mark.parametrize(("dtype", "tolerance"), [(D, 1e-12), (torch.float32, 1e-5)])
def test_together_each_is_what_it_is_alone(dtype, tolerance):
    lone = [regression(seed, dtype=dtype) for seed in range(3)]
    logs = [run([program]) for program in lone]
    group = [regression(seed, dtype=dtype) for seed in range(3)]
    assert can_stack(group)
    both = run(group)
    for i, (one, other) in enumerate(zip(lone, group, strict=True)):
        for name, value in one.optimiser.params.items():
            torch.testing.assert_close(other.optimiser.params[name], value, rtol=tolerance, atol=tolerance)
        for alone, shared in zip(logs[i], both, strict=True):
            assert shared[i] == pytest.approx(alone[0], rel=10 * tolerance)
        assert torch.equal(one.streams["batches"].get_state(), other.streams["batches"].get_state())


def test_different_numbers_of_examples_stack_and_different_shapes_do_not():
    assert can_stack([regression(0, rows=50), regression(1, rows=40)])
    assert not can_stack([regression(0), regression(1, dtype=torch.float32)])
    assert not can_stack([regression(0), regression(1, signature="another loss")])
    assert not can_stack([regression(0, stackable=False), regression(1)])
    logs = run([regression(0), regression(1, dtype=torch.float32)])
    assert logs[3][0] == run([regression(0)])[3][0]


def test_a_loss_that_cannot_be_batched_runs_one_by_one():
    group, lone = [regression(seed) for seed in range(2)], [regression(seed) for seed in range(2)]
    for program in [*group, *lone]:
        inner = program.loss

        def branching(params, constants, x, y, noise, inner=inner):
            return inner(params, constants, x, y, noise) if float(params["b"].detach()) < 1e9 else None

        program.loss = branching
    with pytest.warns(UserWarning, match="cannot be batched"):
        run(group)
    run(lone[:1])
    assert torch.equal(group[0].optimiser.params["w"], lone[0].optimiser.params["w"])


@pytest.mark.parametrize("at", [1, 6, 7, 8, 14, 29])
def test_interrupted_anywhere_it_goes_on_exactly(at):
    """From the same objects, and from a copy made of what may be saved at that moment."""
    whole, stopped, copy = regression(3), regression(3), regression(3)
    run([whole])
    steps = train([stopped])
    for _ in range(at):
        next(steps)
    copy.optimiser.restore(stopped.optimiser.state())
    for name, value in stopped.optimiser.params.items():
        copy.optimiser.params[name].data.copy_(value)
    copy.streams.restore(stopped.streams.state())
    copy.step = stopped.step
    assert stopped.step == at
    steps.close()
    run([stopped])
    run([copy])
    for program in (stopped, copy):
        assert torch.equal(program.optimiser.params["w"], whole.optimiser.params["w"])
        assert torch.equal(program.streams["likelihood"].get_state(), whole.streams["likelihood"].get_state())


@pytest.mark.parametrize("count", [1, 3])
def test_steps_taken_a_chunk_at_a_time_are_the_same_steps(count, monkeypatch):
    """The loop that a GPU runs, here without a recording: same terms, same parameters, also from within a chunk."""
    import frcl.engine.train as module

    each, chunked = [regression(seed) for seed in range(count)], [regression(seed) for seed in range(count)]
    expected = run(each)
    steps = train(chunked)
    for _ in range(10):
        next(steps)
    steps.close()
    monkeypatch.setattr(module, "_Eager", module._Recorded)
    assert [len(taken) for taken in train(chunked)] == [4, 7, 7, 2]
    monkeypatch.undo()
    monkeypatch.setattr(module, "_Eager", module._Recorded)
    whole = [regression(seed) for seed in range(count)]
    assert run(whole) == expected
    for one, other, third in zip(each, chunked, whole, strict=True):
        assert torch.equal(one.optimiser.params["w"], other.optimiser.params["w"])
        assert torch.equal(one.optimiser.params["w"], third.optimiser.params["w"])


def test_a_chunk_with_a_loss_that_is_not_finite_is_refused(monkeypatch):
    import frcl.engine.train as module

    monkeypatch.setattr(module, "_Eager", module._Recorded)
    with pytest.raises(NumericalError):
        run([regression(0, constants={"pull": torch.tensor(float("inf"), dtype=D)})])


def test_programs_at_different_steps_are_refused():
    with pytest.raises(TaskError, match="same step"):
        run([regression(0), regression(1, step=3)])
    assert run([]) == []
    assert run([regression(0, step=30)]) == []


@pytest.mark.parametrize("count", [1, 2])
def test_a_loss_that_is_not_finite_is_refused_before_its_step(count):
    programs = [regression(seed) for seed in range(count)]
    programs[-1].constants["pull"] = torch.tensor(float("nan"), dtype=D)
    before = programs[0].optimiser.params["w"].clone()
    with pytest.raises(NumericalError, match="this step was not taken"):
        run(programs)
    assert torch.equal(programs[0].optimiser.params["w"], before)


@pytest.mark.parametrize("unit", [Alone, lambda program: Block([program])])
def test_a_carry_follows_every_step(unit):
    """Δw summed over the steps is where w went; a block's carry is seen by its programs."""

    def follow(carry, constants, gradient, before, after):
        carry["moved"] += after["w"] - before["w"]

    program = regression(2, carry={"moved": torch.zeros(3, dtype=D)}, follow=follow)
    start = program.optimiser.params["w"].detach().clone()
    one = unit(program)
    one.load([program.drawn()])
    for at in range(5):
        one.move(one.terms(at))
    torch.testing.assert_close(program.carry["moved"], program.optimiser.params["w"].detach() - start)
    assert float(program.carry["moved"].abs().sum()) > 0


def test_streams_that_are_held_save_what_was_before():
    streams = Streams(0, torch.device("cpu"))
    before = streams.state()
    streams.hold()
    first = torch.rand(3, generator=streams["batches"])
    assert all(torch.equal(streams.state()[name], value) for name, value in before.items())
    streams.rewind()
    assert torch.equal(torch.rand(3, generator=streams["batches"]), first)
    streams.hold()
    streams.release()
    assert not torch.equal(streams.state()["batches"], before["batches"])


def test_no_warning_where_all_is_well():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run([regression(0, stop=5), regression(1, stop=5)])
