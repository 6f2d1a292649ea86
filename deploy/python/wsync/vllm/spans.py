"""Adds to each answer of vLLM's OpenAI routes which versions have computed its tokens.

vLLM knows it (`CompletionOutput.weight_versions`), and returns it on its own route `/inference/v1/generate`. Here the choices of
`/v1/completions` and `/v1/chat/completions` get the same field, if the answer is not streamed.
"""
from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from typing import Any


def _note(choices: Any, outputs: Any) -> None:
    for choice, output in zip(choices, outputs):
        choice.weight_versions = [{"version": span.version, "start": span.start, "end": span.end}
                                  for span in output.weight_versions or []]


def add() -> None:
    """Wraps the methods that make the answers. May be called several times in one process."""
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
    if not hasattr(OpenAIServingCompletion.request_output_to_completion_response, "__wrapped__"):
        OpenAIServingCompletion.request_output_to_completion_response = _completions(
            OpenAIServingCompletion.request_output_to_completion_response)
        OpenAIServingChat.chat_completion_full_generator = _chats(OpenAIServingChat.chat_completion_full_generator)


def _completions(answer: Any) -> Any:
    @functools.wraps(answer)
    def with_versions(self: Any, results: Any, *arguments: Any, **more: Any) -> Any:
        response = answer(self, results, *arguments, **more)
        # With `echo` and without tokens a choice may be left out, and the numbers would not fit.
        outputs = [output for result in results for output in result.outputs]
        if len(outputs) == len(response.choices):
            _note(response.choices, outputs)
        return response
    return with_versions


def _chats(answer: Any) -> Any:
    @functools.wraps(answer)
    async def with_versions(self: Any, request: Any, results: AsyncIterator, *arguments: Any, **more: Any) -> Any:
        last: list = []

        async def seen() -> AsyncIterator:
            async for result in results:
                last[:] = [result]
                yield result

        response = await answer(self, request, seen(), *arguments, **more)
        choices = getattr(response, "choices", None)  # an error has none
        if choices and last:
            _note(choices, last[0].outputs)
        return response
    return with_versions
