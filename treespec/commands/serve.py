"""`treespec serve`: transformers' OpenAI-compatible server by speculation."""

from typing import Annotated, Any

import typer

from treespec.commands.console import say
from treespec.errors import ConfigError
from treespec.lab import smollm2

EXAMPLES = """Examples:

treespec serve ./my-model --port 8000

curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' -d '{"messages": [{"role": "user",
"content": "Write a haiku about rivers."}], "max_tokens": 64}'"""


def run(
    model: Annotated[str | None, typer.Argument(help="A folder or a hub name; none: SmolLM2-135M-Instruct.")] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "localhost",
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 8000,
    device: Annotated[str, typer.Option(help="Where the model runs: auto, cpu, cuda, ...")] = "auto",
    dtype: Annotated[str, typer.Option(help="The weights' dtype; auto: as in the files.")] = "auto",
) -> None:
    """Serve a model to OpenAI's clients by the fastest speculation that is at hand (`treespec.speed_up`).

    One request at a time: for more than a few users see vLLM. Exit code 0: stopped; 2: wrong use, or packages missing.
    """
    server, report = make_server(model, host=host, port=port, device=device, dtype=dtype)
    say(report)
    server.run()


def make_server(name: str | None, *, host: str, port: int, device: str, dtype: str) -> tuple[Any, str]:
    """A uvicorn server that has loaded its model, and the report of what drafts. Raises `ConfigError`: no packages."""
    try:
        import uvicorn
        from transformers.cli.serving.server import build_server
        from transformers.cli.serving.systemone import SystemOneHandler
        from transformers.cli.serving.transcription import TranscriptionHandler

        from treespec.commands import serving
    except ImportError as error:
        advice = "pip install 'treespec[serve]' (transformers 5.24 or newer)"
        raise ConfigError(f"treespec serve needs transformers' server: {advice}; {error}") from error
    if name is None:
        smollm2.load()  # Converts it at the first time.
        name = str(smollm2.converted_folder())
    models = serving.SpeculatingModels(device=device, dtype=dtype, force_model=name)
    states = serving.NamedStates()
    parts = {"model_manager": models, "generation_state": states}
    app = build_server(
        models,
        serving.Chat(**parts),
        completion_handler=serving.Completion(**parts),
        response_handler=serving.Responses(**parts),
        transcription_handler=TranscriptionHandler(models, states),
        systemone_handler=SystemOneHandler(**parts),
        generation_state=states,
    )
    (loaded,) = models.loaded_models.values()
    report = str(vars(loaded.model)["generate"].speculation)
    return uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="warning")), report
