"""
An SVM for scikit-learn
=======================

A scikit-learn estimator whose objective is proven to be within `gap_` of its minimum.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_blobs
from sklearn.inspection import DecisionBoundaryDisplay

from lmd.compat.sklearn import LinearSVC

X, y = make_blobs(120, centers=3, random_state=4)
machine = LinearSVC(C=1.0).fit(X, y)
print(f"accuracy {machine.score(X, y):.2f}, objective within {machine.gap_:.1e} of its minimum")

figure, axis = plt.subplots(figsize=(5, 4), layout="constrained")
DecisionBoundaryDisplay.from_estimator(machine, X, response_method="predict", alpha=0.3, ax=axis, grid_resolution=80)
axis.scatter(*X.T, c=y, edgecolor="k", s=np.full(len(y), 18))
