"""The engine: Adam, programs alone and together, the random streams they draw from."""

import warnings
from operator import itemgetter

import pytest
import torch
from torch import nn

from frcl.engine.batching import Block, can_stack
from frcl.engine.program import Drawn, Program, Streams, Terms, Unit, gradient
from frcl.engine.train import Optimiser, StreamSteps, train
from frcl.errors import NumericalError, TaskError
from frcl.trees import leaf, tree_map

D = torch.float64


def regression(
    seed: int, *, stop: int = 30, dtype=D, rows: int = 50, chunk: int = 7, step: int = 0, **changes
) -> Program:
    """Noisy least squares: the loss reads a constant, a minibatch and noise."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=g, dtype=dtype)
    y = torch.randn(rows, generator=g, dtype=dtype)
    params = {"w": leaf(torch.randn(3, generator=g, dtype=dtype)), "b": leaf(torch.zeros((), dtype=dtype))}
    streams = Streams(seed, torch.device("cpu"))

    def draw(steps):
        return Drawn(
            torch.randint(rows, (steps, 4), generator=streams["batches"]),
            torch.randn(steps, 3, generator=streams["likelihood"], dtype=dtype),
        )

    def loss(params, constants, x, y, draws):
        fit = (x @ (params["w"] + 0.1 * draws) + params["b"] - y).square().mean()
        held = constants["pull"] * params["w"].square().sum()
        return Terms(fit + held, -fit, fit.new_zeros(()), held)

    given = {
        "net": nn.Identity(), "loss": loss, "optimiser": Optimiser(params, 0.01),
        "constants": {"pull": torch.tensor(0.1 * seed, dtype=dtype)},
        "x": x, "y": y, "draw": draw, "streams": streams, "stop": stop, "chunk": chunk,
    }  # fmt: skip
    program = Program(**{**given, **changes})
    program.optimiser.steps = step
    return program


def step(optimiser: Optimiser, loss: torch.Tensor) -> None:
    """One step down the gradient of a loss."""
    optimiser.apply(gradient(loss, optimiser.params))
    optimiser.steps += 1


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
        step(optimiser, loss(ours))
        reference.zero_grad()
        loss(theirs).backward()
        reference.step()
    for name in values:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_decaying_lr_is_that_of_a_schedule_of_torch(dtype):
    """Ten steps, lr decaying over the last four: 1, …, 1, 1, 3/4, 1/2, 1/4 of it; then nothing moves."""
    start = torch.tensor([1.0, -2.0, 3.0], dtype=dtype)
    ours, theirs = {"w": leaf(start)}, start.clone().requires_grad_()
    optimiser, reference = Optimiser(ours, 0.05), torch.optim.Adam([theirs], lr=0.05)
    optimiser.decay = 10.0, 4.0
    share = [1.0] * 7 + [0.75, 0.5, 0.25]
    for factor in share:
        for group in reference.param_groups:
            group["lr"] = 0.05 * factor
        step(optimiser, (ours["w"] ** 4).sum())
        reference.zero_grad()
        (theirs**4).sum().backward()
        reference.step()
    torch.testing.assert_close(ours["w"], theirs)
    after = ours["w"].detach().clone()
    step(optimiser, (ours["w"] ** 4).sum())
    assert torch.equal(ours["w"], after)


def test_stacked_optimisers_decay_as_each():
    def falling(i):
        one = Optimiser({"w": leaf(torch.full((2,), float(i)))}, 0.1)
        one.decay = 4.0, 4.0
        return one

    each, alone = [falling(i) for i in range(3)], [falling(i) for i in range(3)]
    block = Optimiser.joined(each)
    for _ in range(3):
        step(block, (block.params["w"] ** 2).sum())
        for one in alone:
            step(one, (one.params["w"] ** 2).sum())
    for one, lone in zip(each, alone, strict=True):
        torch.testing.assert_close(one.params["w"], lone.params["w"])


def test_adam_takes_a_gradient_of_any_layout():
    w, given = torch.randn(3, 4), torch.randn(4, 3).mT
    first, second = Optimiser({"w": leaf(w)}, 0.1), Optimiser({"w": leaf(w)}, 0.1)
    first.apply({"w": given})
    second.apply({"w": given.contiguous()})
    assert torch.equal(first.params["w"], second.params["w"])


def test_an_optimiser_goes_on_from_its_state():
    params = {"w": leaf(torch.ones(3))}
    whole = Optimiser(params, 0.1)
    assert whole.state().steps == 0
    for _ in range(3):
        step(whole, params["w"].square().sum())
    copy = {"w": leaf(params["w"])}
    second = Optimiser(copy, 0.1)
    second.restore(whole.state())
    step(whole, params["w"].square().sum())
    step(second, copy["w"].square().sum())
    assert torch.equal(params["w"], copy["w"])


def test_stacked_optimisers_are_slices_of_one():
    each = [Optimiser({"w": leaf(torch.full((2,), float(i)))}, 0.1) for i in range(3)]
    block = Optimiser.joined(each)
    step(block, block.params["w"].square().sum())
    for i, one in enumerate(each):
        assert one.params["w"].data_ptr() == block.params["w"][i].data_ptr()
        lone = Optimiser({"w": leaf(torch.full((2,), float(i)))}, 0.1)
        step(lone, lone.params["w"].square().sum())
        assert torch.equal(one.params["w"], lone.params["w"])
        assert torch.equal(one.state().exp_avg["w"], lone.state().exp_avg["w"])
        assert float(one._count) == 1.0


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

        def branching(params, constants, x, y, draws, inner=inner):
            return inner(params, constants, x, y, draws) if float(params["b"].detach()) < 1e9 else None

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
    monkeypatch.setattr(module, "can_record", lambda _: True)
    assert [len(taken) for taken in train(chunked)] == [4, 7, 7, 2]
    monkeypatch.undo()
    monkeypatch.setattr(module, "can_record", lambda _: True)
    whole = [regression(seed) for seed in range(count)]
    assert run(whole) == expected
    for one, other, third in zip(each, chunked, whole, strict=True):
        assert torch.equal(one.optimiser.params["w"], other.optimiser.params["w"])
        assert torch.equal(one.optimiser.params["w"], third.optimiser.params["w"])


def test_a_chunk_with_a_loss_that_is_not_finite_is_refused(monkeypatch):
    import frcl.engine.train as module

    monkeypatch.setattr(module, "can_record", lambda _: True)
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


@pytest.mark.parametrize("unit", [Unit, lambda program: Block([program])])
def test_a_carry_follows_every_step(unit):
    """Δw summed over the steps is where w went; a block's carry is seen by its programs."""

    def follow(carry, constants, gradient, before, after):
        carry["moved"] += after["w"] - before["w"]

    program = regression(2, carry={"moved": torch.zeros(3, dtype=D)}, follow=follow)
    start = program.optimiser.params["w"].detach().clone()
    one = unit(program)
    one.load()
    for at in range(5):
        one.move(*one.computed(tree_map(itemgetter(at), one.drawn)))
    torch.testing.assert_close(program.carry["moved"], program.optimiser.params["w"].detach() - start)
    assert float(program.carry["moved"].abs().sum()) > 0


def test_streams_that_are_held_save_what_was_before():
    streams = Streams(0, torch.device("cpu"))
    before = streams.state()
    streams.hold()
    first = torch.rand(3, generator=streams["batches"])
    assert all(torch.equal(streams.state()[name], value) for name, value in before.items())
    streams.restore(streams.state())
    assert torch.equal(torch.rand(3, generator=streams["batches"]), first)
    streams.hold()
    streams.held = None
    assert not torch.equal(streams.state()["batches"], before["batches"])


def test_no_warning_where_all_is_well():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run([regression(0, stop=5), regression(1, stop=5)])


def test_a_stream_takes_the_steps_of_a_program(monkeypatch):
    """One minibatch at a time, with the draws of a program whose chunk is one step; also through the loop of a GPU."""
    import frcl.engine.train as module

    whole, fed = regression(3, stop=12, chunk=1), regression(3, stop=12, chunk=1)
    expected = run([whole])
    rows = torch.Generator()
    rows.set_state(fed.streams["batches"].get_state())
    inner = fed.draw
    fed.draw = lambda steps: Drawn(None, inner(steps).draws)
    x, y, stream = fed.x, fed.y, StreamSteps(fed)
    for number in range(12):
        at = torch.randint(50, (4,), generator=rows)
        if number == 6:  # from here as it is recorded on CUDA, without a graph
            monkeypatch.setattr(module, "EAGER", 6)
            monkeypatch.setattr(module, "can_record", lambda _: True)
        values = stream.step(x[at], y[at])
        assert values == pytest.approx(expected[number][0], rel=1e-12)
    assert isinstance(stream.recorded, module.Recorded)
    torch.testing.assert_close(fed.optimiser.params["w"], whole.optimiser.params["w"], rtol=1e-12, atol=1e-12)
    assert fed.step == 12


@pytest.mark.parametrize("count", [1, 2])
def test_every_minibatch_is_shown_once_after_its_step(count, monkeypatch):
    import frcl.engine.train as module

    for recorded in (False, True):
        monkeypatch.setattr(module, "can_record", lambda _, recorded=recorded: recorded)
        seen: list[list] = [[] for _ in range(count)]
        programs = [
            regression(seed, stop=17, look=lambda x, y, number, own=own: own.append((number, x.clone(), y.clone())))
            for seed, own in enumerate(seen)
        ]
        run(programs)
        for seed, (program, own) in enumerate(zip(programs, seen, strict=True)):
            drawn = Streams(seed, torch.device("cpu"))["batches"]
            rows = torch.cat([torch.randint(50, (n, 4), generator=drawn) for n in (7, 7, 3)])
            assert [number for number, _, _ in own] == list(range(1, 18))
            for (_, x, y), at in zip(own, rows, strict=True):
                assert torch.equal(x, program.x[at])
                assert torch.equal(y, program.y[at])
