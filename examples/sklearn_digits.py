"""FRCL+ as an estimator of scikit-learn: five calls of partial_fit with two digits each, against one fit of all ten."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from frcl.sklearn import FRCLClassifier

X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)

at_once = FRCLClassifier(random_state=0).fit(X, y)
one_by_one = FRCLClassifier(random_state=0)
for task in range(5):
    rows = np.isin(y, (2 * task, 2 * task + 1))
    one_by_one.partial_fit(X[rows], y[rows])  # new classes in every call; the data of earlier calls are gone

for name, model in (("one fit", at_once), ("five calls of partial_fit", one_by_one)):
    print(f"{name}: {100 * model.score(X_test, y_test):.1f}% correct over {len(model.classes_)} digits")
