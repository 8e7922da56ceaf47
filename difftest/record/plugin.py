"""The vLLM plugin (entry point group `vllm.general_plugins`): loaded in every process of every engine.

Without DIFFTEST_CAPTURE it returns at once: nothing is imported, nothing is patched.
"""

import os

_registered = False


def register() -> None:
    """Called by vLLM in its main process, the engine core and every worker, and by pytest. Never raises.

    What is recorded is settled by the first call in a process; the others do nothing.
    """
    global _registered
    if _registered or not os.environ.get("DIFFTEST_CAPTURE"):
        return
    _registered = True
    try:
        from difftest.record.install import install

        install(os.environ)
    except Exception as error:
        import sys

        print(f"difftest: nothing is recorded: {type(error).__name__}: {error}", file=sys.stderr)
