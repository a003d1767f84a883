"""Three tasks of digits, exported to one ONNX file and predicted by onnxruntime, without frcl and without the task."""

import json

import onnxruntime
import torch
from sklearn.datasets import load_digits

import frcl

pixels, digits = load_digits(return_X_y=True)
x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
learner = frcl.FRCLPlus(frcl.MLP(64, (64, 64)), points=20, steps=300, task_inference="exact")
for pair in ((0, 1), (2, 3), (4, 5)):
    own = torch.isin(y[:1000], torch.tensor(pair)).nonzero()[:, 0]
    learner.fit(x[own], y[own])
learner.export_onnx("digits.onnx")

session = onnxruntime.InferenceSession("digits.onnx", providers=["CPUExecutionProvider"])
classes = torch.tensor(json.loads(session.get_modelmeta().custom_metadata_map["classes"]))
test = (y[1000:] < 6).nonzero()[:, 0] + 1000
(probs,) = session.run(["probs"], {"x": x[test].numpy()})
correct = (classes[probs.argmax(1)] == y[test]).float().mean()
print(f"onnxruntime: {100 * correct:.1f}% correct of {len(test)} digits")
