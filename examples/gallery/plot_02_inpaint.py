"""
Fill in missing pixels
======================

Two thirds of the pixels are missing. Total variation fills them in, and a certificate bounds the gap to the minimum.
"""

import matplotlib.pyplot as plt
import numpy as np
from skimage.data import astronaut

import lmd

truth = astronaut()[20:148, 160:288]
kept = np.random.default_rng(0).random(truth.shape[:2]) < 0.35
filled, info = lmd.inpaint(np.where(kept[..., None], truth, 0), kept, weight=0.02, info=True)
print(info)

figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
pictures = (truth, np.where(kept[..., None], truth, 255), filled)
for axis, picture, title in zip(axes, pictures, ("truth", "what is kept", "filled in"), strict=True):
    axis.imshow(picture)
    axis.set_title(title)
    axis.axis("off")
