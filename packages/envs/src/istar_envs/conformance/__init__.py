"""Public test kit: what every environment of this family promises, as checks that anyone can run.

``check_env(env_id)`` runs all of ``CHECKS``; with pytest, parametrise over them::

    @pytest.mark.parametrize("check", istar_envs.conformance.CHECKS, ids=lambda check: check.__name__)
    def test_my_env(check):
        check("my/Env-v0")
"""

from istar_envs.conformance.checks import CHECKS, INFO_TYPES, Check, check_env
from istar_envs.conformance.play import episode_digest

__all__ = ["CHECKS", "INFO_TYPES", "Check", "check_env", "episode_digest"]
