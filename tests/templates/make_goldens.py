#!/usr/bin/env python3
"""Renders every NAME.jinja of a directory over dialogues.json with Python's jinja2, set up as transformers does
it (utils/chat_template_utils.py), and writes goldens.json there; and the templates in snippets.json, each over the dialogue "system".
Needs: pip install jinja2

    make_goldens.py [DIRECTORY]     default: where this file is
"""
import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

HERE = pathlib.Path(__file__).resolve().parent
NOW = datetime.datetime(2026, 1, 26, 12, 0, 0, tzinfo=datetime.timezone.utc)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}: what the assistant writes. It changes nothing of the text."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_pass")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _pass(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    out = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    out.filters["tojson"] = tojson
    out.globals["raise_exception"] = raise_exception
    out.globals["strftime_now"] = lambda format: NOW.strftime(format)
    return out


def final_text(messages):
    content = messages[-1]["content"]
    return content if isinstance(content, str) else [part["text"] for part in content if "text" in part][-1]


def render(template, dialogue, tools):
    try:
        text = template.render(
            messages=dialogue["messages"], tools=tools.get(dialogue.get("tools")), documents=dialogue.get("documents"),
            add_generation_prompt=dialogue.get("add_generation_prompt", True), **TOKENS, **dialogue.get("variables", {}))
        if dialogue.get("continue_final_message"):
            final = final_text(dialogue["messages"])
            if final.strip() not in text:
                raise ValueError("not shown")
            at = text.rindex(final.strip())
            text = text[: at + len(final.lstrip())] if text[at : at + len(final.lstrip())] == final else text[: at + len(final.strip())]
        return {"text": text}
    except Exception as error:  # a template may fail in any way that Python does
        return {"error": f"{type(error).__name__}: {error}"}


def render_snippet(text, dialogue, tools):
    try:
        template = environment().from_string(text)
    except SyntaxError as error:  # Python's own: a break outside of a loop
        return {"error": f"SyntaxError: {error}"}
    except jinja2.TemplateSyntaxError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return render(template, dialogue, tools)


def main():
    where = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    dialogues = json.loads((HERE / "dialogues.json").read_text())
    tools = json.loads((HERE / "tools.json").read_text())
    goldens = {}
    for path in sorted(where.glob("*.jinja")):
        try:
            template = environment().from_string(path.read_text())
        except jinja2.TemplateSyntaxError as error:
            sys.exit(f"{path}:{error.lineno}: {error}")
        goldens[path.stem] = {name: render(template, dialogue, tools) for name, dialogue in dialogues.items()}
        failed = [name for name, golden in goldens[path.stem].items() if "error" in golden]
        print(f"{path.stem}: {len(goldens[path.stem]) - len(failed)} rendered, refused: {', '.join(failed) or 'none'}")
    out = {"jinja2": jinja2.__version__, "goldens": goldens}
    if where == HERE:
        snippets = json.loads((HERE / "snippets.json").read_text())
        out["snippets"] = [render_snippet(snippet, dialogues["system"], tools) for snippet in snippets]
    (where / "goldens.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
