"""Every recipe of the zoo, by name."""

from __future__ import annotations

from lmd.zoo import composite_recipes, imaging_recipes, linear_recipes
from lmd.zoo.recipe import Recipe

RECIPES: dict[str, Recipe] = {**linear_recipes.RECIPES, **composite_recipes.RECIPES, **imaging_recipes.RECIPES}
