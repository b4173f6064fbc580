"""Shapes and types of the tensor modules are checked at run time while the tests run."""

from jaxtyping import install_import_hook

SHAPE_CHECKED = ("masked", "implicit_reward", "attribution", "advantages", "losses", "batch", "model")

install_import_hook([f"istar_trainer.{name}" for name in SHAPE_CHECKED], "beartype.beartype")
