"""Every recipe of the zoo, by name."""

from __future__ import annotations

from lmd.zoo import linear_recipes
from lmd.zoo.recipe import Recipe

RECIPES: dict[str, Recipe] = {**linear_recipes.RECIPES}
