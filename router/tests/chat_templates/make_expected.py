"""Writes expected.json: what transformers' apply_chat_template renders. Run it when a template or a case changes."""

import json
from pathlib import Path

from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

HERE = Path(__file__).parent
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place: <now> & 'later', °C",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"default": 1.5}},
        },
    },
}
CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"place": 'Zürich "ZH"', "days": 2}},
}
CASES = {
    "question": {"messages": [{"role": "user", "content": "  Hello, wörld!\n"}]},
    "system": {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi {{ x }}"}],
    },
    "turns": {
        "messages": [
            {"role": "user", "content": "1"},
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\n two "},
            {"role": "user", "content": "3"},
        ],
        "add_generation_prompt": False,
    },
    "roles_do_not_alternate": {
        "messages": [{"role": "user", "content": "1"}, {"role": "user", "content": "2"}],
    },
    "tools": {"messages": [{"role": "user", "content": "Weather?"}], "tools": [TOOL, TOOL]},
    "tool_results": {
        "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call00001", "content": '{"sky": "blue"}'},
        ],
        "tools": [TOOL],
    },
    "kwargs": {
        "messages": [{"role": "user", "content": "Hi"}],
        "extra": {"enable_thinking": False, "date_string": "1 Jan 2026"},
    },
}


def render(source: str, case: dict) -> dict:
    try:
        rendered, _ = render_jinja_template(
            conversations=[case["messages"]],
            tools=case.get("tools"),
            chat_template=source,
            add_generation_prompt=case.get("add_generation_prompt", True),
            bos_token="<s>",
            eos_token="</s>",
            **case.get("extra", {}),
        )
    except TemplateError as error:
        return {"error": str(error)}
    return {"text": rendered[0]}


def main() -> None:
    templates = {path.stem: path.read_text() for path in sorted(HERE.glob("*.jinja"))}
    expected = {
        name: {case: render(source, CASES[case]) for case in CASES} for name, source in templates.items()
    }
    text = json.dumps({"cases": CASES, "expected": expected}, indent=1, ensure_ascii=False)
    (HERE / "expected.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
