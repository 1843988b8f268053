"""The protocols of arena as small state machines that a computer can search completely.

Start with ``spec/README.md``. ``spec.model`` shows how to write a model, ``spec.checker`` searches one,
``spec.models`` holds the protocols. Nothing here imports ``arena``.
"""
