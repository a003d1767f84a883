"""FRCL+ in Avalanche: five tasks of two digits each, learned one after another, evaluated by Avalanche's metrics."""

import torch
from avalanche.benchmarks import tensors_benchmark
from avalanche.evaluation.metrics import accuracy_metrics, forgetting_metrics
from avalanche.training.plugins import EvaluationPlugin
from sklearn.datasets import load_digits

import frcl
from frcl.adapters.avalanche import FRCLStrategy

pixels, digits = load_digits(return_X_y=True)
x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
train, test = [], []
for task in range(5):
    own = (y // 2 == task).nonzero()[:, 0]
    train.append((x[own[60:]], y[own[60:]]))
    test.append((x[own[:60]], y[own[:60]]))

for name, labels in (("multi-head", [0, 1, 2, 3, 4]), ("single-head", [0] * 5)):
    benchmark = tensors_benchmark(train_tensors=train, test_tensors=test, task_labels=labels)
    learner = frcl.FRCLPlus(frcl.MLP(64, (64, 64)), points=20, steps=300, lr=3e-3)
    metrics = EvaluationPlugin(accuracy_metrics(stream=True), forgetting_metrics(stream=True), loggers=[])
    strategy = FRCLStrategy(learner=learner, evaluator=metrics)
    for experience in benchmark.train_stream:
        strategy.train(experience)
        found = strategy.eval(benchmark.test_stream)
    values = {key.split("/")[0]: value for key, value in found.items()}
    print(f"{name}: {values['Top1_Acc_Stream']:.1%} correct, forgetting {values['StreamForgetting']:.3f}")
